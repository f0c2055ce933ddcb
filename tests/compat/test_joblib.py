"""`oncemore.compat.joblib`: cached functions, references to results, limits; and the store backend of joblib's Memory."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

joblib: Any = pytest.importorskip("joblib")

from oncemore import CheckpointWarning, History, UsageError, checkpoint_scope, checkpointed, memoized
from oncemore.compat.joblib import MemorizedFunc, Memory, expires_after
from tests.processes import Script

Noted = Callable[[], int]


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    return Memory(tmp_path / "cache", verbose=0)


def ran(what: object) -> None:
    """Note that a cached function ran; files that a step appends to don't count."""
    with open("ran", "a") as file:
        file.write(f"{what}\n")


def runs() -> list[str]:
    path = Path("ran")
    return path.read_text().splitlines() if path.exists() else []


def square(x: int, client: object = None) -> int:
    ran(x)
    return x * x


# -- the interface of joblib.Memory


def test_a_function_runs_once_for_each_argument(memory: Memory) -> None:
    cached = memory.cache(square)
    assert [cached(x) for x in (2, 3, 2, 3)] == [4, 9, 4, 9]
    assert runs() == ["2", "3"]
    assert Memory(str(memory.location), verbose=0).cache(square)(2) == 4
    assert memory.eval(square, 3) == 9
    assert runs() == ["2", "3"]


def test_it_is_a_memory_of_joblib_and_a_step(memory: Memory) -> None:
    cached = memory.cache(square)
    assert isinstance(memory, joblib.Memory)
    assert (cached.__name__, cached.func, memory.cache(cached).func) == ("square", square, square)
    assert not cached.is_done(2) and cached(2) == 4 and cached.recall(2) == 4
    assert cached.explain(2).reuses
    cached.put(5, 2)
    assert cached(2) == 5 and runs() == ["2"]


def test_without_a_location_nothing_is_cached() -> None:
    memory = Memory(None)
    cached = memory.cache(square)
    assert cached(2) == cached(2) == 4 and runs() == ["2", "2"]
    assert not cached.check_call_in_cache(2) and cached.call_and_shelve(2).get() == 4
    memory.clear(), memory.reduce_size(items_limit=0)
    assert pickle.loads(pickle.dumps(memory)).location is None


def test_options_work_with_and_without_a_function(memory: Memory) -> None:
    @memory.cache(ignore=["client"])
    def ask(x: int, client: object = None) -> int:
        ran(x)
        return x

    assert ask(1, client=1) == ask(1, client=2) == 1
    assert runs() == ["1"] and ask.ignore == ["client"]
    starred = memory.cache(lambda *args, **kwargs: len(args), ignore=["*", "**"])
    assert starred(1, 2) == starred(3, a=4) == 2
    with pytest.raises(UsageError, match="callable"):
        memory.cache(square, cache_validation_callback=True)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="nothing"):
        memory.cache(square, ignore=["nothing"])
    with pytest.raises(UsageError, match="backend 's3'"):
        Memory("cache", backend="s3")


def test_a_mapped_result_is_refused_with_a_warning(tmp_path: Path) -> None:
    with pytest.warns(CheckpointWarning, match="mmap_mode='r' has no effect"):
        memory = Memory(tmp_path / "cache", mmap_mode="r", verbose=0)
    assert memory.cache(square)(2) == 4  # no second warning
    with pytest.warns(CheckpointWarning, match="mmap_mode='c' has no effect"):
        memory.cache(square, mmap_mode="c")


def test_a_reference_leads_to_the_result_until_it_is_cleared(memory: Memory) -> None:
    cached = memory.cache(square)
    shelved = cached.call_and_shelve(4)
    assert cached.call_and_shelve(4).get() == pickle.loads(pickle.dumps(shelved)).get() == 16
    assert runs() == ["4"] and shelved.func == cached.func_id
    shelved.clear(), shelved.clear()
    with pytest.raises(KeyError, match="removed"):
        shelved.get()
    assert cached(4) == 16 and runs() == ["4", "4"]


def test_call_runs_again_and_says_how_long_it_took(memory: Memory) -> None:
    cached = memory.cache(square)
    cached(3)
    value, metadata = cached.call(3)
    assert (value, sorted(metadata), metadata["input_args"]["x"]) == (9, ["duration", "input_args", "time"], "3")
    assert runs() == ["3", "3"]


def test_results_are_valid_as_long_as_a_callback_says_so(memory: Memory) -> None:
    seen: list[dict[str, Any]] = []
    cached = memory.cache(square, cache_validation_callback=lambda metadata: bool(seen.append(metadata)))
    assert cached(3) == cached(3) == 9
    assert runs() == ["3", "3"] and seen[0]["input_args"] == {"x": "3", "client": "None"}
    lasting = memory.cache(square, cache_validation_callback=expires_after(days=1))
    assert lasting(4) == lasting(4) == 16 and runs() == ["3", "3", "4"]
    assert not memory.cache(square, cache_validation_callback=expires_after(seconds=0)).check_call_in_cache(4)


