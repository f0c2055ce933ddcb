"""The narrow moments of a commit, each made to happen."""

from __future__ import annotations

import itertools
import os
import signal
import sqlite3
import sys

import pytest

from oncemore.errors import StoreError
from oncemore.stores.disk import DiskStore
from oncemore.testing import bytes_of, in_fork


class Interrupting:
    """A connection at which Ctrl-C arrives before or after a statement."""

    def __init__(self, connection: sqlite3.Connection, statement: str, after: bool) -> None:
        self._connection = connection
        self._statement = statement
        self._after = after

    def execute(self, statement, *given):
        hit = statement.startswith(self._statement)
        if hit and not self._after:
            raise KeyboardInterrupt
        result = self._connection.execute(statement, *given)
        if hit:
            raise KeyboardInterrupt
        return result

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction

    def rollback(self) -> None:
        self._connection.rollback()


def interrupt(store: DiskStore, monkeypatch, statement: str, after: bool) -> None:
    """Let the next commit meet Ctrl-C there."""
    session = store._cache._session()
    with monkeypatch.context() as patch:
        patch.setattr(session, "connection", Interrupting(session.connection, statement, after))
        with pytest.raises(KeyboardInterrupt):
            store.commit(put={"a": [b"new" * 20_000], "b": [b"new"]}, append={"log/": [b"e"]}, delete=["c"])


@pytest.fixture
def store(tmp_path):
    store = DiskStore(tmp_path)
    store.commit(put={"a": [b"old" * 20_000], "c": [b"old" * 20_000]})
    return store


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("statement", ["BEGIN", "INSERT", "UPDATE", "SELECT rowid", "DELETE"])
def test_an_interrupt_in_a_transaction_undoes_it_and_removes_its_files(store, tmp_path, monkeypatch, statement, after):
    interrupt(store, monkeypatch, statement, after)
    assert bytes_of(store, "a") == b"old" * 20_000
    assert bytes_of(store, "c") == b"old" * 20_000
    assert [key for key, _ in store.scan("")] == ["a", "c"]
    assert len(list(tmp_path.glob("??/??/*.val"))) == 2
    assert DiskStore(tmp_path).commit(put={"other": [b"nobody is locked out"]})


def test_an_interrupt_before_the_commit_undoes_all(store, tmp_path, monkeypatch):
    interrupt(store, monkeypatch, "COMMIT", after=False)
    assert [key for key, _ in store.scan("")] == ["a", "c"]
    assert len(list(tmp_path.glob("??/??/*.val"))) == 2
    assert DiskStore(tmp_path).commit(put={"other": [b"nobody is locked out"]})


def test_an_interrupt_right_after_the_commit_loses_no_file_of_it(store, tmp_path, monkeypatch):
    interrupt(store, monkeypatch, "COMMIT", after=True)
    assert bytes_of(store, "a") == b"new" * 20_000
    assert [key for key, _ in store.scan("")] == ["a", "b", "log/0000000000000001"]
    assert len(list(tmp_path.glob("??/??/*.val"))) == 1  # what "a" and "c" had before is gone
    assert store.maintain(older_than=-1).damaged == []


def interrupted_at(event: int, work) -> list[BaseException]:
    """Call `work` with Ctrl-C at so many lines, calls and returns from its begin, in whatever code: the error, if it got there."""
    left = event

    def trace(frame, kind, argument):
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except BaseException as error:
        return [error]
    finally:
        sys.settrace(before)
    return []


def test_what_an_interrupt_leaves_behind_does_not_undo_a_later_commit_when_it_is_collected(store, monkeypatch):
    for number in itertools.count(1):
        errors = interrupted_at(number, lambda: store.commit(put={"a": [b"new"], "b": [b"new"]}))
        if not errors:
            break
        with monkeypatch.context() as patch:
            patch.setattr(store._cache, "delete", lambda key, errors=errors: errors.clear())
            assert store.commit(put={"x": [b"%d" % number], "y": [b"%d" % number]}, delete=["now"])
        assert dict(store.get_many(["x", "y"])) == dict.fromkeys("xy", b"%d" % number)
    assert number > 100


def test_a_commit_whose_file_was_tidied_away_meanwhile_is_refused(store, tmp_path, monkeypatch):
    other, change = DiskStore(tmp_path), store._cache.change

    def late(work):
        assert other.maintain(older_than=-1).orphans_removed == 1
        change(work)

    with monkeypatch.context() as patch:
        patch.setattr(store._cache, "change", late)
        with pytest.raises(StoreError, match="removed before its commit"):
            store.commit(put={"a": [b"new" * 20_000]})
    assert bytes_of(store, "a") == b"old" * 20_000
    assert other.maintain().damaged == []


def test_a_kill_inside_a_transaction_loses_no_value_that_it_was_about_to_replace(store, tmp_path, monkeypatch):
    def child() -> int:
        # diskcache removes the file of a replaced value at the end of each `set`, before the outer COMMIT.
        monkeypatch.setattr(store._cache, "delete", lambda key: os.kill(os.getpid(), signal.SIGKILL))
        store.commit(put={"a": [b"new" * 20_000]}, delete=["c"])
        return 0

    assert in_fork(child) == -signal.SIGKILL
    assert bytes_of(store, "a") == b"old" * 20_000
    assert store.maintain(older_than=-1).damaged == []


def test_a_file_replaced_between_row_and_reading_gives_the_new_value(store, tmp_path, monkeypatch):
    other, fetch = DiskStore(tmp_path), store._cache.values.fetch

    def replaced_first(*given, **named):
        other.commit(put={"a": [b"newer" * 20_000]})
        monkeypatch.undo()
        return fetch(*given, **named)

    monkeypatch.setattr(store._cache.values, "fetch", replaced_first)
    assert bytes_of(store, "a") == b"newer" * 20_000


def test_an_entry_deleted_between_row_and_reading_is_absent(store, tmp_path, monkeypatch):
    other, fetch = DiskStore(tmp_path), store._cache.values.fetch

    def deleted_first(*given, **named):
        other.commit(delete=["a"])
        monkeypatch.undo()
        return fetch(*given, **named)

    monkeypatch.setattr(store._cache.values, "fetch", deleted_first)
    assert store.get("a") is None


def test_deleting_ten_thousand_entries_touches_only_those(tmp_path):
    store = DiskStore(tmp_path)
    store.commit(put={f"k{number:05}": [b"v"] for number in range(12_000)})
    before = store._cache._session().connection.total_changes
    store.commit(delete=[f"k{number:05}" for number in range(10_000)])
    changes = store._cache._session().connection.total_changes - before
    assert changes == 3 * 10_000  # each row, and the count and the size that diskcache keeps of them
    assert len(list(store.scan("k"))) == 2_000
