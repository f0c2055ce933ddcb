"""The default store belongs to the script's project, wherever the script is started from."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from oncemore.stores import default_target
from tests.cli.program import COMMAND
from tests.processes import SRC

SCRIPT = """
import multiprocessing, sys
from oncemore import checkpoint_scope, checkpointed
from oncemore.stores import default_target

def found(x):
    return default_target()

@checkpointed
def double(x):
    return 2 * x

if __name__ == "__main__":
    print(default_target())
    for how in ("fork", "forkserver", "spawn"):
        with multiprocessing.get_context(how).Pool(1) as pool:
            print(pool.map(found, [1])[0])
    with checkpoint_scope() as run:
        double(3)
        print(run.id)
"""


def _script(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "work.py"
    path.write_text(SCRIPT)
    return path


def _python(*arguments: str, cwd: Path) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, check=True, capture_output=True, text=True
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("marker", ["pyproject.toml", ".git", ".oncemore"])
def test_a_script_and_its_workers_use_the_store_of_its_project(tmp_path: Path, marker: str) -> None:
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    path = _script(project / "scripts")
    (project / marker).mkdir()
    elsewhere.mkdir()
    first = _python(str(path), cwd=elsewhere)
    assert first[:4] == [str(project / ".oncemore")] * 4
    assert _python("work.py", cwd=path.parent) == first  # the run id, too
    assert [folder.parent for folder in tmp_path.rglob(".oncemore")] == [project]


def test_a_script_without_a_project_has_its_store_beside_it(tmp_path: Path) -> None:
    path = _script(tmp_path / "alone")
    assert set(_python(str(path), cwd=tmp_path)[:4]) == {str(path.parent / ".oncemore")}


def test_a_module_run_with_m_is_a_script(tmp_path: Path) -> None:
    path = _script(tmp_path / "project" / "package")
    (tmp_path / "project" / ".git").mkdir()
    (path.parent / "__init__.py").touch()
    assert _python("-m", "package.work", cwd=path.parent.parent)[0] == str(tmp_path / "project" / ".oncemore")


def test_without_a_script_the_search_begins_at_the_working_directory(tmp_path: Path) -> None:
    inside = tmp_path / "project" / "data"
    inside.mkdir(parents=True)
    (tmp_path / "project" / "pyproject.toml").touch()
    code = "from oncemore.stores import default_target; print(default_target())"
    assert _python("-c", code, cwd=inside) == [str(tmp_path / "project" / ".oncemore")]
    assert _python("-c", code, cwd=tmp_path) == [str(tmp_path / ".oncemore")]


def test_a_repository_in_the_home_directory_is_no_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".git").mkdir()
    work = tmp_path / "work"
    work.mkdir()
    assert default_target(str(work)) == str(work / ".oncemore")


def test_what_others_put_into_a_folder_open_to_all_does_not_count(tmp_path: Path) -> None:
    work = tmp_path / "open" / "work"
    work.mkdir(parents=True)
    (tmp_path / "open" / ".git").mkdir()
    (tmp_path / "open").chmod(0o1777)
    assert default_target(str(work)) == str(work / ".oncemore")


def test_the_environment_variable_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    monkeypatch.setenv("ONCEMORE_STORE", "memory://named")
    assert default_target(str(tmp_path)) == "memory://named"


def test_a_loky_worker_finds_the_store_of_the_script_whose_steps_it_gets(tmp_path: Path) -> None:
    pytest.importorskip("joblib")
    path = tmp_path / "project" / "parallel.py"
    path.parent.mkdir()
    path.write_text(
        "import joblib\nfrom oncemore import memoized\nfrom oncemore.stores import default_target\n\n"
        "@memoized\ndef found(x):\n    return default_target()\n\n"
        "print(*joblib.Parallel(2)(joblib.delayed(found)(x) for x in [1]))\n"
    )
    assert _python(str(path), cwd=tmp_path) == [str(path.parent / ".oncemore")]


HELPERS = """
from oncemore import memoized
from oncemore.stores import default_target

@memoized
def memo(x):
    return default_target()

def plain(x):
    return memo(x)
"""

PARALLEL = """
import multiprocessing, os, sys
from concurrent.futures import ProcessPoolExecutor
from helpers import memo, plain
from oncemore.stores import default_target

def called(how, function):
    if how == "loky":
        import joblib
        return joblib.Parallel(2)(joblib.delayed(function)(x) for x in [how])
    if how == "dask":
        from distributed import Client, LocalCluster
        options = dict(n_workers=1, threads_per_worker=1, dashboard_address=None)
        with LocalCluster(**options) as cluster, Client(cluster) as client:
            return client.gather(client.map(function, [how], pure=False))
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(how)) as pool:
        return list(pool.map(function, [how]))

if __name__ == "__main__":
    how, function, elsewhere = sys.argv[1:]
    os.chdir(elsewhere)
    print(default_target(), *called(how, globals()[function]), os.listdir("."))
"""


@pytest.mark.parametrize(
    ("how", "function"),
    [("loky", "memo"), ("loky", "plain"), ("spawn", "plain"), ("forkserver", "plain"), ("dask", "memo")],
)
def test_a_worker_that_gets_only_functions_of_modules_uses_the_store_of_the_script(
    tmp_path: Path, how: str, function: str
) -> None:
    pytest.importorskip({"loky": "joblib", "dask": "distributed"}.get(how, "multiprocessing"))
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    (project / "scripts").mkdir(parents=True)
    elsewhere.mkdir()
    (project / "pyproject.toml").touch()
    (project / "scripts" / "helpers.py").write_text(HELPERS)
    (project / "scripts" / "parallel.py").write_text(PARALLEL)
    (printed,) = _python("scripts/parallel.py", how, function, str(elsewhere), cwd=project)
    assert printed.split() == [*[str(project / ".oncemore")] * 2, "[]"]


def test_commands_say_where_they_looked(tmp_path: Path) -> None:
    project = tmp_path / "project"
    _python(str(_script(project)), cwd=tmp_path)

    def command(*words: str) -> str:
        done = subprocess.run([*COMMAND, *words], cwd=project, capture_output=True, text=True)
        return done.stdout + done.stderr

    assert command("runs", "--status", "failed") == f"No runs found in {project}/.oncemore.\n"
    assert command("memo") == f"No memoized results found in {project}/.oncemore.\n"
