"""@checkpointed: functions whose completed calls are not repeated. How a call goes is in calls.py."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypedDict,
    TypeVar,
    overload,
)

from .asked import Asked
from .calls import Definition
from .current import engaged, here, run_here
from .errors import UsageError
from .fingerprint import Fingerprint, Key
from .modules import came_from, find_module, loading
from .proxy import Lookalike, Proxy
from .records import Reference

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")

if TYPE_CHECKING:  # a type checker should see a function's attributes and no more
    from typing_extensions import Unpack

    from .durations import Duration
    from .reasons import Explanation
    from .surroundings.patterns import Outputs

    class _Function(Generic[P, R]):
        __wrapped__: Callable[P, R]
        __name__: str
        __qualname__: str

        def __init__(self, wrapped: object) -> None: ...

else:

    class _Function(Proxy, Generic[P, R]):
        pass


class _Verbs(_Function[P, R]):
    """What can be asked of a step, bound to an instance or not."""

    def _parts(self) -> tuple[Definition, Reference | None, tuple[Any, ...]]:
        """The definition, the run that a pickled step came from, and the arguments that binding put before the caller's."""
        raise NotImplementedError

    def _asked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Definition, Asked]:
        with loading:
            from .verbs import asked
        definition, reference, first = self._parts()
        return definition, asked(definition, (*first, *args), kwargs, reference)

    def is_done(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Whether this call would be skipped now."""
        definition, asked = self._asked(args, kwargs)
        return definition.find(asked)[0] is not None

    def recall(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """The kept result of this call, without running anything; `NotRecorded` if there is none."""
        with loading:
            from .verbs import recalled
        return recalled(*self._asked(args, kwargs))

    def forget(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Remove the checkpoint of this call; whether there was one."""
        _, asked = self._asked(args, kwargs)
        return asked.shelf.forget(asked.node)

    def refresh(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run this call again whatever is kept, and keep the new result."""
        with loading:
            from .verbs import refreshed
        definition, reference, first = self._parts()
        result: R = refreshed(definition, (*first, *args), kwargs, reference)
        return result

    def explain(self, *args: P.args, **kwargs: P.kwargs) -> Explanation:
        """Whether this call would be skipped now, or why it would run: what changed since it was kept."""
        with loading:
            from .verbs import explained
        return explained(*self._asked(args, kwargs))

    def fingerprint(self, *args: P.args, **kwargs: P.kwargs) -> Fingerprint:
        """What this call's checkpoint depends on: named parts with digests."""
        with loading:
            from .verbs import fingerprint
        definition, _, first = self._parts()
        return fingerprint(definition, (*first, *args), kwargs)


class Step(_Verbs[P, R]):
    """A function decorated with `@checkpointed`. It is called, inspected and typed like the function itself."""

    if TYPE_CHECKING:

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

    else:  # a function that is made for each step: it has not to look up the step's own attributes
        __slots__ = ("__call__", "_definition", "_function", "_reference")

    def __init__(self, wrapped: Callable[P, R], options: dict[str, Any], reference: Reference | None = None) -> None:
        super().__init__(wrapped)
        function: Any = wrapped.__func__ if isinstance(wrapped, (classmethod, staticmethod)) else wrapped
        self._function: Callable[P, R] = function
        self._definition = Definition(function, options)
        self._reference = reference
        object.__setattr__(self, "__call__", _caller(self._definition, reference))

    def _parts(self) -> tuple[Definition, Reference | None, tuple[Any, ...]]:
        return self._definition, self._reference, ()

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Step[P, R]: ...
    @overload
    def __get__(self: Step[Concatenate[S, Q], T], instance: S, owner: type | None = None) -> BoundStep[Q, T]: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        wrapped: Any = self.__wrapped__
        bound = wrapped.__get__(instance, owner) if hasattr(wrapped, "__get__") else wrapped
        return self if bound is wrapped else BoundStep(self, bound, owner)

    @property
    def __checkpoint_code__(self) -> object:
        """What counts of this step, besides its function, for steps that call it."""
        return self._definition.options["version"]

    def _run(self) -> Reference | None:
        """The run that goes along in a pickle."""
        run = run_here()
        return self._reference if run is None else run.reference

    def __copy__(self) -> Step[P, R]:
        return self  # as copying a function gives the function itself

    def __deepcopy__(self, memo: object) -> Step[P, R]:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        reference = self._run()
        module, name = self.__wrapped__.__module__, self.__wrapped__.__qualname__
        if module != "__main__" and _by_name(module, name) is self:
            return _load_named, (module, name, reference)
        kind = type(self.__wrapped__) if self._function is not self.__wrapped__ else None
        return _load, (_Bare(self._function), self._definition.options, reference, kind)


def _caller(definition: Definition, reference: Reference | None) -> Callable[..., Any]:
    """What calling a step does."""
    function = definition.function

    def call(*args: Any, **kwargs: Any) -> Any:
        run = definition.home(reference)
        return definition.plainly(args, kwargs) if run is None else definition.call(run, args, kwargs)

    def alone(*args: Any, **kwargs: Any) -> Any:
        if not engaged:  # outside a scope nothing is kept
            return function(*args, **kwargs)
        run = here(None)
        if run is None or run.disabled:
            return call(*args, **kwargs)
        return definition.call(run, args, kwargs)

    return call if definition.share or reference is not None else alone


class BoundStep(_Verbs[P, R]):
    """A step taken from an instance or a class."""

    __slots__ = ("_first", "_owner", "_step")

    def __init__(self, step: Step[Any, R], bound: Any, owner: type | None) -> None:
        super().__init__(bound)
        self._step, self._owner = step, owner
        self._first: tuple[Any, ...] = () if isinstance(step.__wrapped__, staticmethod) else (bound.__self__,)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._step(*self._first, *args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> BoundStep[P, R]:
        return self

    def _parts(self) -> tuple[Definition, Reference | None, tuple[Any, ...]]:
        return self._step._definition, self._step._reference, self._first

    def __reduce_ex__(self, protocol: Any) -> Any:
        owner = self._first[0] if self._first else self._owner
        return _load_bound, (owner, self.__wrapped__.__name__, self._step._run())


class _Bare(Lookalike):
    """A step's own function on its way through a pickle.

    pickle asks `__reduce_ex__` and goes by name; cloudpickle sees a function and takes its code along, which is what a
    worker needs that cannot import the script.
    """

    def __reduce_ex__(self, protocol: Any) -> Any:
        function = self.__wrapped__
        if not isinstance(_by_name(function.__module__, function.__qualname__), Step):
            raise UsageError(
                f"step {function.__qualname__} can only be pickled by cloudpickle: no module has it by name"
            )
        return _load_bare, (function.__module__, function.__qualname__)


def _by_name(module: str, name: str) -> Any:
    try:
        found: Any = functools.reduce(lambda found, word: vars(found)[word], name.split("."), find_module(module))
    except (KeyError, TypeError, ImportError):
        return None
    return found.__func__ if type(found) in (classmethod, staticmethod) else found


def _load_bare(module: str, name: str) -> Any:
    return _by_name(module, name)._function


def _load_named(module: str, name: str, reference: Reference | None) -> Any:
    found = _by_name(module, name)
    return found if reference is None else Step(found.__wrapped__, found._definition.options, reference)


def _load_bound(owner: Any, name: str, reference: Reference | None) -> Any:
    found = getattr(owner, name)
    if reference is None:
        return found
    step = Step(found._step.__wrapped__, found._step._definition.options, reference)
    return BoundStep(step, found.__wrapped__, found._owner)


def _load(bare: Any, options: dict[str, Any], reference: Reference | None, kind: Any) -> Any:
    came_from(bare.__globals__)
    found = _by_name(bare.__module__, bare.__qualname__)
    if isinstance(found, Step) and found._function is bare and reference is None:
        return found
    return Step(bare if kind is None else kind(bare), options, reference)


class Decorator(Protocol):
    """What makes a step of a function."""

    def __call__(self, function: Callable[P, R], /) -> Step[P, R]: ...


class Options(TypedDict, total=False):
    """The options of `memoized`; `checkpointed` says what they mean."""

    name: str | None
    version: str | None
    ignore: Collection[str]
    key: Key | None
    code: Literal["deep", "own", "version"]
    expires: Duration | None
    every_call: bool
    inputs: Collection[str]
    mutates: bool
    outputs: Outputs
    outputs_keep: bool
    capture_output: bool
    effect: Literal["once"] | None
    redact: Collection[str]


@overload
def checkpointed(function: Callable[P, R], /) -> Step[P, R]: ...
@overload
def checkpointed(
    *,
    name: str | None = None,
    version: str | None = None,
    ignore: Collection[str] = (),
    key: Key | None = None,
    code: Literal["deep", "own", "version"] = "deep",
    share: bool = False,
    expires: Duration | None = None,
    every_call: bool = False,
    inputs: Collection[str] = (),
    mutates: bool = True,
    outputs: Outputs = (),
    outputs_keep: bool = True,
    capture_output: bool = False,
    effect: Literal["once"] | None = None,
    redact: Collection[str] = (),
) -> Decorator: ...
def checkpointed(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    version: str | None = None,
    ignore: Collection[str] = (),
    key: Key | None = None,
    code: Literal["deep", "own", "version"] = "deep",
    share: bool = False,
    expires: Duration | None = None,
    every_call: bool = False,
    inputs: Collection[str] = (),
    mutates: bool = True,
    outputs: Outputs = (),
    outputs_keep: bool = True,
    capture_output: bool = False,
    effect: Literal["once"] | None = None,
    redact: Collection[str] = (),
) -> Any:
    """Keep what the function returns, so that a run that is started once more skips the call.

    Inside `with checkpoint_scope(...)` a completed call is recorded; the same call (same arguments, same code) in a later
    scope of the same run is not made again. Outside a scope the function just runs. Works on functions, coroutine
    functions, generator functions, methods, classmethods, staticmethods, lambdas and partials.

    name        the step's name in the run; default: the function's qualified name
    version     a word that counts as part of the identity
    ignore      parameters that do not count (clients, loggers, progress bars)
    key         how arguments are identified: a mapping from parameter to function, or one function of all arguments
    code        what code counts: "deep" the function and all project code it reaches, "own" the function alone,
                "version" only `version`
    share       any run may reuse the result; works outside a scope, too, on the default store
    expires     results older than this ("1d", "2h", seconds) do not count
    every_call  the n-th identical call in a run has a checkpoint of its own
    inputs      parameters that are paths of files whose content counts
    effect      "once": if the process dies while the function runs, the next run stops and asks (`UnknownOutcome`)
    outputs     the files that it writes: patterns like "{folder}/*.csv" over its parameters, or a function of them; they
                are kept and put back
    outputs_keep  False: only their digests are kept; a missing or changed file makes the function run again
    capture_output  what it prints, logs and warns about is shown again when it is skipped
    redact      parameters whose values are never shown, only their digests; those with names like `api_key` never are
    mutates     False: the function never changes its arguments in place, so they need not be compared before and after

    >>> from oncemore import checkpointed
    >>> @checkpointed(ignore=["client"], version="2")
    ... def label(row, *, client=None):
    ...     return row.upper()
    >>> label("a")
    'A'
    """
    options: dict[str, Any] = {
        "name": name,
        "version": version,
        "ignore": ignore,
        "key": key,
        "code": code,
        "share": share,
        "expires": expires,
        "every_call": every_call,
        "inputs": inputs,
        "mutates": mutates,
        "outputs": outputs,
        "outputs_keep": outputs_keep,
        "capture_output": capture_output,
        "effect": effect,
        "redact": redact,
    }
    if function is None:
        return lambda function: _decorate(function, options)
    return _decorate(function, options)


def _decorate(function: Any, options: dict[str, Any]) -> Any:
    if isinstance(function, type) or not (callable(function) or isinstance(function, (classmethod, staticmethod))):
        raise UsageError(f"@checkpointed is for functions, not for {function!r}")
    target: Any = function
    return Step(target, options)


@overload
def memoized(function: Callable[P, R], /) -> Step[P, R]: ...
@overload
def memoized(**options: Unpack[Options]) -> Decorator: ...
def memoized(function: Callable[..., Any] | None = None, /, **options: Unpack[Options]) -> Any:
    """`checkpointed(share=True)`: any run may reuse the result, and calls outside a scope are kept, too.

    >>> from oncemore import memoized
    >>> @memoized(expires="1d")
    ... def rate(currency):
    ...     return len(currency)
    >>> rate("EUR"), rate("EUR")
    (3, 3)
    """
    decorate = checkpointed(share=True, **options)
    return decorate if function is None else decorate(function)
