"""What commands do, beside what they print."""

from __future__ import annotations

import json
import os
import pickle
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from oncemore import CheckpointWarning, File, History, checkpoint_scope, checkpointed, open_store
from oncemore.cli import DECLINED, DONE, FAILED, MEANINGS, MISUSED, PROBLEMS, WOULD_RUN, main
from oncemore.cli.app import program
from oncemore.cli.prune import parse_rules, policy
from oncemore.events import Event
from tests.cli.program import ORDERS, environment, oncemore, project, sample
from tests.unit.pasts import content, flow, keys, names, ran

READING = [
    *("runs", "show nightly", "events nightly", "verify", "doctor", "prune --keep last:1 --dry-run"),
    *("get nightly train", "runs --status failed", "show mailing", "why nightly load", "diff nightly trial"),
]
CHANGING = [
    *("rollback nightly --to load", "rollback nightly --undo", "rm nightly", "prune --keep first"),
    *("export there.zip", "get nightly load --pickle there.zip"),
]


class Shell:
    """Commands in this process: their exit code, and what they printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, command: str) -> tuple[int, str, str]:
        self._capsys.readouterr()
        code = main(shlex.split(command))
        return code, *self._capsys.readouterr()

    def ok(self, command: str) -> str:
        code, out, err = self(command)
        assert code == DONE, err
        return out


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


# -- for programs


@pytest.mark.parametrize("command", READING)
def test_every_reading_command_prints_json(command: str, shell: Shell) -> None:
    sample()
    json.loads(shell.ok(f"{command} --json"))


def test_every_command_that_prints_a_table_has_json_for_it() -> None:
    with_json = {name for name, command in program.commands.items() if "as_json" in {p.name for p in command.params}}
    assert {command.split()[0] for command in READING} <= with_json


def test_every_command_but_completion_has_a_store() -> None:
    without = {name for name, command in program.commands.items() if "store" not in {p.name for p in command.params}}
    assert without == {"completion"}


def test_ids_are_never_cut_and_nothing_moves_the_cursor_in_a_pipe(shell: Shell) -> None:
    run_id = "a run with a long name " * 8
    flow(None, run_id)
    for command in ("runs", f"show '{run_id}'", f"events '{run_id}'", "verify", "doctor"):
        out = shell.ok(command)
        assert "\x1b" not in out
        assert "\r" not in out
    assert run_id in shell.ok("runs")
    assert f"{run_id}:2" in shell.ok(f"show '{run_id}'")


def test_what_an_error_said_cannot_write_to_the_terminal(shell: Shell) -> None:
    with pytest.raises(ValueError), checkpoint_scope("rude"):
        raise ValueError("\x1b[2J\x07 \u202e gone\nnext")
    for command in ("show rude", "events rude"):
        assert not re.search("[\x1b\x07\u202e]", shell.ok(command))


def test_a_store_is_not_made_by_looking_for_it(shell: Shell) -> None:
    for command in [*READING, *CHANGING]:
        if command != "doctor":
            code, _, err = shell(command)
            assert (code, f"there is no store at {Path.cwd()}/.oncemore" in err) == (FAILED, True), command
    shell.ok("doctor")
    assert list(Path().iterdir()) == []


def test_the_store_is_chosen_by_option_and_environment(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    flow("one", "first")
    flow("two", "second")
    assert "first" in shell.ok("runs --store one")
    monkeypatch.setenv("ONCEMORE_STORE", "two")
    assert "second" in shell.ok("runs")
    assert "first" in shell.ok("runs --store one")


# -- asking


@pytest.mark.parametrize("command", CHANGING)
def test_nothing_is_taken_away_unasked(command: str, shell: Shell) -> None:
    sample().rollback("nightly", to="train")
    Path("there.zip").write_text("mine")
    before = content("./.oncemore")
    code, out, err = shell(command)
    assert (code, out) == (DECLINED, "")
    assert "--yes" in err
    assert content("./.oncemore") == before
    assert Path("there.zip").read_text() == "mine"
    shell.ok(f"{command} --yes")
    assert content("./.oncemore") != before or Path("there.zip").read_bytes() != b"mine"


# -- names that are nearly right


@pytest.mark.parametrize(
    ("command", "meant"),
    [
        ("shwo nightly", "show"),
        ("Runs", "runs"),
        ("show nihgtly", "nightly"),
        ("show NIGHTLY", "nightly"),
        ("events trail", "trial"),
        ("get nightly repotr", "report"),
        ("get nightly after-claen", "after-clean"),
        ("rm nightly brokn --yes", "broken"),
        ("rollback nightly --to laod --yes", "load"),
        ("fork nightly new --at trian", "train"),
        ("pin nightly clena", "clean"),
        ("rename trila new", "trial"),
        ("export x.zip nightl", "nightly"),
        ("prune nightlyy --keep last --yes", "nightly"),
        ("prune --keep pined", "pinned"),
        ("resolve mailng mail --did-not", "mailing"),
        ("why nightly trian", "train"),
        ("why nihgtly train", "nightly"),
        ("diff nightly trail", "trial"),
        ("adopt nightly claen --yes", "clean"),
        ("audit trila", "trial"),
    ],
)
def test_a_wrong_name_is_answered_with_the_right_one(command: str, meant: str, shell: Shell) -> None:
    sample()
    before = content("./.oncemore")
    code, out, err = shell(command)
    assert code in (FAILED, MISUSED)
    assert out == ""
    assert re.search(rf"Did you mean (.* or )?{meant}( or .*)?\?", err)
    assert content("./.oncemore") == before


def test_a_name_that_is_like_nothing_gets_no_suggestion(shell: Shell) -> None:
    sample()
    assert "Did you mean" not in shell("show zzzzzzzz")[2]
    assert "Existing checkpoints: " in shell("get nightly zzzzzzzz")[2]


# -- exit codes


def test_exit_codes_are_in_the_help(shell: Shell) -> None:
    help = re.sub(r"\s+", " ", shell.ok("--help"))
    for code, meaning in MEANINGS.items():
        assert f"{code} {meaning}" in help


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("runs", DONE),
        ("runs --status nonsense", MISUSED),
        ("runs --since yesterdayish", MISUSED),
        ("runs --limit 0", MISUSED),
        ("nonsense", MISUSED),
        ("show", MISUSED),
        ("show nobody", FAILED),
        ("events nightly --json --jsonl", MISUSED),
        ("get nightly load --json --pickle x", MISUSED),
        ("rollback nightly", MISUSED),
        ("rollback nightly --undo --to load", MISUSED),
        ("rollback nightly --undo --yes", FAILED),
        ("rm nightly", DECLINED),
        ("prune --keep at-most:0 --yes", FAILED),
        ("prune --keep last:many", MISUSED),
        ("prune --keep newer", MISUSED),
        ("prune --keep pinned:3", MISUSED),
        ("prune --keep at-most-bytes:1elephant", MISUSED),
        ("resolve mailing x --did-not --result 1", MISUSED),
        ("resolve mailing x --happened --result {", MISUSED),
        ("export no/such/folder/x.zip", FAILED),
        ("import nothing.zip", MISUSED),
        ("runs --store nonsense:x", FAILED),
        ("why nightly", MISUSED),
        ("diff nightly", MISUSED),
        ("plan", MISUSED),
        ("plan nothing.py", FAILED),
        ("plan -m nothing.at.all", FAILED),
        ("audit nightly -m", MISUSED),
        ("audit nightly --sample 101%", MISUSED),
        ("adopt nightly clean --verify -1", MISUSED),
        ("adopt nightly clean nothing.py", DECLINED),
        ("runs --store postgres://x", FAILED),
    ],
)
def test_the_exit_code_says_how_it_went(command: str, code: int, shell: Shell) -> None:
    sample()
    found, _, err = shell(command)
    assert found == code, err
    assert "Traceback" not in err


def test_verify_says_by_its_exit_code_whether_all_is_well(shell: Shell) -> None:
    sample()
    assert shell("verify")[0] == DONE
    key = next(key for key in keys("./.oncemore", "node/") if "/train/" in key)
    open_store("./.oncemore").commit(put={key: [b"something else"]})
    code, out, _ = shell("verify")
    assert code == PROBLEMS
    assert re.search(rf"damaged +nightly .*{re.escape(key)}", out)
    assert "1 damaged, 0 dangling, 0 orphans" in out
    code, out, _ = shell("verify --json")
    assert code == PROBLEMS
    assert json.loads(out)["findings"][0]["key"] == key


def test_verify_with_another_secret_suggests_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    with checkpoint_scope("r"):
        pass
    monkeypatch.setenv("ONCEMORE_KEY", "another secret of sixteen characters")
    done = oncemore("verify")
    assert done.code == PROBLEMS
    assert "foreign" in done.out
    assert "`oncemore key` shows which key is in use" in done.err


# -- what commands do


def test_runs_are_chosen_and_limited(shell: Shell) -> None:
    sample()
    ids = lambda command: [run["id"] for run in json.loads(shell.ok(f"{command} --json"))]
    assert ids("runs") == ["trial", "mailing", "broken", "nightly"]
    assert ids("runs --limit 2") == ["trial", "mailing"]
    assert ids("runs --workflow etl --status finished") == ["nightly"]
    assert ids("runs --since 1h") == ids("runs --since 2020-01-01")
    assert ids("runs --since 2999-01-01T00:00") == []


def test_events_are_one_json_object_a_line_or_all_in_one_list(shell: Shell) -> None:
    sample()
    lines = [json.loads(line) for line in shell.ok("events nightly --jsonl --since 5").splitlines()]
    assert lines == json.loads(shell.ok("events nightly --json"))[5:]
    assert [fact["seq"] for fact in lines] == list(range(6, 14))
    assert all(fact["event"] in Event.kinds for fact in lines)


def test_get_gives_the_value_to_a_file_that_pickle_reads(shell: Shell) -> None:
    with checkpoint_scope("r"):
        checkpointed(lambda: {"x": {1, 2}}, name="odd")()
    assert shell.ok("get r odd") == "{'x': {1, 2}}\n"
    code, out, err = shell("get r odd --json")
    assert (code, out) == (FAILED, "")
    assert "--pickle" in err
    shell.ok("get r odd --pickle value.pkl")
    assert pickle.loads(Path("value.pkl").read_bytes()) == {"x": {1, 2}}


def test_get_says_what_it_unpickles_before_it_does(shell: Shell) -> None:
    sample()
    (checkpoint,) = History().run("nightly").checkpoints.of("train")
    _, _, err = shell("get nightly train")
    assert err.startswith(f"unpickling {checkpoint.entry}: ")
    assert "signature verified" in err


def test_get_unpickles_nothing_that_was_altered(shell: Shell) -> None:
    sample()
    (checkpoint,) = History().run("nightly").checkpoints.of("train")
    open_store("./.oncemore").commit(put={checkpoint.entry: [pickle.dumps("planted")]})
    code, out, err = shell("get nightly train")
    assert (code, out) == (FAILED, "")
    assert "unpickling" not in err


def test_get_leaves_files_on_disk_alone(shell: Shell) -> None:
    @checkpointed(name="write")
    def write(text: str) -> File:
        Path("report.txt").write_text(text)
        return File("report.txt")

    with checkpoint_scope("r"):
        write("then")
    Path("report.txt").write_text("now")
    assert shell.ok("get r write") == "File('report.txt')\n"
    assert Path("report.txt").read_text() == "now"


def test_a_rollback_counts_and_can_be_undone(shell: Shell) -> None:
    history = sample()
    shell.ok("rollback nightly --before train --yes")
    assert names(history.run("nightly").checkpoints) == ["load", "clean", "after-clean"]
    shell.ok("rollback nightly --undo --yes")
    assert len(history.run("nightly").checkpoints) == 5


def test_a_fork_begins_with_the_values_that_were_set(shell: Shell) -> None:
    sample()
    shell.ok("""fork nightly new --at load --set n=3 --set list='[1, "a"]' --set text=plain --set quoted='"7"'""")
    with checkpoint_scope("new") as run:
        assert dict(run.state) == {"n": 3, "list": [1, "a"], "text": "plain", "quoted": "7"}
    assert ran(flow(None, "new")) == ["clean", "report", "train"]


def test_runs_are_renamed_and_removed(shell: Shell) -> None:
    history = sample()
    shell.ok("rename trial attempt")
    shell.ok("rm attempt broken --yes")
    assert history.run_ids() == ["mailing", "nightly"]
    assert history.verify().findings == ()


def test_one_wrong_name_and_nothing_is_removed(shell: Shell) -> None:
    history = sample()
    assert shell("rm nightly nobody --yes")[0] == FAILED
    assert len(history.run_ids()) == 4


def test_a_pin_keeps_a_checkpoint(shell: Shell) -> None:
    flow(None, "r")
    shell.ok("pin r train")
    shell.ok("prune r --keep pinned --yes")
    assert names(History().run("r").checkpoints) == ["train"]
    shell.ok("pin r train --off")
    shell.ok("prune r --keep pinned --yes")
    assert names(History().run("r").checkpoints) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["last:20"], "keep_last(20)"),
        (["first", "named"], "keep_first(1) | keep_named()"),
        (["first,named", "newer:30d"], "keep_first(1) | keep_named() | keep_newer_than('30d')"),
        (["newest-of-name, pinned"], "keep_latest_of_each_name() | pinned"),
        (["at-most:100,last"], "(keep_last(1)) & at_most(100)"),
        (["at-most:100", "at-most-bytes:1GB"], "(at_most(100)) & at_most_bytes(1000000000)"),
        (["pinned,first,at-most-bytes:1.5MiB"], "(pinned | keep_first(1)) & at_most_bytes(1572864)"),
    ],
)
def test_the_words_of_keep_are_policies(words: list[str], said: str) -> None:
    found = [each for text in words for each in parse_rules(text)]
    assert repr(policy(found)) == said


def test_a_dry_run_says_what_the_real_one_then_does(shell: Shell) -> None:
    flow(None, "r")
    before = content("./.oncemore")
    would = json.loads(shell.ok("prune --keep last:2 --dry-run --json"))
    assert content("./.oncemore") == before
    done = json.loads(shell.ok("prune --keep last:2 --yes --json"))
    assert would["checkpoints"] == done["checkpoints"] == ["r:2", "r:3", "r:4"]
    assert names(History().run("r").checkpoints) == ["train", "report"]


def test_runs_go_from_store_to_store(shell: Shell) -> None:
    sample()
    shell.ok("export runs.zip nightly")
    shell.ok("export runs.json nightly --json")
    for file, store in (("runs.zip", "two"), ("runs.json", "three")):
        shell.ok(f"import {file} --store {store}")
    assert ran(flow("two", "nightly", workflow="etl")) == []
    with pytest.warns(CheckpointWarning, match="clean runs again"):  # JSON cannot hold what it did to the state
        assert ran(flow("three", "nightly", workflow="etl")) == ["clean"]
    assert History("two").verify().well and History("three").verify().well


def test_a_strangers_archive_is_refused_unless_trusted(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    sample()
    shell.ok("export runs.zip nightly")
    monkeypatch.setenv("ONCEMORE_KEY", "the secret of somebody else")
    code, _, err = shell("import runs.zip --store two")
    assert code == FAILED
    assert "not signed with your key" in err
    assert shell("import runs.zip --store two --trust")[0] == DONE
    assert History("two").run_ids() == ["nightly"]


@pytest.mark.parametrize(
    ("answer", "then"), [("--happened --result '\"sent\"'", "sent"), ("--did-not", KeyboardInterrupt)]
)
def test_an_unknown_outcome_is_answered_for(answer: str, then: object, shell: Shell) -> None:
    from tests.cli.program import mail

    history = sample()
    (unknown,) = history.unknown_outcomes("mailing")
    assert unknown.key in shell.ok("show mailing")
    shell.ok(f"resolve mailing {unknown.node} {answer}")
    assert history.unknown_outcomes("mailing") == []
    with checkpoint_scope("mailing"):
        if then == "sent":
            assert mail("a@example.com") == "sent"
        else:
            with pytest.raises(KeyboardInterrupt):
                mail("a@example.com")


# -- doctor


def checks(shell: Shell, code: int = DONE) -> dict[str, tuple[str, str]]:
    found, out, _ = shell("doctor --json")
    assert found == code
    return {check["name"]: (check["state"], check["message"]) for check in json.loads(out)}


def test_doctor_finds_a_secret_that_others_can_read(shell: Shell, isolated: Path) -> None:
    sample()
    assert checks(shell)["secret"][0] == "ok"
    (isolated / ".config" / "oncemore" / "key").chmod(0o644)
    state, said = checks(shell, PROBLEMS)["secret"]
    assert state == "problem"
    assert "chmod 600" in said


def test_doctor_finds_a_store_that_cannot_be_opened(shell: Shell) -> None:
    Path(".oncemore").mkdir()
    Path(".oncemore/cache.db").write_bytes(b"no database at all" * 100)
    assert checks(shell, PROBLEMS)["store"][0] == "problem"


def test_doctor_finds_a_record_that_was_altered(shell: Shell) -> None:
    sample()
    open_store("./.oncemore").commit(put={"run/broken": [b"x"]})
    done = oncemore("doctor")
    assert done.code == PROBLEMS
    assert re.search("runs +problem +records that cannot be verified: broken", done.out)


def test_runs_that_cannot_be_trusted_are_not_left_out_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    sample()
    monkeypatch.setenv("ONCEMORE_KEY", "another secret of sixteen characters")
    done = oncemore("runs")
    assert done.out == ""
    assert re.search(r"^oncemore: warning: the store .* was made with another key", done.err, re.MULTILINE)


def test_doctor_leaves_nothing_behind(shell: Shell) -> None:
    sample()
    before = content("./.oncemore")
    checks(shell)
    assert content("./.oncemore") == before


def test_doctor_names_runs_that_run(shell: Shell) -> None:
    sample()
    with checkpoint_scope("busy"):
        assert checks(shell)["running"] == ("ok", "busy")


# -- help


def every_command() -> list[click.Command]:
    return [program, *program.commands.values()]


@pytest.mark.parametrize("command", every_command(), ids=lambda command: str(command.name))
def test_every_command_and_option_has_help(command: click.Command) -> None:
    assert command.help
    options = [param for param in command.params if isinstance(param, click.Option)]
    assert [option.name for option in options if not option.help or not option.help.endswith(".")] == []


def test_the_short_help_of_a_command_is_not_cut(shell: Shell) -> None:
    assert "..." not in shell.ok("--help").partition("Commands:")[2]


def test_the_version_is_printed() -> None:
    done = oncemore("--version")
    assert re.fullmatch(r"oncemore \S+\n", done.out)


# -- why, and what would be


def test_what_a_run_says_at_its_end_can_be_typed(shell: Shell) -> None:
    """The last line that a script shows names a command: it answers."""
    for store in (None, "some where"):
        script = ORDERS if store is None else ORDERS.replace("argv[1]", f"argv[1], store={store!r}")
        for source in (script, script.replace("> 0", "> 10")):
            Path("orders.py").write_text(source)
            done = subprocess.run(
                [sys.executable, "orders.py", "it's mine"],
                env=environment(ONCEMORE_LOG="stderr"),
                capture_output=True,
                text=True,
                check=True,
            )
        command = done.stderr.splitlines()[-1].split("`")[1]
        assert command.startswith("oncemore why")
        assert ("--store" in command) == (store is not None)
        answered = subprocess.run(
            command.replace("oncemore", f"{sys.executable} -m oncemore.cli", 1),
            shell=True,
            env=environment(),
            capture_output=True,
            text=True,
        )
        assert (answered.returncode, "code of helper `valid` changed" in answered.stdout) == (DONE, True)


def test_the_exit_code_of_a_plan_says_whether_anything_would_run(shell: Shell) -> None:
    project()
    assert shell("plan orders.py later")[0] == WOULD_RUN
    Path("orders.py").write_text(ORDERS.replace("> 0", "> 10"))
    before = content("./.oncemore")
    assert shell("plan orders.py later")[0] == DONE
    assert shell("plan orders.py")[0] == FAILED
    assert content("./.oncemore") == before


def test_what_stands_after_the_script_is_the_scripts(shell: Shell) -> None:
    Path("words.py").write_text("import sys; print(sys.argv[1:])")
    for words in ("-m x", "-- --json a", "--help", "--store b --yes"):
        code, out, err = shell(f"plan words.py {words}")
        assert (code, err) == (DONE, f"{shlex.split(words.removeprefix('-- '))}\n")
        assert out == "No step would run.\n"


def test_the_store_of_the_script_can_be_chosen(shell: Shell) -> None:
    project()
    Path(".oncemore").rename("moved")
    assert shell("plan --store moved orders.py later")[0] == WOULD_RUN
    assert "1 equal, 0 different" in shell.ok("adopt later clean --yes --store moved")
    assert shell("plan --store moved orders.py later")[0] == DONE
    assert "2 equal" in shell.ok("audit later --store moved")
    assert not Path(".oncemore").exists()
    assert "ONCEMORE_STORE" not in os.environ


def test_a_module_is_planned_as_python_runs_it(shell: Shell) -> None:
    project()
    Path("orders.py").write_text(ORDERS.replace("> 0", "> 10"))
    assert shell("plan -m orders later")[0] == DONE
    assert "2 equal" in shell.ok("audit later -m orders later")


def test_adopting_what_differs_changes_nothing(shell: Shell) -> None:
    project()
    Path("orders.py").write_text(ORDERS.replace("> 0", "> 100"))
    before = content("./.oncemore")
    code, out, _ = shell("adopt later clean --yes")
    assert (code, "result: [20] -> []" in out, "nothing was adopted" in out) == (PROBLEMS, True, True)
    assert content("./.oncemore") == before


def test_warnings_of_a_script_are_its_own() -> None:
    Path("warns.py").write_text("import warnings; warnings.warn('careful')")
    err = oncemore("plan", "warns.py").err
    assert "warns.py:1: UserWarning: careful" in err
    assert "oncemore: warning" not in err
