"""The options of @checkpointed, one by one, and the variables of the environment."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from oncemore import CheckpointWarning, StoreError, UsageError, checkpoint_scope, checkpointed, events, memoized
from oncemore.settings import seconds
from oncemore.stores.memory import MemoryStore
from tests.processes import Script, either_case

Ran = Callable[[], "list[str]"]


@pytest.fixture
def ran(capsys: pytest.CaptureFixture[str]) -> Ran:
    """What was printed since it was last asked: every step here prints when its body runs."""
    return lambda: capsys.readouterr().out.split()


def reasons(run: Any, step: str) -> list[str]:
    """Why a step ran, each time that it completed."""
    return [fact.reason for fact in run.events() if isinstance(fact, events.StepCompleted) and fact.step == step]


# --- name, version --------------------------------------------------------------------------------------------------


def test_a_name_is_what_the_run_calls_the_step() -> None:
    step = checkpointed(name="loading")(lambda: 1)
    with checkpoint_scope("name") as run:
        step()
        assert run.ran == {"loading": 1}
        assert reasons(run, "loading") == ["new node"]


def test_without_a_name_it_is_the_functions() -> None:
    def made() -> Any:
        return checkpointed(local)

    def local() -> int:
        return 1

    with checkpoint_scope("names") as run:
        made()()
        assert list(run.ran) == ["test_without_a_name_it_is_the_functions.<locals>.local"]


def test_two_steps_of_one_name_and_other_code_do_not_meet() -> None:
    one, two = checkpointed(name="same")(lambda: 1), checkpointed(name="same")(lambda: 2)
    with checkpoint_scope("same name"):
        assert [one(), two(), one(), two()] == [1, 2, 1, 2]


def test_another_version_runs_again_and_the_old_one_is_still_there(ran: Ran) -> None:
    def load() -> int:
        print("load")
        return 1

    for version, expected in (("1", ["load"]), ("2", ["load"]), ("1", []), ("2", [])):
        with checkpoint_scope("version") as run:
            checkpointed(version=version)(load)()
            assert ran() == expected
    assert any("version" in reason for reason in reasons(run, checkpointed(load).__qualname__))


# --- ignore, key, inputs --------------------------------------------------------------------------------------------


def test_an_ignored_parameter_does_not_count(ran: Ran) -> None:
    @checkpointed(ignore=["client"])
    def label(row: str, *, client: object = None) -> str:
        print("label")
        return row.upper()

    with checkpoint_scope("ignore"):
        assert label("a", client=object()) == label("a", client=(_ for _ in ())) == label("a") == "A"
        assert label("b") == "B"
    assert ran() == ["label", "label"]


def test_a_mapping_says_how_single_parameters_are_identified(ran: Ran) -> None:
    @checkpointed(key={"text": str.lower})
    def count(text: str, letter: str) -> int:
        print("count")
        return text.count(letter)

    with checkpoint_scope("key mapping"):
        assert count("Ab", "b") == count("AB", "b") == 1
        assert count("AB", "B") == 1
    assert ran() == ["count", "count"]


def test_a_key_makes_an_argument_possible_that_has_no_identity() -> None:
    @checkpointed(key={"rows": lambda rows: "rows of today"})
    def total(rows: Any) -> int:
        return sum(rows)

    with checkpoint_scope("key of a generator"):
        assert total(x for x in (1, 2)) == 3
        assert total(x for x in (5, 6)) == 3


def test_a_callable_key_identifies_all_arguments(ran: Ran) -> None:
    @checkpointed(key=lambda a, b: a + b)
    def join(a: str, b: str) -> str:
        print("join")
        return a + b

    with checkpoint_scope("key callable"):
        assert join("x", "yz") == join("xy", b="z") == "xyz"
        assert join("y", "x") == "yx"
    assert ran() == ["join", "join"]


def test_the_content_of_an_input_file_counts(script: Script) -> None:
    source = """
        from oncemore import checkpointed, checkpoint_scope
        @checkpointed(inputs=("path",))
        def load(path):
            print("ran")
            return open(path).read()
        with checkpoint_scope("inputs"):
            print(load("a.csv"))
    """
    data = script.folder / "a.csv"
    for content, expected in (("1", ["ran", "1"]), ("1", ["1"]), ("2", ["ran", "2"]), ("1", ["1"])):
        data.write_text(content)  # written anew each time: its time of change does not count
        assert script(source).lines == expected


def test_without_inputs_a_path_is_only_a_name(ran: Ran) -> None:
    @checkpointed
    def load(path: Path) -> str:
        print("load")
        return path.read_text()

    Path("a").write_text("1")
    with checkpoint_scope("no inputs"):
        load(Path("a"))
    Path("a").write_text("2")
    with checkpoint_scope("no inputs"), pytest.warns(match="file a has changed"):
        assert load(Path("a")) == "1"
    assert ran() == ["load"]


def test_an_input_file_that_is_missing_is_the_functions_own_error() -> None:
    @checkpointed(inputs=["path"])
    def load(path: str) -> str:
        return Path(path).read_text()

    with checkpoint_scope("missing"):
        with pytest.raises(FileNotFoundError):
            load("none")
        Path("none").write_text("here")
        assert load("none") == "here"


@pytest.mark.parametrize(
    "option", [{"ignore": ["clinet"]}, {"inputs": ("clinet",)}, {"key": {"clinet": str}}], ids=lambda o: next(iter(o))
)
def test_an_unknown_parameter_name_fails_at_decoration_with_the_real_ones(option: Any) -> None:
    def label(row: str, *, client: object) -> None: ...

    with pytest.raises(UsageError, match=r"'clinet'.*row, client"):
        checkpointed(**option)(label)


@pytest.mark.parametrize("option", ["ignore", "inputs"])
def test_a_bare_string_is_no_list_of_parameters(option: Any) -> None:
    with pytest.raises(UsageError, match=r"\['row'\]"):
        checkpointed(**{option: "row"})(lambda row: row)


def test_an_option_that_does_not_exist_is_refused() -> None:
    for decorator in (checkpointed, memoized):
        with pytest.raises(TypeError, match=r"no option 'ignored'. Did you mean 'ignore'\? .* name, version, ignore,"):
            decorator(ignored=["x"])  # type: ignore[call-overload]
        with pytest.raises(TypeError, match=r"no option 'colour'. The options are name, version, ignore,"):
            decorator(colour=3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="share"):
        memoized(share=False)  # type: ignore[call-overload]


# --- code -----------------------------------------------------------------------------------------------------------

STEP_AND_HELPER = """
    from oncemore import checkpointed, checkpoint_scope
    def helper():
        return 1
    @checkpointed(OPTIONS)
    def load():
        print("ran")
        return helper()
    with checkpoint_scope("code"):
        print(load())
