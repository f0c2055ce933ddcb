"""`dataclass` with the least work at import: what a class needs is made when it is first used.

Our many small classes would take a third of the time that a script waits for oncemore, most of it for methods that it never calls
and for `inspect`, which `dataclasses` loads. In all that can be seen these are dataclasses: in how they are made, shown and
compared, to `dataclasses.fields`, `replace` and `asdict`, and to classes that inherit.
"""

from __future__ import annotations

from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

from .modules import loading

_MISSING: Any = type("MISSING", (), {})


class _Fact:
    """What is known of one field."""

    __slots__ = ("compare", "default", "default_factory", "init", "kind", "kw_only", "repr")

    def __init__(
        self,
        *,
        default: Any = _MISSING,
        default_factory: Any = _MISSING,
        init: bool = True,
        repr: bool = True,
        compare: bool = True,
    ) -> None:
        self.default, self.default_factory = default, default_factory
        self.init, self.repr, self.compare = init, repr, compare
        self.kind, self.kw_only = "", False


def _fact(cls: Any, name: str, kind: str, kw_only: bool) -> _Fact:
    said = cls.__dict__.get(name, _MISSING)
    fact = said if isinstance(said, _Fact) else _Fact(default=said)
    fact.kind, fact.kw_only = kind, kw_only
    if fact is said:
        if fact.default is _MISSING:
            delattr(cls, name)
        else:
            setattr(cls, name, fact.default)
    return fact


def _dataclass(cls: Any = None, /, *, frozen: bool = False, kw_only: bool = False) -> Any:
    if cls is None:
        return lambda cls: _dataclass(cls, frozen=frozen, kw_only=kw_only)
    found: dict[str, _Fact] = dict(getattr(cls, "_facts", {}))
    for name, kind in cls.__annotations__.items():  # texts: every file of ours imports them so from the future
        if not kind.startswith("ClassVar"):
            found[name] = _fact(cls, name, kind, kw_only)
    made: dict[str, Any] = {"_facts": found, "__init__": _Init(cls, frozen)}
    made.update(__repr__=_repr, __eq__=_eq, __replace__=_replace)
    made["__hash__"] = _hash if frozen else None
    if frozen:
        made.update(__setattr__=_assign, __delattr__=_delete)
    made["__match_args__"] = tuple(name for name, fact in found.items() if fact.init and not fact.kw_only)
    for name in ("__dataclass_fields__", "__dataclass_params__"):
        made[name] = _Standard(cls, name, frozen)
    for name, value in made.items():
        setattr(cls, name, value)
    return cls


def _replace(obj: Any, /, **changes: Any) -> Any:
    return type(obj)(**{name: getattr(obj, name) for name, fact in obj._facts.items() if fact.init} | changes)


def _asdict(obj: Any) -> dict[str, Any]:
    return {name: _plain(getattr(obj, name)) for name in obj._facts}


def _plain(value: Any) -> Any:
    if hasattr(type(value), "_facts"):
        return _asdict(value)
    if isinstance(value, (list, tuple)):
        parts = map(_plain, value)
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return {key: _plain(each) for key, each in value.items()} if isinstance(value, dict) else value


def names(cls: Any) -> list[str]:
    """The names of the fields."""
    return list(cls._facts)


if TYPE_CHECKING:
    from dataclasses import asdict as asdict
    from dataclasses import dataclass as dataclass
    from dataclasses import field as field
    from dataclasses import replace as replace
else:
    asdict, dataclass, field, replace = _asdict, _dataclass, _Fact, _replace


# -- what the classes share


@recursive_repr()
def _repr(self: Any) -> str:
    shown = ", ".join(f"{name}={getattr(self, name)!r}" for name, fact in self._facts.items() if fact.repr)
    return f"{type(self).__qualname__}({shown})"


def _compared(self: Any) -> tuple[Any, ...]:
    return tuple(getattr(self, name) for name, fact in self._facts.items() if fact.compare)


def _eq(self: Any, other: Any) -> Any:
    return _compared(self) == _compared(other) if type(other) is type(self) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_compared(self))


def _assign(self: Any, name: str, value: Any) -> None:
    raise _frozen(f"cannot assign to field {name!r}")


def _delete(self: Any, name: str) -> None:
    raise _frozen(f"cannot delete field {name!r}")


def _frozen(said: str) -> Exception:
    with loading:
        from dataclasses import FrozenInstanceError
    return FrozenInstanceError(said)


# -- what is made when it is first used


class _Init:
    """In the place of a class's `__init__` until somebody asks for that."""

    def __init__(self, cls: Any, frozen: bool) -> None:
        self._cls, self._frozen = cls, frozen

    def __get__(self, instance: Any, owner: Any) -> Any:
        if self._cls.__dict__["__init__"] is self:
            self._cls.__init__ = _made_init(self._cls, self._frozen)
        return self._cls.__init__ if instance is None else self._cls.__init__.__get__(instance)


def _made_init(cls: Any, frozen: bool) -> Any:
    facts: dict[str, _Fact] = {name: fact for name, fact in cls._facts.items() if fact.init}
    words, given = list[str](), {"_MISSING": _MISSING}
    body = ["values = self.__dict__"] if frozen else []  # where assigning is forbidden
    for name, fact in facts.items():
        if fact.kw_only and "*" not in words:
            words.append("*")
        value, default = name, fact.default is not _MISSING
        if fact.default_factory is not _MISSING:
            value, default = f"_make_{name}() if {name} is _MISSING else {name}", True
        given[f"_default_{name}"], given[f"_make_{name}"] = fact.default, fact.default_factory
        words.append(f"{name}=_default_{name}" if default else name)
        body.append(f"values[{name!r}] = {value}" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    source = f"def __init__(self, {', '.join(words)}):\n " + "\n ".join(body or ["pass"])
    # compiled first: if Ctrl-C hits a text that is run, Python kills the program when it ends, though that was caught
    exec(compile(source, "<fields>", "exec"), given)
    init: Any = given["__init__"]
    init.__qualname__, init.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    init.__annotations__ = {**{name: fact.kind for name, fact in facts.items()}, "return": None}
    return init


class _Standard:
    """What `dataclasses` looks for in a class; made when it does."""

    def __init__(self, cls: Any, name: str, frozen: bool) -> None:
        self._cls, self._name, self._frozen = cls, name, frozen

    def __get__(self, instance: Any, owner: Any) -> Any:
        with loading:
            import dataclasses
        fields: list[Any] = []
        for name, fact in self._cls._facts.items():
            options = {"init": fact.init, "repr": fact.repr, "compare": fact.compare, "kw_only": fact.kw_only}
            for word in ("default", "default_factory"):
                if getattr(fact, word) is not _MISSING:
                    options[word] = getattr(fact, word)
            fields.append((name, fact.kind, dataclasses.field(**options)))
        model: Any = dataclasses.make_dataclass(self._cls.__name__, fields, frozen=self._frozen)
        self._cls.__dataclass_fields__ = model.__dataclass_fields__
        self._cls.__dataclass_params__ = model.__dataclass_params__
        return getattr(model, self._name)
