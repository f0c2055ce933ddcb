"""Which call of a step this is, whatever its code: by the names of its parameters, without those left at their defaults.

Effects that must happen once, and keys for APIs, have to outlive edits. So a call is not told by the place of an argument in
the signature, nor by the code of the classes that arguments are made of; see effects_once.py for what is done with that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from inspect import Parameter
from typing import Any

from ..errors import FingerprintError
from ..modules import canonical_name
from .code import by_name, met
from .values import SCALARS, Digests, is_flat, plain_digest

WHOLE_KEY = "key="  # in place of a parameter: one function identifies all arguments
steps_made: set[tuple[str, str]] = set()  # in this process, by file and name
INPUTS = "inputs="  # in place of a key function: the file's content counts


@dataclass(frozen=True)
class CallIdentity:
    """One call of a step, told by names. All digests are texts, so that it can be kept as JSON."""

    module: str  # "__main__" for the script, whatever its file is called
    file: str  # the name under which the script can be imported; else the module again
    step: str
    code: str  # of the function alone, without its name
    values: Mapping[
        str, str
    ]  # by parameter, without those that are ignored; items of *args as `*0`, of **kwargs by name
    defaults: tuple[str, ...]  # those of them that have their default value
    pieces: Mapping[str, Mapping[str, str]]  # the attributes of those that are objects, one level deep
    classes: Mapping[str, str]  # the code that those which are objects lead to
    keys: Mapping[str, str]  # how those are identified that do not count by their content
    ignored: tuple[str, ...]
    closure: Mapping[
        str, str
    ]  # plain data that tells the step from others that the same code made before, see `CallNaming`
    ordinal: int
    signature: str  # of all this but the values
    apart: tuple[str, ...] = ()  # steps of which the user has said that this is another one

    @property
    def digest(self) -> str:
        """The same after a parameter with a default was added, and after parameters were put into another order."""
        given = sorted((name, value) for name, value in self.values.items() if name not in self.defaults)
        what = (self.module, self.step, sorted(self.closure.items()), given, self.ordinal)
        return plain_digest(what, b"call").hex()

    @property
    def title(self) -> str:
        return f"{self.file}.{self.step}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(found: Mapping[str, Any]) -> CallIdentity:
        """The opposite of `to_json`."""
        known: dict[str, Any] = {field.name: found[field.name] for field in fields(CallIdentity)}
        known.update((name, tuple(value)) for name, value in found.items() if isinstance(value, list))
        return CallIdentity(**known)

    def other_than(self, step: str) -> CallIdentity:
        """The same, and the user says that it is not the step of that title."""
        return replace(self, apart=(*self.apart, step))


class CallNaming:
    """How the calls of one step are told by names."""

    def __init__(
        self,
        function: Callable[..., object],
        step: str,
        parameters: tuple[Parameter, ...],
        ignore: tuple[str, ...],
        keys: Mapping[str, Callable[..., object] | str],
    ) -> None:
        self.module, self.file = _module_of(function)
        self.step, self._parameters, self._ignore, self._keys = step, parameters, ignore, keys
        self.closure = _closure(function)
        steps_made.add((self.file, step))

    def key(
        self, bound: tuple[Any, ...], digests: Mapping[str, str], ordinal: int | None, closure: Mapping[str, str]
    ) -> str:
        """The digest of a call whose arguments have these digests, by part: one that every step can afford."""
        left = {f"argument `{p.name}`" for p, value in zip(self._parameters, bound) if _is_default(value, p.default)}
        given = sorted((name, value) for name, value in digests.items() if name not in left)
        return plain_digest((self.module, self.step, sorted(closure.items()), given, ordinal or 0), b"key").hex()

    def name(
        self,
        bound: tuple[Any, ...],
        counted: Mapping[str, Any],
        ordinal: int | None,
        code: str,
        closure: Mapping[str, str],
    ) -> CallIdentity:
        """The identity of a call: `bound` are all parameters' values, `counted` what is hashed of those that count."""
        token = by_name.set(True)
        try:
            digests = Digests()
            values: dict[str, str] = {}
            defaults: list[str] = []
            signature: list[Any] = []
            for parameter, value in zip(self._parameters, bound):
                signature.append((parameter.name, None))
                if parameter.name not in counted:
                    continue
                given = counted[parameter.name]
                if parameter.kind is Parameter.VAR_POSITIONAL and given is value:
                    values.update((f"*{at}", digests.of(each).hex()) for at, each in enumerate(value))
                elif parameter.kind is Parameter.VAR_KEYWORD and given is value:
                    values.update((name, digests.of(each).hex()) for name, each in value.items())
                else:
                    values[parameter.name] = digests.of(given).hex()
                    if parameter.default is not Parameter.empty:
                        default = _digest(parameter.default)
                        signature[-1] = parameter.name, default
                        if value is parameter.default or (given is value and values[parameter.name] == default):
                            defaults.append(parameter.name)
            if WHOLE_KEY in counted:
                values = {WHOLE_KEY: digests.of(counted[WHOLE_KEY]).hex()}
            objects = {name: value for name, value in counted.items() if not is_flat(value)}
            pieces = {name: _pieces(value, digests) for name, value in objects.items() if hasattr(value, "__dict__")}
        finally:
            by_name.reset(token)
        classes = {name: code for name, code in ((name, _classes(value)) for name, value in objects.items()) if code}
        keys = {name: key if isinstance(key, str) else _digest(key) for name, key in self._keys.items()}
        shape = (signature, sorted(self._ignore), sorted(keys.items()), sorted(classes.items()))
        return CallIdentity(
            module=self.module,
            file=self.file,
            step=self.step,
            code=code,
            values=values,
            defaults=tuple(defaults),
            pieces=pieces,
            classes=classes,
            keys=keys,
            ignored=self._ignore,
            closure=closure,
            ordinal=ordinal or 0,
            signature=plain_digest(shape).hex(),
        )


