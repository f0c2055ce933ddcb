"""Random generators at module level: what they are before a step counts, and an unseeded script can be resumed."""

from __future__ import annotations

import textwrap

import pytest

from tests.processes import Script
from tests.unit.again import skipped_alike

SEEDED = """
    import random
    import numpy as np
    from oncemore import checkpoint_scope, checkpointed

    random.seed(1)
    np.random.seed(1)
    RNG = np.random.default_rng(1)

    @checkpointed
    def draw(n): print("RAN draw"); return random.random()
    @checkpointed
    def draw_numpy(n): print("RAN draw_numpy"); return np.random.rand()
    @checkpointed
    def draw_own(n): print("RAN draw_own"); return RNG.random()
    @checkpointed
    def calm(n): print("RAN calm"); return n

    with checkpoint_scope("r") as run:
        print(draw(1), draw_numpy(1), draw_own(1), calm(1))
        reasons = [event.reason for event in run.events() if getattr(event, "reason", "new node") != "new node"]
    for reason in reasons:
        print("WHY", reason)
"""


@pytest.mark.parametrize(
    ("edit", "step", "reason"),
    [
        ("random.seed(1)\n    np", "draw", "random generator was seeded differently"),
        ("np.random.seed(1)", "draw_numpy", "numpy's random generator was seeded differently"),
        ("default_rng(1)", "draw_own", "global `script.RNG`"),
    ],
)
def test_another_seed_runs_just_the_steps_that_draw(script: Script, edit: str, step: str, reason: str) -> None:
    first = script(SEEDED)
    edited = SEEDED.replace(edit, edit.replace("(1)", "(2)"))
    second = script(edited)
    assert [line for line in second.lines if line.startswith("RAN")] == [f"RAN {step}"]
    [why] = [line for line in second.lines if line.startswith("WHY")]
    assert why.startswith(f"WHY {reason}")
    assert first.lines[4] != second.lines[1]
    assert [line for line in script(edited).lines if line.startswith("RAN")] == []
    assert [line for line in script(SEEDED).lines if line.startswith("RAN")] == []  # the first seed's are still there


def test_a_repeated_call_draws_anew_and_winds_nothing_back(script: Script) -> None:
    source = """
        import random
        {imports}
        random.seed(5)
        R = random.Random(6)
        {decorator}
        def draw(n): return random.random(), R.random()
        {scope}
            print(draw(1), random.random(), draw(1), R.random(), draw(1), random.random())
    """
    plain = script(textwrap.dedent(source).format(imports="", decorator="", scope="if True:")).lines
    filled = textwrap.dedent(source).format(
        imports="from oncemore import checkpoint_scope, checkpointed",
        decorator="@checkpointed",
        scope="with checkpoint_scope('r'):",
    )
    assert script(filled).lines == script(name="script.py").lines == plain


UNSEEDED = {
    "those of the libraries": ("", "random.random(), float(np.random.rand())"),
    "random.Random": ("R = random.Random()", "R.random()"),
    "default_rng": ("R = np.random.default_rng()", "float(R.random()), float(R.spawn(1)[0].random())"),
    "RandomState": ("R = np.random.RandomState(None)", "float(R.rand())"),
    "Generator": ("R = np.random.Generator(np.random.PCG64())", "float(R.random())"),
    "of a class": ("class H:\n    rng = np.random.default_rng()", "float(H.rng.random())"),
    "in a dict": (
        "D = {'rng': [random.Random(), np.random.default_rng()]}",
        "D['rng'][0].random(), float(D['rng'][1].random())",
    ),
    "of a module": ("import mod", "mod.draw()"),
}


@pytest.mark.parametrize("kind", UNSEEDED)
def test_an_unseeded_script_can_be_resumed_and_ends_as_it_would_have(script: Script, kind: str) -> None:
    made, drawn = UNSEEDED[kind]
    script.write("import random\nR = random.Random()\ndef draw(): return R.random()\n", "mod.py")
    source = f"""
import random, sys
import numpy as np
from oncemore import checkpoint_scope, checkpointed
{made}
@checkpointed
def draw(n):
    print("RAN", n)
    return {drawn}
with checkpoint_scope("r"):
    print(draw(1), {drawn})
    if "die" in sys.argv: sys.stdout.flush(); import os; os.kill(os.getpid(), 9)
    print(draw(2))
print({drawn})
"""
    killed = script(source, "die", expect=-9)
    resumed, again = script(name="script.py"), script(name="script.py")
    assert killed.lines[0] == "RAN 1"
    assert resumed.lines[:2] == [killed.lines[1], "RAN 2"]
    assert again.lines == [line for line in resumed.lines if line[:3] != "RAN"]