"""


@pytest.mark.parametrize(
    ("options", "helper_edited", "step_edited"),
    [
        ("", ["ran", "2"], ["ran", "11"]),  # "deep"
        ("code='own'", ["1"], ["ran", "11"]),
        ("code='version', version='1'", ["1"], ["1"]),
    ],
)
def test_code_says_which_edits_count(options: str, helper_edited: Any, step_edited: Any, script: Script) -> None:
    source = STEP_AND_HELPER.replace("OPTIONS", options)
    assert script(source).lines == ["ran", "1"]
    assert script(source.replace("return 1", "return 2")).lines == helper_edited
    assert script(source.replace("return helper()", "return helper() + 10")).lines == step_edited
    assert script(source).lines == ["1"]


def test_with_code_version_another_version_counts(script: Script) -> None:
    source = STEP_AND_HELPER.replace("OPTIONS", "code='version', version='1'")
    assert script(source).lines == ["ran", "1"]
    assert script(source.replace("version='1'", "version='2'")).lines == ["ran", "1"]


def test_code_version_without_a_version_is_refused() -> None:
    with pytest.raises(UsageError, match="version="):
        checkpointed(code="version")(lambda: 1)


def test_an_unknown_word_for_code_is_refused() -> None:
    with pytest.raises(UsageError, match="'deep', 'own', 'version'"):
        checkpointed(code="shallow")(lambda: 1)  # type: ignore[call-overload]


# --- share, memoized ------------------------------------------------------------------------------------------------


def test_a_shared_result_serves_other_runs(script: Script) -> None:
    source = """
        import sys
        from oncemore import checkpointed, checkpoint_scope
        @checkpointed(share=True)
        def load(x):
            print("ran")
            return x
        with checkpoint_scope(sys.argv[1]):
            print(load(1))
    """
    assert script(source, "monday").lines == ["ran", "1"]
    assert script(source, "tuesday").lines == ["1"]


MEMOIZED = """
    from oncemore import checkpointed, checkpoint_scope, memoized
    @DECORATOR
    def load(x):
        print("ran")
        return x
    print(load(1), load(1))
