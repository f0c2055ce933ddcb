"""The script of the README. Start it, see it fail, write rate.txt, start it once more."""

import time
from pathlib import Path

from oncemore import checkpoint_scope, checkpointed


@checkpointed
def fetch(page):
    print("fetching page", page)
    time.sleep(0.7)  # imagine a minute here
    return [10 * page + i for i in range(3)]


@checkpointed
def total(rows, rate):
    print("adding up", len(rows), "rows")
    return sum(rows) * rate


with checkpoint_scope("quickstart") as run:
    rows = fetch(1) + fetch(2) + fetch(3)
    rate = float(Path("rate.txt").read_text())
    print("total:", total(rows, rate))

print("ran:", dict(run.ran), "reused:", dict(run.reused))
