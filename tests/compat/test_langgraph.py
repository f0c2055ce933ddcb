"""The LangGraph checkpointer: it passes LangGraph's own suite, and graphs that are killed go on where they were."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

pytest.importorskip("langgraph.graph")
conformance: Any = pytest.importorskip("langgraph.checkpoint.conformance")

from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import START, StateGraph

from oncemore import CheckpointWarning, History, IntegrityError, UsageError, checkpoint_scope, checkpointed
from oncemore.compat.langgraph import OncemoreSaver
from oncemore.keys import THREADS
from oncemore.retention import keep_last
from tests.processes import Script

CONFIG: Any = {"configurable": {"thread_id": "t"}}


class State(TypedDict, total=False):
    n: int
    big: str


def join(before: list[str], writes: list[list[str]]) -> list[str]:
    return [*before, *(each for write in writes for each in write)]


class Told(TypedDict, total=False):
    told: Annotated[list[str], DeltaChannel(join, snapshot_frequency=5)]


def counting(saver: OncemoreSaver) -> Any:
    """A graph of two nodes, which adds 2 to n."""

    def add(state: State) -> State:
        return {"n": state["n"] + 1}

    builder = StateGraph(State)
    builder.add_node("first", add)
    builder.add_node("second", add)
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    return builder.compile(checkpointer=saver)


def put(saver: OncemoreSaver, thread: str, values: dict[str, Any], parent: str | None = None, **metadata: Any) -> Any:
    """Save a checkpoint with these values, each of version 1."""
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"], checkpoint["channel_versions"] = values, dict.fromkeys(values, 1)
    config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": "", "checkpoint_id": parent}}
    about: Any = {"source": "loop", "step": 0, **metadata}
    return saver.put(config, checkpoint, about, dict.fromkeys(values, 1))


def keys(saver: OncemoreSaver, kind: str) -> list[str]:
    return [key for key, _ in saver.store.scan(f"{THREADS}{kind}/", most=0)]


def alter(saver: OncemoreSaver, key: str) -> None:
    """Flip a bit of an entry."""
    data = bytearray(saver.store.get(key) or b"")
    data[len(data) // 2] ^= 1
    saver.store.commit(put={key: [bytes(data)]})


@pytest.fixture(params=["disk", "memory"])
def saver(request: pytest.FixtureRequest, tmp_path: Path) -> OncemoreSaver:
    return OncemoreSaver(tmp_path / "store" if request.param == "disk" else f"memory://{tmp_path.name}")


# -- LangGraph's own suite


def test_it_passes_langgraphs_own_suite_in_full(saver: OncemoreSaver) -> None:
    @conformance.checkpointer_test(name="OncemoreSaver")
    async def factory() -> AsyncIterator[OncemoreSaver]:
        yield saver

    report = asyncio.run(conformance.validate(factory))
    assert {name: result.failures for name, result in report.results.items()} == dict.fromkeys(report.results, [])
    assert all(result.detected and result.passed for result in report.results.values())  # none was left out
    assert sum(result.tests_passed for result in report.results.values()) >= 81
    assert History(saver.store).verify().findings == ()


# -- graphs


def test_a_graph_goes_on_where_it_was_and_its_history_can_be_listed(saver: OncemoreSaver) -> None:
    graph = counting(saver)
    assert graph.invoke({"n": 1}, CONFIG) == {"n": 3}
    again = counting(OncemoreSaver(saver.store))
    assert again.get_state(CONFIG).values == {"n": 3}
    assert again.invoke({"n": 10}, CONFIG) == {"n": 12}
    past = [snapshot.values.get("n") for snapshot in again.get_state_history(CONFIG)]
    assert past == [12, 11, 10, 3, 3, 2, 1, None]
    earlier = next(s.config for s in again.get_state_history(CONFIG) if s.values.get("n") == 2)
    assert again.invoke(None, earlier) == {"n": 3}
    assert History(saver.store).verify().findings == ()


def test_a_coroutine_graph_uses_it_too(saver: OncemoreSaver) -> None:
    async def run() -> tuple[Any, list[Any]]:
        graph = counting(saver)
        result = await graph.ainvoke({"n": 1}, CONFIG)
        return result, [snapshot.values.get("n") async for snapshot in graph.aget_state_history(CONFIG, limit=2)]

    assert asyncio.run(run()) == ({"n": 3}, [3, 2])


KILLED = """
    import os, sys, time
    from pathlib import Path
    from typing import Annotated, TypedDict
    import operator
    from langgraph.graph import START, StateGraph
    from oncemore import checkpoint_scope, checkpointed
    from oncemore.compat.langgraph import OncemoreSaver

    class State(TypedDict):
        done: Annotated[list, operator.add]

    @checkpointed
    def ask(question):
        print("asked", question, flush=True)
        return question.upper()

    def load(state):
        print("load", flush=True)
        return {"done": ["load"]}

    def fast(state):
        print("fast", flush=True)
        return {"done": ["fast"]}

    def think(state):
        print("think", flush=True)
        with checkpoint_scope("thoughts", store="store"):
            answers = [ask("a"), ask("b")]
        while not Path("go").exists():
            if not any(name == "fast" for name in written()):
                time.sleep(0.01)
                continue
            print("inside", flush=True)
            time.sleep(60)
        return {"done": answers}

    def written():
        saved = saver.get_tuple(config)
        return [value for _, _, values in saved.pending_writes for value in (values if isinstance(values, list) else [])]

    def end(state):
        print("end", flush=True)
        return {"done": ["end"]}

    builder = StateGraph(State)
    for node in (load, fast, think, end):
        builder.add_node(node.__name__, node)
    builder.add_edge(START, "load")
    builder.add_edge("load", "fast")
    builder.add_edge("load", "think")
    builder.add_edge(["fast", "think"], "end")
    saver = OncemoreSaver("store")
    graph = builder.compile(checkpointer=saver)
    config = {"configurable": {"thread_id": "t"}}
    fresh = graph.get_state(config).next == ()
    print("result", graph.invoke({"done": []} if fresh else None, config)["done"], flush=True)
