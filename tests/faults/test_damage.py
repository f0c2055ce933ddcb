"""An entry that is not what was written there is never used: its step runs again, and says why. The rest goes on."""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oncemore import CheckpointWarning, IntegrityError, StoreDamaged, checkpoint_scope, checkpointed, current_run
from tests.faults import damage
from tests.faults.damage import CHANGES, Store, in_file, in_row
from tests.processes import Script

LARGE = 100_000  # bytes: more than a row takes
ITEM = 200_000  # eight of them are more than one chunk

calls: list[str] = []
step = checkpointed(code="version", version="1")  # their code reads `calls`, which changes


@step
def small(n: int) -> list[int]:
    calls.append(f"small {n}")
    return [n]


@step
def noise(n: int) -> bytes:
    calls.append(f"noise {n}")
    return _noise(n, LARGE)


@step
def other(n: int) -> str:
    calls.append(f"other {n}")
    return f"other {n}"


@step
def stream(n: int) -> Iterator[bytes]:
    calls.append(f"stream {n}")
    for number in range(8):
        yield _noise(number, ITEM)


@step
def counting(n: int) -> int:
    calls.append(f"counting {n}")
    run = current_run()
    assert run is not None
    run.state["count"] = run.state.get("count", 0) + n
    return n


def _noise(seed: int, size: int) -> bytes:
    import random

    return random.Random(seed).randbytes(size)


