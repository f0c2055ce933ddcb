"""A node's identity: named parts, each with its own digest, and one digest over all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal, Union

from ..errors import FingerprintError, UsageError
from ..facts import dataclass, replace
from .binding import Binder
from .code import Code
from .inputs import file_identity
from .shown import Part, part_of, short
from .values import digest, plain_digest, register_identity

__all__ = ["Fingerprint", "Identity", "Part", "register_identity"]

Key = Union[Callable[..., object], Mapping[str, Callable[[Any], object]]]
Reach = Literal["deep", "own", "version"]


_EXACT = frozenset([int, str, bytes, type(None)])  # equal ones have one digest. Not floats (0.0 equals -0.0), nor bools
_digests: dict[tuple[Any, ...], str] = {}
_MOST, _LONGEST = 10_000, 200


def digest_of(arguments: tuple[Any, ...]) -> str:
    """The digest of arguments that count as they are. Those of small calls are remembered: they may be repeated often."""
    if not _EXACT.issuperset(map(type, arguments)):  # no hash of the user's own
        return digest(arguments).hex()
    found = _digests.get(arguments)
    if found is None:
        found = plain_digest(arguments).hex()
        if len(_digests) < _MOST and not any(isinstance(a, (str, bytes)) and len(a) > _LONGEST for a in arguments):
            _digests[arguments] = found
    return found


@dataclass(frozen=True)
class Fingerprint:
    """What a node's checkpoint depends on, part by part."""

    digest: str
    parts: Mapping[str, Part]


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
        by_name: dict[str, Callable[[Any], object]] = dict.fromkeys(inputs, file_identity)
        self._whole_key = key if callable(key) else None
        if key is not None and not callable(key):
            by_name.update(key)
        self._check("ignore", ignore)
        self._check("inputs", inputs)
        self._check("redact", redact)
        self._redact, self._inputs = frozenset(redact), frozenset(inputs)
        self._check("key", () if callable(key) or key is None else key)
        if code not in ("deep", "own", "version"):
            raise UsageError(f"step {step}: code={code!r} is not one of 'deep', 'own', 'version'")
        if code == "version" and version is None:
            raise UsageError(f"step {step}: code='version' needs a version=, or no edit would ever count")
        self._counted = [(i, name, by_name.get(name)) for i, name in enumerate(self.names) if name not in ignore]
        self.contents = [(f"argument `{name}`", name) for _, name, key in self._counted if key is None]
        self._plain = not by_name and not ignore
        self.plain = self._plain and self._whole_key is None  # the bound arguments are all that counts, as they are
        self._last: tuple[object, str] | None = None
        self._version = version
        self._code = None if code == "version" else Code(function, code)
        # the same object as long as the code is the same
        self.stamp: Callable[[], object] = self._code.stamp if self._code else lambda: None

    def _check(self, option: str, names: Iterable[str]) -> None:
        if isinstance(names, str):
            raise UsageError(f"step {self.step}: {option}={names!r} must be a list of parameter names: [{names!r}]")
        for name in names:
            if name not in self.names:
                real = ", ".join(self.names) or "none"
                raise UsageError(f"step {self.step}: {option} names {name!r}, which is no parameter. There are: {real}")

    def arguments(self, bound: tuple[Any, ...], call: int | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """The digest over all arguments that count (and the call's ordinal, where calls are told apart)."""
        counted: object
        if self._whole_key is not None:
            counted = ("key", self._whole_key(*args, **kwargs))
        elif self._plain:
            counted = bound
        else:
            counted = tuple(bound[i] if key is None else key(bound[i]) for i, _, key in self._counted)
        try:
            return digest(counted if call is None else (counted, call)).hex()
        except FingerprintError:
            self.argument_parts(bound, call, args, kwargs)  # raises again, naming the parameter
            raise

    def argument_parts(
        self, bound: tuple[Any, ...], call: int | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> dict[str, Part]:
        """Each argument's own digest, under the names that people read."""
        parts: dict[str, Part] = {}
        if self._whole_key is not None:
            parts["key"] = self._part("key", self._whole_key(*args, **kwargs))
        else:
            for i, name, key in self._counted:
                part = self._part(f"argument `{name}`", bound[i] if key is None else key(bound[i]), name)
                if name in self._inputs and name not in self._redact:
                    part = replace(part, shown=f"content of {short(bound[i])}")
                parts[f"argument `{name}`"] = part
        if call is not None:
            parts["call"] = self._part("call", call)
        return parts

    def _part(self, name: str, value: object, parameter: str = "") -> Part:
        try:
            return part_of(parameter, value, secret=parameter in self._redact or (name == "key" and bool(self._redact)))
        except FingerprintError as error:
            raise FingerprintError(error.kind, error.path, name, self.step) from error

    def code(self) -> str:
        """The digest over all code that counts, and the version. FingerprintError names a global that has no identity."""
        try:
            stamp = self.stamp()
            if self._last is None or self._last[0] is not stamp:
                self._last = stamp, digest((self._code.digest() if self._code else b"", self._version)).hex()
            return self._last[1]
        except FingerprintError as error:
            raise FingerprintError(error.kind, error.path, error.part, self.step) from error

    def packages(self) -> dict[str, str]:
        """The versions of installed packages that the code uses: recorded, not compared."""
        return self._code.packages() if self._code else {}

    def code_parts(self) -> dict[str, Part]:
        """Each piece of code's own digest, and the version's."""
        parts = self._code.parts() if self._code else {}
        return (
            parts
            if self._version is None
            else {**parts, "version": Part(digest(self._version).hex(), shown=self._version)}
        )
