"""A node's identity: named parts, each with its own digest, and one digest over all."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import Parameter
from types import ModuleType
from typing import Any, Literal, Union

from ..errors import FingerprintError, UsageError
from .calls import INPUTS, WHOLE_KEY, CallIdentity, CallNaming
from .code import Code, WalkResult, code_in_values, module_name
from .code.data import Datum
from .code.statements import note_if_loading
from .display import Part, part_of, short
from .input_files import file_identity
from .values import SCALARS, Digests, digest, is_flat, plain_digest, register_identity

__all__ = ["Arguments", "Behaviour", "CallIdentity", "Fingerprint", "Identity", "Part", "code_of", "register_identity"]

DATA = "~"  # separates the digest of the code from the digest of the data it reads

Key = Union[Callable[..., object], Mapping[str, Callable[[Any], object]]]
Reach = Literal["deep", "own", "version"]
Packages = Literal["record", "compare"]


@dataclass(frozen=True)
class Fingerprint:
    """Everything a node's checkpoint depends on, part by part."""

    digest: str
    parts: Mapping[str, Part]


class Arguments:
    """The identity of one call's arguments, computed in one walk through the relevant ones (all but the ignored).

    Everything except `digest` and `content` is needed only if the call runs, and must be read before the function can
    change its arguments.
    """

    __slots__ = ("_digests", "_identity", "_parts", "bound", "code_found", "content", "digest", "ordinal", "relevant")

    def __init__(self, identity: Identity, bound: tuple[Any, ...], relevant: tuple[Any, ...]) -> None:
        self._identity, self.bound, self.relevant = identity, bound, relevant
        self._digests: Digests | None = None
        self.code_found: list[tuple[Any, WalkResult]] = []  # functions, classes and modules inside the arguments
        self._parts: dict[str, Part] | None = None
        self.ordinal: int | None = None
        # Flat data is hashed in one go; anything else is hashed argument by argument.
        flat = SCALARS.issuperset(map(type, relevant)) or all(map(is_flat, relevant))
        self.content = (plain_digest(relevant) if flat else self._walk()).hex()
        self.digest = self.content  # `number` adds the ordinal where calls with the same arguments are distinct

    def _walk(self) -> bytes:
        digests, items, found = self.digests, list[bytes](), dict[int, tuple[Any, WalkResult]]()
        token = code_in_values.set(found)
        try:
            for value in self.relevant:
                items.append(digests.of(value))
        except FingerprintError as error:
            name = self._identity.part_names[len(items)]
            raise FingerprintError(error.kind, error.path, name, self._identity.step) from error.__cause__
        finally:
            code_in_values.reset(token)
        self.code_found = list(found.values())
        return plain_digest(items, b"arguments")

    def number(self, ordinal: int) -> None:
        """Distinguish the call from others with the same arguments."""
        self.ordinal, self.digest = ordinal, plain_digest((self.content, ordinal), b"call").hex()

    @property
    def digests(self) -> Digests:
        """The digests of the arguments and of the objects inside them."""
        if self._digests is None:
            self._digests = Digests()
        return self._digests

    def take_digests(self) -> Digests:
        """Hand over `digests`. They keep every object of the walk alive, so this object drops them."""
        found, self._digests = self.digests, None
        return found

    @property
    def parts(self) -> dict[str, Part]:
        """One part per argument, with its digest and display text, under names like "argument `rows`"."""
        if self._parts is None:
            self._parts = self._identity.parts_of(self)
            if self.ordinal is not None:
                self._parts["call"] = part_of("", self.ordinal, self.digests)
        return self._parts


