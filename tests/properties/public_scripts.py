"""Example scripts of public packages, their functions made steps mechanically: run, killed, resumed, compared with plain Python.

    python -m tests.properties.public_scripts                  all of them, as a table
    python -m tests.properties.public_scripts --only carwash   those whose path contains this; tells what differs

The scripts come with the source distributions of the packages, which pip brings into the folder of `--sources`. Nothing of
them is in this repository. Each gets `@checkpointed` above every function at its top level, and its body stands inside
`with checkpoint_scope(...)`. It then runs

* plain, twice: a value that differs between these two (a duration, an unseeded draw) is not compared;
* with oncemore from beginning to end ("first"), and once more ("again": no step body may run, but for calls whose arguments
  differ between the two plain runs as well, which the table counts);
* with oncemore, killed with SIGKILL after a third and after two thirds of its statements, then resumed ("resumed").

A function with an argument that has no identity (the axes of a figure, a simulation's environment) is refused with an error that
names step and argument; such a function stays as it was, and the table says so.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

SRC = Path(__file__).resolve().parents[2] / "src"
WITNESS = Path(__file__).with_name("witness.py")
PACKAGES = {"scikit-learn": "scikit_learn", "statsmodels": "statsmodels", "simpy": "simpy"}

# Those that have functions, need no network and no display, and take some seconds.
SCRIPTS = [
    "simpy-*/docs/examples/code/bank_renege.py",
    "simpy-*/docs/examples/code/carwash.py",
    "simpy-*/docs/examples/code/machine_shop.py",
    "scikit_learn-*/examples/classification/plot_lda_qda.py",
    "scikit_learn-*/examples/cluster/plot_agglomerative_clustering_metrics.py",
    "scikit_learn-*/examples/cluster/plot_agglomerative_dendrogram.py",
    "scikit_learn-*/examples/cluster/plot_kmeans_stability_low_dim_dense.py",
    "scikit_learn-*/examples/datasets/plot_random_multilabel_dataset.py",
    "scikit_learn-*/examples/decomposition/plot_ica_vs_pca.py",
    "scikit_learn-*/examples/decomposition/plot_sparse_coding.py",
    "scikit_learn-*/examples/gaussian_process/plot_gpr_prior_posterior.py",
    "scikit_learn-*/examples/linear_model/plot_lasso_lars_ic.py",
    "scikit_learn-*/examples/linear_model/plot_polynomial_interpolation.py",
    "scikit_learn-*/examples/linear_model/plot_sgd_loss_functions.py",
    "scikit_learn-*/examples/mixture/plot_gmm_sin.py",
    "scikit_learn-*/examples/svm/plot_weighted_samples.py",
    "statsmodels-*/archive/examples/ex_generic_mle.py",
    "statsmodels-*/archive/examples/ex_generic_mle_t.py",
    "statsmodels-*/archive/examples/ex_kde_normalreference.py",
    "statsmodels-*/archive/examples/try_power.py",
    "statsmodels-*/archive/examples/try_tukey_hsd.py",
    "statsmodels-*/examples/python/distributed_estimation.py",
    "statsmodels-*/examples/python/plots_boxplots.py",
    "statsmodels-*/examples/python/quantile_regression.py",
    "statsmodels-*/examples/python/stationarity_detrending_adf_kpss.py",
    "statsmodels-*/examples/python/statespace_arma_0.py",
]

# 34,000 draws, each a step: a few hundred show the same.
SHORTER = {"machine_shop.py": ("WEEKS = 4", "WEEKS = 0.05")}

# What pip asks of a package's build tool before it hands the archive over, answered from the archive: nothing is built.
BACKEND = """
import os
import shutil


def get_requires_for_build_wheel(config_settings=None):
    return []


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    with open("PKG-INFO", encoding="utf-8") as file:
        fields = dict(line.rstrip("\\n").split(": ", 1) for line in file.read().split("\\n\\n")[0].split("\\n") if ": " in line)
    folder = f"{fields['Name'].replace('-', '_')}-{fields['Version']}.dist-info"
    os.makedirs(os.path.join(metadata_directory, folder))
    shutil.copy("PKG-INFO", os.path.join(metadata_directory, folder, "METADATA"))
    return folder