"""


@pytest.mark.parametrize("decorator", ["checkpointed(share=True)", "memoized", "memoized()", "memoized(version='2')"])
def test_a_shared_step_works_outside_a_scope_on_the_default_store(decorator: str, script: Script) -> None:
    source = MEMOIZED.replace("DECORATOR", decorator)
    env = {"ONCEMORE_STORE": str(script.folder / "kept")}
    assert script(source, env=env).lines == ["ran", "1 1"]
    assert script(source, env=env).lines == ["1 1"]
    assert (script.folder / "kept").is_dir()
    assert not (script.folder / ".oncemore").exists()


def test_without_a_setting_shared_results_are_in_the_folder_of_the_script(script: Script) -> None:
    source = MEMOIZED.replace("DECORATOR", "memoized")
    assert script(source).lines == ["ran", "1 1"]
    assert (script.folder / ".oncemore").is_dir()


def test_what_was_shared_outside_a_scope_serves_inside_and_the_other_way_round(ran: Ran) -> None:
    @memoized
    def load(x: int) -> int:
        print("load")
        return x

    load(1)
    with checkpoint_scope("inside"):
        assert load(1) == 1
        assert load(2) == 2
    assert load(2) == 2
    assert ran() == ["load", "load"]


def test_a_step_that_is_not_shared_does_not_serve_other_runs(ran: Ran) -> None:
    step = checkpointed(lambda: print("load"))
    for run_id in ("one", "two"):
        with checkpoint_scope(run_id):
            step()
    assert ran() == ["load", "load"]


def test_the_questions_about_a_memoized_function_need_no_scope(ran: Ran) -> None:
    @memoized
    def load(x: int) -> int:
        print("load")
        return x

    assert not load.is_done(1)
    load(1)
    assert load.is_done(1)
    assert load.recall(1) == 1
    assert load.refresh(1) == 1
    assert load.forget(1)
    assert not load.is_done(1)
    assert ran() == ["load", "load"]


# --- expires --------------------------------------------------------------------------------------------------------


def test_what_is_older_than_expires_is_a_miss_and_said_so(ran: Ran) -> None:
    @checkpointed(expires=0.05, name="rate")
    def rate() -> int:
        print("rate")
        return 1

    with checkpoint_scope("expires") as run:
        rate()
        time.sleep(0.06)
        assert not rate.is_done()
        rate()
        first, second = reasons(run, "rate")
    assert ran() == ["rate", "rate"]
    assert first == "new node"
    assert "expired" in second


def test_what_is_younger_than_expires_counts(ran: Ran) -> None:
    step = checkpointed(expires="1d")(lambda: print("rate"))
    for _ in range(2):
        with checkpoint_scope("young"):
            step()
    assert ran() == ["rate"]


@pytest.mark.parametrize(
    ("written", "meant"),
    [("90s", 90), ("5min", 300), ("5m", 300), ("2h", 7200), ("1d", 86400), ("1.5 d", 129600), ("1w", 604800)]
    + [(30, 30), (0.5, 0.5), (timedelta(minutes=2), 120)],
)
def test_a_duration_is_written_as_people_write_it(written: Any, meant: float) -> None:
    assert seconds(written) == meant


@pytest.mark.parametrize("wrong", ["soon", "5", "-1d", "1y", "", -1, True])
def test_what_is_no_duration_fails_at_decoration(wrong: Any) -> None:
    with pytest.raises(UsageError, match="duration"):
        checkpointed(expires=wrong)(lambda: 1)


# --- every_call -----------------------------------------------------------------------------------------------------


def test_samples_of_one_prompt_stay_as_many_as_they_were(script: Script) -> None:
    source = """
        import os
        from oncemore import checkpointed, checkpoint_scope
        @checkpointed(every_call=True)
        def sample(prompt):
            print("ran")
            return os.urandom(4).hex()
        with checkpoint_scope("samples"):
            print("=", *[sample("hello") for _ in range(30)])
    """
    first, second = script(source), script(source)
    assert first.lines.count("ran") == 30
    assert len(set(first.lines[-1].split())) == 31
    assert second.lines == first.lines[-1:]


def test_without_every_call_identical_calls_are_one(ran: Ran) -> None:
    step = checkpointed(lambda: print("sample"))
    with checkpoint_scope("one"):
        for _ in range(3):
            step()
    assert ran() == ["sample"]


def test_calls_with_other_arguments_are_counted_apart() -> None:
    @checkpointed(every_call=True)
    def sample(prompt: str) -> float:
        return time.perf_counter()

    runs = []
    for order in (["a", "b", "a"], ["b", "a", "a"]):
        with checkpoint_scope("apart"):
            runs.append({prompt: [] for prompt in "ab"})
            for prompt in order:
                runs[-1][prompt].append(sample(prompt))
    assert runs[0] == runs[1]


def test_more_calls_than_last_time_run_the_new_ones_only(ran: Ran) -> None:
    step = checkpointed(every_call=True)(lambda: print("sample"))
    for calls, expected in ((2, 2), (3, 1)):
        with checkpoint_scope("more"):
            for _ in range(calls):
                step()
        assert ran() == ["sample"] * expected


def test_a_failed_call_that_is_tried_again_is_the_same_call(ran: Ran) -> None:
    @checkpointed(every_call=True)
    def sample(prompt: str) -> float:
        print("sample")
        Path("allowed").read_text()
        return time.perf_counter()

    def patiently(prompt: str) -> float:
        try:
            return sample(prompt)
        except FileNotFoundError:
            Path("allowed").touch()
            return sample(prompt)

    with checkpoint_scope("retry"):
        first = [patiently("a"), patiently("a")]
    assert len(ran()) == 3
    with checkpoint_scope("retry"):
        assert [patiently("a"), patiently("a")] == first
    assert ran() == []


def test_a_failed_generator_that_is_tried_again_is_the_same_call(ran: Ran) -> None:
    @checkpointed(every_call=True)
    def sample() -> Any:
        print("sample")
        yield Path("allowed").read_text()

    with checkpoint_scope("retried items"):
        with pytest.raises(FileNotFoundError):
            list(sample())
        Path("allowed").write_text("yes")
        assert list(sample()) == ["yes"]
    ran()
    with checkpoint_scope("retried items"):
        assert list(sample()) == ["yes"]
    assert ran() == []


class Failing(MemoryStore):
    """A store that fails at so many commits of ordinals."""

    failures = 0

    def commit(self, *, put: Any = {}, **rest: Any) -> bool:
        if self.failures and any(key.startswith("calls/") for key in put):
            self.failures -= 1
            raise StoreError("busy")
        return super().commit(put=put, **rest)


@pytest.mark.parametrize("published", [False, True])
def test_no_ordinal_is_used_twice_if_the_store_fails_while_other_processes_take_part(ran: Ran, published: bool) -> None:
    @checkpointed(every_call=True)
    def sample() -> None:
        print("sample")

    def send() -> None:
        cloudpickle.dumps(sample)  # as a pool would, for a worker

    with checkpoint_scope("sent", store=Failing(f"sent-{published}")) as run:
        sample()
        if published:
            send()
        sample()
        assert isinstance(run.store, Failing)
        run.store.failures = 1
        with pytest.warns(CheckpointWarning, match="identical calls are numbered in each process separately: busy"):
            sample() if published else send()
        sample()
    assert ran() == ["sample"] * (4 if published else 3)


SAMPLES = """
    import os, sys
    from multiprocessing import get_context
    from oncemore import checkpointed, checkpoint_scope

    @checkpointed(every_call=True)
    def sample(prompt):
        with open("ran", "a") as file:
            file.write("x")
        return os.urandom(4).hex()

    if __name__ == "__main__":
        with checkpoint_scope("samples") as run:
            found = [sample("hello")]
            with get_context(sys.argv[1]).Pool(3) as pool:
                found += pool.map(sample, ["hello"] * 12, chunksize=1)
                found.append(sample("hello"))
                found += pool.map(sample, ["hello"] * 4, chunksize=2)
            print(*sorted(found))
            left = [key for key, _ in run.store.scan("calls/")]
        print(len(left), [key for key, _ in run.store.scan("calls/")])
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_identical_calls_in_the_workers_of_a_pool_are_samples_of_their_own(script: Script, method: str) -> None:
    first, second = script(SAMPLES, method), script(SAMPLES, method)
    assert len(set(first.lines[0].split())) == 18
    assert second.lines == first.lines
    assert first.lines[1] == "1 []"  # what was counted goes with the scope
    assert len((script.folder / "ran").read_text()) == 18