def test_a_generator_that_another_statement_makes_now_is_another_one(script: Script) -> None:
    source = """
        import random
        from oncemore import checkpoint_scope, checkpointed
        R = {"mine": random.Random()}
        @checkpointed
        def draw(): return R["mine"].random()
        with checkpoint_scope("r"):
            print(draw())
    """
    assert script(source).lines == script(source).lines
    seeded = source.replace("Random()", "Random(1)")
    import random

    assert script(seeded).lines == [str(random.Random(1).random())]


def test_seeding_in_a_step_and_a_library_that_is_loaded_there(script: Script) -> None:
    skipped_alike(
        script,
        """
        import random
        from oncemore import checkpoint_scope, checkpointed
        @checkpointed
        def seed(n):
            print("RAN", n); random.seed(n); return random.random()
        @checkpointed
        def late():
            import numpy as np
            print("RAN late"); return float(np.random.rand())
        with checkpoint_scope("r"):
            print(seed(1), random.random(), seed(None), random.random(), late())
        import numpy as np
        print(random.random(), np.random.rand())
        """,
    )


def test_a_scope_opened_twice_in_one_process_finds_its_steps(script: Script) -> None:
    source = """
        import random
        from oncemore import checkpoint_scope, checkpointed
        @checkpointed
        def draw(n): print("RAN"); return random.random()
        for _ in range(2):
            with checkpoint_scope("r"):
                print(draw(1), random.random(), draw(2))
    """
    lines = script(source).lines
    assert lines[:2] == ["RAN", "RAN"] and lines[2] == lines[3] and len(lines) == 4


SIMULATION = """
    import random
    from dataclasses import dataclass, field
    import numpy as np
    from oncemore import checkpoint_scope, checkpointed

    CLASS
        def draw(self):
            return [float(self.rng.random())]

    simulation = MAKE

    @checkpointed
    def draw(n):
        print("RAN", n)
        return simulation.draw()

    with checkpoint_scope("run"):
        print(draw(1), draw(2))
    print(simulation.draw())
"""


@pytest.mark.parametrize(
    "init",
    [
        "class Simulation:\n        def __init__(self): self.rng = np.random.default_rng()",
        "@dataclass\n    class Simulation:\n        rng: object = field(default_factory=random.Random)",
    ],
)
def test_an_unseeded_generator_that_an_object_makes_draws_anew_and_the_reason_names_the_object(
    script: Script, init: str
) -> None:
    source = (
        SIMULATION.replace("CLASS", init)
        .replace("MAKE", "Simulation()")
        .replace("print(draw(1), draw(2))", "print(draw(1), draw(2))\n        print(run.why('draw'))")
        .replace('scope("run"):', 'scope("run") as run:')
    )
    script(source)
    again = script(source).lines
    assert again[:2] == ["RAN 1", "RAN 2"]
    assert "global `script.simulation`" in again[3]


@pytest.mark.parametrize("seeds", [("seed=1", "seed=2"), ("1", "2"), ("", "seed=2")])
def test_another_seed_of_an_object_draws_anew(script: Script, seeds: tuple[str, str]) -> None:
    init = "class Simulation:\n        def __init__(self, seed=None): self.rng = np.random.default_rng(seed)"
    first, second = (SIMULATION.replace("CLASS", init).replace("MAKE", f"Simulation({seed})") for seed in seeds)
    script(first)
    assert script(second).lines[:2] == ["RAN 1", "RAN 2"]


def test_an_edited_seed_beside_an_unseeded_generator_counts(script: Script) -> None:
    init = "class Simulation:\n        def __init__(self): self.other, self.rng = random.Random(), random.Random(1)"
    first = SIMULATION.replace("CLASS", init).replace("MAKE", "Simulation()")
    second = first.replace("Random(1)", "Random(2)")
    once, again = script(first), script(second)
    assert again.lines[0] == "RAN 1"
    assert again.lines[-1] != once.lines[-1]


def test_numpy_that_is_first_imported_inside_the_scope_opens_where_the_first_attempt_did(script: Script) -> None:
    skipped_alike(
        script,
        """
        from oncemore import checkpoint_scope, checkpointed

        @checkpointed
        def draw(n):
            print("RAN", n)
            return float(np.random.rand())

        with checkpoint_scope("run"):
            import numpy as np, numpy.random  # which numpy itself loads when it is needed
            print(draw(1), np.random.rand(), draw(2))
        """,
    )
