"""Settings of libraries, and attributes that the project puts into their modules: what a step sets is set when it is skipped."""

from __future__ import annotations

import pytest

from tests.processes import Script
from tests.unit.again import RAN, skipped_alike

STEPS = """
    IMPORTS
    from oncemore import checkpoint_scope, checkpointed

    @checkpointed
    def change(): print("RAN change"); CHANGE

    @checkpointed
    def use(): print("RAN use"); return str(USE)

    with checkpoint_scope("run") as run:
        print(use())
        change()
        print(use())
    print(SHOW)
"""


def steps(imports: str, change: str, use: str, show: str) -> str:
    words = {"IMPORTS": imports, "CHANGE": change, "USE": use, "SHOW": show}
    source = STEPS
    for word, text in words.items():
        source = source.replace(word, text)
    return source


@pytest.mark.parametrize(
    ("imports", "change", "use", "show"),
    [
        ("import pandas as pd", "pd.options.display.width = 50", "1", "pd.options.display.width"),
        ("import pandas as pd", "pd.set_option('display.max_rows', 7)", "1", "pd.get_option('display.max_rows')"),
        ("import pandas as pd", "pd.set_option('mode.sim_interactive', True)", "1", "pd.options.mode.sim_interactive"),
        ("import numpy as np", "np.set_printoptions(precision=2)", "1", "np.array([1.23456])"),
        ("import numpy as np", "np.seterr(divide='ignore')", "np.geterr()", "np.geterr()"),
        ("from decimal import *", "getcontext().prec = 5", "Decimal(1) / 3", "Decimal(1) / 3"),
        ("from decimal import *", "getcontext().traps[DivisionByZero] = False", "1", "Decimal(1) / 0"),
        ("import math", "math.limit = 3", "getattr(math, 'limit', 0)", "math.limit"),
        ("import html", "html.escape = repr", "html.escape('<')", "html.escape('<')"),
    ],
)
def test_what_a_step_sets_is_set_when_it_is_skipped(
    script: Script, imports: str, change: str, use: str, show: str
) -> None:
    skipped_alike(script, steps(imports, change, use, show))


def test_what_a_step_sets_back_to_the_default_is_the_default(script: Script) -> None:
    source = """
        import pandas as pd
        from oncemore import checkpoint_scope, checkpointed

        @checkpointed
        def narrow(): print("RAN"); pd.options.display.width = 50

        @checkpointed
        def wide(): print("RAN"); pd.reset_option("display.width")

        with checkpoint_scope("run"):
            narrow()
            print(pd.options.display.width)
            wide()
        print(pd.options.display.width)
    """
    assert skipped_alike(script, source).lines == ["50", "80"]


PLOT = """
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from oncemore import checkpoint_scope, checkpointed

    @checkpointed
    def style(): print("RAN style"); plt.rcParams["figure.dpi"] = 123; plt.style.use("ggplot")

    @checkpointed
    def draw(): print("RAN draw"); plt.plot([1, 2])

    with checkpoint_scope("run"):
        style()
        draw()
    print(plt.rcParams["figure.dpi"], plt.rcParams["axes.prop_cycle"].by_key()["color"][0], plt.gcf().dpi)
"""


def test_styles_of_matplotlib_come_back(script: Script) -> None:
    pytest.importorskip("matplotlib")
    assert skipped_alike(script, PLOT).lines == ["123.0 #E24A33 123.0"]


def test_another_style_draws_anew(script: Script) -> None:
    pytest.importorskip("matplotlib")
    script(PLOT)
    edited = PLOT.replace(
        'with checkpoint_scope("run")', 'plt.rcParams["lines.linewidth"] = 9\n    with checkpoint_scope("run")'
    )
    assert script(edited).lines[:2] == ["RAN style", "RAN draw"]


EXACT = """
    from decimal import Decimal, getcontext
    import numpy as np
    from oncemore import checkpoint_scope, checkpointed

    getcontext().prec = 10
    np.set_printoptions(precision=3)

    @checkpointed
    def third(): print("RAN third"); return Decimal(1) / 3

    @checkpointed
    def mean(): print("RAN mean"); return float(np.mean([1, 2]))

    with checkpoint_scope("run") as run:
        print(third(), mean())
    print(run.why("third").reason)
"""


def test_a_setting_that_changes_results_counts_for_the_code_that_names_the_library(script: Script) -> None:
    script(EXACT)
    edited = script(EXACT.replace("prec = 10", "prec = 12"))
    assert edited.lines == ["RAN third", "0.333333333333 1.5", "setting `decimal.prec`: 10 -> 12"]
    gone = script(EXACT.replace("getcontext().prec = 10", ""))
    assert gone.lines[0] == "RAN third"
    assert "setting `decimal.prec` is gone" in gone.out


def test_a_setting_that_only_displays_counts_for_nobody(script: Script) -> None:
    script(EXACT)
    assert RAN not in script(EXACT.replace("precision=3", "precision=4")).out


def test_a_value_that_the_project_puts_into_a_library_counts(script: Script) -> None:
    source = """
        import math
        from oncemore import checkpoint_scope, checkpointed
        math.limit = 3

        @checkpointed
        def use(): print("RAN"); return math.limit + math.floor(math.pi)

        with checkpoint_scope("run"):
            print(use())
    """
    assert skipped_alike(script, source).lines == ["6"]
    assert script(source.replace("limit = 3", "limit = 4")).lines == ["RAN", "7"]


def test_a_list_in_a_library_is_changed_in_place(script: Script) -> None:
    source = """
        import math
        from oncemore import checkpoint_scope, checkpointed
        math.seen = []

        @checkpointed
        def note(n): print("RAN"); math.seen.append(n)

        with checkpoint_scope("run"):
            note(1)
            note(2)
        print(math.seen)
    """
    assert skipped_alike(script, source).lines == ["[1, 2]"]
