"""Damages and attacks a finished run at random places, and resumes it: every result is right, and nothing planted is executed.

    python -m tests.faults.attacks COUNT SEED        in the current folder, which should be empty

`damage` has one entry that was changed, `pages` a database with bytes overwritten anywhere, `planted` an entry with a pickle that
leaves a file behind when it is loaded.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sys
import warnings
from collections import Counter
from pathlib import Path

from oncemore import History, StoreError, open_store
from tests.faults import test_damage as case
from tests.faults.damage import Store

SPRUNG = Path("sprung")


def attack(count: int, chance: random.Random) -> Counter[str]:
    """So many attacks, each on a fresh copy of the store; how many there were of each kind."""
    expected = case.everything()
    open_store("store").close()
    shutil.move("store", "whole")
    done: Counter[str] = Counter()
    for _ in range(count):
        shutil.rmtree("store", ignore_errors=True)
        shutil.copytree("whole", "store")
        kind = chance.choice([damage, plant, overwrite_pages])
        told = kind(Store(Path("store").resolve()), chance)
        resume(expected, told)
        done[kind.__name__] += 1
    return done


def damage(store: Store, chance: random.Random) -> str:
    key, in_a_file = chosen(store, chance)
    how = chance.choice(list(case.IN_A_FILE if in_a_file else case.IN_A_ROW))
    (case.IN_A_FILE if in_a_file else case.IN_A_ROW)[how](store, key)
    return f"{key} {how}"


def plant(store: Store, chance: random.Random) -> str:
    key, _ = chosen(store, chance)
    how = chance.choice(list(case.PLANTS))
    case.PLANTS[how](store, key)
    return f"{key} has a pickle {how}"


def overwrite_pages(store: Store, chance: random.Random) -> str:
    data = bytearray(store.database.read_bytes())
    at, size = chance.randrange(len(data)), chance.choice([1, 16, 4096])
    data[at : at + size] = chance.randbytes(len(data[at : at + size]))
    store.database.write_bytes(data)
    return f"{size} bytes overwritten at {at} of the database"


def chosen(store: Store, chance: random.Random) -> tuple[str, bool]:
    """Any entry, and whether its value is in a file."""
    key, filename = chance.choice(store.sql("SELECT key, filename FROM Cache WHERE typeof(key) = 'text' ORDER BY key"))
    return str(key), filename is not None


def resume(expected: list[object], told: str) -> None:
    """The results are right, at the latest once a damaged database was repaired; then all is kept."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = case.everything()
        except StoreError:
            close()
            History.repair("store")
            found = case.everything()
        assert found == expected, f"another result: {told}"
        assert not SPRUNG.exists(), f"a planted pickle was executed: {told}"
        try:
            list(History("store").run("damaged").events())
            History("store").verify()
        except StoreError:
            pass
        assert not SPRUNG.exists(), f"a planted pickle was executed: {told}"
        close()


def close() -> None:
    """Have this process let go of the store, as far as it can be opened."""
    with contextlib.suppress(StoreError):
        open_store("store").close()


if __name__ == "__main__":
    os.environ["XDG_CONFIG_HOME"] = os.path.abspath("config")
    attacks = attack(int(sys.argv[1]), random.Random(int(sys.argv[2])))
    print(*(f"{count} {kind}" for kind, count in sorted(attacks.items())), sep=", ")