def build_wheel(*args, **kwargs):
    raise NotImplementedError
"""


def fetch(folder: Path) -> list[str]:
    """Bring the packages' sources into the folder; the names of those that cannot be had."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = []
    for package, name in PACKAGES.items():
        if any(path.is_dir() for path in folder.glob(f"{name}-*")):
            continue
        with tempfile.TemporaryDirectory() as stand_in:
            for backend in ("mesonpy/__init__.py", "setuptools/build_meta.py", "setuptools/__init__.py"):
                (Path(stand_in) / backend).parent.mkdir(exist_ok=True)
                (Path(stand_in) / backend).write_text(BACKEND)
            command = [
                "-m",
                "pip",
                "download",
                "-q",
                "--disable-pip-version-check",
                "--no-deps",
                "--no-build-isolation",
            ]
            done = subprocess.run(
                [sys.executable, *command, "--no-binary", ":all:", "-d", str(folder), package],
                env={**os.environ, "PYTHONPATH": stand_in},
                capture_output=True,
                text=True,
            )
        archives = list(folder.glob(f"{name}-*.tar.gz"))
        if done.returncode or not archives:
            print(f"no sources of {package}: {done.stderr.strip()[-300:]}", file=sys.stderr)
            missing.append(package)
            continue
        with tarfile.open(archives[0]) as archive:
            archive.extractall(folder)
    return missing


# -- made steps


def decorated(text: str, plain: bool, refused: set[str] = set()) -> str:
    """The script with its functions made steps, its body in a scope, and a place to die after each statement."""
    tree = ast.parse(text)
    head: list[ast.stmt] = []
    rest = tree.body
    while rest and (_is_docstring(rest[0]) or (isinstance(rest[0], ast.ImportFrom) and rest[0].module == "__future__")):
        head.append(rest.pop(0))
    body: list[ast.stmt] = []
    for statement in rest:
        if isinstance(statement, ast.FunctionDef) and statement.name not in refused:
            statement.decorator_list.insert(0, ast.Name("checkpointed", ast.Load()))
            at = 1 if _is_docstring(statement.body[0]) else 0
            statement.body.insert(at, _parsed(f"witness.entered({statement.name!r})"))
        body += [statement, _parsed("witness.tick()")]
    scope = _parsed('with checkpoint_scope("public"):\n    pass')
    assert isinstance(scope, ast.With)
    scope.body = body
    imports = [
        _parsed("import witness"),
        _parsed(f"from {'witness' if plain else 'oncemore'} import checkpoint_scope, checkpointed"),
    ]
    ending = _parsed("witness.outline(globals())")
    return ast.unparse(ast.fix_missing_locations(ast.Module([*head, *imports, scope, ending], [])))