def test_coroutine_functions_are_cached_too(memory: Memory) -> None:
    @memory.cache
    async def fetch(x: int) -> int:
        ran(x)
        return x

    async def run() -> None:
        assert [await fetch(1), await fetch(1)] == [1, 1]
        assert (await fetch.call_and_shelve(2)).get() == 2
        assert (await fetch.call(1))[0] == 1

    asyncio.run(run())
    assert runs() == ["1", "2", "1"]


def test_functions_of_one_name_do_not_disturb_each_other(memory: Memory) -> None:
    functions = [memory.cache(lambda x: x + 1), memory.cache(lambda x: x + 2)]
    for _ in range(2):
        assert [function(1) for function in functions] == [2, 3]
    assert all(function.check_call_in_cache(1) for function in functions)


def test_code_that_is_replaced_in_memory_counts(memory: Memory) -> None:
    def double(x: int) -> int:
        return 2 * x

    def triple(x: int) -> int:
        return 3 * x

    cached = memory.cache(double)
    assert cached(1) == 2
    double.__code__ = triple.__code__
    assert cached(1) == 3


# -- removal


def test_clear_removes_what_it_names(memory: Memory) -> None:
    first, second = memory.cache(square), memory.cache(abs)
    first(1), first(2), second(-1)
    first.clear()
    assert not first.check_call_in_cache(1) and second.check_call_in_cache(-1)
    first.clear()  # there is nothing left
    memory.clear()
    assert not second.check_call_in_cache(-1) and memory.store_backend.get_items() == []


def test_limits_remove_the_oldest_results(memory: Memory) -> None:
    cached = memory.cache(square)
    for x in range(6):
        cached(x)
    memory.reduce_size()
    assert len(memory.store_backend.get_items()) == 6
    memory.reduce_size(items_limit=4)
    assert [cached.check_call_in_cache(x) for x in range(6)] == [False, False, True, True, True, True]
    sizes = [item.size for item in memory.store_backend.get_items()]
    memory.reduce_size(bytes_limit=sum(sizes) - 1)
    assert [cached.check_call_in_cache(x) for x in range(6)] == [False, False, False, True, True, True]
    memory.reduce_size(bytes_limit="1M", age_limit=timedelta(days=1))
    assert len(memory.store_backend.get_items()) == 3
    with pytest.raises(ValueError, match="positive"):
        memory.reduce_size(age_limit=timedelta(days=-1))
    memory.reduce_size(age_limit=timedelta(0))
    assert memory.store_backend.get_items() == []


# -- what oncemore adds


def test_an_edited_helper_runs_the_function_again_and_the_old_results_stay(script: Script) -> None:
    source = """
        from oncemore.compat.joblib import Memory
        def helper(x): return x + {n}
        @Memory("cache", verbose=0).cache
        def compute(x):
            print("computing")
            return helper(x)
        print(compute(1))
    """
    assert script(source.format(n=1)).lines == ["computing", "2"]
    assert script(source.format(n=2)).lines == ["computing", "3"]
    assert script(source.format(n=1)).lines == ["2"]


def test_a_damaged_result_is_computed_again_and_never_loaded(memory: Memory) -> None:
    cached = memory.cache(square)
    cached(3)
    store = memory.store_backend.store
    ((key, data),) = list(store.scan("shared/"))
    store.commit(put={key: [bytes(data or b"").replace(b"\x00", b"\x01")]})
    again = Memory(memory.location, verbose=0).cache(lambda: None)  # another function, so nothing is in memory
    assert [finding.kind for finding in History(store).verify().findings] == ["damaged"]
    History(store).memo_clear()
    assert again() is None and cached(3) == 9


def test_its_results_are_those_that_the_command_line_and_history_list(memory: Memory) -> None:
    memory.cache(square)(3)
    (listed,) = History(memory.location).memo()
    assert (listed.function, listed.calls) == (f"{__name__}.square", 1)


def test_inside_a_scope_results_go_to_the_location_and_steps_to_the_run(memory: Memory, tmp_path: Path) -> None:
    @checkpointed
    def inner(x: int) -> int:
        ran(f"inner {x}")
        return x

    @memory.cache
    def outer(x: int) -> int:
        ran(f"outer {x}")
        return inner(x)

    for _ in range(2):
        with checkpoint_scope("run", store=tmp_path / "runs") as run:
            assert outer(1) == 1
    assert runs() == ["outer 1", "inner 1"]
    assert [each.function for each in History(memory.location).memo()] == [outer.func_id]
    assert History(tmp_path / "runs").memo() == []
    assert [c.step.rpartition(".")[2] for c in run.checkpoints] == ["inner"]


def test_a_step_that_calls_a_cached_function_depends_on_its_code(script: Script) -> None:
    source = """
        from oncemore import checkpoint_scope, checkpointed
        from oncemore.compat.joblib import Memory
        memory = Memory("cache", verbose=0)
        @memory.cache
        def part(x): return x + {n}
        @checkpointed
        def whole(x):
            print("whole")
            return part(x)
        with checkpoint_scope("run", store="runs"):
            print(whole(1))
    """
    assert script(source.format(n=1)).lines == ["whole", "2"]
    assert script(source.format(n=1)).lines == ["2"]
    assert script(source.format(n=2)).lines == ["whole", "3"]