def everything(**options: Any) -> list[object]:
    """Run it all in one scope of one run; `calls` then has what was executed."""
    calls.clear()
    with checkpoint_scope("damaged", store="store", **options):
        return [small(1), noise(1), other(1), list(stream(1)), counting(5), other(2)]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with one finished run."""
    everything()
    assert len(calls) == 6
    return Store(tmp_path / "store")


def expect_again(name: str, *ran: str) -> None:
    """The run is resumed: `ran` is executed again, with one warning that names the step, and all results are right."""
    with pytest.warns(CheckpointWarning, match=f"step {name} ") as caught:
        found = everything()
    assert calls == list(ran)
    assert len(told(caught)) == 1, told(caught)
    assert found == [[1], _noise(1, LARGE), "other 1", [_noise(n, ITEM) for n in range(8)], 5, "other 2"]
    everything()
    assert calls == []  # what ran again was kept again


def told(caught: Iterable[warnings.WarningMessage]) -> list[str]:
    """What oncemore said; the garbage of other tests may say something, too."""
    return [str(each.message) for each in caught if issubclass(each.category, CheckpointWarning)]


def expect_refused() -> None:
    with pytest.raises(IntegrityError):
        everything(strict=True)


# -- one entry


IN_A_ROW: dict[str, Callable[[Store, str], None]] = {
    **{name: in_row(change) for name, change in CHANGES.items()},
    "made text": lambda store, key: store.sql("UPDATE Cache SET value = 'text' WHERE key = ?", key) and None,
    "made a number": lambda store, key: store.sql("UPDATE Cache SET value = 7 WHERE key = ?", key) and None,
    "made null": lambda store, key: store.sql("UPDATE Cache SET value = NULL WHERE key = ?", key) and None,
    "of another mode": lambda store, key: store.sql("UPDATE Cache SET mode = 3 WHERE key = ?", key) and None,
}
IN_A_FILE: dict[str, Callable[[Store, str], None]] = {
    **{name: in_file(change) for name, change in CHANGES.items()},
    "deleted": damage.deleted_file,
    "a folder in its place": damage.folder_in_its_place,
    "a pipe in its place": damage.pipe_in_its_place,
    "a link in its place": damage.link_in_its_place,
    "named outside the store": damage.name_outside,
    "given another size": lambda store, key: (
        store.sql("UPDATE Cache SET filename = replace(filename, '-', '-1') WHERE key = ?", key) and None
    ),
}


@pytest.mark.parametrize("how", IN_A_ROW)
def test_a_step_whose_row_was_damaged_runs_again_and_says_so(store: Store, how: str) -> None:
    IN_A_ROW[how](store, store.key("/small/"))
    expect_again("small", "small 1")


@pytest.mark.parametrize("how", IN_A_FILE)
def test_a_step_whose_file_was_damaged_runs_again_and_says_so(store: Store, how: str) -> None:
    IN_A_FILE[how](store, store.large("/noise/"))
    expect_again("noise", "noise 1")


@pytest.mark.parametrize("how", IN_A_ROW)
def test_with_strict_a_damaged_row_is_an_error(store: Store, how: str) -> None:
    IN_A_ROW[how](store, store.key("/small/"))
    expect_refused()


@pytest.mark.parametrize("how", IN_A_FILE)
def test_with_strict_a_damaged_file_is_an_error(store: Store, how: str) -> None:
    IN_A_FILE[how](store, store.large("/noise/"))
    expect_refused()


@pytest.mark.parametrize("how", ["a bit flipped in its middle", "deleted"])
def test_a_generator_with_a_damaged_chunk_runs_again_from_its_start(store: Store, how: str) -> None:
    chunks = [str(key) for (key,) in store.sql("SELECT key FROM Cache WHERE key LIKE 'items/%' ORDER BY key")]
    assert len(chunks) > 1
    IN_A_FILE[how](store, chunks[-1])
    expect_again("stream", "stream 1")


def test_a_generator_whose_chunk_lost_its_row_runs_again(store: Store) -> None:
    chunks = store.sql("SELECT key FROM Cache WHERE key LIKE 'items/%' ORDER BY key")
    store.sql("DELETE FROM Cache WHERE key = ?", chunks[-1][0])
    expect_again("stream", "stream 1")


def test_with_strict_a_damaged_chunk_is_an_error_before_any_item(store: Store) -> None:
    chunks = store.sql("SELECT key FROM Cache WHERE key LIKE 'items/%' ORDER BY key")
    damage.in_file(CHANGES["cut by a byte"])(store, str(chunks[-1][0]))
    with checkpoint_scope("damaged", store="store", strict=True), pytest.raises(IntegrityError):
        next(stream(1))


@pytest.mark.parametrize("which", ["/counting/%@%", "/counting/%"])
def test_a_step_that_read_state_runs_again_when_either_of_its_entries_is_damaged(store: Store, which: str) -> None:
    condition = "key LIKE ?" + (" AND key NOT LIKE '%@%'" if "@" not in which else "")
    ((key,),) = store.sql(f"SELECT key FROM Cache WHERE {condition}", f"node/%{which}")
    IN_A_ROW["a bit flipped in its middle"](store, str(key))
    expect_again("counting", "counting 5")


def test_a_step_whose_row_was_deleted_runs_again_and_says_so(store: Store) -> None:
    store.sql("DELETE FROM Cache WHERE key = ?", store.key("/small/"))
    expect_again("small", "small 1")


# -- entries that are genuine, but of another place


def others(store: Store) -> tuple[str, str]:
    first, second = store.sql("SELECT key FROM Cache WHERE instr(key, '/other/') ORDER BY key")
    return str(first[0]), str(second[0])


def test_two_rows_swapped_are_both_refused(store: Store) -> None:
    first, second = others(store)
    one, two = store.value(first), store.value(second)
    store.set_value(first, two)
    store.set_value(second, one)
    with pytest.warns(CheckpointWarning, match="step other ") as caught:
        assert everything()[2::3] == ["other 1", "other 2"]
    assert calls == ["other 1", "other 2"]
    assert len(told(caught)) == 2, told(caught)


def test_a_row_copied_to_another_key_is_refused(store: Store) -> None:
    first, second = others(store)
    store.set_value(first, store.value(second))
    with pytest.warns(CheckpointWarning, match="step other "):
        found = everything()
    assert found[2::3] == ["other 1", "other 2"]
    assert len(calls) == 1


def test_with_strict_a_copied_row_is_an_error(store: Store) -> None:
    first, second = others(store)
    store.set_value(first, store.value(second))
    expect_refused()


def test_the_entry_of_another_run_is_refused(store: Store) -> None:
    mine = store.value(store.key("/small/"))
    with checkpoint_scope("another", store="store"):
        small(1)
    keys = [str(key) for (key,) in store.sql("SELECT key FROM Cache WHERE instr(key, '/small/')")]
    assert len(keys) == 2
    for key in keys:
        store.set_value(key, mine)  # right in one place, planted in the other
    calls.clear()
    with checkpoint_scope("another", store="store"), pytest.warns(CheckpointWarning, match="step small "):
        assert small(1) == [1]
    with checkpoint_scope("damaged", store="store"):
        assert small(1) == [1]
    assert calls == ["small 1"]


def test_two_files_swapped_are_both_refused(store: Store) -> None:
    with checkpoint_scope("damaged", store="store"):
        noise(2)
    keys = [str(key) for (key,) in store.sql("SELECT key FROM Cache WHERE instr(key, '/noise/') ORDER BY key")]
    rows = [store.sql("SELECT filename, size FROM Cache WHERE key = ?", key)[0] for key in keys]
    for key, row in zip(keys, reversed(rows)):
        store.sql("UPDATE Cache SET filename = ?, size = ? WHERE key = ?", *row, key)
    calls.clear()
    with checkpoint_scope("damaged", store="store"), pytest.warns(CheckpointWarning, match="step noise ") as caught:
        assert (noise(1), noise(2)) == (_noise(1, LARGE), _noise(2, LARGE))
    assert sorted(calls) == ["noise 1", "noise 2"]
    assert len(told(caught)) == 2, told(caught)


# -- planted pickles


class Trap:
    """Unpickled, it leaves a file behind."""

    def __reduce__(self) -> Any:
        return open, ("sprung", "w")


def trap() -> bytes:
    return pickle.dumps(Trap())


def dressed_trap() -> bytes:
    """A pickle that looks like an entry of ours: everything is right but the signature, which takes the secret."""
    from oncemore.codec import encode

    entry = encode(Trap(), {}, key="unknown", secret=bytes(32))
    return b"".join(entry.frames)


PLANTS: dict[str, Callable[[Store, str], None]] = {
    "as its value": lambda store, key: store.set_value(key, trap()),
    "as a value for diskcache to unpickle": lambda store, key: (
        store.sql("UPDATE Cache SET mode = 4, value = ? WHERE key = ?", trap(), key) and None
    ),
    "as an entry of ours": lambda store, key: store.set_value(key, dressed_trap()),
    "in a file of ours": lambda store, key: plant_file(store, key, 2),
    "in a file for diskcache to unpickle": lambda store, key: plant_file(store, key, 4),
}


def plant_file(store: Store, key: str, mode: int) -> None:
    name = f"ab/cd/{28 * '0'}-{len(trap()):x}.val"
    (store.folder / "ab" / "cd").mkdir(parents=True, exist_ok=True)
    (store.folder / name).write_bytes(trap())
    statement = "UPDATE Cache SET mode = ?, filename = ?, value = NULL, size = ? WHERE key = ?"
    store.sql(statement, mode, name, len(trap()), key)


def test_the_trap_works(tmp_path: Path) -> None:
    pickle.load(io.BytesIO(trap())).close()
    assert (tmp_path / "sprung").exists()


@pytest.mark.parametrize("how", PLANTS)
def test_a_planted_pickle_is_never_executed(store: Store, tmp_path: Path, how: str) -> None:
    PLANTS[how](store, store.key("/small/"))
    expect_again("small", "small 1")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("how", PLANTS)
@pytest.mark.parametrize("part", ["run/", "code/", "event/"])
def test_a_pickle_planted_in_the_books_is_never_executed(store: Store, tmp_path: Path, how: str, part: str) -> None:
    for (key,) in store.sql("SELECT key FROM Cache WHERE substr(key, 1, ?) = ?", len(part), part):
        PLANTS[how](store, str(key))
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        assert everything()[0] == [1]
        with checkpoint_scope("damaged", store="store") as run:
            small(7)
            list(run.events())
    assert not (tmp_path / "sprung").exists()


def test_rows_with_pickled_keys_are_not_even_looked_at(store: Store, tmp_path: Path) -> None:
    columns = "store_time, access_time, access_count, size, mode, filename, value"
    values = "0, 0, 0, 0, 4, NULL, ?"
    statement = f"INSERT INTO Cache(key, raw, {columns}) VALUES (?, 0, {values})"
    store.sql(statement, trap(), trap())
    store.sql(statement, "node/planted", trap())
    everything()
    assert calls == []
    assert not (tmp_path / "sprung").exists()


# -- the secret


def test_with_another_secret_nothing_is_unpickled(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something was unpickled")

    monkeypatch.setenv("ONCEMORE_KEY", "another secret")
    monkeypatch.setattr("oncemore.codec.from_pickle", refuse)
    monkeypatch.setattr("oncemore.codec.pickle.loads", refuse)
    monkeypatch.setattr("oncemore.codec.compression.unpack", refuse)
    with (
        pytest.warns(CheckpointWarning, match="made with another key"),
        checkpoint_scope("damaged", store="store"),
    ):
        small(1)
        noise(1)
        list(stream(1))


def test_what_another_secret_signed_is_not_lost(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setenv("ONCEMORE_KEY", "another secret")
            with pytest.warns(CheckpointWarning, match="new runs are stored separately"):
                everything()
        everything()
    assert len(calls) == 0
    assert not store.sql("SELECT key FROM Cache WHERE key LIKE 'damaged/%'")
    assert len(store.sql("SELECT key FROM Cache WHERE instr(key, '/small/')")) == 2


def test_with_strict_another_secret_is_an_error(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEMORE_KEY", "another secret")
    expect_refused()


# -- the books


@pytest.mark.parametrize("how", IN_A_ROW)
def test_a_run_whose_record_is_damaged_starts_anew_and_says_so(store: Store, how: str) -> None:
    IN_A_ROW[how](store, "run/damaged")
    with pytest.warns(CheckpointWarning, match="run damaged starts over"):
        everything()
    assert len(calls) == 6
    everything()
    assert calls == []


@pytest.mark.parametrize("how", IN_A_ROW)
def test_with_strict_a_damaged_run_record_is_an_error(store: Store, how: str) -> None:
    IN_A_ROW[how](store, "run/damaged")
    expect_refused()
    assert calls == []


@pytest.mark.parametrize("how", IN_A_ROW)
def test_a_damaged_event_is_left_out_with_a_warning_and_the_others_are_read(store: Store, how: str) -> None:
    (first, *_) = store.sql("SELECT key FROM Cache WHERE substr(key, 1, 6) = 'event/' ORDER BY key")
    IN_A_ROW[how](store, str(first[0]))
    everything()
    assert calls == []
    with (
        checkpoint_scope("damaged", store="store") as run,
        pytest.warns(CheckpointWarning, match="event .* is left out"),
    ):
        kinds = [type(event).__name__ for event in run.events()]
    assert "RunStarted" not in kinds
    assert kinds.count("StepCompleted") == 6


@pytest.mark.parametrize("how", IN_A_ROW)
def test_a_damaged_code_manifest_costs_an_explanation_and_nothing_else(store: Store, how: str) -> None:
    for (key,) in store.sql("SELECT key FROM Cache WHERE substr(key, 1, 5) = 'code/'"):
        IN_A_ROW[how](store, str(key))
    everything()
    assert calls == []
    edited = checkpointed(code="version", version="2", name="small")(small.__wrapped__)
    with checkpoint_scope("damaged", store="store"):
        assert edited(1) == [1]
    assert calls == ["small 1"]


# -- the database


SCRIPT = """
    from oncemore import checkpointed, checkpoint_scope

    @checkpointed
    def step(n):
        return n

    with checkpoint_scope("damaged", store="store"):
        print("in scope")
        print([step(n) for n in range(100)])