def test_killed_in_the_middle_a_pool_goes_on_with_the_samples_that_there_are(script: Script) -> None:
    slow = SAMPLES.replace(
        "return os",
        'print("drawn", flush=True)\n        __import__("time").sleep(60 if os.path.exists("slow") else 0)\n        return os',
    )
    (script.folder / "slow").touch()
    script.kill_at("drawn", slow, "fork", family=True)
    (script.folder / "slow").unlink()
    first = script(slow, "fork")
    assert len(set(first.lines[-2].split())) == 18
    assert script(slow, "fork").lines[-2:] == first.lines[-2:]


def test_a_forked_child_without_a_pool_counts_on(script: Script) -> None:
    source = """
        import os
        from oncemore import checkpointed, checkpoint_scope

        @checkpointed(every_call=True)
        def sample():
            return os.urandom(4).hex()

        with checkpoint_scope("samples"):
            os.write(1, f"{sample()}\\n".encode())
            child = os.fork()
            os.write(1, f"{sample()}\\n".encode())
            if not child:
                os._exit(0)
            os.waitpid(child, 0)
            os.write(1, f"{sample()}\\n".encode())
    """
    first, second = script(source), script(source)
    assert len(set(first.lines)) == 4
    assert sorted(second.lines) == sorted(first.lines)


