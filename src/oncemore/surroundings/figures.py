"""Figures of matplotlib: those that a step opens or closes in pyplot, and which one is current.

A figure that the step opened is pickled with its result, so a figure that it returns is the one in pyplot. What a step draws
on a figure that was open before can't be repeated: that figure may look different now, and the script holds its axes and
lines. Such a step is not saved, and a message says so. matplotlib is never imported here.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from ..errors import CodecError
from ..modules import loaded
from .protocol import CallContext, Surrounding
from .references import walk_from


class _Changes:
    """Counts the changes of a figure: matplotlib calls `stale_callback` at each. Saving it to a file is none."""

    def __init__(self, figure: Any) -> None:
        self.original, self.count, self._dpi = figure.stale_callback, 0, figure.dpi

    def __call__(self, figure: Any, value: bool) -> None:
        canvas = figure.canvas
        if figure.dpi == self._dpi and not (canvas.is_saving() or getattr(canvas, "_is_idle_drawing", False)):
            self.count += 1
        self._dpi = figure.dpi  # `savefig` sets it before it begins to save, and sets it back afterwards
        if self.original is not None:
            self.original(figure, value)


class _Noted(NamedTuple):
    """A figure before a step."""

    figure: Any
    changes: _Changes
    changed: int  # how often by then
    dpi: float
    axes: Any

    def has_changed(self) -> bool:
        changes = self.figure.stale_callback
        return changes is not self.changes or changes.count != self.changed or self.figure.dpi != self.dpi


class _Note(NamedTuple):
    """The figures in pyplot, by number, and other figures that arguments belong to, by name."""

    open: dict[int, _Noted]
    given: dict[str, _Noted]


class Figures(Surrounding):
    name = "figures"
    per_item = True
    library = "matplotlib.artist"

    def before(self, context: CallContext) -> _Note:
        figures = _figures()
        given = {name: _noted(figure) for name, figure in _given(context, figures).items()}
        return _Note({number: _noted(figure) for number, figure in figures.items()}, given)

    def after(self, context: CallContext, note: _Note | None) -> dict[str, Any] | None:
        was, given = note or _Note({}, {})  # no note: the step itself has imported matplotlib
        now = _figures()
        stayed = {number: then for number, then in was.items() if now.get(number) is then.figure}
        drawn_on = [f"figure {number}" for number, then in stayed.items() if then.has_changed()]
        drawn_on += [f"the figure of argument `{name}`" for name, then in given.items() if then.has_changed()]
        if drawn_on:
            raise CodecError(
                f"it drew on {drawn_on[0]}, which was open before; a skipped step can't do that again. Let the step open the "
                f"figure itself, or draw outside the step"
            )
        shared = set(context.roots.known) if stayed else set[int]()
        for each in walk_from(context.value).found if stayed else ():
            if id(each) not in shared and _figure_of(each) in [then.figure for then in stayed.values()]:
                raise CodecError(
                    "it returns part of a figure that was open before. Return only the data that you need from it"
                )
        axes = {
            number: now[number].axes.index(current)
            for number, then in stayed.items()
            if (current := _current_axes(now[number])) is not then.axes
        }
        new = {number: figure for number, figure in now.items() if number not in stayed}
        closed = [number for number in was if number not in stayed]
        if not (new or axes or closed) and list(now) == list(was):
            return None
        return {"open": list(was), "new": new, "axes": axes, "closed": closed, "order": list(now)}

    def verify(self, context: CallContext, effect: dict[str, Any] | None) -> str | None:
        if effect is None:
            return None
        new = set(map(id, effect["new"].values()))
        if [number for number, figure in _figures().items() if id(figure) not in new] == effect["open"]:
            return None
        for figure in effect["new"].values():  # unpickling has opened them
            _pyplot().destroy(figure.canvas.manager)
        return "other figures are open now"

    def restore(self, context: CallContext, effect: dict[str, Any]) -> None:
        managers = _pyplot()
        if managers is None:
            return
        for number in effect["closed"]:
            managers.destroy(number)
        for number, index in effect["axes"].items():
            figure = managers.figs[number].canvas.figure
            figure.sca(figure.axes[index])
        _adopt(managers, effect["new"])
        for number in effect["order"]:
            managers.set_active(managers.figs[number])


def _pyplot() -> Any:
    """pyplot's registry of figure managers, the current one last; None if pyplot is not imported."""
    return None if loaded("matplotlib.pyplot") is None else sys.modules["matplotlib._pylab_helpers"].Gcf


def _figures() -> dict[int, Any]:
    managers = _pyplot()
    return {} if managers is None else {number: each.canvas.figure for number, each in list(managers.figs.items())}


def _given(context: CallContext, known: dict[int, Any]) -> dict[str, Any]:
    """The figures outside pyplot that arguments are, belong to, or contain axes of."""
    found = {name: _figure_of(value) for name, value in context.arguments.items()}
    numbered = set(map(id, known.values()))
    return {name: figure for name, figure in found.items() if figure is not None and id(figure) not in numbered}


def _figure_of(value: Any) -> Any:
    if type(value).__name__ == "ndarray" and value.dtype == object:
        value = list(value.flat)  # as `subplots` returns them
    artist: Any = next(iter(value), None) if type(value) in (list, tuple) else value
    if not isinstance(artist, sys.modules["matplotlib.artist"].Artist):
        return None
    while artist.figure is not None and artist.figure is not artist:  # a subfigure
        artist = artist.figure
    return artist if hasattr(artist, "canvas") else None


def _noted(figure: Any) -> _Noted:
    for axes in figure.axes:
        axes.get_xlim()  # computes pending limits, which would count as a change later
    changes = figure.stale_callback
    if not isinstance(changes, _Changes):
        changes = figure.stale_callback = _Changes(figure)
    return _Noted(figure, changes, changes.count, figure.dpi, _current_axes(figure))


def _current_axes(figure: Any) -> Any:
    return figure.gca() if figure.axes else None  # `gca` would create axes


def _adopt(managers: Any, new: dict[int, Any]) -> None:
    """Give new figures their own numbers instead of those that pyplot assigned when they were unpickled."""
    for figure in new.values():
        managers.figs.pop(figure.canvas.manager.num)
    for number, figure in new.items():
        manager = figure.canvas.manager
        manager.num = number
        managers._set_new_active_manager(manager)
        if not figure.get_label():
            manager.set_window_title(f"Figure {number}")
        _connect(figure)


def _connect(figure: Any) -> None:
    """Report changes of the artists in an unpickled figure to the figure again."""
    for artist in figure.findobj(include_self=False):
        if artist.stale_callback is None:
            artist.stale_callback = _pass_on
    figure.stale = True


def _pass_on(artist: Any, value: bool) -> None:
    axes = None if hasattr(artist, "subfigures") else artist.axes
    parent = artist.figure if axes is None or axes is artist else axes
    if parent is not None:
        parent.stale = value
