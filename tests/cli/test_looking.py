"""Looking at runs: `show`, `get`, and `plan` with the options and failures of a script."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

from oncemore import History, checkpoint_scope, checkpointed
from oncemore.cli import main
from tests.cli.program import COMMAND

ROOT = Path(__file__).resolve().parent.parent.parent

FAILING = """
import sys
from oncemore import checkpoint_scope, checkpointed

@checkpointed
def load(n):
    return n

def convert(text):
    return float(text)

if __name__ == "__main__":
    with checkpoint_scope("f"):
        load(1)
        print("given", sys.argv[1:])
        if "--fail" in sys.argv:
            convert("much")
"""


@checkpointed(redact=["user"])
def fetch(page: int, user: str = "", token: str = "") -> int:
    return page


@checkpointed
def total(table: numpy.ndarray) -> float:
    return float(table.sum())


def _shown(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main(["show", "r", *options]) == 0
    return capsys.readouterr().out


def test_show_has_the_arguments_of_each_call_and_redacts_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    with checkpoint_scope("r"):
        fetch(7, "Ada", token="abc")
        total(numpy.zeros(100_000))
        fetch(8, user="x" * 500)
    text = _shown(capsys)
    assert "page=7, user=#" in text and "table=<ndarray 100000 float64>" in text
    assert "Ada" not in text and "abc" not in text
    assert "page=7" in json.loads(_shown(capsys, "--json"))["checkpoints"][0]["arguments"]


def test_show_prints_the_newest_checkpoints_and_how_to_see_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    with checkpoint_scope("r"):
        for page in range(30):
            fetch(page)
    text = _shown(capsys)
    assert "page=29" in text and "page=10," in text and "page=9," not in text
    assert text.endswith("10 earlier checkpoints not shown; --limit 0 shows all\n")
    assert "page=0," in _shown(capsys, "--limit", "0")
    assert "page=27," not in _shown(capsys, "--limit", "2")
    assert len(json.loads(_shown(capsys, "--json"))["checkpoints"]) == 30
    assert len(json.loads(_shown(capsys, "--json", "--limit", "3"))["checkpoints"]) == 3


def test_show_prints_arguments_although_the_entry_is_large(capsys: pytest.CaptureFixture[str]) -> None:
    with checkpoint_scope("r"):
        checkpointed(name="large")(lambda size: numpy.random.default_rng(0).random(size))(50_000)
    assert "size=50000" in _shown(capsys)


def _script(tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    subprocess.run([sys.executable, "failing.py"], check=True, capture_output=True)


def _command(*words: str) -> tuple[int, str, str]:
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def test_show_names_the_script_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "derived.py").write_text("from oncemore import checkpoint_scope\nwith checkpoint_scope(): pass\n")
    subprocess.run([sys.executable, "derived.py", "--day", "1 May"], check=True, capture_output=True)
    (run,) = History().runs()
    assert main(["show", run.id]) == 0
    assert "script: derived.py --day '1 May'" in capsys.readouterr().out


def test_plan_shows_the_traceback_of_a_script_that_fails(tmp_path: Path) -> None:
    _script(tmp_path)
    code, out, err = _command("plan", "failing.py", "--fail")
    assert code == 1
    assert "in convert\n    return float(text)" in err and "ValueError: could not convert" in err
    assert "oncemore/" not in err and "runpy" not in err
    assert err.endswith("oncemore: the script failed: ValueError: could not convert string to float: 'much'\n")
    assert "load" in out


@pytest.mark.parametrize(
    ("words", "given"),
    {
        "before": (["--json", "failing.py", "--fast", "x"], ["--fast", "x"]),
        "after": (["failing.py", "--json"], []),
        "between": (["failing.py", "--fast", "--json", "x"], ["--fast", "x"]),
        "dashes": (["failing.py", "--json", "--", "--json", "x"], ["--json", "x"]),
        "dashes first": (["--json", "--", "failing.py", "--fast"], ["--fast"]),
        "own options before dashes": (["failing.py", "--store", ".oncemore", "--json", "--", "--store"], ["--store"]),
    }.values(),
)
def test_plan_takes_json_anywhere_and_dashes_before_the_options_of_the_script(
    tmp_path: Path, words: list[str], given: list[str]
) -> None:
    _script(tmp_path)
    code, out, err = _command("plan", *words)
    assert code == 0
    assert json.loads(out)["reused"][0]["step"] == "load"
    assert f"given {given}" in err


def test_an_audit_of_a_script_that_fails_says_so_by_its_exit_code(tmp_path: Path) -> None:
    _script(tmp_path)
    assert _command("audit", "f", "failing.py")[0] == 0
    code, out, err = _command("audit", "f", "failing.py", "--fail", "--json")
    assert code == 1 and json.loads(out)["failed"] and "in convert" in err


def test_the_history_in_the_readme_can_be_run_twice(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    last = next(index for index, block in enumerate(blocks) if "history.fork(" in block)
    (tmp_path / "readme.py").write_text("\n".join(block for block in blocks[: last + 1] if "rate.txt" not in block))
    outputs = [
        subprocess.run([sys.executable, "readme.py"], check=True, capture_output=True, text=True).stdout for _ in "12"
    ]
    assert outputs[0] == outputs[1]


UNGUARDED = """
import asyncio
from oncemore import checkpoint_scope, checkpointed

class Point:
    def __repr__(self):
        return "Point()"

@checkpointed
def point():
    return Point()

@checkpointed
def later():
    open("later.txt", "w").close()

print("starting")
def main():
    with checkpoint_scope("u") as run:
        point()
        if run.ask("Go on?", name="go", type=bool):
            later()
async def main_in_a_loop():
    async with checkpoint_scope("u") as run:
        point()
        if run.ask("Go on?", name="go", type=bool):
            later()
"""
LATE = """
from oncemore import checkpoint_scope, checkpointed
with checkpoint_scope("u"):
    class Point: ...
    checkpointed(lambda: Point(), name="point")()
"""


@pytest.mark.parametrize("last", ["main()", "asyncio.run(main_in_a_loop())"])
def test_reading_a_value_of_the_scripts_own_class_does_not_go_on_with_the_run(tmp_path: Path, last: str) -> None:
    (tmp_path / "unguarded.py").write_text(UNGUARDED + last)
    paused = subprocess.run([sys.executable, "unguarded.py"], capture_output=True, text=True)
    assert paused.returncode == 75, paused.stderr
    history = History()
    history.answer("u", "go", "yes")
    events = list(history.run("u").events())
    code, out, err = _command("get", "u", "point")
    assert (code, out) == (0, "Point()\n"), err
    read = "from oncemore import History; print(History().run('u').checkpoints.find('point').result())"
    done = subprocess.run([sys.executable, "-c", read], capture_output=True, text=True)
    assert done.stdout == "starting\nPoint()\n", done.stderr
    assert list(history.run("u").events()) == events
    assert not Path("later.txt").exists()


def test_a_class_that_a_script_defines_in_its_run_is_named_when_a_value_needs_it(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(LATE)
    subprocess.run([sys.executable, "late.py"], check=True, capture_output=True)
    code, out, err = _command("get", "u", "point")
    assert (code, out) == (1, "")
    assert "the script late opens a run before it defines Point: define it earlier" in err
