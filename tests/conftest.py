"""What every test has: a home of its own, scripts in processes of their own, campaigns of the right length.

`ONCEMORE_TEST_CAMPAIGN=full` runs the long tests at full length, as `make campaign` does; otherwise they are short.
"""

from __future__ import annotations

import importlib
import os
import random
import sys
from pathlib import Path
from typing import Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.processes import Script

FULL = os.environ.get("ONCEMORE_TEST_CAMPAIGN", "short") == "full"

# The same examples each time in CI, where a red build has to be about the change; new ones each time at the desk.
_common = {
    "deadline": None,
    "print_blob": True,
    "derandomize": bool(os.environ.get("CI")),
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
}
settings.register_profile("short", max_examples=50, **_common)
settings.register_profile("full", max_examples=100, **_common)
settings.load_profile("full" if FULL else "short")


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    if not pluginmanager.has_plugin("oncemore"):  # where the package is not installed, no entry point brought it
        pluginmanager.register(importlib.import_module("_oncemore_pytest"), "oncemore")
    parser.addoption(
        "--campaign", type=int, metavar="N", help="how many pipelines tests/properties makes up, kills and resumes"
    )
    parser.addoption("--brief", action="store_true", help="leave out tests that start processes, and long campaigns")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `--brief`, only what needs no process of its own: a fifth of the time, and most of what differs between Pythons."""
    if not config.getoption("--brief"):
        return
    rooms = {"cli", "examples", "faults", "properties", "report"}
    long = [
        item
        for item in items
        if ("script" in getattr(item, "fixturenames", ()) or item.path.parent.name in rooms)
        and item.get_closest_marker("brief") is None
    ]
    config.hook.pytest_deselected(items=long)
    items[:] = [item for item in items if item not in set(long)]


@pytest.fixture(autouse=True)
def seeded() -> None:
    """No test depends on what others drew: generators that nobody has seeded are for scripts in processes of their own."""
    random.seed(0)
    if "numpy" in sys.modules:
        importlib.import_module("numpy.random").seed(0)


@pytest.fixture(scope="module", autouse=True)
def alone(request: pytest.FixtureRequest) -> Iterator[None]:
    """A scope looks through the modules of its project: each module of tests finds itself there, and not all the others."""
    needed = {request.module.__name__, *(getattr(value, "__module__", "") for value in vars(request.module).values())}
    others = {
        name: module
        for name, module in sys.modules.items()
        if ".test_" in name and name.partition(".")[0] == "tests" and name not in needed
    }
    for name in others:
        del sys.modules[name]
    yield
    sys.modules.update(others)


@pytest.fixture(autouse=True)
def isolated(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test sees the user's settings, secret or default store, nor leaves anything there; children inherit it."""
    monkeypatch.chdir(tmp_path)
    home = tmp_path_factory.mktemp("home")
    for name in [name for name in os.environ if name.startswith("ONCEMORE_") and name != "ONCEMORE_TEST_CAMPAIGN"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / ".config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / ".cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(home / ".local" / "share"))
    return home


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of a module marked `encrypted_too` twice: with plain stores, and with encrypted ones."""
    if metafunc.definition.get_closest_marker("encrypted_too") is not None:
        metafunc.parametrize("at_rest", ["plain", "encrypted"], indirect=True)


@pytest.fixture(autouse=True)
def at_rest(request: pytest.FixtureRequest, isolated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether stores are encrypted in this test."""
    if getattr(request, "param", "plain") == "encrypted":
        monkeypatch.setenv("ONCEMORE_ENCRYPT", "1")


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Script]:
    """Runs Python source in a new process inside `tmp_path`; see `tests.processes.Script`."""
    runner = Script(tmp_path)
    yield runner
    runner.end()


@pytest.fixture(scope="session")
def campaign() -> Callable[[int, int], int]:
    """`campaign(full, short)`: how often to try, by the length asked for. Mark such a test `slow`."""
    return lambda full, short: full if FULL else short