def test_disabled_it_only_calls_functions(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEMORE_DISABLE", "1")
    cached = memory.cache(square)
    assert cached(2) == cached(2) == 4 and cached.call(2) == (4, {}) and cached.call_and_shelve(2).get() == 4
    assert not cached.check_call_in_cache(2) and runs() == ["2"] * 4


def test_a_result_that_cannot_be_saved_is_still_shelved(memory: Memory) -> None:
    cached = memory.cache(lambda: open("ran", "w"))
    with pytest.warns(CheckpointWarning), cached.call_and_shelve().get() as file:
        assert file.writable()


# -- other processes


def test_pickles_are_the_same_memory_and_the_same_function(memory: Memory) -> None:
    cached = memory.cache(square)
    cached(2)
    for again in (pickle.loads(pickle.dumps(cached)), pickle.loads(pickle.dumps(memory)).cache(square)):
        assert again(2) == 4 and isinstance(again, MemorizedFunc)
    assert copy.deepcopy(memory).cache(square)(2) == 4
    assert runs() == ["2"]


PARALLEL = """
    import sys
    from joblib import Parallel, delayed
    from oncemore.compat.joblib import Memory

    memory = Memory("cache", verbose=0)

    @memory.cache
    def slow(x):
        with open("ran", "a") as file:
            file.write(f"{x} ")
        return x * x

    if __name__ == "__main__":
        print(Parallel(n_jobs=2)(delayed(slow)(x % 3) for x in range(9)))
        print(sum(slow(x) for x in range(3)))
"""


def test_workers_of_joblib_share_results_and_compute_none_twice(script: Script, tmp_path: Path) -> None:
    for _ in range(2):
        assert script(PARALLEL).lines == ["[0, 1, 4, 0, 1, 4, 0, 1, 4]", "5"]
    assert sorted((tmp_path / "ran").read_text().split()) == ["0", "1", "2"]


# -- the store backend of joblib's own Memory


@pytest.fixture(params=["path", "url"])
def plain(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """joblib's own Memory on a store of oncemore."""
    location = str(tmp_path / "plain") if request.param == "path" else f"memory://{tmp_path.name}"
    return joblib.Memory(location, backend="oncemore", verbose=0)


def items(plain: Any) -> list[str]:
    return [key for key, _ in plain.store_backend._store.scan("joblib/", most=0)]


def test_joblibs_memory_stores_signed_entries(plain: Any) -> None:
    cached = plain.cache(square)
    assert cached(3) == cached(3) == 9 and runs() == ["3"]
    assert pickle.loads(pickle.dumps(plain)).cache(square).check_call_in_cache(3)
    assert cached.call_and_shelve(3).get() == 9
    names = {key.rpartition("/")[2] for key in items(plain)}
    assert names - {"func_code.py"} == {"output.pkl", "metadata.json"}  # joblib writes the code once per process
    assert History(plain.store_backend._store).verify().findings == ()


def test_joblib_computes_again_what_was_altered_in_the_store(plain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = plain.cache(square)
    cached(3)
    store = plain.store_backend._store
    (key,) = [key for key in items(plain) if key.endswith("output.pkl")]
    data = bytearray(store.get(key) or b"")
    data[-40] ^= 1
    store.commit(put={key: [bytes(data)]})
    assert [(f.kind, f.key) for f in History(store).verify().findings] == [("damaged", key)]
    said: list[str] = []
    monkeypatch.setattr(cached, "warn", said.append)
    assert cached(3) == 9 and runs() == ["3", "3"]
    assert "IntegrityError" in said[0] and "altered" in said[0]
    assert History(store).verify().findings == ()


def test_joblib_clears_and_limits_what_is_in_the_store(plain: Any) -> None:
    cached, other = plain.cache(square), plain.cache(ran)
    for x in range(5):
        cached(x)
    other("other")
    plain.reduce_size(items_limit=2)
    assert [cached.check_call_in_cache(x) for x in range(5)].count(True) == 1
    assert other.check_call_in_cache("other")
    cached.clear(warn=False)
    assert not any(cached.check_call_in_cache(x) for x in range(5)) and other.check_call_in_cache("other")
    plain.clear(warn=False)
    assert items(plain) == []


def test_a_result_that_joblib_fails_to_pickle_leaves_nothing_behind(plain: Any) -> None:
    cached = plain.cache(lambda: (x for x in ()))
    with pytest.warns(Warning, match="Unable to cache"):
        cached()
    assert not any(key.endswith("output.pkl") for key in items(plain))


def test_both_can_live_in_one_store(tmp_path: Path) -> None:
    plain = joblib.Memory(tmp_path, backend="oncemore", verbose=0)
    ours = Memory(tmp_path, verbose=0)
    plain.cache(square)(2), ours.cache(square)(2)
    ours.clear()
    assert plain.cache(square).check_call_in_cache(2)
    assert runs() == ["2", "2"]


def test_memoized_functions_in_the_same_store_go_with_clear(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEMORE_STORE", str(memory.location))
    other = memoized(square)
    other(1), memory.clear()
    assert not other.is_done(1)
