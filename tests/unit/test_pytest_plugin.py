"""The pytest plugin, in sessions of its own and found the way an installed plugin is found."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.processes import SRC

pytest_plugins = ["pytester"]

Kind = pytest.mark.parametrize("options", [[], ["-n", "2"]], ids=["one process", "xdist"])


@pytest.fixture(autouse=True)
def installed(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that makes the entry point known, as an installation would; the path that leads to it and to us."""
    declared = re.search(
        r"^\[project\.entry-points\.(\w+)\]\n(.*)$", (SRC.parent / "pyproject.toml").read_text("utf-8"), re.MULTILINE
    )
    assert declared
    about = pytester.mkdir("site") / "oncemore-0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: oncemore\nVersion: 0\n")
    (about / "entry_points.txt").write_text(f"[{declared[1]}]\n{declared[2]}\n".replace('"', ""))
    monkeypatch.setenv("PYTHONPATH", f"{about.parent}:{SRC}")
    return about.parent


STEPS = """
    import os, sys
    from pathlib import Path
    from oncemore import checkpoint_scope, checkpointed

    @checkpointed
    def load():
        return os.urandom(8)

    def run():
        with checkpoint_scope("script") as run:
            return load(), dict(run.reused)
"""


@Kind
def test_each_test_has_a_store_of_its_own(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    pytester.makepyfile(script=STEPS)
    pytester.makepyfile("""
        import os, pytest
        from pathlib import Path
        from oncemore import History
        from script import run

        @pytest.mark.parametrize("n", range(4))
        def test_mine(oncemore_store, n, monkeypatch):
            monkeypatch.undo()  # the test's own, not ours
            Path(f"{os.environ['PLACES']}/{n}").write_text(os.environ["ONCEMORE_STORE"])
            assert run()[1] == {}
            assert run()[1] == {"load": 1}
            assert [record.id for record in History(oncemore_store).runs()] == ["script"]

        def test_without():
            assert os.environ["ONCEMORE_STORE"] == "memory://theirs"
            assert "ONCEMORE_KEY" not in os.environ
    """)
    places = pytester.mkdir("places")
    monkeypatch.setenv("PLACES", str(places))
    monkeypatch.setenv("ONCEMORE_STORE", "memory://theirs")
    pytester.runpytest_subprocess(*options).assert_outcomes(passed=5)
    folders = {path.read_text() for path in places.iterdir()}
    assert len(folders) == 4
    assert not any(Path(folder).parent.exists() for folder in folders)
    assert not list(Path.home().rglob("oncemore/key")), "the user's secret was made for a test"


@Kind
def test_steps_can_be_plain_functions_for_a_session(pytester: pytest.Pytester, options: list[str]) -> None:
    pytester.makepyfile(script=STEPS)
    pytester.makepyfile("""
        from script import run

        def test_twice(oncemore_store):
            assert run()[0] != run()[0]
    """)
    pytester.runpytest_subprocess("--oncemore-disable", *options).assert_outcomes(passed=1)
    pytester.runpytest_subprocess(*options).assert_outcomes(failed=1)


@pytest.mark.parametrize("before", [None, "0"])
def test_nothing_is_left_in_the_process_after_a_session(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    if before is not None:
        monkeypatch.setenv("ONCEMORE_DISABLE", before)
    pytester.makepyfile(script=STEPS)
    pytester.makepyfile("""
        import os
        from script import run

        def test_disabled(oncemore_store):
            assert os.environ["ONCEMORE_DISABLE"] == "1"
            run()
    """)
    main = pytester.makepyfile(
        main="""
        import os, pytest
        before = dict(os.environ)
        assert pytest.main(["-q", "--oncemore-disable"]) == 0
        after = dict(os.environ)
        differing = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
        print(differing - {"PYTEST_CURRENT_TEST"})  # that one is pytest's own
    """
    )
    assert pytester.runpython(main).outlines[-1] == "set()"


def test_a_session_that_does_not_use_it_does_not_load_oncemore(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("""
        import sys

        def pytest_sessionfinish():
            print("loaded:", "_oncemore_pytest" in sys.modules, "oncemore" in sys.modules)
    """)
    pytester.makepyfile("def test_nothing(): pass")
    pytester.runpytest_subprocess("-s").stdout.fnmatch_lines(["*loaded: True False*"])


def test_pytest_knows_the_option_and_the_fixture(pytester: pytest.Pytester) -> None:
    pytester.runpytest_subprocess("--help").stdout.fnmatch_lines(["oncemore:", "*--oncemore-disable*"])
    pytester.runpytest_subprocess("--fixtures").stdout.fnmatch_lines(["oncemore_store*", "*A temporary store*"])


def test_our_own_tests_have_it_once(request: pytest.FixtureRequest) -> None:
    plugin = sys.modules["_oncemore_pytest"]
    names = [name for name, each in request.config.pluginmanager.list_name_plugin() if each is plugin]
    assert names == ["oncemore"]
