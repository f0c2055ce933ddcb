"""A store with entries of every kind that oncemore writes: verified, exported and imported, repaired, and emptied."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("joblib")
pytest.importorskip("langgraph.graph")
pytest.importorskip("tenacity")

from oncemore import History
from oncemore.retention import keep_last
from oncemore.stores import open_store
from tests.processes import Script

EVERYTHING = """
    import os, random, signal, sys
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context
    from pathlib import Path

    import numpy as np

    from oncemore import File, checkpoint_scope, checkpointed, current_run, memoized

    STORE, TILL, SETTINGS = sys.argv[1], sys.argv[2], {"depth": 3}

    @checkpointed
    def load(x):
        print("RAN load", x)
        return np.random.default_rng(x).integers(0, 256, 200_000, dtype=np.uint8)

    @checkpointed
    def extended(items, x):  # returns the caller's own object, of which a copy is stored
        print("RAN extended")
        items.append(SETTINGS["depth"])
        return items

    @checkpointed
    def drawn():
        print("RAN drawn")
        os.environ["DRAWN"] = str(random.random())
        return float(os.environ["DRAWN"])

    @checkpointed(capture_output=True)
    def printing():
        print("printed")

    @checkpointed(outputs=["{name}"])
    def written(name):
        print("RAN written")
        Path(name).write_text("content" * 20_000)
        return File(name)

    @checkpointed
    def read(name):
        print("RAN read")
        return Path(name).read_text()[:7]

    @checkpointed
    def produced(n):
        print("RAN produced")
        yield from ([i] for i in range(n))

    @checkpointed(share=True)
    def shared(n):
        print("RAN shared")
        yield from range(n)

    @checkpointed(share=True, effect="once")
    def announced(x):
        print("RAN announced")
        return x

    @checkpointed(effect="once")
    def paid(x):
        print("RAN paid")
        if TILL == "killed":
            os.killpg(0, signal.SIGKILL)
        return x

    @checkpointed(retries=1)
    def retried():
        print("RAN retried")
        if not os.path.isdir("tried"):
            os.mkdir("tried")
            raise OSError("busy")
        return 1

    @checkpointed
    def counted(n):
        print("RAN counted", n)
        state = current_run().state
        state["n"] = state.get("n", 0) + n
        return n

    @checkpointed
    def squared(n):
        print("RAN squared", n)
        return n * n

    @checkpointed
    def work(n):
        print("RAN work", n)
        return n

    @checkpointed
    def hopeless():
        raise KeyError("hopeless")

    @memoized(store=STORE)
    def remembered(x):
        print("RAN remembered")
        return x

    def cached(x):
        print("RAN cached")
        return x

    def others():  # what other libraries keep in the store
        import joblib
        from langgraph.checkpoint.base import empty_checkpoint
        from oncemore.compat.joblib import Memory
        from oncemore.compat.langgraph import OncemoreSaver

        joblib.Memory(f"disk:{os.path.abspath(STORE)}", backend="oncemore", verbose=0).cache(cached)(1)
        Memory(STORE, verbose=0).cache(cached)(2)
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"], checkpoint["channel_versions"] = {"a": 1}, {"a": 1}
        graph = {"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": None}}
        saved = OncemoreSaver(STORE).put(graph, checkpoint, {"source": "loop", "step": 0}, {"a": 1})
        OncemoreSaver(STORE).put_writes(saved, [("a", 2)], "task")

    if __name__ == "__main__":
        random.seed(1)
        with checkpoint_scope("r", store=STORE, workflow="every kind") as run:
            items = [[1]]
            load(1), extended(items, load(2)), extended(items, "again"), drawn(), printing()
            written("a.txt"), read("a.txt"), list(produced(5)), list(shared(3)), announced(1), retried()
            run.map(squared, range(3))
            counted(1)
            run.checkpoint("middle", metadata={"note": "half way"})
            for i in run.loop("outer", range(2)):
                for j in run.loop("inner", "ab"):
                    counted(10 * i + ord(j))
            with run.block("cleaned") as b:
                if b.todo:
                    print("RAN cleaned")
                    rows = [each for each in items if each]
                    b.value = len(rows)
            try:
                hopeless()
            except KeyError:
                pass
            remembered(1), remembered(1)
            if TILL == "asked":
                others()
            if run.ask("Publish?", name="publish", type=bool):
                with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
                    list(pool.map(work, range(2)))
                    paid(2 if TILL == "killed" else 1)
            run.state["end"] = items, b.value, os.environ["DRAWN"]
