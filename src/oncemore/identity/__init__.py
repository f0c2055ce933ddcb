"""A node's identity: named parts, each with its own digest, and one digest over all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any, Literal, Union

from ..errors import FingerprintError, UsageError
from .binding import Binder
from .calls import INPUTS, WHOLE_KEY, CallIdentity, CallNaming
from .code import Code, Seen, met, module_name
from .code.data import Datum
from .display import Part, part_of, short
from .input_files import file_identity
from .values import SCALARS, Digests, digest, is_flat, plain_digest, register_identity

__all__ = ["Arguments", "Behaviour", "CallIdentity", "Fingerprint", "Identity", "Part", "code_of", "register_identity"]

DATA = "~"  # between the digest of code and that of the data that it reads

Key = Union[Callable[..., object], Mapping[str, Callable[[Any], object]]]
Reach = Literal["deep", "own", "version"]


@dataclass(frozen=True)
class Fingerprint:
    """What a node's checkpoint depends on, part by part."""

    digest: str
    parts: Mapping[str, Part]


class Arguments:
    """What identifies the arguments of one call, from one walk through those that count.

    All but `digest` and `content` is for calls that run, and has to be asked for before the function can change its arguments.
    """

    __slots__ = ("_digests", "_identity", "_parts", "bound", "content", "counted", "digest", "met", "ordinal")

    def __init__(self, identity: Identity, bound: tuple[Any, ...], counted: tuple[Any, ...]) -> None:
        self._identity, self.bound, self.counted = identity, bound, counted
        self._digests: Digests | None = None
        self.met: list[tuple[Any, Seen]] = []  # functions, classes and modules that they lead to
        self._parts: dict[str, Part] | None = None
        self.ordinal: int | None = None
        # What is plain data at first sight is hashed in one go; else all is made of the arguments' own digests.
        flat = SCALARS.issuperset(map(type, counted)) or all(map(is_flat, counted))
        self.content = (plain_digest(counted) if flat else self._walk()).hex()
        self.digest = self.content  # over all arguments, and the call's ordinal where calls are told apart

    def _walk(self) -> bytes:
        digests, items, found = self.digests, list[bytes](), dict[int, tuple[Any, Seen]]()
        token = met.set(found)
        try:
            for value in self.counted:
                items.append(digests.of(value))
        except FingerprintError as error:
            name = self._identity.counted[len(items)]
            raise FingerprintError(error.kind, error.path, name, self._identity.step) from error.__cause__
        finally:
            met.reset(token)
        self.met = list(found.values())
        return plain_digest(items, b"arguments")

    def number(self, ordinal: int) -> None:
        """Tell the call from others with the same arguments."""
        self.ordinal, self.digest = ordinal, plain_digest((self.content, ordinal), b"call").hex()

    @property
    def digests(self) -> Digests:
        """The digests of the arguments, and of the objects that the walk met in them."""
        if self._digests is None:
            self._digests = Digests()
        return self._digests

    def take_digests(self) -> Digests:
        """The same, and they are not kept here any longer: they hold on to all that the walk met."""
        found, self._digests = self.digests, None
        return found

    @property
    def parts(self) -> dict[str, Part]:
        """Each argument's own digest, under the names that people read, and what they see of it."""
        if self._parts is None:
            self._parts = self._identity.parts_of(self)
            if self.ordinal is not None:
                self._parts["call"] = part_of("", self.ordinal, self.digests)
        return self._parts


