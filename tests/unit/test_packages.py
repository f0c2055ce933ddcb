"""packages="compare": an update of an installed package runs the steps again whose code uses it."""

from __future__ import annotations

import pytest

from oncemore import UsageError, checkpoint_scope, checkpointed
from tests.processes import Finished, Script
from tests.unit.test_blocks import ran, reasons

SCRIPT = """
    import os, sys
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), sys.argv[1], "site-packages"))
    import tinytool
    from oncemore import checkpoint_scope, checkpointed

    def helper(x):
        return tinytool.shout(x)

    @checkpointed(STEP)
    def uses(x):
        print("RAN uses")
        return helper(x)

    @checkpointed
    def around(x):
        print("RAN around")
        return uses(x) + "!"

    @checkpointed
    def apart(x):
        print("RAN apart")
        return x

    with checkpoint_scope("run", store="store"SCOPE) as run:
        print(CALL, apart(1))
"""


def install(script: Script, folder: str, version: str, name: str = "tinytool") -> None:
    """Install a package in a folder, as pip does; its module doesn't say which version it is."""
    script.write(
        f"def shout(text):\n    return text.upper() + {version!r}\n", f"{folder}/site-packages/tinytool/__init__.py"
    )
    script.write(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{folder}/site-packages/{name.replace('-', '_')}-{version}.dist-info/METADATA",
    )
    script.write("tinytool\n", f"{folder}/site-packages/{name.replace('-', '_')}-{version}.dist-info/top_level.txt")


def run(script: Script, folder: str, *, step: str = "", scope: str = "", call: str = 'uses("a")') -> Finished:
    return script(SCRIPT.replace("STEP", step).replace("SCOPE", scope).replace("CALL", call), folder)


@pytest.mark.parametrize("options", [{"step": 'packages="compare"'}, {"scope": ', packages="compare"'}])
def test_an_updated_package_runs_the_steps_that_use_it_again_and_the_old_version_finds_its_results(
    script: Script, options: dict[str, str]
) -> None:
    install(script, "old", "2.1")
    install(script, "new", "2.2")
    assert run(script, "old", **options).lines == ["RAN uses", "RAN apart", "A2.1 1"]
    assert run(script, "old", **options).lines == ["A2.1 1"]
    assert run(script, "new", **options).lines == ["RAN uses", "A2.2 1"]
    assert reasons(script) == ["package tinytool: 2.1 -> 2.2"]
    assert run(script, "old", **options).lines == ["A2.1 1"]


def test_by_default_versions_are_recorded_and_not_compared(script: Script) -> None:
    install(script, "old", "2.1")
    install(script, "new", "2.2")
    run(script, "old")
    assert run(script, "new").lines == ["A2.1 1"]
    assert ran(run(script, "new", step='packages="compare"')) == ["uses"]
    assert reasons(script) == ["package tinytool is compared now"]


def test_a_step_that_calls_one_with_compare_runs_again_as_well(script: Script) -> None:
    install(script, "old", "2.1")
    install(script, "new", "2.2")
    options = {"step": 'packages="compare"', "call": 'around("a")'}
    assert ran(run(script, "old", **options)) == ["around", "uses", "apart"]
    assert run(script, "old", **options).lines == ["A2.1! 1"]
    assert run(script, "new", **options).lines == ["RAN around", "RAN uses", "A2.2! 1"]


def test_a_distribution_with_another_name_than_its_module_is_found(script: Script) -> None:
    install(script, "old", "2.1", "Py-Tiny")
    install(script, "new", "2.2", "Py-Tiny")
    options = {"scope": ', packages="compare"'}
    run(script, "old", **options)
    assert ran(run(script, "new", **options)) == ["uses"]
    assert reasons(script) == ["package Py-Tiny: 2.1 -> 2.2"]


def test_what_can_not_be_compared_is_refused() -> None:
    with pytest.raises(UsageError, match="packages='all' is not one of 'record', 'compare'"):
        checkpoint_scope("run", packages="all").__enter__()  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="step f: packages='compare' needs code='deep' or 'own'"):
        checkpointed(name="f", code="version", version="1", packages="compare")(lambda: 1)
