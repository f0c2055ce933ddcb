"""A disk that is full or read-only costs checkpoints, never results: what was kept before is still there and reused."""

from __future__ import annotations

import os
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from oncemore import CheckpointWarning, StoreError, checkpoint_scope, checkpointed, current_run, open_store
from tests.processes import Script

calls: list[str] = []
step = checkpointed(code="version", version="1")  # their code reads `calls`, which changes


@step
def block(n: int, size: int) -> bytes:
    calls.append(f"block {n}")
    return noise(n, size)


@step
def blocks(n: int, size: int) -> Iterator[bytes]:
    calls.append(f"blocks {n}")
    for number in range(8):
        yield noise(number, size)


@step
def count(n: int) -> int:
    calls.append(f"count {n}")
    run = current_run()
    assert run is not None
    run.state["n"] = run.state.get("n", 0) + n
    return int(run.state["n"])


@step
def fails(n: int) -> None:
    raise ValueError(n)


def noise(seed: int, size: int) -> bytes:
    import random

    return random.Random(seed).randbytes(size)


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True, capture_output=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of two megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        mount("-t", "tmpfs", "-o", "size=2m", "oncemore-test", str(folder))
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"this user cannot mount a small disk ({error}); the tests with a limit of file size go on")
    yield folder
    for word in ("-f", "-l"):  # lazily, if something is still open there
        if subprocess.run(["umount", word, str(folder)], capture_output=True).returncode == 0:
            break


def fill(disk: Path, leave: int = 0) -> Path:
    """Take all space that is left, but for so many bytes."""
    path = disk / "filler"
    with open(path, "ab", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError:
                pass
    os.truncate(path, max(0, path.stat().st_size - leave))
    return path


@contextmanager
def hearing() -> Iterator[list[str]]:
    """What oncemore says meanwhile. A disk that refuses is told of by each step and each event."""
    heard: list[str] = []
    with pytest.warns(CheckpointWarning) as caught:
        yield heard
    heard += [str(each.message) for each in caught if issubclass(each.category, CheckpointWarning)]


@pytest.mark.parametrize("size", [1_000, 400_000])
def test_on_a_full_disk_results_are_returned_earlier_checkpoints_stay_and_a_warning_says_what_is_lost(
    disk: Path, size: int
) -> None:
    calls.clear()
    with checkpoint_scope("full", store=disk / "store"):
        assert block(1, size) == noise(1, size)
    filler = fill(disk)
    with hearing() as heard, checkpoint_scope("full", store=disk / "store"):
        for n in range(1, 8):
            assert block(n, size) == noise(n, size)
        assert count(3) == 3
    assert calls == [f"block {n}" for n in range(1, 8)] + ["count 3"]
    lost = [text for text in heard if "step block: the result was not saved" in text]
    assert len(lost) == 6
    assert "full" in lost[0]
    filler.unlink()
    calls.clear()
    with checkpoint_scope("full", store=disk / "store"):
        assert block(1, size) == noise(1, size)
        assert block(2, size) == noise(2, size)
    assert calls == ["block 2"]
    calls.clear()
    with checkpoint_scope("full", store=disk / "store"):
        block(2, size)
    assert calls == []


def test_a_disk_that_fills_up_during_the_run_keeps_what_came_before(disk: Path) -> None:
    size, most = 300_000, 12
    calls.clear()
    with hearing() as heard, checkpoint_scope("full", store=disk / "store"):
        found = [block(n, size) for n in range(most)]
    assert found == [noise(n, size) for n in range(most)]
    assert any("step block: the result was not saved" in text for text in heard)
    calls.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)
        with checkpoint_scope("full", store=disk / "store"):
            assert [block(n, size) for n in range(most)] == found
    assert 0 < len(calls) < most
    assert "block 0" not in calls


def test_a_value_that_does_not_fit_leaves_no_half_of_it_behind(disk: Path) -> None:
    with hearing() as heard, checkpoint_scope("full", store=disk / "store"):
        block(1, 5_000_000)
    assert "step block: the result was not saved" in heard[0]
    assert "the disk is full: free some space" in heard[0]
    assert list((disk / "store").glob("??/*")) == []
    with checkpoint_scope("full", store=disk / "store"):
        block(1, 500_000)  # there is room for this one


def test_a_generator_on_a_full_disk_yields_all_its_items(disk: Path) -> None:
    calls.clear()
    with hearing() as heard, checkpoint_scope("full", store=disk / "store"):
        assert list(blocks(1, 400_000)) == [noise(n, 400_000) for n in range(8)]
    assert "step blocks: the result was not saved" in heard[0]
    assert list((disk / "store").glob("??/*")) == []