"""
# What the store must have by then, so that this test keeps meaning what its name says.
KINDS = set(
    "blob changed code event files forks gone items joblib key langgraph node once reused run shared state used wrote".split()
)


class Everything:
    """The script above in one of its stores."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.env = {"PYTHONWARNINGS": "ignore"}

        self.store = script.folder / "store"

    def __call__(self, till: str, expect: int = 0, store: str = "store") -> list[str]:
        """Which steps ran."""
        done = self.script(EVERYTHING, store, till, env=self.env, expect=expect, timeout=300)
        return [line.removeprefix("RAN ") for line in done.lines if line.startswith("RAN")]

    def made(self) -> History:
        """The store with everything in it: complete, paused, killed, forked, rolled back and pruned."""
        assert len(self("asked", expect=75)) > 20
        history = History(self.store)
        history.answer("r", "publish", "yes")
        assert self("ended") == ["work 0", "work 1", "paid"]
        assert self("killed", expect=-9) == [
            "paid"
        ]  # leaves an effect whose outcome is unknown, and what workers reused
        history.resolve("r", "paid", happened=True, result=2)
        history.fork("r", "trial", at="middle")
        history.fork("trial", "second trial")
        history.rename("second trial", "other trial")
        history.delete("trial")
        return history


@pytest.fixture(params=["signed", "encrypted"])
def everything(script: Script, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Everything:
    if request.param == "encrypted":
        monkeypatch.setenv("ONCEMORE_ENCRYPT", "1")
    return Everything(script)


def kinds(folder: Path) -> set[str]:
    return {key.partition("/")[0] for key, _ in open_store(folder).scan("", most=0)}


def well(history: History) -> bool:
    """Whether a verification finds nothing at all, not even something that nobody needs."""
    assert history.verify().findings == ()
    return True


def test_a_store_with_entries_of_every_kind_is_well_wherever_it_goes_and_whatever_is_removed(
    everything: Everything,
) -> None:
    history = everything.made()
    assert kinds(everything.store) >= KINDS
    assert well(history)
    history.export("runs.zip")
    history.export_json("runs.json", ["r"])

    other = History(everything.script.folder / "other")
    assert set(other.import_("runs.zip")) == {"r", "other trial"}
    assert well(other)
    assert everything("ended", store="other") == ["remembered"]  # memoized functions belong to no run
    third = History(everything.script.folder / "third")
    third.import_json("runs.json")
    assert well(third)

    keys = {key for key, _ in history.store.scan("", most=0)}
    open_store(everything.store).close()
    database = everything.store / "cache.db"
    content = bytearray(database.read_bytes())
    content[100:108] = bytes(8)  # the root page: SQLite finds no table any more
    database.write_bytes(content)
    repaired = History.repair(everything.store)
    assert repaired.aside and repaired.whole, repaired
    history = History(everything.store)
    assert {key for key, _ in history.store.scan("", most=0)} == keys
    assert well(history)
    assert everything("ended") == []

    history.rollback("r", to="middle")
    assert well(history)
    history.prune(keep_last(2))
    assert well(history)
    for run_id in history.run_ids():
        history.delete(run_id)
        assert well(history)
    assert kinds(everything.store) <= {
        "changed",
        "code",
        "items",
        "joblib",
        "key",
        "langgraph",
        "once",
        "shared",
        "used",
    }