class Identity:
    """How the calls of one step are told apart."""

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
    ) -> None:
        self.step = step
        self._binder = Binder(function)
        self.bind = self._binder.bind
        self.names = self._binder.names
        by_name: dict[str, Callable[[Any], object]] = {
            name: partial(file_identity, prefix=f"step {step}: inputs names {name!r}, which") for name in inputs
        }
        self._whole_key = key if callable(key) else None
        if key is not None and not callable(key):
            by_name.update(key)
        self._check("ignore", ignore)
        self._check("inputs", inputs)
        self._check("redact", redact)
        self._redact, self.inputs = frozenset(redact), frozenset(inputs)
        self._check("key", () if callable(key) or key is None else key)
        if code not in ("deep", "own", "version"):
            raise UsageError(f"step {step}: code={code!r} is not one of 'deep', 'own', 'version'")
        if code == "version" and version is None:
            raise UsageError(f"step {step}: code='version' needs a version=, or no edit would ever count")
        self._counted = [(i, name, by_name.get(name)) for i, name in enumerate(self.names) if name not in ignore]
        self.contents = [name for _, name, key in self._counted if key is None]  # those that count by their content
        self.counted = ["key"] if callable(key) else [f"argument `{name}`" for _, name, _ in self._counted]
        self.plain = not (by_name or ignore or callable(key))  # the bound arguments are all that counts, as they are
        keys: dict[str, Any] = {**dict.fromkeys(inputs, INPUTS), **({WHOLE_KEY: key} if callable(key) else key or {})}
        self.naming = CallNaming(function, step, self._binder.parameters, tuple(sorted(ignore)), keys)
        self._last: tuple[Seen | None, str] | None = None
        self._version = version
        self._function, self._module = function, ""
        self._code = None if code == "version" else Code(function, code)

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
        """What identifies a call's arguments. FingerprintError names one that has no identity."""
        if self.plain:
            return Arguments(self, bound, bound)
        if self._whole_key is not None:
            return Arguments(self, bound, (self._whole_key(*args, **kwargs),))
        return Arguments(self, bound, tuple(bound[i] if key is None else key(bound[i]) for i, _, key in self._counted))

    def name_call(self, arguments: Arguments, behaviour: Behaviour, closure: Mapping[str, str]) -> CallIdentity:
        """Which call it is, whatever the code. To be asked for before the function can change its arguments."""
        if self._whole_key is not None:
            counted = {WHOLE_KEY: arguments.counted[0]}
        else:
            counted = {name: value for (_, name, _), value in zip(self._counted, arguments.counted)}
        own = behaviour.parts.get("code")
        return self.naming.name(arguments.bound, counted, arguments.ordinal, own.digest if own else "", closure)

    def key_of(self, arguments: Arguments, closure: Mapping[str, str]) -> str:
        """What the key that a step hands to an API is made of; as `name_call`, for steps that are no effects."""
        digests = {name: part.digest for name, part in arguments.parts.items()}
        return self.naming.key(arguments.bound, digests, arguments.ordinal, closure)

    def parts_of(self, arguments: Arguments) -> dict[str, Part]:
        """What the arguments' digest is made of."""
        if self._whole_key is not None:
            [key] = arguments.counted
            return {"key": part_of("", key, arguments.digests, secret=bool(self._redact))}
        parts: dict[str, Part] = {}
        for (i, name, _), part, value in zip(self._counted, self.counted, arguments.counted, strict=True):
            parts[part] = part_of(name, value, arguments.digests, secret=name in self._redact)
            if name in self.inputs and name not in self._redact:
                parts[part] = replace(parts[part], shown=f"content of {short(arguments.bound[i])}")
        return parts

    def look(self) -> Behaviour:
        """The code and the data that it reads, as they are now. FingerprintError names what has no identity."""
        try:
            seen = self._code.look() if self._code else None
        except FingerprintError as error:
            raise FingerprintError(error.kind, error.path, error.part, self.step) from error
        if self._last is None or self._last[0] is not seen:
            self._module = module_name(self._function)
            self._last = seen, digest((seen.code if seen else b"", self._version, self._module)).hex()
        return Behaviour(self._last[1], seen, self._version, self._module)


class Behaviour:
    """What the outcome of a call depends on besides its arguments: code, and the data that it reads.

    `digest` is that of the code, followed by that of the data if there is any. Parts have to be asked for before the function
    can change the data.
    """

    __slots__ = ("_code", "_module", "_seen", "_version", "data", "digest", "digests", "spaces")

    def __init__(self, code: str, seen: Seen | None, version: str | None, module: str) -> None:
        self._code, self._seen, self._version, self._module = code, seen, version, module
        self.data: list[Datum] = seen.data if seen else []
        self.digests: list[bytes] = seen.digests if seen else []
        self.spaces: dict[str, Any] = seen.spaces if seen else {}
        self.digest = self.with_data(self.digests)

    def with_data(self, digests: list[bytes]) -> str:
        """What `digest` would be if the data had these digests."""
        read = self._seen.read(digests) if self._seen else b""
        return f"{self._code}{DATA}{read.hex()}" if read else self._code

    def look_again(self) -> list[bytes]:
        """What identifies the data now."""
        for datum in self.data:
            datum.look_again()
        return self._seen.look() if self._seen else []

    def reached(self, arguments: Arguments) -> tuple[dict[str, Datum], dict[str, Any]]:
        """The data and the namespaces that the code reaches, also by way of its arguments."""
        data, spaces = {datum.name: datum for datum in self.data}, dict(self.spaces)
        known = {datum.key for datum in self.data} if arguments.met else set[tuple[int, str]]()
        for unit, seen in arguments.met:
            label = f"`{unit.__name__ if isinstance(unit, ModuleType) else unit.__qualname__}`"
            for datum in seen.data:
                if datum.key not in known:
                    known.add(datum.key)
                    data[_free(f"{label} {datum.name}", data)] = datum
            for name, space in seen.spaces.items():
                if spaces.get(name) is not space:
                    spaces[_free(name, spaces)] = space
        return data, spaces

    @property
    def parts(self) -> dict[str, Part]:
        """Each piece of code's own digest, and those of the version and the module: two may have a step of one name."""
        parts = {
            **(self._seen.parts if self._seen else {}),
            "module": Part(digest(self._module).hex(), shown=self._module),
        }
        if self._version is None:
            return parts
        return {**parts, "version": Part(digest(self._version).hex(), shown=self._version)}

    @property
    def data_parts(self) -> dict[str, Part]:
        """The same of the data."""
        return self._seen.data_parts(self.digests) if self._seen else {}

    @property
    def packages(self) -> dict[str, str]:
        """The versions of installed packages that the code uses: recorded, not compared."""
        return self._seen.packages if self._seen else {}


def _free(name: str, taken: Collection[str]) -> str:
    while name in taken:
        name += "'"
    return name


def code_of(digest: str) -> str:
    """The digest of the code alone, of one that may have that of the data behind it."""
    return digest.partition(DATA)[0]