def test_a_skipped_step_takes_the_numbers_of_the_calls_inside_it() -> None:
    @checkpointed(every_call=True)
    def sample(prompt: str) -> float:
        return time.perf_counter()

    @checkpointed
    def both(prompt: str) -> list[float]:
        return [sample(prompt), sample(prompt)]

    @checkpointed
    def outer() -> list[float]:
        return [*both("a"), sample("a")]

    def body() -> list[float]:
        return [sample("a"), *outer(), sample("a"), sample("b")]

    with checkpoint_scope("numbers"):
        first = body()
    assert len(set(first)) == 6
    for _ in range(2):
        with checkpoint_scope("numbers") as run:
            assert body() == first
        assert sum(run.ran.values()) == 0


def test_a_skipped_generator_takes_the_numbers_of_the_calls_inside_it() -> None:
    @checkpointed(every_call=True)
    def sample() -> float:
        return time.perf_counter()

    @checkpointed
    def items() -> Any:
        yield sample()
        yield sample()

    def body() -> list[float]:
        return [*items(), sample()]

    with checkpoint_scope("numbers"):
        first = body()
    with checkpoint_scope("numbers") as run:
        assert (body(), sum(run.ran.values())) == (first, 0)


def test_a_step_that_failed_and_is_tried_again_makes_the_same_calls() -> None:
    @checkpointed(every_call=True)
    def sample() -> float:
        return time.perf_counter()

    @checkpointed
    def pair() -> list[float]:
        found = [sample(), sample()]
        Path("allowed").read_text()
        return found

    def body() -> list[float]:
        try:
            found = pair()
        except FileNotFoundError:
            Path("allowed").touch()
            found = pair()
        return [*found, sample()]

    with checkpoint_scope("again") as run:
        first = body()
        assert run.ran["test_a_step_that_failed_and_is_tried_again_makes_the_same_calls.<locals>.sample"] == 3
    with checkpoint_scope("again"):
        assert body() == first


