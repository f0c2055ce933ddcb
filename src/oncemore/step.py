"""`@checkpointed`: a function whose completed calls are not repeated. The path of a call is in call.py."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Coroutine
from difflib import get_close_matches
from types import FunctionType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, Protocol, TypedDict, TypeVar, overload

from . import effects_once
from .call import Call, Definition, Recorded
from .current import engaged, session_here
from .errors import NotRecorded, UsageError, trimmed
from .history.explain import Explanation, Reason
from .identity import Fingerprint, Key, Packages
from .modules import came_from, find_module
from .records import Reference
from .result import Result
from .retries import Retries
from .scope import StoreLike, find_run
from .settings import Duration
from .surroundings.outputs import Outputs

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R", covariant=True)
T = TypeVar("T")

if TYPE_CHECKING:  # Type checkers see a function's attributes and the verbs, whichever wrapt is installed.
    from typing_extensions import Self, Unpack
    from typing_extensions import TypeVar as TypeVarWithDefault

    from .session import Session

    class _Function(Generic[P, R]):
        __wrapped__: Callable[P, R]
        __name__: str
        __qualname__: str
        __class__: Any

    class _FunctionWrapper:
        def __init__(self, wrapped: object, wrapper: object) -> None: ...

    class _BoundFunctionWrapper:
        _self_parent: Any  # a `Step`
        _self_instance: Any
        _self_owner: Any

    class _ObjectProxy:
        __wrapped__: Any

        def __init__(self, wrapped: object) -> None: ...

else:
    from wrapt import BoundFunctionWrapper as _BoundFunctionWrapper
    from wrapt import FunctionWrapper as _FunctionWrapper
    from wrapt import ObjectProxy as _ObjectProxy

    _Function = Generic


class _Verbs(_Function[P, R]):
    """The verbs of a step, bound to an instance or not."""

    __slots__ = ()  # a `__dict__` here would hide the function's

    @property
    def name(self) -> str:
        """The step's name in runs and messages."""
        step, _ = self._self_parts()
        return step._self_definition.name

    def _self_parts(self) -> tuple[Step[Any, Any], tuple[Any, ...]]:
        """The step, and the arguments that binding adds in front of the caller's."""
        raise NotImplementedError

    def _self_identify(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Definition, Call]:
        """The step, and the call it would be. UsageError outside a scope."""
        step, first = self._self_parts()
        definition, args = step._self_definition, (*first, *args)
        run = step._self_find_run()
        if run is None:
            raise UsageError(
                f"step {definition.name} has no checkpoints here; use it inside `with checkpoint_scope(...)`"
            )
        call = definition.identify(run, args, kwargs, take=False)
        if call is None:  # the arguments don't fit or the code has no identity: one of these raises the error
            definition.identity.bind(*args, **kwargs)
            definition.identity.look()
            raise AssertionError("a call could not be identified, though its arguments and code can")
        return definition, call

    @property
    def __checkpoint_code__(self) -> object:
        """What identifies this step to steps that call it, besides its function: options that are not the default."""
        step, _ = self._self_parts()
        given: dict[str, Any] = step._self_definition.options
        options = {name: given[name] for name in _IDENTIFYING if (given[name] or None) != (DEFAULTS.get(name) or None)}
        return options or None

    def is_done(self, /, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Whether this call would be skipped now."""
        definition, call = self._self_identify(args, kwargs)
        return definition.find(call).entry is not None

    @overload
    def recall(self: _Verbs[Q, Coroutine[Any, Any, T]], /, *args: Q.args, **kwargs: Q.kwargs) -> T: ...
    @overload
    def recall(self, /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def recall(self, /, *args: Any, **kwargs: Any) -> Any:
        """Return the recorded result of this call without running anything; `NotRecorded` if there is none.

        For a coroutine function, that is the awaited value; for a generator function, a generator of the recorded items.
        """
        definition, call = self._self_identify(args, kwargs)
        entry, why = definition.find(call)
        if entry is None:
            raise NotRecorded(f"run {call.run.id} has no checkpoint of {call.node.id}" + (f" ({why})" if why else ""))
        return definition.read(call, entry)

    def forget(self, /, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Remove the checkpoint of this call, and with effect="once" the record that it was performed. True if there was one."""
        definition, call = self._self_identify(args, kwargs)
        performed = definition.once and effects_once.forget(call.entries, call.node)
        return call.entries.forget(call.node) or performed

    def refresh(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run this call even if it is recorded, and record the new result."""
        step, first = self._self_parts()
        definition, given = step._self_definition, (*first, *args)
        try:
            run = step._self_find_run()
            result: R = (
                definition.call_plainly(given, kwargs)
                if run is None
                else definition.call(run, given, kwargs, fresh=True)
            )
            return result
        except BaseException as error:
            error.__traceback__ = trimmed(error.__traceback__)
            raise error

    def put(self, value: Any, /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Record `value` as the result of this call without running anything. It replaces an earlier result.

        For a coroutine function, that is the awaited value. The next call with these arguments returns it.
        """
        definition, call = self._self_identify(args, kwargs)
        definition.put(call, value)

    def reference(self, /, *args: P.args, **kwargs: P.kwargs) -> Result:
        """A picklable reference to the result of this call, which runs first unless it is recorded.

        Coroutine and generator functions are not run: `NotRecorded` if there is no result yet.
        """
        definition, call = self._self_identify(args, kwargs)
        entry, why = definition.find(call)
        if entry is None and definition.is_plain:
            step, first = self._self_parts()
            step(*first, *args, **kwargs)
            entry, why = definition.find(call)
        if entry is None:
            raise NotRecorded(f"there is no result of {call.node.id} to refer to" + (f" ({why})" if why else ""))
        return Result(definition.name, call.run.store, entry.key)

    def within(self, max_age: Duration, *, stale: Duration | None = None) -> Self:
        """The same step with another maximum age: `rates.within("1h")("EUR")` reuses no result older than an hour.

        It replaces the options `expires` and `stale`. The result is recorded for all, whatever age they accept.
        """
        step, _ = self._self_parts()
        limited: Any = Step(step.__wrapped__, {}, step._self_reference, (step, max_age, stale))
        bound: Any = self
        same: Self = limited if bound is step else limited.__get__(bound._self_instance, bound._self_owner)
        return same

    def explain(self, /, *args: P.args, **kwargs: P.kwargs) -> Explanation:
        """Say whether this call would be skipped now, or why it would run: what changed since it was recorded."""
        definition, call = self._self_identify(args, kwargs)
        entry, why = definition.find(call)
        if entry is None:
            reason = Reason(why) if why else definition.compare(call)
            return Explanation(definition.name, call.node.id, False, reason.text, reason.changes)
        message = f"reused: recorded on {effects_once.at(entry)}, took {entry.seconds:.1f} s"
        return Explanation(definition.name, call.node.id, True, message)

    def fingerprint(self, /, *args: P.args, **kwargs: P.kwargs) -> Fingerprint:
        """The identity of this call: what its checkpoint depends on, as named parts with digests."""
        step, first = self._self_parts()
        identity, given = step._self_definition.identity, (*first, *args)
        arguments = identity.identify(identity.bind(*given, **kwargs), given, kwargs)
        run = step._self_find_run()
        now = identity.look(versions=run is not None and run.compares_versions)
        return Fingerprint(arguments.digest + now.digest, {**arguments.parts, **now.parts, **now.data_parts})

    def __repr__(self) -> str:
        step, _ = self._self_parts()
        function = step._self_function
        qualname = getattr(function, "__qualname__", None)  # a partial has none
        return f"<step {step._self_definition.name if qualname is None else f'{function.__module__}.{qualname}'}>"


class Step(_Verbs[P, R], _FunctionWrapper):
    """A function decorated with `@checkpointed`. It is called, inspected and typed like the function itself."""

    # wrapt's rule: attributes that begin with `_self_` are the step's own, all others are the function's.
    # They are not annotated in the class body, which would hide the function's `__annotations__`.

    def __init__(
        self,
        wrapped: Callable[P, R],
        options: dict[str, Any],
        reference: Reference | None = None,
        limits: tuple[Any, Duration, Duration | None] | None = None,  # see `within`: the step, its other ages
    ) -> None:
        super().__init__(wrapped, _not_used)
        function: Any = wrapped.__func__ if isinstance(wrapped, (classmethod, staticmethod)) else wrapped
        self._self_function: Callable[P, R] = function
        self._self_limits = limits
        self._self_definition = (
            Definition(function, options) if limits is None else limits[0]._self_definition.within(*limits[1:])
        )
        self._self_reference = reference  # the run of the scope in which the step was pickled
        self._self_scoped = reference is None and not self._self_definition.share  # recorded only inside a scope

    __class__ = property(lambda self: Step)  # with wrapt's, "function", cloudpickle would drop the step

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._self_scoped and not engaged:  # no scope is open anywhere in the process
            return self._self_function(*args, **kwargs)
        definition = self._self_definition
        try:
            run = self._self_find_run()
            result: R = definition.call_plainly(args, kwargs) if run is None else definition.call(run, args, kwargs)
            return result
        except BaseException as error:
            error.__traceback__ = trimmed(error.__traceback__)
            raise error  # not a bare `raise`: Python 3.10 would restore the whole traceback

    if not TYPE_CHECKING:  # for type checkers, only the steps of methods bind, see `_MethodStep`

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            bound = super().__get__(instance, owner)
            return self if bound.__wrapped__ is self.__wrapped__ else bound  # like a function accessed on its class

    def _self_parts(self) -> tuple[Step[Any, Any], tuple[Any, ...]]:
        return self, ()

    def __copy__(self) -> Step[P, R]:
        return self  # as with functions

    def __deepcopy__(self, memo: object) -> Step[P, R]:
        return self

    def _self_find_run(self) -> Session | None:
        """The run that a call made here belongs to."""
        definition = self._self_definition
        return find_run(self._self_reference, share=definition.share, store=definition.options["store"])

    def _self_run(self) -> Reference | None:
        """The run to pickle with the step, so that a worker takes part in it."""
        run = session_here(sends=True)
        return self._self_reference if run is None else run.share()

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self._self_limits is not None:
            return _load_limited, self._self_limits
        function, options, reference = self._self_function, self._self_definition.options, self._self_run()
        if not isinstance(function, FunctionType):  # a partial, builtin or callable object, pickled as such
            return _load, (function, options, reference, None)
        module, name = function.__module__, function.__qualname__
        if function is self.__wrapped__ and _by_name(module, name) is function:  # a library's function, say
            return _load, (function, options, reference, None)
        if module != "__main__" and _by_name(module, name) is self:
            return _load_named, (module, name, reference)
        kind = None if function is self.__wrapped__ else type(self.__wrapped__)
        return _load, (_OwnFunction(function), options, reference, kind)


class BoundStep(_Verbs[P, R], _BoundFunctionWrapper):
    """A step accessed on an instance, or a classmethod or staticmethod accessed on its class."""

    __class__ = property(lambda self: BoundStep)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        step, first = self._self_parts()
        result: R = step(*first, *args, **kwargs)
        return result

    def _self_parts(self) -> tuple[Step[Any, Any], tuple[Any, ...]]:
        step: Any = self._self_parent
        bound: Any = self.__wrapped__
        return step, () if isinstance(step.__wrapped__, staticmethod) else (bound.__self__,)

    def __reduce_ex__(self, protocol: Any) -> Any:
        step, first = self._self_parts()
        if step._self_limits is not None:
            unlimited, *limits = step._self_limits
            return _load_limited, (unlimited.__get__(self._self_instance, self._self_owner), *limits)
        return _load_bound, (first[0] if first else self._self_owner, self.__name__, step._self_run())


if TYPE_CHECKING:  # At run time, all of these are a `Step`; type checkers have to know how each one binds.
    Receiver = TypeVar("Receiver")
    Receiver_contra = TypeVar("Receiver_contra", contravariant=True)
    Returned = TypeVarWithDefault("Returned", default=Any)  # mypy finds no type for `Self`, and would take `Never`

    class _Method(Protocol[Receiver_contra, P, R]):
        """A function whose first parameter is named `self`. Nothing else tells a method from a staticmethod here."""

        def __call__(_function, self: Receiver_contra, *args: P.args, **kwargs: P.kwargs) -> R: ...

    class _ClassMethod(Protocol[Receiver_contra, P, R]):
        """A function whose first parameter is named `cls`."""

        def __call__(_function, cls: Receiver_contra, *args: P.args, **kwargs: P.kwargs) -> R: ...

    class _MethodStep(Step[Concatenate[Any, P], R]):
        """The step of a method, bound when it is accessed on an instance."""

        # Not what a call on the class or an instance sees: `__get__` comes first. pyright compares this signature with the
        # methods of a protocol (without `self`), and `property` calls it (with `self`); both have to fit.
        def __call__(self, /, *args: Any, **kwargs: Any) -> R: ...
        @overload
        def __get__(self, instance: None, owner: type[Receiver]) -> Step[Concatenate[Receiver, P], R]: ...
        @overload
        def __get__(self, instance: object, owner: type | None = None) -> BoundStep[P, R]: ...
        def __get__(self, instance: object, owner: type | None = None) -> Any: ...

    class _ClassMethodStep(_MethodStep[P, R]):
        """The step of a classmethod, bound wherever it is accessed."""

        def __get__(self, instance: object, owner: type | None = None) -> BoundStep[P, R]: ...  # type: ignore[override]

else:
    Step.__bound_function_wrapper__ = BoundStep


def _not_used(wrapped: object, instance: object, args: object, kwargs: object) -> object:
    """wrapt requires a wrapper function; `Step.__call__` replaces it."""
    raise NotImplementedError


# -- steps in pickles


class _OwnFunction(_ObjectProxy):
    """A step's function in the step's pickle: by name in plain pickles, by value in those of cloudpickle.

    The function's name refers to the step, so plain pickle needs `_load_function`. cloudpickle (also the copies in joblib
    and others) treats anything that claims to be a function as one, so it works where the script can't be imported.
    """

    def __reduce_ex__(self, protocol: Any) -> Any:
        module, name = self.__wrapped__.__module__, self.__wrapped__.__qualname__
        if not isinstance(_by_name(module, name), Step):
            raise UsageError(f"step {name} can only be pickled by cloudpickle: it is not found by name in a module")
        return _load_function, (module, name)


def _by_name(module: str, name: str) -> Any:
    """The object with that qualified name, or None."""
    try:
        found: Any = functools.reduce(lambda owner, word: vars(owner)[word], name.split("."), find_module(module))
    except (KeyError, TypeError, ImportError):
        return None
    return found.__func__ if type(found) in (classmethod, staticmethod) else found


def _load_function(module: str, name: str) -> Any:
    return _by_name(module, name)._self_function


def _load_named(module: str, name: str, reference: Reference | None) -> Any:
    return _sent(_by_name(module, name), reference)


def _load_bound(owner: Any, name: str, reference: Reference | None) -> Any:
    found = getattr(owner, name)
    if reference is None:
        return found
    step: Any = _sent(found._self_parent, reference)
    return step.__get__(found._self_instance, found._self_owner)


def _load_limited(step: Any, max_age: Duration, stale: Duration | None) -> Any:
    return step.within(max_age, stale=stale)


def _load(function: Any, options: dict[str, Any], reference: Reference | None, kind: Any) -> Any:
    if isinstance(function, FunctionType):
        came_from(function.__globals__)
        found = _by_name(function.__module__, function.__qualname__)
        if isinstance(found, Step) and found._self_function is function:
            return _sent(found, reference)
    return Step(function if kind is None else kind(function), options, reference)


def _sent(step: Step[P, R], reference: Reference | None) -> Step[P, R]:
    """The step as a worker gets it, belonging to the run it was sent from, if any."""
    return step if reference is None else Step(step.__wrapped__, step._self_definition.options, reference)


# -- the decorators


class Decorator(Protocol):
    """Turns a function into a step."""

    @overload
    def __call__(self, function: _Method[Receiver, P, Returned], /) -> _MethodStep[P, Returned]: ...
    @overload
    def __call__(self, function: _ClassMethod[Receiver, P, Returned], /) -> _ClassMethodStep[P, Returned]: ...
    @overload
    def __call__(self, function: Callable[P, T], /) -> Step[P, T]: ...


class Options(TypedDict, total=False):
    """The options of `memoized`, described in `checkpointed`."""

    name: str | None
    version: str | None
    ignore: Collection[str]
    key: Key | None
    code: Literal["deep", "own", "version"]
    expires: Duration | None
    stale: Duration | None
    validate: Callable[[Recorded], bool] | None
    every_call: bool
    inputs: Collection[str] | Literal["observed"]
    mutates: bool
    outputs: Outputs
    outputs_keep: bool
    capture_output: bool
    effect: Literal["once"] | None
    retries: Retries
    timeout: Duration | None
    redact: Collection[str]
    packages: Packages
    store: StoreLike | None


class StepOptions(Options, total=False):
    """The options of `checkpointed`."""

    share: bool


DEFAULTS: StepOptions = {
    "name": None,
    "version": None,
    "ignore": (),
    "key": None,
    "code": "deep",
    "share": False,
    "expires": None,
    "stale": None,
    "validate": None,
    "every_call": False,
    "inputs": (),
    "mutates": True,
    "outputs": (),
    "outputs_keep": True,
    "capture_output": False,
    "effect": None,
    "retries": None,
    "timeout": None,
    "redact": (),
    "packages": "record",
    "store": None,
}


Definition.defaults = DEFAULTS


# The options that change what callers get: when an earlier result is valid, and what it restores.
_IDENTIFYING = (
    *("version", "ignore", "key", "code", "expires", "stale", "validate", "every_call", "inputs", "mutates", "outputs"),
    *("effect", "packages"),
)


@overload
def checkpointed(function: _Method[Receiver, P, Returned], /) -> _MethodStep[P, Returned]: ...
@overload
def checkpointed(function: _ClassMethod[Receiver, P, Returned], /) -> _ClassMethodStep[P, Returned]: ...
@overload
def checkpointed(function: Callable[P, T], /) -> Step[P, T]: ...
@overload
def checkpointed(**options: Unpack[StepOptions]) -> Decorator: ...
def checkpointed(function: Callable[..., Any] | None = None, /, **options: Unpack[StepOptions]) -> Any:
    """Record what the function returns, so that a run that is started again skips the call.

    Inside `with checkpoint_scope(...)`, completed calls are recorded. A later scope of the same run skips a call with the
    same arguments and code, and returns the recorded result. Outside a scope, the function just runs. Works on functions,
    coroutine functions, generator functions, methods, classmethods, staticmethods, lambdas and partials.

    name        the step's name in the run; default: the function's qualified name
    version     a string that is part of the identity; change it to make every call run again
    ignore      parameters that don't affect the result (clients, loggers, progress bars), or members of `**kwargs`
    key         how arguments are identified: a mapping from parameter to function, or one function of all arguments
    code        which code is part of the identity: "deep" (default), the function and all project code it reaches; "own",
                the function alone; "version", none, only `version`
    share       any run may reuse the result; also works outside a scope, on the default store
    store       with `share`: a path, URL or `Store` for its results, inside scopes, too. The function then runs as if outside
                any scope: it is in no run's history, and neither are the steps that it calls
    expires     results older than this ("1d", "2h", seconds) are not reused
    stale       with `share` and `expires`: for this long after that, an expired result is returned at once, and a thread or
                task computes a new one behind it
    validate    a function that gets the record of a call (`Recorded`) and returns whether the result is valid
    every_call  the n-th identical call in a run has a checkpoint of its own
    inputs      parameters with paths of files whose content is part of the identity; or "observed": the content of every
                file that Python code opens for reading while the function runs, or that an argument names
    effect      "once": a call that was performed is never silently performed again, whatever was edited; if the process
                dies while the function runs, the next run stops and asks (`UnknownOutcome`)
    retries     further tries after an exception: a number (with waits that double, from 1 to 60 seconds), or a
                `tenacity.Retrying`; what a failed try changed is put back before the next one
    timeout     the longest that one try may take ("30s", seconds); after that it fails with `StepTimeout`
    outputs     the files that it writes: patterns like "{folder}/*.csv" over its parameters, or a function of them; they
                are saved, and restored when the call is skipped
    outputs_keep  False: only digests of the outputs are saved; a missing or changed file makes the function run again
    capture_output  what it prints, logs and warns about is shown again when it is skipped
    redact      parameters of which only digests are ever shown; names like `api_key` are always redacted
    packages    "compare": the versions of installed packages that its code uses are part of the identity; by default they
                are recorded, not compared
    mutates     False: the function never changes its arguments in place, so they are not compared before and after

    >>> from oncemore import checkpointed
    >>> @checkpointed(ignore=["client"], version="2")
    ... def label(row, *, client=None):
    ...     return row.upper()
    >>> label("a")
    'A'
    """
    for name in options:
        if name not in DEFAULTS:
            close = get_close_matches(name, DEFAULTS, 1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise TypeError(f"A step has no option {name!r}.{hint} The options are {', '.join(DEFAULTS)}.")

    def decorate(function: Any, /) -> Any:
        if isinstance(function, type) or not (callable(function) or isinstance(function, (classmethod, staticmethod))):
            raise UsageError(f"@checkpointed is for functions, not for {function!r}")
        target: Any = function  # whose type the check has narrowed
        return Step(target, {**DEFAULTS, **options})

    return decorate if function is None else decorate(function)


@overload
def memoized(function: _Method[Receiver, P, Returned], /) -> _MethodStep[P, Returned]: ...
@overload
def memoized(function: _ClassMethod[Receiver, P, Returned], /) -> _ClassMethodStep[P, Returned]: ...
@overload
def memoized(function: Callable[P, T], /) -> Step[P, T]: ...
@overload
def memoized(**options: Unpack[Options]) -> Decorator: ...
def memoized(function: Callable[..., Any] | None = None, /, **options: Unpack[Options]) -> Any:
    """Like `checkpointed(share=True)`: any run may reuse the result, and calls outside a scope are recorded, too.

    >>> from oncemore import memoized
    >>> @memoized(expires="1d")
    ... def rate(currency):
    ...     return len(currency)
    >>> rate("EUR"), rate("EUR")
    (3, 3)
    """
    decorate = checkpointed(share=True, **options)
    return decorate if function is None else decorate(function)
