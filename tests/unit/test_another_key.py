"""Somebody comes with another key (sudo, cron, a container, another HOME): nothing of the owner's is replaced or set aside."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from oncemore import CheckpointWarning, File, History, IntegrityError, checkpoint_scope, checkpointed, memoized
from oncemore.cli import main
from oncemore.keys import OWNER
from oncemore.settings import key_file, key_id
from oncemore.stores import open_store
from tests.processes import Script
from tests.unit.pasts import both, content, flow, ran, store_url


@memoized
def shared(x: int) -> int:
    return x * 2


@checkpointed(effect="once", share=True)
def pay(x: int) -> int:
    return x


@checkpointed(outputs=["{path}"])
def write(path: str) -> File:
    Path(path).write_bytes(b"content " * 10_000)
    return File(path)


def everything(store: str) -> list[str]:
    """Use a store in every way; which steps ran."""
    first = flow(store)
    with checkpoint_scope("more", store=store) as run:
        assert (shared(1), pay(3), write("out.bin").path.read_bytes()[:7]) == (2, 3, b"content")
    return ran(first) + ran(run)


@contextmanager
def another_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("HOME", str(tmp_path / "root"))
        patch.delenv("XDG_CONFIG_HOME")
        yield


@pytest.fixture(params=both)
def store(request: pytest.FixtureRequest) -> str:
    return store_url(request.param)


def test_another_key_works_beside_the_runs_of_the_owner_and_each_finds_all_again(
    store: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    every = everything(store)
    before = content(store)
    with another_home(monkeypatch, tmp_path), pytest.warns(CheckpointWarning, match="made with another key"):
        assert everything(store) == every
        assert everything(store) == []
        History(store).delete("r")
    after = content(store)
    assert {key: after.get(key) for key in before} == before
    assert everything(store) == []


def test_the_message_names_home_the_variable_the_file_and_the_command(
    store: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    flow(store)
    owner = key_id()
    with another_home(monkeypatch, tmp_path), pytest.warns(CheckpointWarning) as caught:
        flow(store)
        file = key_file()
    text = str(caught[0].message)
    for word in (owner, f"HOME={tmp_path / 'root'}", "ONCEMORE_KEY", file, "`oncemore key`"):
        assert word in text


def test_with_strict_another_key_is_an_error(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flow(store)
    before = content(store)
    monkeypatch.setenv("ONCEMORE_KEY", "another")
    with pytest.raises(IntegrityError, match="made with another key .*ONCEMORE_KEY"):
        flow(store, strict=True)
    assert content(store) == before


def test_another_key_sees_no_run_of_the_owner_and_removes_none(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flow(store)
    before = content(store)
    monkeypatch.setenv("ONCEMORE_KEY", "another")
    with pytest.warns(CheckpointWarning, match="made with another key"):
        history = History(store)
    assert history.runs() == [] and history.run_ids() == []
    assert content(store) == before


def test_an_import_under_another_key_stands_beside_the_run_of_that_name(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow(store)
    History(store).export("runs.zip")
    before = content(store)
    with monkeypatch.context() as patch:
        patch.setenv("ONCEMORE_KEY", "another")
        with pytest.warns(CheckpointWarning, match="made with another key"):
            History(store).import_("runs.zip", trust=True)
            assert ran(flow(store)) == []
    assert {key: content(store).get(key) for key in before} == before
    assert ran(flow(store)) == []


def test_another_key_does_not_take_over_a_store_whose_mark_is_lost(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flow(store)
    open_store(store).commit(delete=[OWNER])
    with monkeypatch.context() as patch:
        patch.setenv("ONCEMORE_KEY", "another")
        with pytest.warns(CheckpointWarning, match="made with another key \\(unknown\\)"):
            flow(store)
    assert ran(flow(store)) == []
    assert open_store(store).get(OWNER) == key_id().encode()


def test_workers_of_another_key_work_beside_too(script: Script) -> None:
    source = """
        import os
        from concurrent.futures import ProcessPoolExecutor
        from oncemore import checkpointed, checkpoint_scope

        @checkpointed
        def double(n):
            return 2 * n

        if __name__ == "__main__":
            with checkpoint_scope("r", store="store") as run:
                with ProcessPoolExecutor(2) as pool:
                    print(list(pool.map(double, range(4))))
            print("ran", sum(e.__class__.__name__ == "StepCompleted" for e in run.events()))
    """
    assert script(source).lines[-1] == "ran 4"
    for _ in range(2):
        done = script(source, env={"ONCEMORE_KEY": "another"})
        assert done.lines == ["[0, 2, 4, 6]", "ran 4"]
    assert script(source).lines[-1] == "ran 4"


def test_the_command_says_which_key_and_makes_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["key"]) == 0
    assert "none yet" in capsys.readouterr().out
    assert not os.path.exists(key_file())


def test_the_command_says_that_the_store_has_another_key(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    flow("store")
    owner = key_id()
    assert main(["key", "--store", "store"]) == 0
    assert "made with this key" in capsys.readouterr().out
    with another_home(monkeypatch, tmp_path):
        assert main(["key", "--store", "store"]) == 3
        out = capsys.readouterr().out
        assert owner in out and f"copy that key file to {key_file()}" in out
    monkeypatch.setenv("ONCEMORE_KEY", "another")
    assert main(["key", "--store", "store"]) == 3
    assert f"key              {key_id()}\nfrom             ONCEMORE_KEY\n" in capsys.readouterr().out
