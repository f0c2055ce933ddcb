"""Killed with SIGKILL at any instant: the store opens again by itself, and what was completed stays completed.

The killing is done by reaper.py, in a process of its own; it stops at the first promise that is not kept. A seed in
ONCEMORE_TEST_SEED repeats a campaign's choices, though not the exact moments.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Callable

import pytest

from tests.faults import calls
from tests.processes import Finished, Script

HERE = Path(__file__).parent
SEED = os.environ.get("ONCEMORE_TEST_SEED")  # read now: tests see none of these variables


@pytest.fixture
def seed() -> int:
    chosen = random.randrange(1 << 32) if SEED is None else int(SEED)
    print(f"ONCEMORE_TEST_SEED={chosen}")  # shown by pytest when the test fails
    return chosen


def reap(script: Script, *words: object, preload: Path | None = None) -> Finished:
    for name in ("pipeline.py", "reaper.py"):
        script.write((HERE / name).read_text(encoding="utf-8"), name)
    env = {"OPENBLAS_NUM_THREADS": "1"}  # a process with threads should not fork
    if preload:
        env["LD_PRELOAD"] = str(preload)
    return script(None, *map(str, words), name="reaper.py", env=env, timeout=220)


@pytest.mark.slow
def test_a_pipeline_killed_at_random_moments_ends_as_if_it_had_never_been_killed(
    script: Script, seed: int, campaign: Callable[[int, int], int]
) -> None:
    kills = campaign(200, 40)
    done = reap(script, "random", kills, seed)
    print(done.out)
    assert done.out.startswith(f"{kills} kills")
    assert done.err == ""


@pytest.mark.slow
def test_a_pipeline_killed_at_any_line_of_ours_ends_as_if_it_had_never_been_killed(
    script: Script, seed: int, campaign: Callable[[int, int], int]
) -> None:
    kills = campaign(40, 8)
    done = reap(script, "lines", kills, seed)
    print(done.out)
    assert done.out.startswith(f"{kills} kills")
    assert done.err == ""


@pytest.mark.slow
@pytest.mark.skipif(not calls.available(), reason="needs Linux and a C compiler")
def test_a_pipeline_killed_in_any_system_call_that_touches_the_store_ends_as_if_it_had_never_been_killed(
    script: Script, seed: int, campaign: Callable[[int, int], int], tmp_path: Path
) -> None:
    kills = campaign(60, 8)
    done = reap(script, "calls", kills, seed, 0, preload=calls.build(tmp_path))
    print(done.out)
    assert done.out.startswith(f"{kills} kills")
    assert done.err == ""


@pytest.mark.slow
def test_a_run_shared_by_many_processes_that_are_killed_ends_as_if_none_had_been(
    script: Script, seed: int, campaign: Callable[[int, int], int]
) -> None:
    kills = campaign(100, 8)
    done = reap(script, "crowd", kills, seed)
    print(done.out)
    assert done.out.startswith(f"{kills} kills")
    assert done.err == ""


def test_value_files_without_a_row_are_removed_by_maintenance_and_nothing_else_is(script: Script) -> None:
    assert reap(script, "orphan").lines == ["3 kills"]


def test_when_the_inner_step_is_done_and_the_outer_is_killed_the_inner_is_reused(script: Script) -> None:
    source = """
        import sys, time
        from oncemore import checkpointed, checkpoint_scope

        @checkpointed
        def inner(n):
            print("inner runs", n)
            return n + 1

        @checkpointed(ignore=["patient"])
        def outer(n, patient):
            print("outer runs", n)
            found = inner(n)
            print("inner done")
            time.sleep(60 if patient else 0)
            return 10 * found

        with checkpoint_scope("nested", store="store") as run:
            print(outer(1, patient="patient" in sys.argv), run.ran.total(), run.reused.total())
    """
    assert script.kill_at("inner done", source, "patient").lines == ["outer runs 1", "inner runs 1", "inner done"]
    assert script(source).lines == ["outer runs 1", "inner done", "20 1 1"]
    assert script(source).lines == ["20 0 1"]