"""


def test_a_graph_killed_inside_a_node_goes_on_from_its_last_superstep(script: Script, tmp_path: Path) -> None:
    killed = script.kill_at("inside", KILLED)
    assert sorted(killed.lines) == ["asked a", "asked b", "fast", "inside", "load", "think"]
    (tmp_path / "go").touch()
    resumed = script(name="script.py")
    # Neither what came before the superstep, nor the node beside, nor the calls inside the node that were completed.
    assert resumed.lines == ["think", "end", "result ['load', 'fast', 'A', 'B', 'end']"]
    assert History(tmp_path / "store").verify().findings == ()


INTERRUPTED = """
    import sys
    from typing import TypedDict
    from langgraph.graph import START, StateGraph
    from langgraph.types import Command, interrupt
    from oncemore.compat.langgraph import OncemoreSaver

    class State(TypedDict, total=False):
        answer: str

    builder = StateGraph(State).add_node("ask", lambda state: {"answer": interrupt("pay?")}).add_edge(START, "ask")
    graph = builder.compile(checkpointer=OncemoreSaver("store"))
    given = Command(resume=sys.argv[1]) if len(sys.argv) > 1 else {}
    done = graph.invoke(given, {"configurable": {"thread_id": "t"}})
    print([i.value for i in done["__interrupt__"]] if "__interrupt__" in done else done)
"""


def test_a_graph_that_asks_is_answered_in_another_process(script: Script) -> None:
    assert script(INTERRUPTED).lines == ["['pay?']"]
    assert script(INTERRUPTED, "yes").lines == ["{'answer': 'yes'}"]


TWO = """
    import sys
    from langgraph.graph import START, StateGraph
    from oncemore.compat.langgraph import OncemoreSaver

    saver = OncemoreSaver("store")
    builder = StateGraph(dict).add_node("same", lambda state: state).add_edge(START, "same")
    graph = builder.compile(checkpointer=saver)
    config = {"configurable": {"thread_id": "t"}}
    print("ready", flush=True)
    while not __import__("os").path.exists("go"):
        pass
    for number in range(10):
        graph.invoke({"who": sys.argv[1], "number": number}, config)
