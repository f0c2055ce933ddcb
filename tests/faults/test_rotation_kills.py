"""A rotation of the key is killed with SIGKILL at every access to the store and to the key's files: nothing is lost."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oncemore import History, UsageError, checkpoint_scope, checkpointed, memoized, open_store
from oncemore.history import rotation
from oncemore.settings import _derived
from oncemore.stores.disk import DiskStore

KEY_FILES = ("os.link", "os.rename", "os.remove", "fcntl.flock")


@checkpointed
def load(x: int) -> str:
    return f"MARK {x}"


@checkpointed
def bulky() -> bytes:
    return os.urandom(100_000)


@checkpointed(effect="once")
def pay() -> int:
    return 1


@memoized
def shared(x: int) -> int:
    return x


def flow() -> int:
    """Use the store; how many steps ran."""
    with warnings.catch_warnings(), checkpoint_scope("r", store="store") as run:
        warnings.simplefilter("error")
        for x in range(4):
            load(x)
        bulky(), pay(), shared(1)
        run.state["n"] = 1
    return sum(run.ran.values())


class Accesses:
    """Counts what a rotation does to the disk, and dies at one of these."""

    def __init__(self, last: int | None) -> None:
        self.count, self.last = 0, last

    def another(self) -> None:
        self.count += 1
        if self.count == self.last:
            os.kill(os.getpid(), signal.SIGKILL)


class Watched(DiskStore):
    """Counts each operation twice: before and after it."""

    accesses: Accesses

    def get(self, key: str) -> Any:
        self.accesses.another()
        return super().get(key)

    def _page(self, *args: Any) -> Any:
        self.accesses.another()
        return super()._page(*args)

    def _commit(self, change: Any) -> bool:
        self.accesses.another()
        done = super()._commit(change)
        self.accesses.another()
        return done


def rotate(last: int | None = None) -> int:
    """Rotate the key of the store and encrypt it; how many accesses it took."""
    accesses = Accesses(last)
    rotation._BATCH = 1  # every entry in a transaction of its own
    store = Watched("store")
    store.accesses = accesses
    sys.addaudithook(lambda event, args: accesses.another() if event in KEY_FILES and "key" in str(args) else None)
    _derived.cache_clear()
    rotation.rotate(rotation.plan(store, encrypts=True))
    return accesses.count


def in_child(work: Callable[[], object]) -> int:
    """Do something in a forked process; its exit code, negative if it was killed."""
    child = os.fork()
    if child == 0:
        code = 250
        try:
            _derived.cache_clear()
            found = work()
            code = found if isinstance(found, int) else 0
        except UsageError as error:
            code = 200 if "oncemore key rotate" in str(error) else 201
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def whole() -> int:
    """Look at the store as the next process would: nothing is lost, and nothing is in plaintext any more."""
    if flow() or History("store").verify().findings or History("store").store.rotation is not None:
        return 1
    open_store("store").close()
    content = b"".join(path.read_bytes() for path in Path("store").rglob("*") if path.is_file())
    return 2 if b"MARK" in content else 0


@pytest.mark.slow
def test_a_rotation_killed_anywhere_loses_nothing_and_the_next_one_completes_it(
    campaign: Callable[[int, int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Path("home").resolve()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    assert in_child(flow) == 7
    for each in ("store", "home"):
        shutil.copytree(each, f"{each} before")
    accesses = in_child(rotate)
    assert 30 < accesses < 200
    assert in_child(whole) == 0
    refused = resumed = 0
    for last in range(1, accesses + 1, campaign(1, 5)):
        for each in ("store", "home"):
            shutil.rmtree(each)
            shutil.copytree(f"{each} before", each)
        assert in_child(lambda: rotate(last)) == -signal.SIGKILL
        then = in_child(flow)  # the script goes on, or says what to do
        assert then in (0, 200)
        refused, resumed = refused + (then == 200), resumed + (then == 0)
        keys = len(os.listdir(home / "oncemore"))
        assert in_child(rotate) < 200
        assert in_child(whole) == 0, last
        assert len([name for name in os.listdir(home / "oncemore") if len(name) in (3, 12)]) <= max(2, keys) + 1
    assert resumed > refused
