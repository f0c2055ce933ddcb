"""Ten scripts as people write them (`scripts/`), each run, killed at several points, edited, resumed, compared.

What a script prints is its report. A line that begins with `...` is printed by a step that works, one that begins with `---`
by the script between steps; the rest must be the same as without oncemore (`scripts/plain`), after any number of kills.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests import warm
from tests.processes import SRC, Running

SCRIPTS = Path(__file__).resolve().parent / "scripts"

pytest.importorskip("numpy")


@dataclass(frozen=True)
class Done:
    """A process that has ended: which steps worked, what the script printed besides, what it said on standard error."""

    code: int
    worked: list[str]
    report: list[str]
    err: str


class Project:
    """A folder with one script in it, and beside it a folder where the same script runs without oncemore."""

    def __init__(self, name: str, folder: Path, files: Mapping[str, str] = {}) -> None:
        self.name, self.home, self.plain = name, folder / "project", folder / "plain"
        self.text, self.files = (SCRIPTS / f"{name}.py").read_text(), dict(files)
        self.home.mkdir()
        shutil.copytree(SCRIPTS / "library", folder / "site-packages")

    def edit(self, old: str, new: str) -> None:
        """Edit the script, or a file beside it that contains `old`."""
        found = [name for name, text in self.files.items() if old in text]
        assert self.text.count(old) + sum(self.files[name].count(old) for name in found) == 1
        self.text = self.text.replace(old, new)
        for name in found:
            self.files[name] = self.files[name].replace(old, new)

    def run(self, kill_at: str = "", env: Mapping[str, str] = {}) -> Done:
        done = self._run(self.home, SRC, {**env, **({"KILL_AT": kill_at} if kill_at else {})})
        assert done.code == (-9 if kill_at else 0), done.err
        return done

    def run_plain(self) -> Done:
        """The script as it is now, from the beginning, without oncemore."""
        shutil.rmtree(self.plain, ignore_errors=True)
        self.plain.mkdir()
        done = self._run(self.plain, SCRIPTS / "plain", {})
        assert done.code == 0, done.err
        return done

    def _run(self, folder: Path, package: Path, env: Mapping[str, str]) -> Done:
        for name, text in {f"{self.name}.py": self.text, **self.files}.items():
            if not (folder / name).exists() or (folder / name).read_text() != text:
                (folder / name).write_text(text)
        library = self.home.parent / "site-packages"
        name, *args = [str(library / "kernel.py"), "cells.py"] if self.name == "cells" else [f"{self.name}.py"]
        paths = os.pathsep.join([str(package), str(library)])
        load = ["pandas"] if self.name == "orders" else []
        with Running(warm.Process(name, args, folder, {**os.environ, "PYTHONPATH": paths, **env}, load)) as running:
            done = running.finish(timeout=120)
        lines = done.lines
        return Done(
            done.code,
            [line for line in lines if line.startswith("...")],
            [line for line in lines if not line.startswith(("...", "---"))],
            done.err,
        )

    def survives(self, *kills: str) -> list[str]:
        """Kill it at each of these lines; then it ends as without oncemore, and nothing ran twice. What worked in all."""
        expected = self.run_plain()
        worked: list[str] = []
        for line in kills:
            killed = self.run(kill_at=line).worked
            worked += killed[:-1] if line.startswith("...") else killed  # the last one was cut off
        done = self.run()
        assert done.report == expected.report
        worked += done.worked
        assert sorted(worked) == sorted(set(worked)), "a step ran again although it was complete"
        self.rests(expected)
        return worked

    def rests(self, expected: Done | None = None) -> None:
        """A re-run of the finished script runs no step, and ends the same."""
        again = self.run()
        assert again.worked == []
        assert again.report == (expected or self.run_plain()).report

    def resumes_with(self, *worked: str) -> Done:
        """As it is now, it ends as without oncemore; these steps run for that, and no other."""
        done, expected = self.run(), self.run_plain()
        assert done.report == expected.report
        assert done.worked == list(worked)
        self.rests(expected)
        return done


class Service:
    """A local HTTP service that counts what it was paid for."""

    def __init__(self) -> None:
        self.paid: list[str] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                question = body["messages"][-1]["content"]
                if "Plain" not in self.headers["Authorization"]:
                    service.paid.append(f"{self.path.split('/')[1]} {question}")
                answer = {"text": f"{body['model']} answer to {question}", "tokens": len(question)}
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def port(self) -> int:
        return self.server.server_port


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    yield service
    service.server.shutdown()
    service.server.server_close()


@pytest.fixture
def project(tmp_path: Path, request: pytest.FixtureRequest) -> Project:
    name, files = getattr(request, "param", (request.node.originalname, {}))
    return Project(name, tmp_path, files)


def given(name: str, **files: str) -> pytest.MarkDecorator:
    """The script that a test is about, with the files beside it."""
    named = {key.replace("_", "."): text for key, text in files.items()}
    return pytest.mark.parametrize("project", [(name, named)], indirect=True, ids=[name])


# -- a client of a paid service at module level


@given("chat")
def test_no_paid_call_is_made_twice_and_another_address_counts(project: Project, service: Service) -> None:
    project.edit("127.0.0.1:8000", f"127.0.0.1:{service.port}")
    expected = project.run_plain()
    service.paid.clear()
    for line in ("... ask question 1", "... ask question 3", "... summarise"):
        project.run(kill_at=line)
    assert project.run().report == expected.report
    questions = [f"v1 question {n}" for n in range(5)]
    assert service.paid[:5] == questions
    assert len(service.paid) == 6  # and the summary
    again = project.run()
    assert (again.report, again.worked, len(service.paid)) == (expected.report, [], 6)

    project.edit("/v1", "/v2")
    assert project.run().report == expected.report
    assert service.paid[6:11] == [question.replace("v1", "v2") for question in questions]
    assert len(service.paid) == 12

    project.edit("timeout=10)", "timeout=10)  # seconds")
    assert project.run().worked == []

    project.edit('"small"', '"large"')
    expected = project.run_plain()
    assert project.run().report == expected.report


@given("chat")
def test_a_secret_in_the_statement_that_makes_a_client_is_not_in_the_store(project: Project, service: Service) -> None:
    project.edit("127.0.0.1:8000", f"127.0.0.1:{service.port}")
    assert project.run().worked[0] == "... ask question 0"
    assert project.run().worked == []
    held = [path.read_bytes() for path in (project.home / ".oncemore").rglob("*") if path.is_file()]
    assert held
    assert not [data for data in held if b"sk-not-a-secret" in data]


# -- files


ORDERS = "order,customer,amount,currency\n1,ada,10,EUR\n2,bob,-1,EUR\n3,ada,5,USD\n4,cy,7,USD\n"
RATES = "EUR 1.0\nUSD 0.5\n"


@given("orders", orders_csv=ORDERS, rates_txt=RATES)
def test_an_etl_that_is_killed_ends_with_its_files(project: Project) -> None:
    pytest.importorskip("pandas")
    worked = project.survives("... clean", "... total", "... load")
    assert len(worked) == 5
    assert (project.home / "totals.csv").read_text() == (project.plain / "totals.csv").read_text()
    project.edit("frame.amount <= 0", "frame.amount < 0")
    project.resumes_with("... clean")


@given("orders", orders_csv=ORDERS, rates_txt=RATES)
def test_a_changed_file_that_a_step_read_is_a_warning(project: Project) -> None:
    pytest.importorskip("pandas")
    project.survives("... total")
    project.edit("1,ada,10,EUR", "1,ada,20,EUR")
    done = project.run()
    assert done.worked == []
    said = [line for line in done.err.splitlines() if "orders.csv" in line]
    assert len(said) == 1
    assert "extract" in said[0] and "inputs=" in said[0]
    assert "rates.txt" not in done.err


@given("orders", orders_csv=ORDERS, rates_txt=RATES)
@pytest.mark.parametrize("where", ["step", "scope"])
def test_a_changed_file_that_is_observed_makes_the_step_run_again(project: Project, where: str) -> None:
    pytest.importorskip("pandas")
    if where == "scope":
        project.edit('checkpoint_scope("orders")', 'checkpoint_scope("orders", inputs="observed")')
    else:
        project.text = project.text.replace("@checkpointed\n", '@checkpointed(inputs="observed")\n')
    project.survives("... clean", "... total")
    project.edit("1,ada,10,EUR", "1,ada,20,EUR")
    project.resumes_with("... extract", "... clean", "... total", "... load")
    project.edit("USD 0.5", "USD 0.25")
    project.resumes_with("... rates", "... total", "... load")


# -- a pool of processes


@given("sweep")
def test_a_sweep_in_a_pool_goes_on_after_the_last_result(project: Project) -> None:
    expected = project.run_plain()
    worked: list[str] = []
    for kill, complete in (("--- scored 0.01", 1), ("--- scored 0.1", 2), ("--- scored 1.0", 3)):
        killed = project.run(kill_at=kill)
        assert not set(killed.worked) & set(worked), "a fit ran again although its score was there"
        worked = [f"... evaluate {alpha}" for alpha in (0.01, 0.1, 1.0, 10.0)[:complete]]
    done = project.run()
    assert done.report == expected.report
    assert not set(done.worked) & set(worked)
    project.rests(expected)
    project.edit("1.0, 10.0]", "1.0, 10.0, 100.0]")
    project.resumes_with("... evaluate 100.0")
    project.edit("scale=0.3", "scale=0.4")
    done = project.run()
    assert len(done.worked) == 6
    assert done.report == project.run_plain().report


@given("sweep")
def test_an_edited_fold_count_runs_the_sweep_again_in_the_workers(project: Project) -> None:
    project.run()
    project.edit("FOLDS = 3", "FOLDS = 4")
    done = project.run()
    assert done.report == project.run_plain().report
    assert len([line for line in done.worked if "evaluate" in line]) == 4
    project.rests()


# -- a loop that is extended


@pytest.fixture(params=["module-level generator", "global generator"])
def training(tmp_path: Path, request: pytest.FixtureRequest) -> Project:
    project = Project("training", tmp_path)
    if request.param == "global generator":
        project.edit("RNG = np.random.default_rng(3)", "np.random.seed(3)\nRNG = np.random")
    return project


def test_a_training_that_is_killed_ends_like_one_that_is_not(training: Project) -> None:
    training.survives("... epoch 0 of", "... epoch 7 of", "... epoch 8 of")


def test_a_longer_training_goes_on_where_the_shorter_one_ended(training: Project) -> None:
    training.survives("... epoch 3 of")
    training.edit("range(20)", "range(30)")
    training.resumes_with(*(f"... epoch {n} of training" for n in range(20, 30)))
    training.edit("range(30)", "range(5, 30)")
    done = training.run()
    assert done.report == training.run_plain().report
    assert done.worked == [f"... epoch {n} of training" for n in range(5, 30)]
    assert "epochs" in done.err  # the reason why it began anew


# -- generators at module level


@given("simulation")
def test_a_simulation_draws_the_numbers_of_an_uninterrupted_one(project: Project) -> None:
    assert len(project.survives("... day 1", "... day 3", "... holiday", "... describe")) == 7


@given("simulation")
def test_another_seed_runs_the_steps_that_draw_from_that_generator(project: Project) -> None:
    project.survives("... holiday")
    project.edit("DICE = random.Random(1)", "DICE = random.Random(2)")
    project.resumes_with("... holiday")
    project.edit("\nrandom.seed(1)", "\nrandom.seed(2)")
    project.resumes_with("... holiday")
    project.edit("RNG = np.random.default_rng(1)", "RNG = np.random.default_rng(9)")
    days = [f"... day {n}" for n in range(5)]
    project.resumes_with(*days, "... describe")
    project.edit("RNG = np.random.default_rng(9)", "RNG = np.random.default_rng(1)")
    project.resumes_with()


@given("simulation")
def test_an_unseeded_simulation_resumes_with_the_numbers_of_its_first_attempt(project: Project) -> None:
    for seeded, unseeded in (
        ("\nrandom.seed(1)\n", "\n"),
        ("np.random.seed(1)\n", "\n"),
        ("default_rng(1)", "default_rng()"),
        ("random.Random(1)", "random.Random()"),
    ):
        project.edit(seeded, unseeded)
    project.edit("    summary = describe", '    print("--- waits", waits)\n    summary = describe')
    project.run(kill_at="... day 3")
    project.run(kill_at="... holiday")
    first = project.run()
    again = project.run()
    assert (again.report, again.worked) == (first.report, [])


# -- effects that must happen once


@given("agent")
def test_no_mail_goes_out_twice_whatever_is_edited(project: Project) -> None:
    expected = project.run_plain()
    for line in ("--- to send ada", "--- to send edsger", "... write grace"):
        project.run(kill_at=line)
    assert project.run().report == expected.report
    mails = (project.home / "mails.txt").read_text()
    assert mails == (project.plain / "mails.txt").read_text()
    project.rests(expected)

    project.edit('SIGNATURE = "Kind regards"', 'SIGNATURE = "Yours"')
    done = project.run()
    assert done.report == expected.report
    assert done.worked == []
    assert "send" in done.err  # it says that its recorded result is returned

    project.edit('print("... send", name)', 'print("... send", name.upper())')
    assert project.run().worked == []
    assert (project.home / "mails.txt").read_text() == mails

    project.edit('CUSTOMERS = ["ada", "grace", "edsger"]', 'CUSTOMERS = ["ada", "barbara", "grace", "edsger"]')
    done = project.run()
    assert done.worked == ["... plan", "... write barbara", "... send BARBARA"]
    assert len((project.home / "mails.txt").read_text().splitlines()) == 4


@given("agent")
def test_a_mail_whose_outcome_is_unknown_stops_the_agent(project: Project) -> None:
    project.run(kill_at="... send edsger")
    done = project._run(project.home, SRC, {})
    assert done.code == 1
    assert "UnknownOutcome" in done.err
    assert [line.split(":")[0] for line in (project.home / "mails.txt").read_text().splitlines()] == ["ada"]


# -- cells of a notebook


@given("cells")
def test_a_new_kernel_goes_on_where_the_old_one_died(project: Project) -> None:
    assert len(project.survives("... load tuesday", "... model")) == 3
    project.edit("FACTOR = 3", "FACTOR = 4")
    project.resumes_with("... model 6")
    project.edit("x * FACTOR", "x * FACTOR + 1")
    project.resumes_with("... model 6")
    project.edit("x * FACTOR + 1", "x * FACTOR")
    project.resumes_with()
    project.edit("random.seed(5)", "random.seed(6)")
    project.resumes_with("... load monday", "... load tuesday", "... model 6")


# -- lists, tables and caches at module level


@given("collect")
def test_what_steps_collect_at_module_level_is_complete_after_a_resume(project: Project) -> None:
    assert len(project.survives("... count 1", "... count 3", "... rank")) == 5
    project.edit('"a thorn"', '"a big thorn"')
    done = project.run()
    assert done.report == project.run_plain().report
    assert done.worked[0] == "... count 2"
    project.rests()


@given("registry")
def test_handlers_and_caches_are_as_an_uninterrupted_run_leaves_them(project: Project) -> None:
    assert len(project.survives("... quote iron 5", "... quote gold 2", "... quote iron 9")) == 4
    project.edit("return weight % 7", "return weight % 4")
    done = project.run()
    assert done.report == project.run_plain().report
    assert "... quote iron 5" in done.worked
    project.rests()
    project.edit('"gold": 0.5', '"gold": 0.25')
    done = project.run()
    assert done.report == project.run_plain().report
    project.rests()


# -- figures


@given("figures")
def test_a_figure_that_was_drawn_in_a_skipped_step_is_there(project: Project) -> None:
    pytest.importorskip("matplotlib")
    expected = project.run_plain()
    for line in ("... draw", "... annotate"):
        project.run(kill_at=line)
    done = project.run()
    assert done.report == expected.report
    project.rests(expected)