def test_in_threads_of_a_step_its_calls_are_the_steps(script: Script) -> None:
    source = """
        import os, threading
        from oncemore import checkpointed, checkpoint_scope

        @checkpointed(every_call=True)
        def sample():
            return os.urandom(4).hex()

        @checkpointed
        def several():
            found = []
            threads = [threading.Thread(target=lambda: found.append(sample())) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return found

        with checkpoint_scope("samples"):
            print(sorted(several()), sample())
    """
    assert script(source).lines == script(source).lines


# --- the environment ------------------------------------------------------------------------------------------------

TWO_STEPS = """
    from oncemore import checkpointed, checkpoint_scope
    @checkpointed
    def load():
        print("ran load")
        return 1
    @checkpointed
    def train(x):
        print("ran train")
        return x
    with checkpoint_scope("env"):
        print(train(load()), train(load()))
"""


def test_disabled_calls_are_plain_calls(script: Script) -> None:
    for _ in range(2):
        done = script(TWO_STEPS, env={"ONCEMORE_DISABLE": "1"})
        assert done.lines == ["ran load", "ran train", "ran load", "ran train", "1 1"]
    assert script(TWO_STEPS).lines == ["ran load", "ran train", "1 1"]


EVERYWHERE = """
    from oncemore import checkpoint_scope, checkpointed, memoized
    from concurrent.futures import ProcessPoolExecutor
    @checkpointed
    def half(x):
        return x // 2
    @memoized
    def third(x):
        return x // 3
    @memoized(store="./own")
    def fourth(x):
        return x // 4
    if __name__ == "__main__":
        print(third(3), fourth(4))
        with checkpoint_scope("env"), ProcessPoolExecutor(1) as pool:
            print(*pool.map(half, [2, 4]), *pool.map(third, [6, 9]), *pool.map(fourth, [12, 16]))
"""


def test_disabled_calls_open_no_store_wherever_they_are_made(script: Script, tmp_path: Path) -> None:
    script(EVERYWHERE)
    for store in (".oncemore", "own"):
        assert (tmp_path / store).is_dir()
    # Stores that are not encrypted would be refused.
    done = script(EVERYWHERE, env={"ONCEMORE_DISABLE": "1", "ONCEMORE_ENCRYPT": "1"})
    assert done.lines == ["1 1", "1 2 2 3 3 4"]


@pytest.mark.parametrize("word", [*either_case("0", "off", "no", "false"), "False", " OFF ", ""])
def test_a_word_for_no_does_not_disable(word: str, script: Script) -> None:
    script(TWO_STEPS)
    assert script(TWO_STEPS, env={"ONCEMORE_DISABLE": word}).lines == ["1 1"]


@pytest.mark.parametrize("word", either_case("1", "on", "yes", "true"))
def test_a_word_for_yes_disables(word: str, script: Script) -> None:
    script(TWO_STEPS)
    assert len(script(TWO_STEPS, env={"ONCEMORE_DISABLE": word}).lines) == 5


