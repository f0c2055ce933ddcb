"""What a step draws with pyplot comes back when the step is skipped."""

from __future__ import annotations

import inspect
import io
import re
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


@pytest.mark.parametrize(
    "draw",
    [
        lambda axes: axes.plot([3, 2, 1], "r--"),
        lambda axes: axes.lines[0].set_color("green"),
        lambda axes: plt.title("edited"),
        lambda axes: plt.xlim(0, 9),
        lambda axes: plt.gcf().set_size_inches(3, 3),
        lambda axes: axes.set_position((0.3, 0.3, 0.5, 0.5)),
        lambda axes: axes.lines[-1].set_ydata([4, 1, 1]),
        lambda axes: axes.lines[0].remove(),
        lambda axes: axes.xaxis.set_major_locator(matplotlib.ticker.MultipleLocator(0.1)),
        lambda axes: plt.colorbar(axes.imshow([[1, 2], [3, 4]]), ax=axes),
    ],
)
@pytest.mark.parametrize("managed", [True, False])
def test_a_step_that_draws_on_a_figure_that_was_open_before_draws_every_time_and_a_message_says_so(
    draw: Callable[[Any], Any], managed: bool
) -> None:
    @checkpointed(ignore=["axes"])
    def step(axes: Any) -> int:
        plt.figure(1)
        draw(axes)
        return 1

    looks, expected = (
        [],
        f"it drew on {'figure 1' if managed else 'the figure of argument `axes`'}, which was open before",
    )
    for _ in range(2):
        plt.close("all")
        plt.figure(1).subplots().plot([1, 2])
        figure = plt.figure(1) if managed else matplotlib.figure.Figure()
        axes = figure.axes[0] if managed else figure.subplots()
        axes.plot([1, 2, 3])
        if not managed and "plt." in inspect.getsource(draw):
            return
        with checkpoint_scope("older"), pytest.warns(CheckpointWarning, match=re.escape(expected)):
            step(axes)
        looks.append(pixels())
    assert looks[0] == looks[1]


@pytest.mark.parametrize("how", [{}, {"dpi": 200, "bbox_inches": "tight"}, {"format": "pdf"}])
def test_a_step_that_saves_a_figure_that_was_open_before_is_skipped(how: dict[str, Any]) -> None:
    def script(step: Any) -> None:
        plt.plot([1, 2])

        def save() -> None:
            plt.savefig(io.BytesIO(), **how)

        step(save)
        plt.title("by the script")

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


def test_a_step_that_opens_a_figure_runs_again_if_others_are_open() -> None:
    @checkpointed
    def step() -> None:
        plt.figure()
        plt.plot([3, 1])

    for others in (0, 1, 1):
        plt.close("all")
        for _ in range(others):
            plt.figure()
        with checkpoint_scope("others") as run:
            step()
        assert plt.get_fignums() == list(range(1, others + 2))
    assert run.ran.total() == 0


def test_a_repeated_call_draws_anew() -> None:
    def script(step: Any) -> None:
        def own() -> None:
            plt.figure()
            plt.plot([1, 2])

        step(own)
        plt.title("first")
        step(own)

    compare(script, all_kept=False)


def test_a_step_inside_a_step_draws_for_both() -> None:
    @checkpointed
    def inner() -> None:
        plt.figure()
        plt.plot([2, 1])

    @checkpointed
    def outer(n: int) -> None:
        inner()

    looks = []
    for n in (1, 2, 2):  # both run; the outer one runs and the inner one is skipped; the outer one is skipped
        plt.close("all")
        with checkpoint_scope("nested"):
            outer(n)
        looks.append(pixels())
    assert looks[0] == looks[1] == looks[2] != []


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

    with pytest.warns(CheckpointWarning, match="cannot be pickled") as told, checkpoint_scope("told"):
        new()
    assert len(told) == 1


@pytest.mark.parametrize("part", [lambda: plt.gca(), lambda: {"lines": plt.gca().lines[0]}, lambda: plt.gcf()])
def test_a_part_of_an_older_figure_as_a_result_is_never_a_second_figure(part: Callable[[], Any]) -> None:
    current = checkpointed(part, name="current")
    plt.plot([1, 2])
    for _ in range(2):
        with checkpoint_scope("part"), pytest.warns(CheckpointWarning, match="it returns part of a figure"):
            assert current() == part()
        assert plt.get_fignums() == [1]


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
