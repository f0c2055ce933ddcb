"""Figures of matplotlib: those that a step opens, draws on or closes in pyplot, and which one is current.

A figure that the step opened is pickled with its result, so a figure that it returns is the one in pyplot. A figure that was
open before is changed in place, because the script may refer to its axes and lines. This is correct only if the figure looks
as it did before the step, so its look is compared first. matplotlib is never imported here.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from ..codec import dumps, loads
from ..errors import CodecError
from ..identity.values import Digests
from ..modules import loaded
from .protocol import CallContext, Surrounding

_SCALARS = (type(None), bool, int, float, complex, str, bytes)
_UNTOUCHED = ("canvas", "_canvas_callbacks", "_axobservers", "_button_pick_id", "_scroll_pick_id", "_number", "number")
_NOT_STATE = ("__mpl_version__", "_restore_to_pylab")
_NOT_SEEN = frozenset(["_stale", "stale_callback", "_mouse_key_ids", *_UNTOUCHED])
_IN_CACHE = frozenset(["_x", "_y", "_xy", "_path", "_subslice", "_invalidx", "_invalidy"])  # of a line
_SETTINGS = ("matplotlib.ticker", "matplotlib.axis", "matplotlib.colors")


class _Changes:
    """Counts the changes of a figure: matplotlib calls `stale_callback` at each."""

    def __init__(self, original: Any) -> None:
        self.original, self.count = original, 0
        self.look: tuple[int, _Look] | None = None

    def __call__(self, artist: Any, value: bool) -> None:
        self.count += 1
        if self.original is not None:
            self.original(artist, value)


class _Look(NamedTuple):
    """A digest of what a figure shows, and the artists that it consists of."""

    digest: bytes
    artists: list[Any]


class _Noted(NamedTuple):
    """A figure before a step."""

    figure: Any
    changes: _Changes
    changed: int
    look: _Look
    axes: Any


class _Note(NamedTuple):
    """The figures in pyplot, by number, and other figures that arguments belong to."""

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
        was, given_before = note or _Note({}, {})  # no note: the step itself has imported matplotlib
        now = _figures()
        new = {
            number: figure for number, figure in now.items() if number not in was or was[number].figure is not figure
        }
        stayed = {number: then for number, then in was.items() if number in now and number not in new}
        changed = {number: _drawing(f"figure {number}", then) for number, then in stayed.items() if _has_changed(then)}
        given = {
            name: _drawing(f"argument `{name}`", then) for name, then in given_before.items() if _has_changed(then)
        }
        axes = {
            number: now[number].axes.index(_current_axes(now[number]))
            for number, then in stayed.items()
            if number not in changed and _current_axes(now[number]) is not then.axes
        }
        closed = [number for number in was if number not in stayed]
        if not (new or changed or given or axes or closed) and list(now) == list(was):
            return None
        for figure in new.values():
            _noted(figure)  # starts counting its changes
        found = {"open": list(was), "new": new, "changed": changed, "given": given}
        return {**found, "axes": axes, "closed": closed, "order": list(now)}

    def verify(self, context: CallContext, effect: dict[str, Any] | None) -> str | None:
        if effect is None:
            return None
        why = _why_not(context, effect)
        if why is not None:  # unpickling has opened the new figures
            for figure in effect["new"].values():
                _pyplot().destroy(figure.canvas.manager)
        return why

    def restore(self, context: CallContext, effect: dict[str, Any]) -> None:
        for name, figure in _given(context, _figures()).items():
            if name in effect["given"]:
                _redraw(figure, effect["given"][name][2])
        managers = _pyplot()
        if managers is None:
            return
        for number in effect["closed"]:
            managers.destroy(number)
        for number, (_, _, drawing) in effect["changed"].items():
            _redraw(managers.figs[number].canvas.figure, drawing)
        for number, index in effect["axes"].items():
            figure = managers.figs[number].canvas.figure
            figure.sca(figure.axes[index])
        _adopt(managers, effect["new"])
        for number in effect["order"]:
            managers.set_active(managers.figs[number])


def _why_not(context: CallContext, effect: dict[str, Any]) -> str | None:
    """Why the step would draw something else now; None if it would not."""
    new = set(map(id, effect["new"].values()))
    found = {number: figure for number, figure in _figures().items() if id(figure) not in new}
    for number, figure in found.items():
        if number not in effect["open"] and figure.axes and all(axes.stale_callback is None for axes in figure.axes):
            _pyplot().destroy(number)  # unpickling the result has opened it
            return "it returns part of a figure that was open before"
    if list(found) != effect["open"]:
        return "other figures are open now"
    drawings = [(f"figure {number}", found[number], drawing) for number, drawing in effect["changed"].items()]
    given = _given(context, found)
    drawings += [(f"the figure of argument `{name}`", given.get(name), each) for name, each in effect["given"].items()]
    for what, figure, (look, kinds, _) in drawings:
        live = None if figure is None else _look(figure)
        if live is None or live.digest != look or [type(each).__qualname__ for each in live.artists] != kinds:
            return f"{what}, which it drew on, looks different now"
    return None


def _pyplot() -> Any:
    """pyplot's registry of figure managers, the current one last; None if pyplot is not imported."""
    return None if loaded("matplotlib.pyplot") is None else sys.modules["matplotlib._pylab_helpers"].Gcf


