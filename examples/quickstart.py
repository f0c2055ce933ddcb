"""The script in the README: run it, watch it fail, create rate.txt, run it once more."""

import time
from pathlib import Path

from oncemore import checkpoint_scope, checkpointed


@checkpointed
def fetch(page):
    time.sleep(0.7)  # imagine a minute here
    return [10 * page + i for i in range(3)]


with checkpoint_scope("quickstart"):
    rows = fetch(1) + fetch(2) + fetch(3)
    rate = float(Path("rate.txt").read_text())
    print("total:", sum(rows) * rate)