class Variants:
    """Steps that one piece of code has made, with different plain values, and that were called in a scope.

    The first of them is told by its name alone: what it was made with may be another in every process.
    """

    def __init__(self) -> None:
        self._called: dict[tuple[str, str], list[Mapping[str, str]]] = {}

    def closure_of(self, step: CallNaming) -> Mapping[str, str]:
        """What tells the calls of a step from those of others with the same name."""
        called = self._called.setdefault((step.file, step.step), [])
        if step.closure not in called:
            called.append(step.closure)
        return {} if called[0] == step.closure else step.closure

    def called(self, call: CallIdentity) -> list[Mapping[str, str]]:
        """What those of the same name were made with."""
        return self._called.get((call.file, call.step), [])


def _module_of(function: Any) -> tuple[str, str]:
    while not hasattr(function, "__module__") and hasattr(function, "func"):
        function = function.func
    module = str(getattr(function, "__module__", "") or "")
    return ("__main__" if module == "__mp_main__" else module), canonical_name(module)


def _is_default(value: Any, default: Any) -> bool:
    return value is default or (type(value) is type(default) and type(value) in SCALARS and bool(value == default))


def _closure(function: Any) -> dict[str, str]:
    """Plain values that the function was made with, as they are when it becomes a step."""
    found: dict[str, str] = {}
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    for name, cell in zip(names, getattr(function, "__closure__", None) or ()):
        try:
            value = cell.cell_contents
        except ValueError:  # not bound yet
            continue
        if type(value) in SCALARS:
            found[name] = plain_digest(value).hex()
    return found


def _digest(value: Any) -> str:
    try:
        return Digests().of(value).hex()
    except FingerprintError:
        return f"a {type(value).__qualname__}"


def _pieces(value: Any, digests: Digests) -> dict[str, str]:
    """The attributes of an object, and its class."""
    found = {"class": type(value).__qualname__}
    for name, each in vars(value).items():
        known = digests.get(each)
        if known is not None:
            found[f".{name}"] = known.hex()
    return found


def _classes(value: Any) -> str:
    """The code of the classes and functions that a value leads to; empty if there is none."""
    found: dict[int, tuple[Any, Any]] = {}
    token = met.set(found)
    try:
        Digests().get(value)
    finally:
        met.reset(token)
    return plain_digest(sorted(seen.code for _, seen in found.values())).hex() if found else ""