@pytest.mark.parametrize("word", ["maybe", "quiet", "2"])
def test_an_unknown_word_is_an_error_that_names_the_known_ones(word: str, script: Script) -> None:
    done = script(TWO_STEPS, env={"ONCEMORE_DISABLE": word}, expect=1)
    assert (
        f"UsageError: ONCEMORE_DISABLE={word} is unknown; use one of 0, off, no, false, 1, on, yes, true\n" in done.err
    )
    assert done.lines == []


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("load", ["ran load"]),
        ("train", ["ran train"]),
        ("load, train", ["ran load", "ran train"]),
        *((word, ["ran load", "ran train"]) for word in either_case("1", "on", "yes", "true", "all", "*")),
        *((word, []) for word in either_case("0", "off", "no", "false", "")),
    ],
)
def test_steps_named_in_refresh_run_once_more(asked: str, expected: list[str], script: Script) -> None:
    assert script(TWO_STEPS).lines == ["ran load", "ran train", "1 1"]
    assert script(TWO_STEPS, env={"ONCEMORE_REFRESH": asked}).lines == [*expected, "1 1"]
    assert script(TWO_STEPS).lines == ["1 1"]


def test_an_unknown_step_in_refresh_is_told_with_the_known_ones(script: Script) -> None:
    told = "ONCEMORE_REFRESH=lod: no step or loop has this name. Did you mean load? Known names: load, train, all"
    new = script(TWO_STEPS, env={"ONCEMORE_REFRESH": "lod,train"})  # at the end: modules may be loaded late
    assert new.lines == ["ran load", "ran train", "1 1"]
    assert new.err.count("CheckpointWarning") == new.err.count(told) == 1
    resumed = script(TWO_STEPS, env={"ONCEMORE_REFRESH": "lod,train"}, expect=1)  # before any step
    assert f"UsageError: {told}" in resumed.err and resumed.lines == []
    assert script(TWO_STEPS, env={"ONCEMORE_REFRESH": "train"}).lines == ["ran train", "1 1"]


def test_a_step_that_only_the_run_so_far_knows_can_be_refreshed(script: Script) -> None:
    source = """
        import sys
        from oncemore import checkpointed, checkpoint_scope
        with checkpoint_scope("late"):
            @checkpointed
            def late():
                print("ran late")
            late()
    """
    script(source)
    assert script(source, env={"ONCEMORE_REFRESH": "late"}).lines == ["ran late"]


def test_a_step_whose_effect_happens_once_is_refreshed_only_by_its_name(script: Script) -> None:
    source = TWO_STEPS.replace("@checkpointed\n    def load", "@checkpointed(effect='once')\n    def load")
    assert source != TWO_STEPS
    script(source)
    assert script(source, env={"ONCEMORE_REFRESH": "all"}).lines == ["ran train", "1 1"]
    assert script(source, env={"ONCEMORE_REFRESH": "load"}).lines == ["ran load", "1 1"]


LOOP = """
    import os, sys
    from oncemore import checkpoint_scope
    stop = int(sys.argv[1])
    with checkpoint_scope("loop") as run:
        for n in run.loop("epochs", range(4)):
            print(n)
            if n == stop:
                os._exit(0)
"""


@pytest.mark.parametrize("asked", ["all", "epochs"])
def test_a_refreshed_loop_starts_over_and_what_it_saved_before_is_gone(asked: str, script: Script) -> None:
    assert script(LOOP, "3").lines == ["0", "1", "2", "3"]
    assert script(LOOP, "1", env={"ONCEMORE_REFRESH": asked}).lines == ["0", "1"]
    assert script(LOOP, "9").lines == ["1", "2", "3"]


def test_a_memoized_function_is_disabled_and_refreshed_as_well(script: Script) -> None:
    source = MEMOIZED.replace("DECORATOR", "memoized")
    assert script(source).lines == ["ran", "1 1"]
    assert script(source, env={"ONCEMORE_DISABLE": "1"}).lines == ["ran", "ran", "1 1"]
    assert script(source, env={"ONCEMORE_REFRESH": "load"}).lines == ["ran", "1 1"]


def test_options_go_together(ran: Ran) -> None:
    ticks = itertools.count()

    @checkpointed(ignore=["client"], key={"row": str.lower}, every_call=True, version="2", expires="1d", share=True)
    def label(row: str, client: object) -> int:
        print("label")
        return next(client)  # type: ignore[call-overload, no-any-return]

    for _ in range(2):
        with checkpoint_scope("together"):
            assert [label("A", ticks), label("a", ticks), label("b", ticks)] == [0, 1, 2]
    assert ran() == ["label"] * 3
