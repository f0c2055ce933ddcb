"""Process-wide settings of libraries: decimal, numpy, pandas and matplotlib.

Only settings that differ from the library's defaults are considered, so it makes no difference when a library is loaded.
Settings that affect what is computed or drawn are part of the identity of code that uses the library; those that only
affect how values are printed are not.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ..modules import loaded
from .display import Part, short
from .values import identity, plain_digest


class Library(NamedTuple):
    """How to read and write the settings of one library. Each function takes the loaded module.

    `now` and `defaults` give settings by name. `values` gives those of `now` without names: it is quicker, because each
    call of a step compares them with the last ones. `displays` says whether a setting affects printing only.
    """

    values: Callable[[Any], list[Any]]
    now: Callable[[Any], dict[str, Any]]
    defaults: Callable[[Any], Mapping[str, Any]]
    put: Callable[[Any, dict[str, Any]], object]
    displays: Callable[[str], bool] = lambda name: False


def _decimal_values(module: Any) -> list[Any]:
    context = module.getcontext()
    found = [context.prec, context.rounding, context.Emin, context.Emax, context.capitals, context.clamp]
    return [*found, *context.traps.values()]


def _decimal_settings(context: Any) -> dict[str, Any]:
    found = {name: getattr(context, name) for name in ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")}
    return {**found, "traps": sorted(signal.__name__ for signal, on in context.traps.items() if on)}


def _put_decimal(module: Any, settings: dict[str, Any]) -> None:
    context = module.getcontext()
    for name, value in settings.items():
        if name == "traps":
            context.traps.update({signal: signal.__name__ in value for signal in list(context.traps)})
        else:
            setattr(context, name, value)


_PRINTING = {
    "edgeitems": 3,
    "threshold": 1000,
    "floatmode": "maxprec",
    "precision": 8,
    "suppress": False,
    "linewidth": 75,
    "nanstr": "nan",
    "infstr": "inf",
    "sign": "-",
    "formatter": None,
    "legacy": False,
    "override_repr": None,
}
_ERRORS = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}


def _put_numpy(module: Any, settings: dict[str, Any]) -> None:
    module.seterr(**{name: value for name, value in settings.items() if name in _ERRORS})
    printing = {name: value for name, value in settings.items() if name not in _ERRORS}
    if printing:
        module.set_printoptions(**printing)


def _flat(options: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in options.items():
        if type(value) is dict:
            yield from _flat(value, f"{before}{name}.")
        else:
            yield before + name, value


def _leaves(options: dict[str, Any]) -> list[Any]:
    found: list[Any] = []
    for value in options.values():
        if type(value) is dict:
            found += _leaves(value)
        else:
            found.append(value)
    return found


def _pandas_defaults(module: Any) -> dict[str, Any]:
    known = module._config.config._registered_options
    return {name: option.defval for name, option in known.items()}


def _put_pandas(module: Any, settings: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated options have already warned when the user set them
        for name, value in settings.items():
            module.set_option(name, value)


def _matplotlib_now(module: Any) -> dict[str, Any]:
    return {name: value for name, value in dict.items(module.rcParams) if "backend" not in name}


LIBRARIES = {
    "decimal": Library(
        _decimal_values,
        lambda module: _decimal_settings(module.getcontext()),
        lambda module: _decimal_settings(module.DefaultContext),
        _put_decimal,
    ),
    "numpy": Library(
        lambda module: [*module.geterr().values(), *module.get_printoptions().values()],
        lambda module: {**module.geterr(), **module.get_printoptions()},
        lambda module: {**_PRINTING, **_ERRORS},
        _put_numpy,
        lambda name: name not in _ERRORS,
    ),
    "pandas": Library(
        lambda module: _leaves(module.options.d),
        lambda module: dict(_flat(module.options.d)),
        _pandas_defaults,
        _put_pandas,
        lambda name: name.startswith(("display.", "styler.", "plotting.")),
    ),
    "matplotlib": Library(
        lambda module: list(dict.values(module.rcParams)),
        _matplotlib_now,
        lambda module: dict(dict.items(module.rcParamsOrig)),
        lambda module, settings: module.rcParams.update(settings),
    ),
}
_PARENTS = {"seaborn": "matplotlib", "pylab": "matplotlib"}
NAMES = frozenset([*LIBRARIES, *_PARENTS])  # packages whose settings matter to code that uses them

_last: dict[
    str, tuple[list[Any], dict[str, Any]]
] = {}  # by library: all values, and the settings not at their defaults


def changed(library: str) -> dict[str, Any]:
    """The settings of a library that differ from its defaults. The same object for as long as nothing changes."""
    module = loaded(library)
    if module is None:
        return {}
    how = LIBRARIES[library]
    try:
        values, known = how.values(module), _last.get(library)
        if known is not None and known[0] == values:
            return known[1]
        now, defaults = how.now(module), how.defaults(module)
        found = {name: value for name, value in now.items() if name in defaults and defaults[name] != value}
    except Exception:  # another version of the library, or values that can't be compared
        return {}
    _last[library] = values, found
    return found


def put(library: str, then: Mapping[str, Any], now: Iterable[str] = ()) -> None:
    """Set a library's settings to `then`. Those named in `now` but not in `then` are reset to their defaults."""
    module = importlib.import_module(library)
    defaults = LIBRARIES[library].defaults(module)
    LIBRARIES[library].put(module, {**{name: defaults[name] for name in now if name not in then}, **then})


def parts(foreign: Iterable[str]) -> dict[str, Part]:
    """The settings not at their defaults that matter to code that uses these packages."""
    found: dict[str, Part] = {}
    for library in sorted({_PARENTS.get(name, name) for name in foreign} & LIBRARIES.keys()):
        for name, value in changed(library).items():
            if not LIBRARIES[library].displays(name):
                known = identity(value) or plain_digest(type(value).__qualname__)
                found[f"setting `{library}.{name}`"] = Part(known.hex(), shown=short(value))
    return found
