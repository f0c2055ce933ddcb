"""What a step draws with pyplot comes back when the step is skipped."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from oncemore import CheckpointWarning, checkpoint_scope, checkpointed
from oncemore.surroundings import CallContext, figures
from tests.processes import Script

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("agg")
import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402


@pytest.fixture(autouse=True)
def none_open() -> Iterator[None]:
    plt.close("all")
    yield
    plt.close("all")


def pixels() -> list[tuple[Any, ...]]:
    """All figures of pyplot, the current one last, as they look; and the current axes of each."""
    found = []
    for manager in matplotlib._pylab_helpers.Gcf.get_all_fig_managers():
        figure = manager.canvas.figure
        figure.canvas.draw()
        axes = figure.axes.index(figure.gca()) if figure.axes else None
        found.append(
            (manager.num, figure.number, figure.get_label(), axes, np.asarray(figure.canvas.buffer_rgba()).tobytes())
        )
    return found


Body = Callable[[Callable[[Callable[[], Any]], Any]], Any]


def compare(script: Body, runs: int = 3, all_kept: bool = True) -> None:
    """Run a script without steps, then several times with steps: it has to look the same each time."""
    plt.close("all")
    script(lambda draw: draw())
    expected = pixels()
    ran = 0
    for attempt in range(runs):
        plt.close("all")

        def step(draw: Callable[[], Any]) -> Any:
            def counting() -> Any:
                nonlocal ran
                ran += 1
                return draw()

            return checkpointed(name=draw.__name__, code="version", version="1")(counting)()

        with warnings.catch_warnings():
            warnings.simplefilter("error", CheckpointWarning)
            with checkpoint_scope("drawing"):
                script(step)
        assert pixels() == expected
        if attempt == 0:
            first = ran
    assert not all_kept or ran == first


def test_a_new_figure_comes_back() -> None:
    def script(step: Any) -> None:
        def draw() -> None:
            plt.plot([1, 3, 2], label="a")
            plt.title("Loss")
            plt.legend()

        step(draw)

    compare(script)


def test_what_the_script_draws_afterwards_goes_on_top() -> None:
    def script(step: Any) -> None:
        def draw() -> None:
            plt.plot([1, 3, 2])

        step(draw)
        plt.plot([2, 2, 4])
        plt.xlabel("epoch")

    compare(script)


def test_a_figure_that_is_returned_is_the_one_of_pyplot() -> None:
    def script(step: Any) -> None:
        def draw() -> Any:
            figure, axes = plt.subplots(2, sharex=True)
            axes[0].scatter([1, 2], [3, 4], c=[0.1, 0.9])
            axes[1].bar([1, 2], [3, 4])
            return figure, axes

        figure, axes = step(draw)
        assert plt.gcf() is figure and axes[0].figure is figure
        axes[0].set_title("by the script")
        axes[1].set_xlim(0, 5)
        assert len(plt.get_fignums()) == 1

    compare(script)


def test_a_figure_that_was_open_before_gets_the_drawing_in_place() -> None:
    def script(step: Any) -> None:
        figure, (left, right) = plt.subplots(1, 2)
        [line] = left.plot([1, 2, 3])

        def draw() -> None:
            left.plot([3, 2, 1], "r--")
            line.set_color("green")
            right.imshow([[1, 2], [3, 4]])
            plt.colorbar(right.images[0], ax=right)
            figure.suptitle("both")

        step(draw)
        assert plt.gcf() is figure and figure.axes[0] is left and left.lines[0] is line
        line.set_linewidth(4)
        left.plot([2, 2, 2])
        plt.sca(left)

    compare(script)


def test_steps_that_draw_on_each_others_figures_are_all_skipped() -> None:
    def script(step: Any) -> None:
        def one() -> None:
            plt.plot([1, 2])

        def two() -> None:
            plt.plot([2, 1])

        def three() -> None:
            plt.ylabel("three")
            plt.savefig(io.BytesIO())

        step(one)
        step(two)
        step(three)

    compare(script)


def test_the_numbers_the_labels_the_order_and_what_is_closed_come_back() -> None:
    def script(step: Any) -> None:
        plt.figure(7)
        plt.figure(3)
        plt.plot([1])

        def draw() -> None:
            plt.figure(12).add_subplot().plot([1, 2])
            plt.figure("loss").add_subplot().plot([2, 1])
            plt.close(7)
            plt.figure(3)

        step(draw)

    compare(script)


def test_the_current_axes_come_back() -> None:
    def script(step: Any) -> None:
        _, axes = plt.subplots(3)

        def draw() -> None:
            plt.sca(axes[1])

        step(draw)
        plt.plot([1, 2])

    compare(script)


def test_closing_all_figures_is_an_effect() -> None:
    def script(step: Any) -> None:
        plt.plot([1])

        def draw() -> None:
            plt.close("all")

        step(draw)
        assert plt.get_fignums() == []

    compare(script)


@pytest.mark.parametrize(
    "edit",
    [
        lambda: plt.title("edited"),
        lambda: plt.plot([5, 5]),
        lambda: plt.xlim(0, 9),
        lambda: plt.gcf().set_size_inches(3, 3),
        lambda: plt.gca().set_position((0.3, 0.3, 0.5, 0.5)),
        lambda: plt.text(0.5, 1.5, "here"),
        lambda: plt.gca().lines[0].set_ydata([4, 1]),
        lambda: plt.gca().xaxis.set_major_locator(matplotlib.ticker.MultipleLocator(0.1)),
        lambda: plt.figure(5),
    ],
)
def test_a_figure_that_looks_different_before_is_drawn_on_anew(edit: Callable[[], Any]) -> None:
    def draw() -> None:
        plt.plot([3, 1])

    step = checkpointed(draw)
    for change in (lambda: None, edit, edit):
        plt.close("all")
        plt.plot([1, 2])
        change()
        draw()
        expected = pixels()
        plt.close("all")
        with checkpoint_scope("edited"):
            plt.plot([1, 2])
            change()
            step()
        assert pixels() == expected


def test_a_repeated_call_draws_anew() -> None:
    def script(step: Any) -> None:
        def own() -> None:
            plt.figure()
            plt.plot([1, 2])

        step(own)
        plt.title("first")
        step(own)

    compare(script, all_kept=False)

    def again(step: Any) -> None:
        def shared() -> None:
            plt.plot([1, 2])

        step(shared)
        plt.title("first")
        step(shared)

    compare(again, all_kept=False)


def test_a_step_inside_a_step_draws_for_both() -> None:
    plt.plot([1])
    before = pixels()

    @checkpointed
    def inner() -> None:
        plt.plot([2, 1])

    @checkpointed
    def outer(n: int) -> None:
        inner()

    looks = []
    for n in (1, 2, 2):  # both run; the outer one runs and the inner one is skipped; the outer one is skipped
        plt.close("all")
        plt.plot([1])
        assert pixels() == before
        with checkpoint_scope("nested"):
            outer(n)
        looks.append(pixels())
    assert looks[0] == looks[1] == looks[2] != before


def test_a_step_that_draws_nothing_has_no_effect_and_changes_nothing() -> None:
    plt.plot([1])

    @checkpointed
    def step() -> int:
        return 1

    with checkpoint_scope("nothing"):
        step()
    moment = CallContext("step", None, {}, (), {})
    assert figures.Figures().after(moment, figures.Figures().before(moment)) is None


def test_a_figure_that_cannot_be_pickled_is_told() -> None:
    plt.plot([1])

    @checkpointed
    def new() -> None:
        plt.figure().items = iter([1])

    @checkpointed
    def old() -> None:
        plt.plot([2])[0].items = iter([1])

    for step in (old, new):
        with (
            pytest.warns(CheckpointWarning, match="cannot be pickled|is an iterator") as told,
            checkpoint_scope("told"),
        ):
            step()
        assert len(told) == 1


@pytest.mark.parametrize("managed", [True, False])
def test_axes_as_an_ignored_argument_are_drawn_on_and_returned(managed: bool) -> None:
    ran: list[int] = []

    @checkpointed(ignore=["axes", "ran"])
    def draw(axes: Any, ran: list[int]) -> Any:
        ran.append(1)
        axes.plot([1, 3, 2])
        return axes

    looks = set()
    for _ in range(3):
        figure = plt.figure() if managed else matplotlib.figure.Figure()
        axes = figure.subplots()
        with checkpoint_scope("axes"):
            assert draw(axes, ran) is axes
        axes.set_title("by the script")
        canvas = matplotlib.backends.backend_agg.FigureCanvasAgg(figure)
        canvas.draw()
        assert len(axes.lines) == 1
        looks.add(np.asarray(canvas.buffer_rgba()).tobytes())
        plt.close("all")
    assert (ran, len(looks)) == ([1], 1)


@pytest.mark.filterwarnings("error")
def test_figures_inside_figures_and_arrays_of_axes_are_drawn_on() -> None:
    @checkpointed(ignore=["axes"])
    def draw(axes: Any) -> None:
        axes[0].plot([1, 3, 2])
        axes[1].bar([1, 2], [2, 1])

    for make in (lambda figure: figure.subplots(2), lambda figure: figure.subfigures(1, 2)[1].subplots(2)):
        looks = set()
        for _ in range(3):
            figure = matplotlib.figure.Figure()
            with checkpoint_scope(f"inside {id(make)}"):
                draw(make(figure))
            canvas = matplotlib.backends.backend_agg.FigureCanvasAgg(figure)
            canvas.draw()
            looks.add(np.asarray(canvas.buffer_rgba()).tobytes())
        assert len(looks) == 1


def test_a_part_of_an_older_figure_as_a_result_is_never_a_second_figure() -> None:
    def script(step: Any) -> None:
        plt.plot([1, 2])

        def draw() -> Any:
            axes = plt.gca()
            axes.plot([2, 1])
            return axes

        axes = step(draw)
        assert axes is plt.gca()
        axes.set_title("by the script")

    compare(script, all_kept=False)


def test_matplotlib_is_not_imported_for_it(script: Script) -> None:
    done = script(
        """
        import sys
        from oncemore import checkpointed, checkpoint_scope
        @checkpointed
        def step(): return 1
        with checkpoint_scope("none"):
            step()
        print("matplotlib" in sys.modules)
        """
    )
    assert done.out == "False\n"