"""


def test_processes_that_use_one_thread_at_the_same_time_lose_and_mix_nothing(script: Script, tmp_path: Path) -> None:
    running = [script.start(TWO, who) for who in ("ann", "bob")]
    for each in running:
        each.wait_for("ready")
    (tmp_path / "go").touch()
    for each in running:
        each.finish(0)
    saver = OncemoreSaver(tmp_path / "store")
    listed = list(saver.list(CONFIG))
    ends = [each.checkpoint["channel_values"]["__root__"] for each in listed if "__root__" in each.checkpoint["channel_values"]]
    for who in ("ann", "bob"):
        assert {end["number"] for end in ends if end.get("who") == who} == set(range(10))
    assert len({each.checkpoint["id"] for each in listed}) == len(listed)
    assert History(saver.store).verify().findings == ()


# -- what is stored


def test_a_value_is_stored_when_it_changes_not_with_every_checkpoint(saver: OncemoreSaver) -> None:
    counting(saver).invoke({"n": 1, "big": "x" * 100_000}, CONFIG)
    assert len(keys(saver, "checkpoint")) == 4
    assert len([key for key in keys(saver, "channel") if "/big/" in key]) == 1


def test_a_value_is_stored_even_if_its_version_is_called_old(saver: OncemoreSaver) -> None:
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = {"a": 1, "b": 2}
    saved = saver.put({"configurable": {"thread_id": "t", "checkpoint_ns": ""}}, checkpoint, {}, {})
    found = saver.get_tuple(saved)
    assert found is not None and found.checkpoint["channel_values"] == {"a": 1, "b": 2}


def test_versions_are_ordered_and_unique(saver: OncemoreSaver) -> None:
    versions: list[Any] = [saver.get_next_version(None, None)]
    for _ in range(11):
        versions.append(saver.get_next_version(versions[-1], None))
    assert versions == sorted(versions) and saver.get_next_version(versions[0], None) != versions[1]
    assert saver.get_next_version(7, None).partition(".")[0].endswith("08")  # one of another checkpointer's


def test_names_of_any_length_and_kind_stay_apart(saver: OncemoreSaver) -> None:
    names = ["a/b", "a", "a/", "ü", "x" * 400, "x" * 401, "", "a%2Fb"]
    for number, name in enumerate(names):
        put(saver, name, {name: number})
    for number, name in enumerate(names):
        found = saver.get_tuple({"configurable": {"thread_id": name}})
        assert found is not None and found.checkpoint["channel_values"] == {name: number}
        assert [each.config["configurable"]["thread_id"] for each in saver.list(found.config)] == [name]
    assert {each.config["configurable"]["thread_id"] for each in saver.list(None)} == set(names)


def test_a_write_of_a_task_is_not_replaced_but_its_error_is(saver: OncemoreSaver) -> None:
    saved = put(saver, "t", {})
    for value in ("first", "second"):
        saver.put_writes(saved, [("a", value), ("__error__", value)], "task")
    saver.put_writes(saved, [("a", "other")], "another", "path")
    found = saver.get_tuple(saved)
    assert found is not None
    assert found.pending_writes == [
        ("task", "__error__", "second"),
        ("task", "a", "first"),
        ("another", "a", "other"),
    ]


def test_another_serializer_can_be_used(tmp_path: Path) -> None:
    class Json:
        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            return "json", json.dumps(obj).encode()

        def loads_typed(self, data: tuple[str, bytes]) -> Any:
            assert data[0] == "json"
            return json.loads(data[1])

    saver = OncemoreSaver(f"memory://{tmp_path.name}", serde=Json())
    found = saver.get_tuple(put(saver, "t", {"pair": (1, 2)}))
    assert found is not None and found.checkpoint["channel_values"] == {"pair": [1, 2]}


# -- integrity


@pytest.mark.parametrize("kind", ["checkpoint", "channel", "write"])
def test_no_altered_byte_reaches_the_serializer(saver: OncemoreSaver, kind: str) -> None:
    saved = put(saver, "t", {"a": "value"})
    saver.put_writes(saved, [("a", "value")], "task")
    (key,) = keys(saver, kind)
    alter(saver, key)
    with pytest.raises(IntegrityError, match="altered"):
        saver.get_tuple(saved)
    with pytest.raises(IntegrityError, match="altered"):
        counting(saver).invoke(None, CONFIG)
    findings = History(saver.store).verify().findings
    assert [(finding.kind, finding.key) for finding in findings] == [("damaged", key)] + (
        [("orphan", keys(saver, "channel")[0])] if kind == "checkpoint" else []
    )


def test_an_entry_moved_to_another_thread_is_refused(saver: OncemoreSaver) -> None:
    put(saver, "t", {"a": 1})
    (key,) = keys(saver, "checkpoint")
    saver.store.commit(put={key.replace("/t/", "/u/"): [bytes(saver.store.get(key) or b"")]})
    with pytest.raises(IntegrityError, match="moved"):
        saver.get_tuple({"configurable": {"thread_id": "u"}})


def test_a_missing_value_is_reported_and_never_left_out(saver: OncemoreSaver) -> None:
    saved = put(saver, "t", {"a": 1, "b": 2})
    (key,) = [key for key in keys(saver, "channel") if "/b/" in key]
    saver.store.commit(delete=[key])
    with pytest.raises(IntegrityError, match="channel b .*is missing"):
        saver.get_tuple(saved)
    assert [(finding.kind, finding.key) for finding in History(saver.store).verify().findings] == [("dangling", key)]


def test_a_list_leaves_out_what_is_damaged_and_says_so(saver: OncemoreSaver) -> None:
    first = put(saver, "t", {"a": 1})
    put(saver, "t", {"a": 1})
    alter(saver, keys(saver, "checkpoint")[0])  # the newest
    with pytest.warns(CheckpointWarning, match="left out.*altered"):
        assert [each.config for each in saver.list(CONFIG)] == [first]


def test_what_nothing_needs_is_found(saver: OncemoreSaver) -> None:
    saved = put(saver, "t", {"a": 1})
    saver.put_writes(saved, [("a", 1)], "task")
    saver.store.commit(delete=keys(saver, "checkpoint"))
    findings = History(saver.store).verify().findings
    assert [(f.kind, f.key.split("/")[1]) for f in findings] == [("orphan", "channel"), ("orphan", "write")]


def test_another_key_sees_none_of_it_and_harms_none_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = put(OncemoreSaver(tmp_path / "store"), "t", {"a": 1})
    with monkeypatch.context() as patched:
        patched.setenv("ONCEMORE_KEY", "another")
        with pytest.warns(CheckpointWarning, match="another key"):
            other = OncemoreSaver(tmp_path / "store")
        assert other.get_tuple(saved) is None
        put(other, "t", {"a": 2})
        other.delete_thread("t")
    found = OncemoreSaver(tmp_path / "store").get_tuple(saved)
    assert found is not None and found.checkpoint["channel_values"] == {"a": 1}


def test_pruning_runs_and_deleting_them_leaves_threads_alone(saver: OncemoreSaver) -> None:
    @checkpointed
    def step(x: int) -> int:
        return x

    counting(saver).invoke({"n": 1}, CONFIG)
    with checkpoint_scope("run", store=saver.store) as run:
        run.map(step, range(5))
    history = History(saver.store)
    assert history.prune(keep_last(1)).checkpoints
    history.delete("run")
    assert counting(saver).get_state(CONFIG).values == {"n": 3}
    assert history.verify().findings == ()


def test_a_repaired_store_has_its_threads(tmp_path: Path) -> None:
    saver = OncemoreSaver(tmp_path / "store")
    counting(saver).invoke({"n": 1, "big": "x" * 100_000}, CONFIG)
    saver.store.close()
    database = tmp_path / "store" / "cache.db"
    content = bytearray(database.read_bytes())
    content[16:80] = bytes(64)  # most of the header, without which SQLite opens nothing
    database.write_bytes(content)
    repaired = History.repair(tmp_path / "store")
    assert repaired.aside and not repaired.unsound
    again = counting(OncemoreSaver(tmp_path / "store"))
    assert again.get_state(CONFIG).values == {"n": 3, "big": "x" * 100_000}


# -- removal


def test_deleting_a_thread_leaves_nothing_of_it_and_others_alone(saver: OncemoreSaver) -> None:
    for thread in ("t", "t2", "t/2"):
        saver.put_writes(put(saver, thread, {"a": thread}), [("a", 1)], "task")
    saver.delete_thread("t")
    assert saver.get_tuple(CONFIG) is None
    assert [len(keys(saver, kind)) for kind in ("channel", "checkpoint", "write")] == [2, 2, 2]
    assert not any("/t/" in key for key, _ in saver.store.scan("", most=0))
    assert History(saver.store).verify().findings == ()


def test_a_value_goes_with_the_last_checkpoint_that_needs_it(saver: OncemoreSaver) -> None:
    graph = counting(saver)
    graph.invoke({"n": 1, "big": "x"}, {**CONFIG, "metadata": {"run_id": "one"}})
    graph.invoke({"n": 5}, {**CONFIG, "metadata": {"run_id": "two"}})
    saver.delete_for_runs(["one"])
    assert graph.get_state(CONFIG).values == {"n": 7, "big": "x"}
    saver.prune(["t"])
    assert graph.get_state(CONFIG).values == {"n": 7, "big": "x"}
    assert len(keys(saver, "checkpoint")) == 1
    assert History(saver.store).verify().findings == ()
    saver.delete_for_runs(["two"])
    assert keys(saver, "checkpoint") == keys(saver, "channel") == keys(saver, "write") == []


def test_a_copy_lives_on_when_its_original_is_deleted(saver: OncemoreSaver) -> None:
    graph = counting(saver)
    graph.invoke({"n": 1}, CONFIG)
    copied: Any = {"configurable": {"thread_id": "copy"}}
    saver.copy_thread("t", "copy")
    saver.delete_thread("t")
    assert [s.values.get("n") for s in graph.get_state_history(copied)] == [3, 2, 1, None]
    assert graph.invoke({"n": 5}, copied) == {"n": 7}
    assert History(saver.store).verify().findings == ()


def test_pruning_keeps_what_delta_channels_are_computed_from(saver: OncemoreSaver) -> None:
    builder = StateGraph(Told)
    builder.add_node("tell", lambda state: {"told": [f"answer {len(state['told'])}"]})
    builder.add_edge(START, "tell")
    graph: Any = builder.compile(checkpointer=saver)
    for number in range(8):
        graph.invoke({"told": [f"question {number}"]}, CONFIG)
    before, stored = graph.get_state(CONFIG).values["told"], len(keys(saver, "checkpoint"))
    assert len(before) == 16
    saver.prune(["t"])
    assert graph.get_state(CONFIG).values["told"] == before
    assert 1 < len(keys(saver, "checkpoint")) < stored
    assert History(saver.store).verify().findings == ()


def test_an_unknown_strategy_removes_nothing(saver: OncemoreSaver) -> None:
    put(saver, "t", {"a": 1})
    with pytest.raises(UsageError, match="keep_latest"):
        saver.prune(["t"], strategy="delete_all")
    assert saver.get_tuple(CONFIG) is not None


def test_a_checkpoint_saved_while_others_are_removed_has_its_values(tmp_path: Path) -> None:
    """The value is there when it is looked for, and removed before the checkpoint is written: then it is written again."""
    saver = OncemoreSaver(f"memory://{tmp_path.name}")
    first = put(saver, "t", {"a": "value"})
    other, committed = OncemoreSaver(saver.store), []

    class Interfering:
        """A store in which somebody deletes the thread just before the first commit."""

        def __getattr__(self, name: str) -> Any:
            return getattr(other.store, name)

        def commit(self, **change: Any) -> bool:
            if not committed:
                other.delete_thread("t")
            committed.append(other.store.commit(**change))
            return committed[-1]

    saver.store = Interfering()  # type: ignore[assignment]
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"], checkpoint["channel_versions"] = {"a": "value"}, {"a": 1}
    saved = saver.put(first, checkpoint, {}, {})
    assert committed == [False, True]
    found = other.get_tuple(saved)
    assert found is not None and found.checkpoint["channel_values"] == {"a": "value"}


def test_the_default_store_is_that_of_scopes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ONCEMORE_STORE", f"memory://{tmp_path.name}")
    assert OncemoreSaver().store.url == f"memory://{tmp_path.name}"