class Identity:
    """Identifies the calls of one step, according to the step's options."""

    def __init__(
        self,
        function: Callable[..., object],
        *,
        step: str,
        version: str | None = None,
        ignore: Collection[str] = (),
        key: Key | None = None,
        code: Reach = "deep",
        inputs: Collection[str] = (),
        redact: Collection[str] = (),
        packages: Packages = "record",
    ) -> None:
        self.step = step
        parameters = tuple(inspect.signature(function).parameters.values())
        self.bind, self.names = _binder(parameters), tuple(each.name for each in parameters)
        keys: dict[str, Callable[[Any], object]] = {
            name: partial(file_identity, prefix=f"step {step}: inputs names {name!r}, which") for name in inputs
        }
        self._whole_key = key if callable(key) else None
        if key is not None and not callable(key):
            keys.update(key)
        rest = next((each.name for each in parameters if each.kind is Parameter.VAR_KEYWORD), None)
        members = frozenset(() if rest is None or isinstance(ignore, str) else ignore) - frozenset(self.names)
        self._check("ignore", ignore if isinstance(ignore, str) else frozenset(ignore) - members)
        if members and rest is not None and rest not in keys:
            keys[rest] = partial(_without, members)
        self._check("inputs", inputs)
        self._check("redact", redact)
        self._redact, self.inputs = frozenset(redact), frozenset(inputs)
        self._check("key", () if callable(key) or key is None else key)
        if code not in ("deep", "own", "version"):
            raise UsageError(f"step {step}: code={code!r} is not one of 'deep', 'own', 'version'")
        if code == "version" and version is None:
            raise UsageError(
                f"step {step}: code='version' needs version=...; without it, no edit would ever run the step again"
            )
        check_packages(f"step {step}", packages)
        if code == "version" and packages == "compare":
            raise UsageError(
                f"step {step}: packages='compare' needs code='deep' or 'own', which find the packages that it uses"
            )
        self._compares_versions = packages == "compare"
        self._relevant = [(i, name, keys.get(name)) for i, name in enumerate(self.names) if name not in ignore]
        self.contents = [name for _, name, key in self._relevant if key is None]  # identified by their content
        self.part_names = ["key"] if callable(key) else [f"argument `{name}`" for _, name, _ in self._relevant]
        self.plain = not (keys or ignore or callable(key))  # every argument is identified by its content
        named: dict[str, Any] = {**dict.fromkeys(inputs, INPUTS), **({WHOLE_KEY: key} if callable(key) else key or {})}
        self.naming = CallNaming(function, step, parameters, tuple(sorted(ignore)), named)
        self._last: tuple[WalkResult | None, bool, str] | None = None
        self._version = version
        self._function, self._module = function, ""
        self._code = None if code == "version" else Code(function, code)
        note_if_loading()

    def _check(self, option: str, names: Iterable[str]) -> None:
        if isinstance(names, str):
            or_else = " or 'observed'" if option == "inputs" else ""
            raise UsageError(
                f"step {self.step}: {option}={names!r} must be a list of parameter names: [{names!r}]{or_else}"
            )
        for name in names:
            if name not in self.names:
                real = ", ".join(self.names) or "none"
                raise UsageError(f"step {self.step}: {option} names {name!r}, which is no parameter. There are: {real}")

    def identify(self, bound: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """Identify a call's arguments. FingerprintError names the one that has no identity."""
        if self.plain:
            return Arguments(self, bound, bound)
        if self._whole_key is not None:
            return Arguments(self, bound, (self._whole_key(*args, **kwargs),))
        return Arguments(self, bound, tuple(bound[i] if key is None else key(bound[i]) for i, _, key in self._relevant))

    def name_call(self, arguments: Arguments, behaviour: Behaviour, closure: Mapping[str, str]) -> CallIdentity:
        """Identify the call independently of its code. Must be called before the function can change its arguments."""
        if self._whole_key is not None:
            relevant = {WHOLE_KEY: arguments.relevant[0]}
        else:
            relevant = {name: value for (_, name, _), value in zip(self._relevant, arguments.relevant)}
        own = behaviour.parts.get("code")
        return self.naming.name(arguments.bound, relevant, arguments.ordinal, own.digest if own else "", closure)

    def key_of(self, arguments: Arguments, closure: Mapping[str, str]) -> str:
        """Digest for the idempotency key that a step passes to an API. Like `name_call`, but cheap enough for every step."""
        digests = {name: part.digest for name, part in arguments.parts.items()}
        return self.naming.key(arguments.bound, digests, arguments.ordinal, closure)

    def parts_of(self, arguments: Arguments) -> dict[str, Part]:
        """The parts that the arguments' digest consists of."""
        if self._whole_key is not None:
            [key] = arguments.relevant
            return {"key": part_of("", key, arguments.digests, secret=bool(self._redact))}
        parts: dict[str, Part] = {}
        for (i, name, _), part, value in zip(self._relevant, self.part_names, arguments.relevant, strict=True):
            parts[part] = part_of(name, value, arguments.digests, secret=name in self._redact)
            if name in self.inputs and name not in self._redact:
                parts[part] = replace(parts[part], shown=f"content of {short(arguments.bound[i])}")
        return parts

    def look(self, *, versions: bool = False) -> Behaviour:
        """The code and the data it reads, as they are now. FingerprintError names whatever has no identity.

        With `versions`, or if the step says so, the versions of the packages that the code uses are part of it.
        """
        try:
            result = self._code.current() if self._code else None
        except FingerprintError as error:
            raise FingerprintError(error.kind, error.path, error.part, self.step) from error
        versions = result is not None and (versions or self._compares_versions or result.compares_versions)
        if self._last is None or self._last[0] is not result or self._last[1] is not versions:
            self._module = module_name(self._function)
            pieces: tuple[Any, ...] = (result.code if result else b"", self._version, self._module)
            if versions and result is not None:
                pieces += tuple((name, part.digest) for name, part in result.versions.items())
            self._last = result, versions, digest(pieces).hex()
        return Behaviour(self._last[2], result, self._version, self._module, versions=versions)


class Behaviour:
    """What the outcome of a call depends on besides its arguments: the code and the data it reads.

    `digest` is the digest of the code, followed by that of the data if there is any. The parts must be read before the
    function can change the data.
    """

    __slots__ = ("_code", "_module", "_result", "_version", "_versions", "data", "digest", "digests", "spaces")

    def __init__(
        self, code: str, result: WalkResult | None, version: str | None, module: str, *, versions: bool = False
    ) -> None:
        self._code, self._result, self._version, self._module = code, result, version, module
        self._versions = versions
        self.data: list[Datum] = result.data if result else []
        self.digests: list[bytes] = result.digests if result else []
        self.spaces: dict[str, Any] = result.spaces if result else {}
        self.digest = self.with_data(self.digests)

    def with_data(self, digests: list[bytes]) -> str:
        """What `digest` would be if the data had these digests."""
        read = self._result.data_digest(digests) if self._result else b""
        return f"{self._code}{DATA}{read.hex()}" if read else self._code

    def look_again(self) -> list[bytes]:
        """The digests of the data as it is now."""
        for datum in self.data:
            datum.refresh()
        return self._result.data_digests() if self._result else []

    def reached(self, arguments: Arguments) -> tuple[dict[str, Datum], dict[str, Any]]:
        """The data and namespaces reached by the code, including the code inside the arguments."""
        data, spaces = {datum.name: datum for datum in self.data}, dict(self.spaces)
        known = {datum.key for datum in self.data} if arguments.code_found else set[tuple[int, str]]()
        for unit, result in arguments.code_found:
            label = f"`{unit.__name__ if isinstance(unit, ModuleType) else unit.__qualname__}`"
            for datum in result.data:
                if datum.key not in known:
                    known.add(datum.key)
                    data[_unused(f"{label} {datum.name}", data)] = datum
            for name, space in result.spaces.items():
                if spaces.get(name) is not space:
                    spaces[_unused(name, spaces)] = space
        return data, spaces

    @property
    def parts(self) -> dict[str, Part]:
        """One part per piece of code, one for the version, one for the module (two modules may have steps of one name).

        With packages="compare", also one per package.
        """
        parts = {
            **(self._result.parts if self._result else {}),
            **(self._result.versions if self._result and self._versions else {}),
            "module": Part(digest(self._module).hex(), shown=self._module),
        }
        if self._version is None:
            return parts
        return {**parts, "version": Part(digest(self._version).hex(), shown=self._version)}

    @property
    def data_parts(self) -> dict[str, Part]:
        """One part per piece of data that the code reads."""
        return self._result.data_parts(self.digests) if self._result else {}

    @property
    def packages(self) -> dict[str, str]:
        """The installed packages that the code uses, with their versions. Recorded, and only compared as parts of the code."""
        return self._result.packages if self._result else {}


def check_packages(whose: str, packages: object) -> None:
    """UsageError unless `packages` is an option that exists."""
    if packages not in ("record", "compare"):
        raise UsageError(f"{whose}: packages={packages!r} is not one of 'record', 'compare'")


def _unused(name: str, taken: Collection[str]) -> str:
    while name in taken:
        name += "'"
    return name


def _without(names: Collection[str], members: Mapping[str, Any]) -> dict[str, Any]:
    """The members of `**kwargs` that are not ignored."""
    return {name: value for name, value in members.items() if name not in names}


def code_of(digest: str) -> str:
    """The code's share of a `Behaviour.digest`, without that of the data."""
    return digest.partition(DATA)[0]


_STARS: dict[Any, str] = {Parameter.VAR_POSITIONAL: "*", Parameter.VAR_KEYWORD: "**"}


def _binder(parameters: Sequence[Parameter]) -> Callable[..., tuple[Any, ...]]:
    """A function that returns a tuple of all parameters' values, with defaults filled in, however a call passes them.

    It is a lambda with the same signature, so that the interpreter does the binding: `inspect.Signature.bind` takes
    thirty times as long.
    """
    words: list[str] = []
    for i, p in enumerate(parameters):
        if p.kind == p.KEYWORD_ONLY and not any(q.kind in (p.VAR_POSITIONAL, p.KEYWORD_ONLY) for q in parameters[:i]):
            words.append("*")
        words.append(_STARS.get(p.kind, "") + p.name + ("" if p.default is p.empty else "=None"))
        following = parameters[i + 1].kind if i + 1 < len(parameters) else None
        if p.kind == p.POSITIONAL_ONLY and following != p.POSITIONAL_ONLY:
            words.append("/")
    values = "".join(f"{p.name}," for p in parameters)
    source = f"lambda {', '.join(words)}: ({values})"  # the names are a real signature's
    # Compiled first: if Ctrl-C interrupts eval() of a string, Python exits as if killed, even if the exception is caught.
    binder = eval(compile(source, "<parameters>", "eval"))
    given = [p for p in parameters if p.default is not p.empty]
    binder.__defaults__ = tuple(p.default for p in given if p.kind != p.KEYWORD_ONLY)
    binder.__kwdefaults__ = {p.name: p.default for p in given if p.kind == p.KEYWORD_ONLY}
    bound: Callable[..., tuple[Any, ...]] = binder
    return bound