"""
DESTROYED: dict[str, Callable[[Path], object]] = {
    "overwritten": lambda path: path.write_bytes(b"not a database" * 1000),
    "emptied": lambda path: path.write_bytes(b""),
    "cut to half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "zeros after its header": lambda path: path.write_bytes(path.read_bytes()[:100] + bytes(path.stat().st_size - 100)),
}


@pytest.mark.parametrize("how", DESTROYED)
def test_a_destroyed_database_is_named_together_with_the_remedy(script: Script, how: str) -> None:
    script(SCRIPT)
    path = script.folder / "store" / "cache.db"
    DESTROYED[how](path)
    done = script(SCRIPT, expect=1)
    last = done.err.splitlines()[-1]
    assert "oncemore.errors.StoreDamaged" in last
    assert str(path) in last
    assert f"move {path.parent} aside" in last
    assert done.out == ""


def test_a_deleted_database_is_a_fresh_start_with_a_warning(script: Script) -> None:
    script(SCRIPT)
    for path in (script.folder / "store").glob("cache.db*"):
        path.unlink()
    done = script(SCRIPT)
    assert "CheckpointWarning: the database" in done.err
    assert done.lines[-1].endswith("99]")


def test_a_database_destroyed_under_a_running_script_costs_its_checkpoints_and_not_its_results(store: Store) -> None:
    with pytest.warns(CheckpointWarning) as caught, checkpoint_scope("damaged", store="store"):
        for path in store.folder.glob("cache.db*"):
            path.write_bytes(b"not a database" * 1000)
        assert [other(n) for n in range(3, 6)] == ["other 3", "other 4", "other 5"]
    assert any("the result was not saved" in str(each.message) for each in caught)
    store.close()
    with pytest.raises(StoreDamaged, match="cache.db"):
        everything()