def test_on_a_full_disk_an_exception_passes_through_untouched(disk: Path) -> None:
    with checkpoint_scope("full", store=disk / "store"):
        pass
    fill(disk)
    with hearing() as heard, pytest.raises(ValueError, match="^7$"):
        with checkpoint_scope("full", store=disk / "store"):
            fails(7)
    assert any("StepFailed could not be written" in text for text in heard), heard


def test_a_run_that_begins_on_a_full_disk_says_that_nothing_will_be_kept(disk: Path) -> None:
    with checkpoint_scope("earlier", store=disk / "store"):
        pass
    fill(disk)
    with hearing() as heard, checkpoint_scope("new", store=disk / "store"):
        assert block(1, 10) == noise(1, 10)
    assert "run new: nothing will be saved" in heard[0]


@pytest.fixture
def frozen(disk: Path) -> Path:
    """A store with one result, on a disk that was made read-only since."""
    calls.clear()
    with checkpoint_scope("frozen", store=disk / "store"):
        block(1, 1_000)
        block(2, 300_000)
        list(blocks(1, 1_000))
        count(5)
    open_store(disk / "store").close()
    mount("-o", "remount,ro", str(disk))
    calls.clear()
    return disk / "store"


def test_on_a_read_only_disk_checkpoints_are_reused_and_new_results_are_returned_with_a_warning(frozen: Path) -> None:
    with hearing() as heard, checkpoint_scope("frozen", store=frozen):
        assert block(1, 1_000) == noise(1, 1_000)
        assert block(2, 300_000) == noise(2, 300_000)
        assert list(blocks(1, 1_000)) == [noise(n, 1_000) for n in range(8)]
        assert count(5) == 5
        assert block(3, 1_000) == noise(3, 1_000)
        assert block(4, 300_000) == noise(4, 300_000)
        with pytest.raises(ValueError, match="^7$"):
            fails(7)
    assert calls == ["block 3", "block 4"]
    lost = [text for text in heard if "step block: the result was not saved" in text]
    assert len(lost) == 2
    assert "read-only" in lost[0]


def test_a_new_run_on_a_read_only_disk_just_runs(frozen: Path) -> None:
    with hearing() as heard, checkpoint_scope("new", store=frozen):
        assert block(1, 1_000) == noise(1, 1_000)
    assert calls == ["block 1"]
    assert "run new: nothing will be saved" in heard[0]


def test_when_the_disk_can_be_written_again_the_same_process_keeps_results_again(frozen: Path, disk: Path) -> None:
    with hearing(), checkpoint_scope("frozen", store=frozen):
        block(3, 1_000)
    mount("-o", "remount,rw", str(disk))
    for _ in range(2):
        with checkpoint_scope("frozen", store=frozen):
            block(3, 1_000)
    assert calls == ["block 3"] * 2


def test_a_missing_store_on_a_read_only_disk_is_a_clear_error(frozen: Path) -> None:
    with pytest.raises(StoreError, match="read-only"), checkpoint_scope("new", store=frozen.parent / "other"):
        pass


def test_what_a_finished_script_kept_is_all_there_on_a_disk_that_is_read_only_since(disk: Path, script: Script) -> None:
    source = """
        from oncemore import checkpointed, checkpoint_scope

        @checkpointed
        def block(n):
            print("block", n)
            return n * b"block"

        with checkpoint_scope("finished", store="disk/store"):
            for n in range(20):
                block(n)
    """
    assert len(script(source).lines) == 20
    for path in (disk / "store").glob("cache.db-*"):
        path.unlink()  # as when only the database was copied
    mount("-o", "remount,ro", str(disk))
    assert script(source).lines == []


LIMITED = """
    import random, resource, sys
    from oncemore import checkpointed, checkpoint_scope

    @checkpointed
    def block(n, size):
        print("block", n, size)
        return random.Random(n).randbytes(size)

    if "limited" in sys.argv:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
    with checkpoint_scope("limited", store="store"):
        for n in range(3):
            for size in (1_000, 20_000, 500_000):
                assert block(n, size) == random.Random(n).randbytes(size)
    print("done")
"""


def test_under_a_quota_results_are_returned_and_what_fits_is_kept(script: Script) -> None:
    done = script(LIMITED, "limited")
    assert len(done.lines) == 10
    assert done.lines[-1] == "done"
    assert "CheckpointWarning: step block: the result was not saved" in done.err
    assert "Traceback" not in done.err
    again = script(LIMITED)
    assert again.err == ""
    assert 3 <= len(again.lines) < 10  # the three that are larger than the limit, and the end
    assert "block 0 1000" not in again.lines
    assert script(LIMITED).lines == ["done"]
