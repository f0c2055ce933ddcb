"""Identifies a call of a step independently of its code: by parameter names, leaving out arguments at their defaults.

Effects that must happen once, and keys for APIs, have to survive edits. So neither the position of a parameter in the
signature nor the code of the classes in the arguments is part of this identity. effects_once.py builds on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from inspect import Parameter
from typing import Any

from ..errors import FingerprintError
from ..modules import canonical_name
from .code import by_name, code_in_values
from .values import SCALARS, Digests, is_flat, plain_digest

WHOLE_KEY = "key="  # instead of a parameter name: one key function identifies all arguments
steps_made: set[tuple[str, str]] = set()  # in this process, by file and name
INPUTS = "inputs="  # instead of a key function: the parameter is identified by the content of files


@dataclass(frozen=True)
class CallIdentity:
    """One call of a step, identified by names. All digests are strings, so that it can be stored as JSON."""

    module: str  # "__main__" for the script, whatever its file is called
    file: str  # the name under which the script can be imported; otherwise the same as `module`
    step: str
    code: str  # digest of the function alone, without its name
    values: Mapping[str, str]  # digests by parameter, without ignored ones; items of *args as `*0`, of **kwargs by name
    defaults: tuple[str, ...]  # the parameters in `values` that have their default value
    pieces: Mapping[str, Mapping[str, str]]  # digests of the attributes of arguments that are objects, one level deep
    classes: Mapping[str, str]  # digests of the code reached by arguments that are objects
    keys: Mapping[str, str]  # digests of the key functions, of parameters not identified by their content
    ignored: tuple[str, ...]
    closure: Mapping[str, str]  # distinguishes steps made by the same code with different values, see `Variants`
    ordinal: int
    signature: str  # digest of the signature, `ignored`, `keys` and `classes`
    apart: tuple[str, ...] = ()  # titles of steps that the user declared to be different from this one

    @property
    def digest(self) -> str:
        """Unaffected by adding a parameter with a default and by reordering parameters."""
        given = sorted((name, value) for name, value in self.values.items() if name not in self.defaults)
        identifying = (self.module, self.step, sorted(self.closure.items()), given, self.ordinal)
        return plain_digest(identifying, b"call").hex()

    @property
    def title(self) -> str:
        return f"{self.file}.{self.step}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(stored: Mapping[str, Any]) -> CallIdentity:
        """The inverse of `to_json`."""
        known: dict[str, Any] = {field.name: stored[field.name] for field in fields(CallIdentity)}
        known.update((name, tuple(value)) for name, value in stored.items() if isinstance(value, list))
        return CallIdentity(**known)

    def other_than(self, step: str) -> CallIdentity:
        """A copy that declares this call to be none of the step with that title."""
        return replace(self, apart=(*self.apart, step))


class CallNaming:
    """Makes the `CallIdentity` of one step's calls."""

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
        """A cheaper digest of a call, from the digests of its parts."""
        omitted = {f"argument `{p.name}`" for p, value in zip(self._parameters, bound) if _is_default(value, p.default)}
        given = sorted((name, value) for name, value in digests.items() if name not in omitted)
        return plain_digest((self.module, self.step, sorted(closure.items()), given, ordinal or 0), b"key").hex()

    def name(
        self,
        bound: tuple[Any, ...],
        relevant: Mapping[str, Any],
        ordinal: int | None,
        code: str,
        closure: Mapping[str, str],
    ) -> CallIdentity:
        """The identity of a call. `bound` has every parameter's value, `relevant` what identifies those not ignored."""
        token = by_name.set(True)
        try:
            digests = Digests()
            values: dict[str, str] = {}
            defaults: list[str] = []
            signature: list[Any] = []
            for parameter, value in zip(self._parameters, bound):
                signature.append((parameter.name, None))
                if parameter.name not in relevant:
                    continue
                given = relevant[parameter.name]
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
            if WHOLE_KEY in relevant:
                values = {WHOLE_KEY: digests.of(relevant[WHOLE_KEY]).hex()}
            objects = {name: value for name, value in relevant.items() if not is_flat(value)}
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
    """The steps of one name called in a scope, if the same code made several, with different plain values in their closures.

    The first one called is identified by its name alone, because its closure may differ from process to process.
    """

    def __init__(self) -> None:
        self._called: dict[tuple[str, str], list[Mapping[str, str]]] = {}

    def closure_of(self, step: CallNaming) -> Mapping[str, str]:
        """The closure that distinguishes the step from others of the same name; empty for the first one called."""
        called = self._called.setdefault((step.file, step.step), [])
        if step.closure not in called:
            called.append(step.closure)
        return {} if called[0] == step.closure else step.closure

    def called(self, call: CallIdentity) -> list[Mapping[str, str]]:
        """The closures of all steps with this call's name."""
        return self._called.get((call.file, call.step), [])


def _module_of(function: Any) -> tuple[str, str]:
    while not hasattr(function, "__module__") and hasattr(function, "func"):
        function = function.func
    module = str(getattr(function, "__module__", "") or "")
    return ("__main__" if module == "__mp_main__" else module), canonical_name(module)


def _is_default(value: Any, default: Any) -> bool:
    return value is default or (type(value) is type(default) and type(value) in SCALARS and bool(value == default))


def _closure(function: Any) -> dict[str, str]:
    """Digests of the plain values in the function's closure at the time it becomes a step."""
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
    """The class of an object, and the digests of its attributes."""
    found = {"class": type(value).__qualname__}
    for name, each in vars(value).items():
        known = digests.get(each)
        if known is not None:
            found[f".{name}"] = known.hex()
    return found


def _classes(value: Any) -> str:
    """A digest of the code of classes and functions inside a value; empty if there are none."""
    found: dict[int, tuple[Any, Any]] = {}
    token = code_in_values.set(found)
    try:
        Digests().get(value)
    finally:
        code_in_values.reset(token)
    return plain_digest(sorted(result.code for _, result in found.values())).hex() if found else ""
