"""Made-up ordinary scripts end like plain Python, however they are killed and edited; see scripts.py.

Here are a few of them. `make campaign` runs as many as its minutes allow, and public example scripts besides.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.properties import scripts

pytest.importorskip("numpy")
pytest.importorskip("pandas")


@pytest.mark.slow
@pytest.mark.parametrize("number", range(8))
def test_a_script_that_is_killed_and_edited_ends_like_the_plain_script(number: int, tmp_path: Path) -> None:
    told: list[str] = []
    script = scripts.generate(number)
    try:
        scripts.check(script, tmp_path, told.append)
    except scripts.Differs as error:
        text = "\n".join(scripts.render(script, plain=False).values())
        pytest.fail("\n".join([str(error), *told, text, f"python -m tests.properties.scripts --only {number}"]))


def test_a_number_names_one_script_for_ever() -> None:
    for number in (0, 7):
        one, two = scripts.generate(number), scripts.generate(number)
        assert scripts.render(one, plain=False) == scripts.render(two, plain=False)
        assert one.attempts == two.attempts


def test_the_plain_form_differs_in_one_line() -> None:
    script = scripts.generate(3)
    plain, steps = (scripts.render(script, plain)["script.py"].splitlines() for plain in (True, False))
    assert [(a, b) for a, b in zip(plain, steps) if a != b] == [
        (
            "from witness import checkpoint_scope, checkpointed",
            "from oncemore import checkpoint_scope, checkpointed",
        )
    ]


def test_the_first_scripts_use_every_kind_of_data() -> None:
    kinds = {resource.kind for number in range(100) for resource in scripts.generate(number).resources.values()}
    assert kinds == set(scripts.KINDS)


def test_an_edit_affects_the_calls_that_use_it_and_what_follows_from_them() -> None:
    list_of, constant = (scripts.KINDS[kind](scripts.random.Random(1), kind) for kind in ("list", "constant"))
    append, read = list_of.ops[0], constant.ops[0]
    functions = {
        "scale": scripts.Function("scale", [scripts.Use("constant", read)], "out"),
        "note": scripts.Function("note", [scripts.Use("list", append)], "out"),
    }
    calls = [
        scripts.Call("c0", "scale", "7", "[1, 2]"),
        scripts.Call("c1", "note", "8", "[1, 2]"),
        scripts.Call("c2", "note", "len(r0)", "[1, 2]"),
        scripts.Call("c3", "note", "9", "[3]"),
    ]
    script = scripts.Script(0, {"list": list_of, "constant": constant}, functions, calls, {}, [])
    assert scripts.affected(script, "constant_v") == {"c0", "c2", "c3"}
    assert scripts.affected(script, "list_v") == {"c1", "c2", "c3"}
