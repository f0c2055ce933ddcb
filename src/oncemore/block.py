"""A piece of a script as a step: `with run.block("clean") as b:`.

The body of the statement takes the place of the function: its code, what it reads and what it changes count like those of a
function. The path of a call (see call.py) is suspended where it would call the function, and goes on when the body has ended.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Collection, Mapping
from functools import partial
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from .call import Definition, Invoke
from .errors import FingerprintError, UsageError, warn
from .flight import drive, drive_async
from .identity.code.blocks import Body, NoSource, find, local_names
from .surroundings.block_variables import Assigned

if TYPE_CHECKING:
    from .flight import Path, Request
    from .session import Session

_SUSPENDED: Any = object()


class Block:
    """A piece of a script that is recorded like the call of a step. Made by `run.block`.

    `todo` says whether the body has to run: it is False if the block is skipped. `value` is the result, set by the body or
    recalled.
    """

    # Only plain data, because steps that read it depend on it. The rest of an open block's state is in `_open`.

    def __init__(
        self, run: Session, name: str, values: Mapping[str, Any], ignore: Collection[str], frame: FrameType
    ) -> None:
        self.name, self.todo = name, False
        self._has_value, self._value = False, None
        _open[self] = _Open(run, name, values, ignore, frame)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    @property
    def value(self) -> Any:
        if not self._has_value:
            why = "its body has not set it yet" if self.todo else "its body does not set it"
            raise UsageError(f"block {self.name} has no value: {why}")
        return self._value

    @value.setter
    def value(self, value: Any) -> None:
        if not self.todo:
            raise UsageError(f"block {self.name}: its value can only be set in its body, under `if b.todo:`")
        self._has_value, self._value = True, value

    def __enter__(self) -> Block:
        path = self._begin()
        if path is not None:
            self._entered(drive(path))
        return self

    async def __aenter__(self) -> Block:
        path = self._begin()
        if path is not None:
            self._entered(await drive_async(path))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        path = self._end(error)
        if path is not None:
            with _PassedOn(error):
                drive(path)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        path = self._end(error)
        if path is not None:
            with _PassedOn(error):
                await drive_async(path)

    def _begin(self) -> Path[Any] | None:
        """The path that decides whether the body runs; None if the body always runs and is not recorded."""
        call = _open.get(self)
        if call is None or call.entered:
            raise UsageError(f"block {self.name} can be entered only once; call run.block(...) again")
        call.entered = True
        if call.path is None:
            call.warn()
            self.todo = True
            return None
        path = call.path
        return _until_body(path, lambda: next(path))

    def _entered(self, result: Any) -> None:
        self.todo = result is _SUSPENDED
        if not self.todo:
            assigned = _open.pop(self).assigned
            if assigned is not None and assigned.valued:
                self._has_value, self._value = True, result

    def _end(self, error: BaseException | None) -> Path[Any] | None:
        """The rest of the path, now that the body has ended; None if nothing is left to do."""
        call, self.todo = _open.pop(self, None), False
        if call is None or call.path is None or call.assigned is None:
            return None
        path, thrown = call.path, error
        if thrown is not None:
            return _until_body(path, lambda: path.throw(thrown))
        call.assigned.valued = self._has_value
        return _until_body(path, lambda: path.send(self._value))


class _Open:
    """A block that has not ended: the path of its call, if its source is known."""

    def __init__(
        self, run: Session, name: str, values: Mapping[str, Any], ignore: Collection[str], frame: FrameType
    ) -> None:
        self._run, self._name = run, name
        self.entered, self._why_not = False, ""
        self.assigned: Assigned | None = None
        self.path: Path[Any] | None = None
        if run.disabled:
            return
        try:
            body = find(frame, name)
        except NoSource as error:
            self._why_not = str(error)
            return
        self.assigned = Assigned(body, frame)
        if self.assigned.lost:
            names = ", ".join(f"`{each}`" for each in self.assigned.lost)
            raise UsageError(
                f"block {name}: its body assigns {names}, which {frame.f_code.co_name}() reads after it, and before Python "
                f"3.13 a skipped block can't set a function's local variables. Set {body.handle}.value in the body, and "
                f"assign {names} from it after the block"
            )
        self.path = _path(run, name, values, ignore, frame, body, self.assigned)

    def warn(self) -> None:
        """Say that the body runs every time."""
        if self._why_not:
            warn(f"block {self._name} runs every time and is not recorded: {self._why_not}")
            self._run.unkept.setdefault(self._name, self._why_not)
            self._run.will_run_without_node(self._name, self._why_not)


_open: weakref.WeakKeyDictionary[Block, _Open] = weakref.WeakKeyDictionary()


def _path(
    run: Session,
    name: str,
    values: Mapping[str, Any],
    ignore: Collection[str],
    frame: FrameType,
    body: Body,
    assigned: Assigned,
) -> Path[Any]:
    """The path of the block's call. Its arguments are the variables that differ from call to call, and the values given."""
    local, now = local_names(frame), {**frame.f_globals, **frame.f_locals}
    names = body.reads | body.first | (local if body.dynamic else frozenset())
    unknown = [ignore] if isinstance(ignore, str) else sorted(set(ignore) - names)
    if unknown:
        read = ", ".join(sorted(names & now.keys())) or "none"
        raise UsageError(f"block {name}: ignore names {unknown[0]!r}, which its body does not read. It reads: {read}")
    as_arguments = local | body.first | set(ignore) | values.keys()
    variables = {each: now[each] for each in sorted(names & as_arguments & now.keys())}
    # A value given under the name of a variable identifies it.
    key = {each: value for each, value in values.items() if each in variables and variables[each] is not value}
    keywords = {each: value for each, value in values.items() if each not in variables}
    which = (frame.f_code, frame.f_lineno, name, tuple(variables), tuple(keywords), frozenset(ignore))
    definition = None if key else run.blocks.get(which)
    if definition is None or definition.function.__globals__ is not frame.f_globals:
        options: dict[str, Any] = {
            **Definition.defaults,
            "name": name,
            "ignore": tuple(ignore),
            "key": _constants(key) or None,
        }
        definition = Definition(body.function(frame, name, list(variables), list(keywords)), options)
        if not key:
            run.blocks[which] = definition
    definition = copy.copy(definition)
    definition.options = {**definition.options, "block": assigned}
    assigned.valued = True  # unless restoring its effects says otherwise
    return definition.path(run, (), {**variables, **keywords})


