"""Declared outputs: kept by content, put back when the step is skipped."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oncemore import (
    CheckpointWarning,
    OutputMissing,
    Run,
    UsageError,
    checkpoint_scope,
    checkpointed,
    current_run,
    open_store,
)
from oncemore.events import StepCompleted
from oncemore.files.blobs import CHUNK, Blobs, put_back
from tests.processes import SRC, Script

STORE = "./store"


def scope(**options: Any) -> checkpoint_scope:
    return checkpoint_scope("files", store=STORE, **options)


def chunks() -> list[str]:
    return [key for key, _ in open_store(STORE).scan("blob/", most=0)]


def reasons() -> list[str]:
    with scope() as run:
        return [event.reason for event in run.events() if isinstance(event, StepCompleted)]


def ran(run: Run) -> dict[str, int]:
    return {step.rpartition(".")[2]: times for step, times in run.ran.items()}


def reused(run: Run) -> dict[str, int]:
    return {step.rpartition(".")[2]: times for step, times in run.reused.items()}


def failed(run: Run) -> dict[str, int]:
    return {step.rpartition(".")[2]: times for step, times in run.failed.items()}


def look(path: str | Path) -> tuple[int, int, int]:
    """What changes when a file is touched."""
    now = os.stat(path)
    return now.st_ino, now.st_mtime_ns, now.st_ctime_ns


@checkpointed(outputs=["{out}/model.bin"])
def train(out: str | Path, text: str = "model") -> str:
    Path(out).mkdir(parents=True, exist_ok=True)
    Path(out, "model.bin").write_text(text)
    return text


def train_again(out: str | Path = "out", **options: Any) -> Run:
    with scope() as run:
        assert train(out, **options) == options.get("text", "model")
    return run


# -- put back


def test_a_missing_file_is_put_back() -> None:
    train_again()
    Path("out/model.bin").unlink()
    assert reused(train_again()) == {"train": 1}
    assert Path("out/model.bin").read_text() == "model"


def test_a_missing_folder_is_put_back_with_its_file() -> None:
    train_again("a/b/c")
    for path in ("a/b/c/model.bin", "a/b/c", "a/b", "a"):
        os.unlink(path) if os.path.isfile(path) else os.rmdir(path)
    assert reused(train_again("a/b/c")) == {"train": 1}
    assert Path("a/b/c/model.bin").read_text() == "model"


@pytest.mark.parametrize("content", ["other", "longer than the model", "", "MODEL"])
def test_a_changed_file_is_put_back(content: str) -> None:
    train_again()
    Path("out/model.bin").write_text(content)
    assert reused(train_again()) == {"train": 1}
    assert Path("out/model.bin").read_text() == "model"


def test_a_change_that_keeps_size_and_time_is_found_when_it_came_right_after_the_step() -> None:
    """Times of change are coarse: two writes within one tick have the same."""
    train_again()
    was = os.stat("out/model.bin").st_mtime_ns
    Path("out/model.bin").write_text("MODEL")
    os.utime("out/model.bin", ns=(was, was))
    assert reused(train_again()) == {"train": 1}
    assert Path("out/model.bin").read_text() == "model"


def test_mode_and_time_come_back_too() -> None:
    @checkpointed(outputs=["tool.sh"])
    def build() -> None:
        Path("tool.sh").write_text("echo")
        os.chmod("tool.sh", 0o750)
        os.utime("tool.sh", ns=(10**18 + 1, 10**18 + 123456789))

    with scope():
        build()
    os.unlink("tool.sh")
    with scope():
        build()
    now = os.stat("tool.sh")
    assert (stat.S_IMODE(now.st_mode), now.st_mtime_ns) == (0o750, 10**18 + 123456789)


def test_an_unchanged_file_is_not_touched() -> None:
    train_again()
    before = look("out/model.bin")
    assert reused(train_again()) == {"train": 1}
    assert look("out/model.bin") == before


def test_a_file_that_only_got_a_new_time_is_not_touched() -> None:
    train_again()
    os.utime("out/model.bin", ns=(1, 1))
    before = look("out/model.bin")
    assert reused(train_again()) == {"train": 1}
    assert look("out/model.bin") == before


def test_the_content_of_an_old_file_with_the_same_size_and_time_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    @checkpointed(outputs=["old"])
    def make() -> None:
        Path("old").write_text("x")
        os.utime("old", (1000.5, 1000.5))

    with scope():
        make()
    monkeypatch.setattr("oncemore.files.blobs.content_digest", lambda path: pytest.fail("it was read"))
    with scope() as run:
        make()
    assert reused(run) == {"make": 1}


def test_a_changed_mode_is_put_right_without_touching_the_content() -> None:
    train_again()
    os.chmod("out/model.bin", 0o600)
    inode, mtime, _ = look("out/model.bin")
    wanted = 0o666 & ~_umask()
    train_again()
    assert stat.S_IMODE(os.stat("out/model.bin").st_mode) == wanted
    assert look("out/model.bin")[:2] == (inode, mtime)


def _umask() -> int:
    was = os.umask(0)
    os.umask(was)
    return was


def test_each_call_has_its_own_files() -> None:
    with scope():
        train("a", "one"), train("b", "two")
    os.unlink("a/model.bin"), os.unlink("b/model.bin")
    with scope() as run:
        train("b", "two"), train("a", "one")
    assert reused(run) == {"train": 2}
    assert (Path("a/model.bin").read_text(), Path("b/model.bin").read_text()) == ("one", "two")


def test_two_steps_that_write_the_same_file_leave_it_as_the_last_one_did() -> None:
    def script() -> tuple[str, str]:
        with scope():
            train("out", "first")
            between = Path("out/model.bin").read_text()
            train("out", "second")
            return between, Path("out/model.bin").read_text()

    assert script() == script() == ("first", "second")


def test_relative_paths_count_from_the_working_directory_of_the_moment(tmp_path: Path) -> None:
    with checkpoint_scope("files", store=tmp_path / "store"):
        train("out")
    (tmp_path / "elsewhere").mkdir()
    os.chdir(tmp_path / "elsewhere")
    with checkpoint_scope("files", store=tmp_path / "store") as run:
        train("out")
    assert reused(run) == {"train": 1}
    assert Path("out/model.bin").read_text() == "model"


def test_a_step_that_changes_the_working_directory_declares_from_where_it_was_called(tmp_path: Path) -> None:
    @checkpointed(outputs=["made"])
    def go() -> None:
        Path("made").write_text("x")
        os.mkdir("down") if not os.path.isdir("down") else None
        os.chdir("down")

    with checkpoint_scope("files", store=tmp_path / "store"):
        go()
    assert os.getcwd() == str(tmp_path / "down")
    os.chdir(tmp_path)
    os.unlink("made")
    with checkpoint_scope("files", store=tmp_path / "store") as run:
        go()
    assert reused(run) == {"go": 1}
    assert (tmp_path / "made").read_text() == "x"
    assert os.getcwd() == str(tmp_path / "down")


def test_an_ignored_parameter_says_where_the_files_go_now() -> None:
    @checkpointed(outputs=["{out}/a/*.txt", "{out}/b"], ignore=["out"])
    def make(out: str) -> None:
        for name in ("a/1.txt", "b/2.txt"):
            Path(out, name).parent.mkdir(parents=True, exist_ok=True)
            Path(out, name).write_text(name)

    with scope():
        make("here")
    with scope() as run:
        make("there")
    assert reused(run) == {"make": 1}
    assert Path("there/a/1.txt").read_text() == "a/1.txt"
    assert Path("there/b/2.txt").read_text() == "b/2.txt"


def test_steps_that_are_coroutines_and_generators_have_outputs_too() -> None:
    @checkpointed(outputs=["async"])
    async def later() -> None:
        await asyncio.sleep(0)
        Path("async").write_text("a")

    @checkpointed(outputs=["yielded/*"])
    def each() -> Iterator[int]:
        os.makedirs("yielded", exist_ok=True)
        for i in range(3):
            Path(f"yielded/{i}").write_text(str(i))
            yield i

    async def script() -> Run:
        async with scope() as run:
            await later()
            assert list(each()) == [0, 1, 2]
            return run

    asyncio.run(script())
    for path in ("async", "yielded/0", "yielded/2"):
        os.unlink(path)
    run = asyncio.run(script())
    assert reused(run) == {"later": 1, "each": 1}
    assert [Path(p).read_text() for p in ("async", "yielded/0", "yielded/1", "yielded/2")] == ["a", "0", "1", "2"]


# -- what can be declared


@pytest.mark.parametrize(
    ("pattern", "made"),
    [
        ("{out}/{name}.bin", "o/n.bin"),
        ("{out}/{n:03d}", "o/007"),
        ("{options.folder}/x", "f/x"),
        ("{rows[0]}/x", "r/x"),
        ("{path}/x", "p/x"),
        ("{{literally}}", "{literally}"),
        ("{out}/{{*}}", "o/{a}"),
        ("{odd}/x", "od*d[1]/x"),
        ("{odd}/*", "od*d[1]/x"),
        ("*/{odd}", "o/od*d[1]"),
        ("{out}/**/*.txt", "o/deep/er/x.txt"),
        ("{out}/?[0-9].txt", "o/a1.txt"),
    ],
)
def test_patterns_are_filled_in_from_the_parameters(pattern: str, made: str) -> None:
    @checkpointed(outputs=[pattern])
    def make(out: str, name: str, n: int, options: Any, rows: list[str], path: Path, odd: str) -> None:
        Path(made).parent.mkdir(parents=True, exist_ok=True)
        Path(made).write_text("made")

    arguments: tuple[Any, ...] = ("o", "n", 7, SimpleNamespace(folder="f"), ["r"], Path("p"), "od*d[1]")
    with scope():
        make(*arguments)
    os.unlink(made)
    with scope() as run:
        make(*arguments)
    assert reused(run) == {"make": 1}
    assert Path(made).read_text() == "made"


def test_a_wildcard_in_an_argument_is_a_character_like_any_other() -> None:
    @checkpointed(outputs=["{out}/a"])
    def make(out: str) -> None:
        Path(out).mkdir(exist_ok=True)
        Path(out, "a").write_text(out)

    Path("xy").mkdir()
    Path("xy/a").write_text("not mine")
    with scope():
        make("x*")
    Path("xy/a").write_text("still not mine")
    with scope():
        make("x*")
    assert Path("xy/a").read_text() == "still not mine"


def test_what_a_wildcard_matches_is_found_after_the_step_and_put_back_one_by_one() -> None:
    @checkpointed(outputs=["parts/*.csv"])
    def split(n: int) -> None:
        os.makedirs("parts", exist_ok=True)
        for i in range(n):
            Path(f"parts/{i}.csv").write_text(str(i))
        Path("parts/notes.txt").write_text("not an output")

    with scope():
        split(3)
    os.unlink("parts/1.csv"), os.unlink("parts/notes.txt")
    kept = look("parts/0.csv")
    with scope():
        split(3)
    assert sorted(os.listdir("parts")) == ["0.csv", "1.csv", "2.csv"]
    assert look("parts/0.csv") == kept


def test_a_callable_says_which_files() -> None:
    @checkpointed(outputs=lambda out, names: [f"{out}/{name}" for name in names])
    def make(out: str, names: list[str], unused: int = 0) -> None:
        os.makedirs(out, exist_ok=True)
        for name in names:
            Path(out, name).write_text(name)

    @checkpointed(outputs=lambda **given: Path(given["out"]))
    def one(out: str) -> None:
        Path(out).write_text("one")

    with scope():
        make("d", ["a", "b"]), one("e")
    os.unlink("d/b"), os.unlink("e")
    with scope() as run:
        make("d", ["a", "b"]), one("e")
    assert reused(run) == {"make": 1, "one": 1}
    assert (Path("d/b").read_text(), Path("e").read_text()) == ("b", "one")


def test_a_callable_may_look_at_what_the_step_has_made() -> None:
    @checkpointed(outputs=lambda out: [os.path.join(out, name) for name in os.listdir(out)])
    def make(out: str) -> None:
        os.makedirs(out, exist_ok=True)
        Path(out, "a").write_text("a")

    with scope():
        make("d")
    os.unlink("d/a"), os.rmdir("d")
    with scope() as run:
        make("d")
    assert reused(run) == {"make": 1}
    assert Path("d/a").read_text() == "a"


def test_a_callable_that_would_answer_otherwise_now_makes_the_step_run() -> None:
    @checkpointed(outputs=lambda out: f"{out}/x", ignore=["out"])
    def make(out: str) -> None:
        os.makedirs(out, exist_ok=True)
        Path(out, "x").write_text("x")

    with scope():
        make("a")
    with scope() as run:
        make("b")
    assert ran(run) == {"make": 1}
    assert Path("b/x").exists()


def test_outputs_declared_later_make_the_step_run() -> None:
    def make() -> None:
        Path("a").write_text("a")

    with scope():
        checkpointed(name="make")(make)()
    with scope() as run:
        checkpointed(name="make", outputs=["a"])(make)()
    assert ran(run) == {"make": 1}
    with scope() as run:
        checkpointed(name="make", outputs=["a*"])(make)()
    assert ran(run) == {"make": 1}
    assert reasons()[1:] == ["outputs= changed", "outputs= changed"]


@pytest.mark.parametrize(
    ("outputs", "told"),
    [
        (["{oot}/x"], "outputs names 'oot', which is no parameter. There are: out, n"),
        (["{out}/{n:{width}}"], "outputs names 'width', which is no parameter. There are: out, n"),
        (["{}/x"], "outputs names '', which is no parameter. There are: out, n"),
        (["{0}/x"], "outputs names '0', which is no parameter. There are: out, n"),
        (lambda oot: oot, "outputs names 'oot', which is no parameter. There are: out, n"),
        ("{out}/x", r"must be a list of paths: \['{out}/x'\]"),
        (Path("x"), "must be a list of paths"),
        (["{out"], "'{out', which is not a valid pattern: expected '}'"),
        ([3], "outputs has 3, which is not a path"),
    ],
)
def test_a_declaration_that_cannot_be_right_is_refused_at_once(outputs: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):

        @checkpointed(outputs=outputs)
        def make(out: str, n: int) -> None: ...


@pytest.mark.parametrize(
    ("outputs", "told"),
    [
        (["{out.nowhere}/x"], "has no attribute 'nowhere'"),
        (["{out}"], "empty path"),
        (lambda out: out, "empty path"),
    ],
)
def test_a_declaration_that_does_not_fit_the_arguments_is_told(outputs: Any, told: str) -> None:
    @checkpointed(outputs=outputs)
    def make(out: str) -> None: ...

    with scope(), pytest.raises(UsageError, match=told):
        make("")


# -- what was not produced


@pytest.mark.parametrize(
    ("outputs", "told"),
    [
        (["{out}/x.bin"], r"make did not produce its output: there is no \{out\}/x.bin \(o/x.bin\)"),
        (["x.bin"], r"make did not produce its output: there is no x.bin$"),
        (["{out}/*.bin"], r"nothing matches \{out\}/\*.bin \(o/\*.bin\)"),
        (lambda out: [out, f"{out}/x.bin"], r"there is no o/x.bin"),
    ],
)
def test_an_output_that_was_not_produced_is_an_error_that_names_it(outputs: Any, told: str) -> None:
    @checkpointed(outputs=outputs)
    def make(out: str) -> int:
        os.makedirs(out, exist_ok=True)
        return 1

    for _ in range(2):
        with scope() as run:
            with pytest.raises(OutputMissing, match=told) as caught:
                make("o")
            assert isinstance(caught.value, FileNotFoundError)
            assert (failed(run), ran(run)) == ({"make": 1}, {})


def test_what_a_step_without_its_output_did_to_the_state_is_undone() -> None:
    @checkpointed(outputs=["never"])
    def make() -> None:
        run = current_run()
        assert run is not None
        run.state["n"] = 1

    with scope() as run:
        with pytest.raises(OutputMissing):
            make()
        assert dict(run.state) == {}


def test_a_generator_without_its_output_fails_at_its_end() -> None:
    @checkpointed(outputs=["never"])
    def each() -> Iterator[int]:
        yield 1

    with scope() as run:
        items = each()
        assert next(items) == 1
        with pytest.raises(OutputMissing):
            next(items)
        assert failed(run) == {"each": 1}


# -- deletions


def test_what_a_step_deletes_is_deleted_again() -> None:
    @checkpointed(outputs=["work/*.tmp", "work/result"])
    def tidy() -> None:
        Path("work/result").write_text(Path("work/1.tmp").read_text())
        os.unlink("work/1.tmp")

    def script() -> Run:
        os.makedirs("work", exist_ok=True)
        Path("work/1.tmp").write_text("x")
        with scope() as run:
            tidy()
        return run

    assert ran(script()) == {"tidy": 1}
    assert reused(script()) == {"tidy": 1}
    assert os.listdir("work") == ["result"]


def test_a_file_deleted_by_its_name_counts_as_produced() -> None:
    @checkpointed(outputs=["a"])
    def drop() -> None:
        os.unlink("a")

    Path("a").write_text("x")
    with scope():
        drop()
    Path("a").write_text("y")
    with scope() as run:
        drop()
    assert reused(run) == {"drop": 1}
    assert not os.path.exists("a")


def test_a_deleted_folder_is_deleted_again_unless_there_is_more_in_it_now() -> None:
    @checkpointed(outputs=["{folder}"])
    def drop(folder: str) -> None:
        import shutil

        shutil.rmtree(folder)

    def fill(folder: str) -> None:
        os.makedirs(f"{folder}/deep/er")
        Path(folder, "deep/er/file").write_text("x")

    fill("a"), fill("b")
    with scope():
        drop("a"), drop("b")
    fill("a"), fill("b")
    Path("b/deep/mine").write_text("mine")
    with scope() as run:
        drop("a"), drop("b")
    assert reused(run) == {"drop": 2}
    assert not os.path.exists("a")
    assert [folder for folder, _, _ in os.walk("b")] == ["b", "b/deep"]


# -- folders and links


def test_a_folder_stands_for_all_that_is_in_it() -> None:
    @checkpointed(outputs=["{out}"])
    def make(out: str) -> None:
        os.makedirs(f"{out}/empty", exist_ok=True)
        os.makedirs(f"{out}/a/.hidden", exist_ok=True)
        Path(out, "a/.hidden/x").write_text("x")
        Path(out, "top").write_text("t")
        if not os.path.lexists(f"{out}/link"):
            os.symlink("top", f"{out}/link")
        os.chmod(f"{out}/empty", 0o500)

    with scope():
        make("o")
    import shutil

    shutil.rmtree("o")
    with scope() as run:
        make("o")
    assert reused(run) == {"make": 1}
    assert sorted(str(path) for path in Path("o").rglob("*")) == [
        "o/a",
        "o/a/.hidden",
        "o/a/.hidden/x",
        "o/empty",
        "o/link",
        "o/top",
    ]
    assert os.readlink("o/link") == "top"
    assert Path("o/link").read_text() == "t"
    assert stat.S_IMODE(os.stat("o/empty").st_mode) == 0o500


def test_a_read_only_folder_is_put_back_with_its_files() -> None:
    @checkpointed(outputs=["{out}"])
    def make(out: str) -> None:
        os.makedirs(f"{out}/in")
        Path(out, "in/x").write_text("x")
        os.chmod(f"{out}/in", 0o500)

    with scope():
        make("o")
    os.chmod("o/in", 0o700)
    os.unlink("o/in/x"), os.rmdir("o/in"), os.rmdir("o")
    with scope() as run:
        make("o")
    assert reused(run) == {"make": 1}
    assert Path("o/in/x").read_text() == "x"
    assert stat.S_IMODE(os.stat("o/in").st_mode) == 0o500


def test_an_output_folder_may_lie_elsewhere_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    os.symlink("scratch", "out")

    @checkpointed(outputs=["out"])
    def make() -> None:
        Path("out/x").write_text("x")

    with scope():
        make()
    os.unlink("scratch/x")
    with scope() as run:
        make()
    assert reused(run) == {"make": 1}
    assert Path("scratch/x").read_text() == "x"
    assert os.readlink("out") == "scratch"


def test_a_link_that_would_lead_nowhere_makes_the_step_run() -> None:
    @checkpointed(outputs=["latest"])
    def make() -> None:
        Path("v1").write_text("1")
        if os.path.lexists("latest"):
            os.unlink("latest")
        os.symlink("v1", "latest")

    with scope():
        make()
    os.unlink("latest")
    with scope() as run:
        make()
    assert reused(run) == {"make": 1}
    assert os.readlink("latest") == "v1"
    os.unlink("v1")
    with scope() as run:
        make()
    assert ran(run) == {"make": 1}
    assert reasons()[-1] == "output `latest` is a link to v1, which is missing"


def test_a_folder_in_the_place_of_a_file_makes_the_step_run() -> None:
    train_again()
    os.unlink("out/model.bin")
    os.mkdir("out/model.bin")
    with scope(), pytest.raises(IsADirectoryError):
        train("out")
    os.rmdir("out/model.bin")
    train_again()


def test_a_pipe_cannot_be_kept_and_that_is_told() -> None:
    @checkpointed(outputs=["pipe"])
    def make() -> int:
        os.mkfifo("pipe")
        return 1

    with scope(), pytest.warns(CheckpointWarning, match="output `pipe` is neither a file nor a link"):
        assert make() == 1


def test_a_store_in_an_output_folder_is_no_output() -> None:
    @checkpointed(outputs=["."])
    def make() -> None:
        Path("x").write_text("x")

    for _ in range(2):
        with checkpoint_scope("here"):
            make()
    with checkpoint_scope("here") as run:
        make()
    assert reused(run) == {"make": 1}


# -- outputs_keep=False


@pytest.mark.parametrize("how", ["missing", "changed"])
def test_without_kept_content_a_missing_or_changed_file_makes_the_step_run(how: str) -> None:
    @checkpointed(outputs=["big"], outputs_keep=False)
    def make() -> None:
        Path("big").write_text("content")

    with scope():
        make()
    assert chunks() == []
    before = look("big")
    with scope() as run:
        make()
    assert reused(run) == {"make": 1}
    assert look("big") == before
    os.unlink("big") if how == "missing" else Path("big").write_text("CONTENT")
    with scope() as run:
        make()
    assert ran(run) == {"make": 1}
    assert Path("big").read_text() == "content"
    assert reasons()[-1] == f"output `big` is {how}"


# -- the store


def test_large_files_are_kept_in_chunks_and_equal_chunks_once() -> None:
    @checkpointed(outputs=["{name}"])
    def make(name: str, sizes: tuple[int, ...]) -> None:
        with open(name, "wb") as file:
            for i, size in enumerate(sizes):
                file.write(bytes([i]) * size)

    with scope():
        make("a", (CHUNK, CHUNK, 5))
        assert len(chunks()) == 3
        make("b", (CHUNK, CHUNK, 5))
        assert len(chunks()) == 3
        make("c", (CHUNK, CHUNK, 6))
        assert len(chunks()) == 4
        make("d", (0,))
        assert len(chunks()) == 4
    for name in "abcd":
        os.unlink(name)
    with scope() as run:
        make("a", (CHUNK, CHUNK, 5)), make("d", (0,)), make("c", (CHUNK, CHUNK, 6))
    assert reused(run) == {"make": 3}
    assert Path("a").read_bytes() == bytes(CHUNK) + b"\1" * CHUNK + b"\2" * 5
    assert Path("c").read_bytes() == bytes(CHUNK) + b"\1" * CHUNK + b"\2" * 6
    assert Path("d").read_bytes() == b""


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK])
def test_content_of_any_size_survives(size: int) -> None:
    content = os.urandom(size)
    Path("a").write_bytes(content)
    blobs = Blobs(open_store(STORE))
    with open("a", "rb") as file:
        kept = blobs.keep(file)
    blobs.flush()
    put_back(os.path.abspath("b"), kept, blobs)
    assert Path("b").read_bytes() == content
    assert len(chunks()) == -(-size // CHUNK)


def test_many_small_files_share_a_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(STORE)
    commits = []
    blobs = Blobs(store)
    monkeypatch.setattr(store, "commit", lambda **change: commits.append(change))
    for i in range(100):
        Path("a").write_text(str(i))
        with open("a", "rb") as file:
            blobs.keep(file)
    blobs.flush()
    assert [sum(key.startswith("blob/") for key in change["put"]) for change in commits] == [100]


@pytest.mark.parametrize("how", ["gone", "altered"])
def test_a_damaged_chunk_makes_the_step_run_and_is_mended(how: str) -> None:
    train_again()
    store, (key,) = open_store(STORE), chunks()
    os.unlink("out/model.bin")
    store.commit(**({"delete": [key]} if how == "gone" else {"put": {key: [b"nonsense"]}}))  # type: ignore[arg-type]
    with pytest.warns(CheckpointWarning, match="train runs again: a file that it wrote cannot be restored") as told:
        run = train_again()
    assert len(told) == 1
    assert ran(run) == {"train": 1}
    assert reasons()[-1].startswith("a file that it wrote cannot be restored: entry blob/")
    os.unlink("out/model.bin")
    assert reused(train_again()) == {"train": 1}
    assert Path("out/model.bin").read_text() == "model"


def test_a_damaged_chunk_does_not_matter_while_the_file_is_there() -> None:
    train_again()
    open_store(STORE).commit(delete=chunks())
    assert reused(train_again()) == {"train": 1}


def test_a_damaged_chunk_is_an_error_in_strict_mode() -> None:
    train_again()
    os.unlink("out/model.bin")
    open_store(STORE).commit(delete=chunks())
    with scope(strict=True), pytest.raises(OSError, match="is gone"):
        train("out")


def test_nothing_is_put_back_when_one_of_several_files_cannot_be() -> None:
    @checkpointed(outputs=["a", "b"])
    def make(fail: bool = False) -> None:
        if os.path.exists("stop"):
            raise RuntimeError("stop")
        Path("a").write_text("a"), Path("b").write_text("b")

    with scope():
        make()
        first = chunks()
    os.unlink("a"), os.unlink("b")
    open_store(STORE).commit(delete=first[:1])
    Path("stop").touch()
    with scope(), pytest.warns(CheckpointWarning, match="runs again"), pytest.raises(RuntimeError):
        make()
    assert sorted(os.listdir(".")) == ["stop", "store"]


def test_a_file_that_still_changes_while_it_is_read_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    read = Blobs._put

    def slow(self: Blobs, block: bytes) -> bytes:
        with open("out/model.bin", "a") as file:
            file.write("more")
        return read(self, block)

    monkeypatch.setattr(Blobs, "_put", slow)
    with scope(), pytest.warns(CheckpointWarning, match="changed while it was read"):
        assert train("out") == "model"


def test_a_full_store_costs_the_checkpoint_but_not_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    from oncemore import StoreError

    def full(self: Blobs) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(Blobs, "flush", full)
    with scope(), pytest.warns(CheckpointWarning, match="the result was not saved: the disk is full"):
        assert train("out") == "model"
    assert Path("out/model.bin").read_text() == "model"


def test_a_place_that_cannot_be_written_makes_the_step_run() -> None:
    train_again()
    os.unlink("out/model.bin"), os.rmdir("out")
    Path("out").write_text("in the way")
    with scope() as run, pytest.raises(FileExistsError):
        train("out")
    assert failed(run) == {"train": 1}
    os.unlink("out")
    assert reused(train_again()) == {"train": 1}


def test_the_content_is_in_the_store_before_the_checkpoint_that_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    store = open_store(STORE)
    commit = store.commit

    def watched(**change: Any) -> bool:
        written.extend(key.partition("/")[0] for key in change.get("put", ()))
        return commit(**change)

    monkeypatch.setattr(store, "commit", watched)
    with checkpoint_scope("files", store=store):
        train("out")
    assert [kind for kind in written if kind in ("blob", "node")] == ["blob", "node"]


# -- in new processes

STEP = """
    import os, sys
    from pathlib import Path
    from oncemore import checkpointed, checkpoint_scope

    @checkpointed(outputs=["{out}/*"])
    def make(out, size):
        print("making", flush=True)
        os.makedirs(out, exist_ok=True)
        block = bytes(range(256)) * 4096
        with open(f"{out}/big", "wb") as file:
            for _ in range(size):
                file.write(block)

    with checkpoint_scope("files", store="./store") as run:
        make("out", int(sys.argv[1]))
        print(dict(run.reused), len(Path("out/big").read_bytes()) if int(sys.argv[1]) < 20 else "")
