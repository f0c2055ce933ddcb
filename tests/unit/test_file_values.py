"""`oncemore.File`: a file as an argument or in a result counts by its content."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oncemore import CheckpointWarning, File, History, Run, checkpoint_scope, checkpointed, open_store
from oncemore.files.blobs import CHUNK
from tests.processes import Script

STORE = "./store"


def scope(**options: Any) -> checkpoint_scope:
    return checkpoint_scope("files", store=STORE, **options)


def chunks() -> list[str]:
    return [key for key, _ in open_store(STORE).scan("blob/", most=0)]


def write(path: str, text: str) -> File:
    Path(path).write_text(text)
    return File(path)


def reused(run: Run) -> int:
    return sum(run.reused.values())


def test_a_file_is_a_path() -> None:
    file = write("a.txt", "hello")
    assert os.fspath(file) == "a.txt"
    assert isinstance(file, os.PathLike)
    assert file.path == Path("a.txt")
    with open(file) as one, file.open() as other:
        assert (one.read(), other.read()) == ("hello", b"hello")
    assert (file.read_text(), file.read_bytes()) == ("hello", b"hello")
    assert repr(file) == "File('a.txt')"
    assert file == File(Path("a.txt")) != File("b.txt") != "b.txt"
    assert len({file, File("a.txt")}) == 1


def test_outside_a_checkpoint_a_file_is_pickled_by_its_path() -> None:
    file = write("a.txt", "hello")
    assert pickle.loads(pickle.dumps(file)) == file
    assert len(pickle.dumps(File("a" * 10))) < 200


# -- as an argument


@checkpointed
def count(file: File) -> int:
    return len(file.read_bytes())


def test_as_an_argument_it_is_identified_by_its_content() -> None:
    with scope() as run:
        assert count(write("a", "one")) == 3
        assert count(write("b", "one")) == 3
        assert (run.ran["count"], run.reused["count"]) == (1, 1)
        assert count(write("a", "three")) == 5
        assert count(write("b", "one")) == 3
        assert (run.ran["count"], run.reused["count"]) == (2, 2)


def test_deep_inside_an_argument_its_content_counts_too() -> None:
    @checkpointed
    def total(files: dict[str, list[File]]) -> int:
        return sum(len(file.read_bytes()) for each in files.values() for file in each)

    with scope() as run:
        assert total({"x": [write("a", "one")]}) == 3
        assert total({"x": [write("a", "three")]}) == 5
        assert total({"x": [write("c", "three")]}) == 5
    assert reused(run) == 1


@checkpointed
def double(file: File) -> None:
    Path(file).write_text(2 * file.read_text())


def test_what_a_step_does_to_the_file_is_done_again() -> None:
    def script(path: str) -> tuple[str, int]:
        with scope() as run:
            double(write(path, "ab"))
        return Path(path).read_text(), reused(run)

    assert script("a") == ("abab", 0)
    assert script("a") == ("abab", 1)
    assert script("b") == ("abab", 1)


def test_a_file_that_the_step_makes_or_removes_is_made_or_removed_again() -> None:
    @checkpointed
    def move(source: File, target: File) -> None:
        os.replace(source, target)

    for expected in (0, 1):
        write("a", "content")
        Path("b").unlink(missing_ok=True)
        with scope() as run:
            move(File("a"), File("b"))
        assert reused(run) == expected
        assert (os.path.exists("a"), Path("b").read_text()) == (False, "content")


def test_a_file_that_is_only_read_is_not_kept() -> None:
    with scope():
        count(write("a", "one"))
    assert chunks() == []


def test_a_failed_step_leaves_files_as_they_are() -> None:
    @checkpointed
    def fail(file: File) -> None:
        Path(file).write_text("half")
        raise ValueError

    with scope(), pytest.raises(ValueError):
        fail(write("a", "whole"))
    assert Path("a").read_text() == "half"


# -- as a result


@checkpointed
def make(path: str, text: str) -> dict[str, Any]:
    return {"file": write(path, text), "size": len(text)}


def test_as_a_result_it_is_put_back_when_missing_or_changed() -> None:
    with scope():
        make("a", "hello")
    for spoil in (lambda: os.unlink("a"), lambda: write("a", "other"), lambda: None):
        spoil()
        with scope() as run:
            found = make("a", "hello")
        assert reused(run) == 1
        assert found == {"file": File("a"), "size": 5}
        assert found["file"].read_text() == Path("a").read_text() == "hello"


def test_as_a_result_it_is_kept_in_chunks_beside_the_checkpoint() -> None:
    with scope():
        make("a", "x" * (CHUNK + 1))
        make("b", "x" * (CHUNK + 1))
    assert len(chunks()) == 2
    os.unlink("a")
    with scope() as run:
        assert len(make("a", "x" * (CHUNK + 1))["file"].read_bytes()) == CHUNK + 1
    assert reused(run) == 1


def test_an_unchanged_result_is_not_touched() -> None:
    with scope():
        make("a", "hello")
    before = os.stat("a")
    with scope():
        make("a", "hello")
    after = os.stat("a")
    assert (before.st_ino, before.st_ctime_ns) == (after.st_ino, after.st_ctime_ns)


def test_a_file_handed_through_is_the_callers_own() -> None:
    @checkpointed
    def same(file: File) -> list[File]:
        return [file]

    with scope():
        same(write("a", "x"))
    mine = write("b", "x")
    with scope() as run:
        assert same(mine)[0] is mine
    assert reused(run) == 1


def test_items_of_a_generator_may_be_files() -> None:
    @checkpointed
    def each(n: int) -> Iterator[File]:
        for i in range(n):
            yield write(f"{i}.txt", str(i))

    with scope():
        assert [file.read_text() for file in each(3)] == ["0", "1", "2"]
    os.unlink("1.txt")
    with scope() as run:
        assert [file.read_text() for file in each(3)] == ["0", "1", "2"]
    assert reused(run) == 1
    assert Path("1.txt").read_text() == "1"


def test_a_damaged_chunk_makes_the_step_run() -> None:
    with scope():
        make("a", "hello")
    os.unlink("a")
    open_store(STORE).commit(delete=chunks())
    with scope() as run, pytest.warns(CheckpointWarning, match="make runs again: .*blob/.* is gone"):
        assert make("a", "hello")["file"].read_text() == "hello"
    assert run.ran == {"make": 1}
    os.unlink("a")
    with scope() as run:
        assert make("a", "hello")["file"].read_text() == "hello"
    assert reused(run) == 1


def test_a_result_that_does_not_exist_is_not_kept_and_that_is_told() -> None:
    @checkpointed
    def nothing() -> File:
        return File("never")

    with scope(), pytest.warns(CheckpointWarning, match="File.*never"):
        assert nothing() == File("never")


def test_a_result_that_cannot_be_put_back_is_read_from_the_store() -> None:
    with scope():
        make("a", "hello")
    os.unlink("a")
    os.mkdir("a")
    with scope() as run, pytest.warns(CheckpointWarning, match="a cannot be put back"):
        file = make("a", "hello")["file"]
    assert reused(run) == 1
    assert (file.read_text(), file.path) == ("hello", Path("a"))
    with scope() as run:
        assert count(file) == 5
        assert count(write("b", "hello")) == 5
    assert reused(run) == 1


def test_a_new_process_has_the_file_again(script: Script) -> None:
    source = """
        import os
        from oncemore import File, checkpointed, checkpoint_scope

        @checkpointed
        def make(n):
            print("making")
            with open("made", "wb") as file:
                file.write(bytes(n))
            return File("made")

        @checkpointed
        def measure(file):
            print("measuring")
            return len(file.read_bytes())

        with checkpoint_scope("files", store="./store"):
            print(measure(make(20_000_000)))
    """
    assert script(source).lines == ["making", "measuring", "20000000"]
    os.unlink("made")
    assert script(source).lines == ["20000000"]
    assert os.path.getsize("made") == 20_000_000


def test_a_checkpoint_tells_which_chunks_it_needs() -> None:
    """So that whoever cleans up or exports the store need not unpickle anything."""

    @checkpointed(outputs=["b"])
    def both() -> File:
        write("b", "output")
        return write("a", "value")

    @checkpointed
    def each() -> Iterator[File]:
        yield write("c", "item")

    with scope() as run:
        both(), list(each())
        needed = [
            run._session.entries.read(key).meta.get("blobs", [])
            for key, _ in run.store.scan(run._session.entries.prefix)
        ]
    assert sorted(len(keys) for keys in needed) == [1, 2]
    assert sorted(key for keys in needed for key in keys) == chunks()


def test_looking_at_a_result_leaves_the_file_on_disk_as_it_is(tmp_path: Path) -> None:
    """`Checkpoint.result` reads the past; only a skipped step puts files back."""
    path = tmp_path / "report.txt"

    @checkpointed
    def write() -> File:
        path.write_text("as it was kept")
        return File(path)

    with checkpoint_scope("r", store="store"):
        write()
    path.write_text("edited since")
    (checkpoint,) = History("store").run("r").checkpoints
    result = checkpoint.result()
    assert result.read_text() == "as it was kept"
    assert path.read_text() == "edited since"
    path.unlink()
    History("store").export_json("runs.json")
    assert not path.exists()
