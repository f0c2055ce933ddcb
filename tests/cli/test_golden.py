"""What every command prints into a pipe, word for word but for times, sizes and digests.

`ONCEMORE_TEST_GOLDEN=write` writes tests/cli/golden anew; look at the difference before you keep it.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

from oncemore.cli import main
from oncemore.cli.app import program
from tests.cli.program import project, question, sample, settled

GOLDEN = Path(__file__).parent / "golden"
WRITE = os.environ.pop("ONCEMORE_TEST_GOLDEN", "") == "write"  # here: tests see no variable of ours

CASES = {
    "help": ["--help"],
    "key": ["key", "key --json", "key --store nowhere"],
    "key-rotate": ["key rotate", "key rotate --encrypt --yes", "key", "verify", "key rotate --store nowhere"],
    "repair": ["repair", "repair --json", "repair --store nowhere"],
    "runs": ["runs", "runs --json", "runs --workflow etl --limit 1", "runs --status failed", "runs --workflow no"],
    "show": ["show nightly", "show broken", "show mailing", "show trial", "show nightly --json"],
    "events": ["events nightly", "events broken --since 2", "events mailing --jsonl", "events trial --json"],
    "why": [
        "why orders clean",
        "why orders clean --diff",
        "why later load --diff",
        "why orders claen",
        "why orders clean --json",
    ],
    "diff": [
        "diff earlier later",
        "diff later luck",
        "diff nightly trial",
        "diff later earlier --json",
        "diff orders latr",
    ],
    "plan": [
        "plan orders.py orders",
        "plan orders.py new",
        "plan orders.py orders --json",
        "plan --json orders.py orders",
        "plan done.py",
        "plan orders.py",
        "plan nothing.py",
    ],
    "adopt": [
        "adopt orders clean",
        "adopt orders claen --yes",
        "adopt later load --yes",
        "adopt later clean --yes orders.py orders",
        "adopt orders clean --yes nothing.py",
        "adopt later clean --yes --verify 3",
        "adopt orders clean --verify 0 --yes",
        "plan orders.py later",
    ],
    "audit": [
        "audit later",
        "audit later --sample 0%",
        "audit later --json",
        "audit luck luck.py",
        "audit later --sample many",
    ],
    "get": ["get nightly report", "get nightly after-clean --json", "get nightly train --json", "get trial load"],
    "rollback": ["rollback nightly --to clean", "rollback nightly --to clean --yes", "rollback nightly --undo -y"],
    "fork": [
        "fork nightly again --at load --set rate=0.5 --set name=x",
        "fork nightly again",
        "fork nightly b --set x",
    ],
    "rename": ["rename trial attempt", "rename attempt nightly"],
    "pin": ["pin nightly after-clean", "show nightly", "pin nightly after-clean --off"],
    "resolve": ["resolve mailing mail", "resolve mailing mial --happened", "resolve broken x --did-not"],
    "answer": [
        "show report",
        "show report --json",
        "runs --status paused",
        "answer report approve yes",
        "answer report pages many",
        "answer report pages 12",
        "answer report page 12",
        "answer nightly pages 12",
        "show report",
        "events report --since 4",
    ],
    "rm": ["rm trial", "rm trial broken --yes", "runs"],
    "prune": [
        "prune --keep last --dry-run",
        "prune nightly --keep first,named -y",
        "prune --keep at-most:1 --dry-run --json",
    ],
    "memo": ["memo", "memo --json", "memo nothing", "memo --clear --older-than 1d"],
    "export": ["export runs.zip", "export runs.zip nightly", "export runs.json nightly --json -y"],
    "import": ["export runs.zip", "import runs.zip --store other", "import pytest.ini", "runs --store other"],
    "verify": ["verify", "verify --json"],
    "doctor": ["doctor"],
    "completion": ["completion bash"],
}


def test_every_command_has_a_golden_output() -> None:
    assert set(program.commands) <= CASES.keys()


@pytest.mark.parametrize("name", CASES)
def test_a_command_prints_what_it_printed(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    sample()
    if name in ("why", "diff", "plan", "adopt", "audit"):
        project()
    if name == "answer":
        question()
        capsys.readouterr()
    Path("pytest.ini").write_text("no runs in here")
    told = ""
    for command in CASES[name]:
        code = main(shlex.split(command))
        out, err = capsys.readouterr()
        told += f"$ oncemore {command}\n{out}" + "".join(f"! {line}\n" for line in err.splitlines()) + f"= {code}\n"
    told = masked(settled(told, tmp_path))
    file = GOLDEN / f"{name}.txt"
    if WRITE:
        file.write_text(told)
    assert told == file.read_text()


def masked(text: str) -> str:
    """Without versions, and what the machine is like."""
    text = re.sub(
        r"(?m)^((?:python|oncemore|sqlite|blake3|cloudpickle|diskcache|wrapt|zstandard|click|rich)  ok)  .*",
        r"\1",
        text,
    )
    text = re.sub(r'(?m)(^(?:key|earlier keys|store made with)  |key": "|the key |/key\.)[0-9a-f]{8}\b', r"\1HEX", text)
    text = re.sub(r"(?m)^script: .*\n", "", text)  # the tests themselves; none in a worker of pytest-xdist
    text = re.sub(r'(?<="script": )\[[^\]]*\]', "...", text)
    text = re.sub(r"(?m)^!\s+[~^]+\n", "", text)  # from Python 3.11 on
    text = re.sub(r"(?m)^(file system|free space)  \w+  .*", r"\1", text)
    return re.sub(r"(?s)(\$ oncemore completion bash\n).*(_oncemore_completion_setup;\n)", r"\1...\n\2", text)
