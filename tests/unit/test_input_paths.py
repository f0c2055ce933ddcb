"""`inputs=`: paths wherever they are in an argument count by the content of their files."""

from __future__ import annotations

import collections
import dataclasses
import os
import sys

import pytest

from oncemore import File, UsageError, checkpoint_scope, checkpointed


@dataclasses.dataclass
class Job:
    source: object
    factor: int = 1


class Batch:
    """A container of the user's."""

    def __init__(self, *paths):
        self.paths = paths

    def __iter__(self):
        return iter(self.paths)


def _attrs(path):
    attrs = pytest.importorskip("attrs")
    return attrs.make_class("Config", ["path", "n"])(path, 1)


def _array(path):
    return pytest.importorskip("numpy").array([str(path)])


def _series(path):
    return pytest.importorskip("pandas").Series([str(path)])


@pytest.mark.parametrize(
    "holding",
    [
        lambda path: path,
        str,
        lambda path: os.fsencode(path),
        lambda path: [path],
        lambda path: {"orders": path},
        lambda path: {"a": {"b": [(1, path)]}},
        lambda path: {path},
        lambda path: collections.deque([path]),
        lambda path: collections.namedtuple("Pair", "a b")(1, path),
        lambda path: Job(path),
        lambda path: Job([{"deep": Job(str(path))}]),
        lambda path: Batch(path),
        _attrs,
        _array,
        _series,
    ],
)
def test_a_path_counts_by_the_content_of_its_file_wherever_it_is(tmp_path, holding):
    path = tmp_path / "orders.csv"

    @checkpointed(inputs=["source"])
    def load(source):
        return path.read_text()

    found = []
    for content in ("a", "a", "b", "a"):
        path.write_text(content)
        with checkpoint_scope("run", store=f"memory://{tmp_path}") as run:
            found.append((load(holding(path)), run.ran.total()))
    assert found == [("a", 1), ("a", 0), ("b", 1), ("a", 0)]


def test_what_is_no_path_counts_too(tmp_path):
    @checkpointed(inputs=["job"])
    def load(job):
        return job.factor

    with checkpoint_scope("run", store=f"memory://{tmp_path}") as run:
        assert [load(Job("a.csv", factor)) for factor in (1, 2, 1)] == [1, 2, 1]
        assert run.ran.total() == 2


def test_an_argument_that_contains_itself_is_looked_through_once(tmp_path):
    @checkpointed(inputs=["source"])
    def load(source):
        return len(source)

    source: list[object] = [str(tmp_path / "a.csv")]
    source.append(source)
    with checkpoint_scope("run", store=f"memory://{tmp_path}"):
        assert load(source) == 2


@pytest.mark.parametrize("made", [lambda: iter(["a.csv"]), lambda: (path for path in ["a.csv"]), lambda: [iter("a")]])
def test_an_iterator_is_refused_and_not_used_up(tmp_path, made):
    @checkpointed(inputs=["paths"])
    def load(paths):
        return list(paths)

    given = made()
    with (
        checkpoint_scope("run", store=f"memory://{tmp_path}"),
        pytest.raises(UsageError, match=r"'paths'.*Pass a list"),
    ):
        load(given)
    if not isinstance(given, list):
        assert list(given) == ["a.csv"]


def test_linked_folders_are_followed_and_links_that_lead_back_up_are_not(tmp_path):
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    (elsewhere / "deep").mkdir(parents=True)
    data.mkdir()
    (data / "linked").symlink_to(elsewhere)
    (elsewhere / "deep" / "up").symlink_to(data)
    (elsewhere / "gone").symlink_to(tmp_path / "nowhere")
    os.mkfifo(elsewhere / "pipe")

    @checkpointed(inputs=["folder"])
    def load(folder):
        return (elsewhere / "deep" / "a.csv").read_text()

    found = []
    for content in ("a", "a", "b"):
        (elsewhere / "deep" / "a.csv").write_text(content)
        with checkpoint_scope("run", store=f"memory://{tmp_path}"):
            found.append(load(data))
    assert found == ["a", "a", "b"]


class _Read:
    """The paths that Python code opens for reading, by an audit hook: it can be switched off, not removed."""

    def __init__(self):
        self.paths: set[str] | None = set()
        sys.addaudithook(self)

    def __call__(self, event, args):
        if self.paths is not None and event == "open" and args[2] & os.O_ACCMODE == os.O_RDONLY:
            self.paths.add(os.path.realpath(os.fsdecode(args[0])))


def test_a_folder_that_contains_the_store_is_an_input_without_the_store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "orders.csv").write_text("a")
    (tmp_path / "link").symlink_to(tmp_path / "store")

    @checkpointed(inputs=["folder"])
    def load(folder):
        return 1

    read = _Read()
    for times in (1, 0):
        with checkpoint_scope("run", store=tmp_path / "store") as run:
            load(".")
            load("store/cache.db")
            assert run.ran.total() == 2 * times
    found, read.paths = read.paths, None
    assert str(tmp_path / "orders.csv") in (found or ())
    assert [path for path in found or () if path.startswith(str(tmp_path / "store" / "cache.db"))] == []


def test_outputs_never_include_the_files_of_a_store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    @checkpointed(outputs=["all", "**/*.db"])
    def work():
        (tmp_path / "all" / "new.db").write_text("new")

    (tmp_path / "all").mkdir()
    read = _Read()
    with checkpoint_scope("run", store=tmp_path / "all" / "store"):
        work()
    (tmp_path / "all" / "new.db").unlink()
    with checkpoint_scope("run", store=tmp_path / "all" / "store") as run:
        work()
        assert run.ran == {}
    found, read.paths = read.paths, None
    assert (tmp_path / "all" / "new.db").read_text() == "new"
    assert [path for path in found or () if path.startswith(str(tmp_path / "all" / "store" / "cache.db"))] == []


def test_a_file_of_a_store_is_no_file_value(tmp_path):
    @checkpointed
    def size(file):
        return 1

    @checkpointed
    def give():
        return File(tmp_path / "store" / "cache.db")

    with checkpoint_scope("run", store=tmp_path / "store"):
        with pytest.raises(UsageError, match="file of a store"):
            size(File(tmp_path / "store" / "cache.db"))
        with pytest.warns(match="file of a store"):
            give()