def _figures() -> dict[int, Any]:
    managers = _pyplot()
    return {} if managers is None else {number: each.canvas.figure for number, each in list(managers.figs.items())}


def _given(context: CallContext, known: dict[int, Any]) -> dict[str, Any]:
    """The figures outside pyplot that arguments are, belong to, or contain axes of."""
    if loaded("matplotlib.artist") is None:
        return {}
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
    look, changes = _look(figure), _changes(figure)  # this order: reading limits may adjust them
    return _Noted(figure, changes, changes.count, look, _current_axes(figure))


def _changes(figure: Any) -> _Changes:
    if not isinstance(figure.stale_callback, _Changes):
        figure.stale_callback = _Changes(figure.stale_callback)
    changes: _Changes = figure.stale_callback
    return changes


def _has_changed(was: _Noted) -> bool:
    return _changes(was.figure) is not was.changes or was.changes.count != was.changed


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


# --- drawing on a figure that was open before -----------------------------------------------------------------------


def _artists(figure: Any) -> list[Any]:
    """A figure and the artists in it, in a stable order. Without ticks, which every drawing creates anew."""
    found, axis = [figure], sys.modules["matplotlib.axis"].Axis
    for each in found:
        inside = [each.label, each.offsetText] if isinstance(each, axis) else each.get_children()
        known = set(map(id, found))
        found += [child for child in inside if id(child) not in known]
    return found


def _look(figure: Any) -> _Look:
    changes = _changes(figure)
    if changes.look is None or changes.look[0] != changes.count:
        artists, digests = _artists(figure), Digests()
        seen: list[Any] = [figure.get_size_inches().tolist()]
        placed = _placed(artists)
        for artist in artists:
            seen.append(type(artist).__qualname__)
            if hasattr(artist, "get_xlim"):  # limits follow the data
                ends = [float(end) for axis in "xyz" for end in getattr(artist, f"get_{axis}lim", tuple)()]
                seen.append([*map(float, artist.get_position(original=True).bounds), *ends])
            hidden = _IN_CACHE if id(artist) in placed or "_xorig" in vars(artist) else frozenset[str]()
            for name, value in sorted(vars(artist).items()):
                if name not in _NOT_SEEN and name not in hidden:
                    seen += [name, digests.get(_visible(value, 4))]
        changes.look = changes.count, _Look(Digests().of(seen), artists)
    return changes.look[1]


def _placed(artists: list[Any]) -> set[int]:
    """The ids of titles and labels of axes, which get their positions only when drawn."""
    names = ("title", "_left_title", "_right_title", "label", "offsetText")
    return {id(vars(artist)[name]) for artist in artists for name in names if name in vars(artist)}


def _visible(value: Any, depth: int) -> Any:
    """The visible part of an attribute: numbers, texts, paths, settings of axes and colours; its type for anything else."""
    kind = type(value)
    if kind in _SCALARS or kind.__module__.partition(".")[0] == "numpy":
        return value
    if kind in (list, tuple) and depth:
        return [_visible(each, depth - 1) for each in value]
    if kind is dict and depth:
        return [[_visible(each, depth - 1) for each in pair] for pair in value.items()]
    if hasattr(value, "vertices"):
        return value.vertices
    if kind.__module__ in _SETTINGS and depth and not hasattr(value, "get_children"):
        return [kind.__qualname__, *(_visible(each, depth - 1) for _, each in sorted(vars(value).items()))]
    return kind.__qualname__


def _drawing(what: str, was: _Noted) -> tuple[bytes, list[str], bytes]:
    """The look of a figure before the step, and the states of its artists now. Earlier artists are named by index."""
    indices = {id(artist): i for i, artist in enumerate(was.look.artists)}
    states = [artist.__getstate__() for artist in was.look.artists]
    try:
        drawing = dumps(states, lambda each: indices.get(id(each)))
    except CodecError as error:
        raise CodecError(f"it drew on {what}, which cannot be pickled: {error}") from error
    return was.look.digest, [type(artist).__qualname__ for artist in was.look.artists], drawing


def _redraw(figure: Any, drawing: bytes) -> None:
    artists = list(_look(figure).artists)
    changes = _changes(figure)
    for artist, state in zip(artists, loads(drawing, find=artists.__getitem__), strict=True):
        if artist is figure:
            state = {name: value for name, value in state.items() if name not in (*_UNTOUCHED, *_NOT_STATE)}
            state |= {name: value for name, value in vars(figure).items() if name in _UNTOUCHED}
        if artist is not figure and hasattr(artist, "__setstate__"):
            artist.__setstate__(state)
        else:
            vars(artist).clear()
            vars(artist).update(state)
    figure.stale_callback = changes
    figure.dpi = figure.dpi  # updates the size in pixels
    _connect(figure)


def _connect(figure: Any) -> None:
    """Report changes of artists to the figure again: pickles do not include these callbacks."""
    for artist in _artists(figure):
        if artist is not figure and artist.stale_callback is None:
            artist.stale_callback = _pass_on
    figure.stale = True


def _pass_on(artist: Any, value: bool) -> None:
    axes = None if hasattr(artist, "subfigures") else artist.axes
    parent = artist.figure if axes is None or axes is artist else axes
    if parent is not None:
        parent.stale = value
