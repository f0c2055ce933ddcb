"""Many bytes at once: hashed on several processors, read into memory of their own, and the same as ever."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

from oncemore.codec import Decoded, encode
from oncemore.identity.values import digest
from oncemore.stores import open_store
from oncemore.stores.buffers import allocate, hasher
from tests.processes import Script

RNG = random.Random(1)
SIZES = [0, 1, (1 << 21) - 1, 1 << 21, (1 << 21) + 1, 1 << 22, (1 << 23) + 4097]


@pytest.mark.parametrize("size", SIZES)
def test_a_hash_is_the_same_on_however_many_processors(size: int) -> None:
    data, key = RNG.randbytes(size), RNG.randbytes(32)
    assert hasher(size).update(data).digest() == blake3(data).digest()
    assert hasher(size, key=key).update(data).digest() == blake3(data, key=key).digest()


@pytest.mark.parametrize("size", SIZES)
def test_memory_is_as_large_as_asked_for_and_writable(size: int) -> None:
    room = allocate(size)
    assert room.nbytes == size
    assert not any(room[:5000])
    room[:] = data = RNG.randbytes(size)
    assert bytes(room) == data


def test_a_child_has_its_own_copy_of_memory() -> None:
    room = allocate(1 << 22)
    child = os.fork()
    if not child:
        room[0] = 1
        os._exit(0)
    os.waitpid(child, 0)
    assert room[0] == 0


def test_a_forked_child_hashes_as_its_parent_did(script: Script) -> None:
    done = script(
        """
        import os, sys, warnings
        from oncemore.stores.buffers import hasher
        warnings.simplefilter("ignore")
        data = bytes(1 << 23)
        hashes = [hasher(len(data)) for _ in range(2)]
        ours = hashes[0].update(data).digest()
        child = os.fork()
        if not child:
            os._exit(hasher(len(data)).update(data).digest() != ours)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
    )
    assert done.out.split() == ["0"]


def test_where_no_thread_can_be_had_it_is_done_without(script: Script) -> None:
    done = script(
        """
        import os, resource, threading
        from blake3 import blake3
        from oncemore.stores.buffers import hasher
        if os.getuid() == 0:
            os.setuid(65534)  # the limit is not for everybody
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        try:
            threading.Thread(target=print).start()
        except RuntimeError:
            print("no threads")
        data = os.urandom(1 << 23)
        for _ in range(2):
            assert hasher(len(data)).update(data).digest() == blake3(data).digest()
        print("done")
        """
    )
    assert done.out.split("\n")[:2] == ["no threads", "done"], done.err


# --- entries in files -----------------------------------------------------------------------------------------------

VALUES: dict[str, Callable[[], Any]] = {
    "an array": lambda: {"name": "x", "numbers": np.random.default_rng(1).integers(0, 1 << 62, 300_000)},
    "numbers that shrink": lambda: np.random.default_rng(1).integers(0, 1 << 40, 800_000),
    "a long pickle": lambda: [RNG.randbytes(5000) for _ in range(500)],
    "many arrays": lambda: [np.random.default_rng(n).integers(0, 1 << 62, 40) for n in range(5000)],
}


@pytest.mark.parametrize("name", VALUES)
def test_what_is_used_is_what_was_verified_even_if_somebody_writes_to_the_file(name: str, tmp_path: Path) -> None:
    store, value, secret = open_store(tmp_path), VALUES[name](), RNG.randbytes(32)
    store.commit(put={"k": encode(value, {"step": "s"}, key="k", secret=secret).frames})
    data = store.get("k")
    assert data is not None
    decoded = Decoded(data, key="k", secret=secret)
    (path,) = tmp_path.rglob("*.val")
    path.chmod(0o600)
    with open(path, "r+b") as file:  # in its place, as nobody should
        file.write(bytes(path.stat().st_size))
    assert decoded.meta == {"step": "s"}
    assert digest(decoded.load()) == digest(value)
