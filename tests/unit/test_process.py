"""The process: environment variables and the working directory."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from oncemore import Run, checkpointed
from tests.processes import Script
from tests.unit.again import effects, scope, skipped_alike, twice


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLD", "old")
    monkeypatch.setenv("GOING", "soon")
    monkeypatch.delenv("NEW", raising=False)


def test_a_skipped_step_leaves_environment_and_folder_as_it_did(script: Script) -> None:
    (script.folder / "inside").mkdir()
    skipped_alike(
        script,
        """
        import os
        from oncemore import checkpoint_scope, checkpointed

        @checkpointed
        def prepare(folder):
            print("RAN prepare")
            os.environ["NEW"] = "ä=b c"
            os.environ["OLD"] += "er"
            del os.environ["GOING"]
            os.putenv("RAW", "not in os.environ")
            os.chdir(folder)

        with checkpoint_scope("run", store="store"):
            prepare("inside")
            print(os.environ["NEW"], os.environ["OLD"], "GOING" in os.environ, os.path.basename(os.getcwd()))
            print(os.popen("echo $NEW $OLD $GOING").read())
        """,
        env={"OLD": "old", "GOING": "soon"},
    )


@checkpointed
def put(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def test_variables_are_set_changed_and_taken_away() -> None:
    def body(run: Run) -> Any:
        os.environ.update(OLD="old", GOING="soon")
        os.environ.pop("NEW", None)
        put("NEW", "1")
        put("OLD", "2")
        put("GOING", None)
        return [os.environ.get(name) for name in ("NEW", "OLD", "GOING")]

    assert twice(body) == ["1", "2", None]


def test_other_variables_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(run: Run) -> Any:
        put("OLD", "changed")
        return os.environ["OTHER"]

    monkeypatch.setenv("OTHER", "1")
    assert scope(body).value == "1"
    monkeypatch.setenv("OLD", "old")
    monkeypatch.setenv("OTHER", "2")
    second = scope(body)
    assert (second.ran, second.value, os.environ["OLD"]) == ({}, "2", "changed")


def test_bytes_that_are_no_text_come_back() -> None:
    @checkpointed
    def raw() -> None:
        os.environb[b"NEW"] = b"\xff\xfe"

    def body(run: Run) -> bytes:
        os.environ.pop("NEW", None)
        raw()
        return os.environb[b"NEW"]

    assert twice(body) == b"\xff\xfe"


def test_the_working_directory_comes_back(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)

    @checkpointed
    def go(folder: str) -> None:
        os.chdir(folder)

    def body(run: Run) -> str:
        os.chdir(tmp_path)
        go("deep")
        go("er")
        return os.getcwd()

    assert twice(body) == str(tmp_path / "deep" / "er")


def test_a_folder_that_is_gone_makes_the_step_run_again(tmp_path: Path) -> None:
    @checkpointed
    def go(folder: str) -> None:
        Path(folder).mkdir(exist_ok=True)
        os.chdir(folder)

    def body(run: Run) -> str:
        os.chdir(tmp_path)
        go("gone")
        return os.getcwd()

    assert scope(body).value == str(tmp_path / "gone")
    os.chdir(tmp_path)
    os.rmdir("gone")
    second = scope(body)
    assert (second.ran, second.value) == ({"go": 1}, str(tmp_path / "gone"))
    assert second.reasons["go"] == f"the folder {tmp_path / 'gone'} is gone"


def test_a_step_that_changes_nothing_records_nothing() -> None:
    @checkpointed
    def reads() -> str:
        return os.environ["OLD"] + os.getcwd()

    @checkpointed
    def there_and_back() -> None:
        with mock.patch.dict(os.environ, OLD="x"):
            here = os.getcwd()
            os.chdir("/")
            os.chdir(here)

    def body(run: Run) -> Any:
        reads()
        there_and_back()
        put("NEW", "1")
        return effects(run, "reads"), effects(run, "there_and_back"), effects(run, "put")

    assert scope(body).value == ([], [], ["process"])


def test_a_generator_step_changes_the_environment_item_by_item() -> None:
    @checkpointed
    def stages() -> Any:
        for i in range(3):
            os.environ["NEW"] = str(i)
            yield i
        del os.environ["NEW"]

    def body(run: Run) -> Any:
        return [(item, os.environ["NEW"]) for item in stages()], "NEW" in os.environ

    assert twice(body) == ([(0, "0"), (1, "1"), (2, "2")], False)


def test_setting_a_variable_to_the_value_that_it_has_is_an_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(run: Run) -> Any:
        put("OLD", "old")
        return os.environ["OLD"]

    assert scope(body).value == "old"
    monkeypatch.setenv("OLD", "other")
    second = scope(body)
    assert (second.ran, second.value) == ({}, "old")
    monkeypatch.delenv("OLD")
    assert scope(body).value == "old"


def test_going_to_the_folder_that_it_is_in_is_an_effect(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()

    @checkpointed
    def go(folder: str) -> None:
        os.chdir(folder)

    def body(run: Run) -> str:
        go(str(tmp_path))
        return os.getcwd()

    os.chdir(tmp_path)
    assert scope(body).value == str(tmp_path)
    os.chdir("other")
    second = scope(body)
    assert (second.ran, second.value) == ({}, str(tmp_path))


def test_what_a_step_puts_back_is_left_as_it_is_when_it_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    @checkpointed
    def patched() -> None:
        with mock.patch.dict(os.environ, OLD="x", NEW="y"):
            pass

    scope(lambda run: patched())
    monkeypatch.setenv("OLD", "other")
    assert scope(lambda run: (patched(), os.environ["OLD"])).value == (None, "other")


def test_what_a_thread_of_the_step_sets_is_the_steps_and_what_others_set_is_not() -> None:
    inside, outside = threading.Event(), threading.Event()

    def other() -> None:
        inside.wait()
        os.environ["GOING"] = "others"
        outside.set()

    @checkpointed(code="version", version="1")
    def step() -> None:
        thread = threading.Thread(target=os.environ.__setitem__, args=("NEW", "1"))
        thread.start()
        thread.join()
        inside.set()
        outside.wait()

    def body(run: Run) -> Any:
        step()
        return os.environ.get("NEW"), os.environ.get("GOING")

    beside = threading.Thread(target=other)
    beside.start()
    assert scope(body).value == ("1", "others")
    beside.join()
    os.environ.pop("NEW")
    os.environ["GOING"] = "soon"
    second = scope(body)
    assert (second.ran, second.value) == ({}, ("1", "soon"))


def test_an_outer_step_sets_what_its_skipped_inner_one_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    @checkpointed
    def outer() -> None:
        put("NEW", "1")

    scope(lambda run: (put("NEW", "1"), outer()))
    monkeypatch.delenv("NEW")
    second = scope(lambda run: (outer(), os.environ.get("NEW")))
    assert (second.ran, second.value) == ({}, (None, "1"))