"""


def test_a_new_process_puts_the_files_back(script: Script) -> None:
    assert script(STEP, "3").lines == ["making", "{} 3145728"]
    os.unlink("out/big")
    assert script(STEP, "3").lines == ["{'make': 1} 3145728"]


def test_a_large_file_needs_little_memory(script: Script) -> None:
    source = """
        import os, resource, sys
        from oncemore import checkpointed, checkpoint_scope

        @checkpointed(outputs=["big"])
        def make(size, random):
            with open("big", "wb") as file:
                for i in range(size):
                    file.write(os.urandom(1 << 20) if random else bytes([i]) * (1 << 20))

        def peak():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

        with checkpoint_scope("warm-up", store="./store"):
            make(1, sys.argv[1] == "random")
        before = peak()
        with checkpoint_scope("files", store="./store") as run:
            make(100, sys.argv[1] == "random")
        os.unlink("big")
        with checkpoint_scope("files", store="./store") as run:
            make(100, sys.argv[1] == "random")
        assert dict(run.reused) == {"make": 1} and os.path.getsize("big") == 100 << 20
        print(peak() - before)
    """
    for kind in ("random", "regular"):
        assert int(script(source, kind).out) < 60


def test_drafts_of_a_process_that_was_killed_are_swept_away(script: Script) -> None:
    script.write(
        """
        import oncemore.files.blobs, time

        def read(self, kept):
            yield b"half"
            print("half way", flush=True)
            time.sleep(60)

        oncemore.files.blobs.Blobs.read = read
        """,
        "hang/sitecustomize.py",
    )
    script(STEP, "30")
    os.unlink("out/big")
    script.kill_at("half way", STEP, "30", env={"PYTHONPATH": f"{script.folder / 'hang'}{os.pathsep}{SRC}"})
    (draft,) = os.listdir("out")
    assert draft.startswith(".oncemore-")
    assert "making" not in script(STEP, "30").out
    assert os.listdir("out") == ["big"]
    assert os.path.getsize("out/big") == 30 << 20