def _constants(values: Mapping[str, Any]) -> dict[str, Callable[[Any], Any]]:
    """Functions that return these values, whatever they are passed."""
    return {name: partial(_constant, value) for name, value in values.items()}


def _constant(value: Any, _: object) -> Any:
    return value


def _until_body(path: Path[Any], resume: Callable[[], Request]) -> Path[Any]:
    """Resume a path, and pass on its requests until it would run the body (`_SUSPENDED`) or ends."""
    try:
        request = resume()
        while not isinstance(request, Invoke):
            try:
                answer = yield request
            except BaseException as error:
                request = path.throw(error)
            else:
                request = path.send(answer)
        return _SUSPENDED
    except StopIteration as end:
        return end.value
    except FingerprintError as error:
        if error.part.startswith("argument "):
            part = f"variable {error.part.partition(' ')[2]}"
            raise FingerprintError(error.kind, error.path, part, error.step) from error.__cause__
        raise


class _PassedOn:
    """Around the end of a path that an error was thrown into: leaves raising it to the `with` statement, and unchanged."""

    def __init__(self, error: BaseException | None) -> None:
        self._error = error
        self._before = (error.__traceback__, error.__context__) if error is not None else None

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, raised: BaseException | None, tb: Any) -> bool:
        error = self._error
        if error is None or raised is None or self._before is None:
            return False
        error.__traceback__, error.__context__ = self._before
        # A generator turns StopIteration into RuntimeError.
        return raised is error or (isinstance(error, StopIteration) and raised.__cause__ is error)