def _is_docstring(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _parsed(text: str) -> ast.stmt:
    return ast.parse(text).body[0]


# -- run


class Failed(Exception):
    """The script ended with an error."""


def run(folder: Path, name: str, text: str, kill: int = 0, timeout: int = 120) -> dict[str, Any]:
    """One process: how it ended, which step bodies ran, what it warned about."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    library = folder / "site-packages"
    library.mkdir(exist_ok=True)
    shutil.copy(WITNESS, library / "witness.py")
    for stale in ("witness.log", "outline.json"):
        (folder / stale).unlink(missing_ok=True)
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(library), str(SRC)]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "MPLBACKEND": "Agg",
        "OMP_NUM_THREADS": "1",
        "WITNESS_KILL": str(kill),
    }
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-W", "ignore::FutureWarning", name]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=timeout)
    if done.returncode != (-9 if kill else 0):
        last = done.stderr.strip().splitlines()
        raise Failed(f"exit code {done.returncode}: {last[-1] if last else ''}\n{done.stderr}")
    log = folder / "witness.log"
    bodies = log.read_text().splitlines() if log.exists() else []
    ended = {} if kill else json.loads((folder / "outline.json").read_text())
    return {**ended, "bodies": bodies, "err": done.stderr}


def check(path: Path) -> dict[str, Any]:
    """What became of one script: a row of the table."""
    folder = Path(tempfile.mkdtemp(prefix="public-"))
    row: dict[str, Any] = {"script": path.name, "first": "", "again": "", "resumed": "", "messages": []}
    try:
        text = path.read_text().replace(*SHORTER.get(path.name, ("", "")))
        refused = _refused(folder / "tried", path.name, text)
        row["refused"] = ", ".join(sorted(refused))
        plain, steps = decorated(text, True, refused), decorated(text, False, refused)
        began = time.monotonic()
        one = run(folder / "plain", path.name, plain)
        row["seconds"], row["bodies"] = round(time.monotonic() - began, 1), len(one["bodies"])
        two = run(folder / "plain", path.name, plain)
        same = {name for name in one["values"] if one["values"][name] == two["values"].get(name)}
        row["values"] = len(same)

        def compared(found: dict[str, Any]) -> str:
            names = sorted(name for name in same if found["values"].get(name) != one["values"][name])
            for name in names:
                row["messages"].append(
                    f"{name}: {one['values'][name]!s:.200} plain, {found['values'].get(name)!s:.200} here"
                )
            if found["err"] != one["err"]:
                row["messages"].append(found["err"][-1500:])
            return f"differs: {', '.join(names)}" if names else "same"

        def attempt(column: str, folder: Path, kills: tuple[int, ...] = ()) -> dict[str, Any] | None:
            try:
                for kill in kills:
                    run(folder, path.name, steps, kill)
                found = run(folder, path.name, steps)
            except (Failed, subprocess.TimeoutExpired) as error:
                row[column] = f"fails: {str(error).splitlines()[0]}"
                row["messages"].append(str(error)[-3000:])
                return None
            row[column] = compared(found)
            return found

        if attempt("first", folder / "whole"):
            again = attempt("again", folder / "whole")
            ran = Counter(again["bodies"] if again else ())
            if one["bodies"] != two["bodies"]:
                every = ran.total()
                ran &= Counter(one["bodies"]) & Counter(two["bodies"])
                row["other"] = every - ran.total()
            if ran:
                row["again"] += f"; runs {ran.total()}"
        ticks = one["ticks"] - len(one["bodies"])  # a resumed run has no more than those between statements
        attempt("resumed", folder / "killed", (max(1, ticks // 3), max(2, ticks * 2 // 3)))
    except (Failed, subprocess.TimeoutExpired) as error:
        row["first"] = f"plain script: {str(error).splitlines()[0]}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return row


def _refused(folder: Path, name: str, text: str) -> set[str]:
    """The functions that cannot be steps, by the errors that say so."""
    refused: set[str] = set()
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        try:
            run(folder, name, decorated(text, False, refused))
            return refused
        except Failed as error:
            refusal = re.search(r"FingerprintError: step (\w+): argument `\w+`", str(error).splitlines()[0])
            if not refusal or refusal[1] in refused:
                return refused
            refused.add(refusal[1])


def good(row: dict[str, Any]) -> bool:
    return all(row[column] == "same" for column in ("first", "again", "resumed"))


def rows(sources: Path, names: list[str], jobs: int) -> Iterator[dict[str, Any]]:
    found = [path for name in names for path in sorted(sources.glob(name))]
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(check, found)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.properties.public_scripts", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--sources", type=Path, default=Path(".venvs/public"), help="where the packages' sources are, or go"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2, help="how many at a time")
    parser.add_argument("--only", default="", metavar="TEXT", help="those whose path contains this, and what differs")
    options = parser.parse_args()
    fetch(options.sources)
    names = [name for name in SCRIPTS if options.only in name]
    failed = total = 0
    print(f"{'script':44} {'s':>5} {'calls':>6} {'first':24} {'again':24} resumed")
    for row in rows(options.sources, names, options.jobs):
        total, failed = total + 1, failed + (not good(row))
        columns = [f"{row[column]:24.80}" for column in ("first", "again", "resumed")]
        messages = f"(refused: {row['refused']})" if row.get("refused") else ""
        messages += f"(ran again with other arguments, as plain runs do: {row['other']})" if row.get("other") else ""
        print(
            f"{row['script']:44} {row.get('seconds', ''):>5} {row.get('bodies', ''):>6}", *columns, messages, flush=True
        )
        if options.only:
            print(*row["messages"], sep="\n")
    print(f"{total} scripts, {failed} do not end like plain Python or run steps again")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
