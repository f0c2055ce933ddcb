"""One task in a process of its own: `python -m benchmarks.one calls.rerun ROUNDS [--quick]` prints what it measured."""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from pathlib import Path

from .harness import Bench, measure
from .peers import quiet


def main() -> None:
    group, _, name = sys.argv[1].partition(".")
    quiet()
    with tempfile.TemporaryDirectory(prefix="oncemore-bench-", ignore_cleanup_errors=True) as folder:
        os.chdir(folder)  # some peers write where they stand
        os.environ["XDG_CONFIG_HOME"] = os.environ["XDG_CACHE_HOME"] = folder  # a secret and a cache of its own
        task = importlib.import_module(f"benchmarks.{group}").TASKS[name](Bench(Path(folder), "--quick" in sys.argv))
        found = {"task": task.name, "group": group, **measure(task, int(sys.argv[2]))}
    print(f"\n{json.dumps(found)}")


if __name__ == "__main__":
    main()
