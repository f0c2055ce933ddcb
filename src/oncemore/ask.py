"""A pause for a human: `run.ask`. The run ends until somebody has answered, and goes on from there when it is started again.

An answer is the checkpoint of a step whose arguments are the question. Its function does not know the answer, so it raises
`RunPaused`; `answer` writes the checkpoint. Forgetting, rolling back and forking therefore treat it like any other.
"""

from __future__ import annotations

import functools
import shlex
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from . import records
from .call import Call, Definition
from .current import current_session
from .entries import RunEntries
from .errors import RunPaused, UsageError, did_you_mean, is_terminal
from .events import Asked, RunResumed, RunStarted, StepCompleted
from .history.explain import Reason
from .node import CheckpointData, steps_around
from .records import Record
from .session import Session
from .stores import Store

_KINDS: dict[str, str] = {"str": "text", "int": "a whole number", "float": "a number", "bool": "yes or no"}
_YES, _NO = ("yes", "y", "true"), ("no", "n", "false")
_terminal = threading.Lock()  # one question at a time


def ask(run: Session, question: str, name: str, choices: Sequence[Any] | None, kind: type, prompt: bool) -> Any:
    """The answer, recorded by an earlier scope or given on the terminal. RunPaused if there is none."""
    if kind.__name__ not in _KINDS:
        raise UsageError(f"question {name}: type={kind!r} is not one of str, int, float, bool")
    if isinstance(choices, str):
        raise UsageError(f"question {name}: choices={choices!r} must be a list: [{choices!r}]")
    if choices is not None and not (choices and all(type(each).__name__ in _KINDS for each in choices)):
        raise UsageError(f"question {name}: choices={choices!r} must be a list of texts or numbers")
    if any(node.identity is not None for node in steps_around()):
        raise UsageError(
            f'question {name}: it is asked in a step with effect="once", which can\'t be paused; ask before calling the step'
        )
    options = list(choices or ())
    on_terminal = functools.partial(_on_terminal, question, options, kind.__name__)
    if run.disabled:
        found = on_terminal() if prompt else None
        if found is None:
            raise UsageError(f"question {name}: with ONCEMORE_DISABLE, no answer can be recorded")
        return found.value
    definition = _definition(name)
    definition.on_terminal = on_terminal if prompt else None
    return definition.call(run, (question, options, kind.__name__), {})


class PausedInWorker(RunPaused, Exception):
    """A pause in the process of a worker, where only an `Exception` is sure to reach the process that waits for it."""


class PausedExit(RunPaused, SystemExit):
    """A pause that has left its scope: a script that does not catch it ends without a traceback."""

    def __init__(self, run: str, questions: Sequence[Asked]) -> None:
        super().__init__(run, questions)
        self.code = self.exit_code


class _Question(Definition):
    """The step of a question."""

    on_terminal: Any = None

    def __init__(self, function: Any, options: dict[str, Any]) -> None:
        super().__init__(function, options)
        self.only_by_name = True  # with refresh=True, the run would pause again after every answer

    def reason(self, call: Call) -> Reason:
        question, choices, _ = call.arguments.bound
        return Reason(f"asks: {shown(question, choices)}")


def _definition(name: str) -> _Question:
    definition: _Question

    def function(question: str, choices: list[Any], type: str) -> Any:
        return _find_answer(definition, question, choices, type)

    definition = _Question(
        function, {**Definition.defaults, "name": name, "code": "version", "version": "ask", "mutates": False}
    )
    return definition


def _find_answer(definition: _Question, question: str, choices: list[Any], kind: str) -> Any:
    """Ask on the terminal, or put the question into the log and pause the run."""
    found = definition.on_terminal() if definition.on_terminal is not None else None
    if found is not None:
        return found.value
    run, node = current_session(), steps_around()[-1]
    assert run is not None, "the function of a question is only called in a run"
    event = run.record_question(node, question=question, choices=choices, type=kind)
    # Pools of `multiprocessing` lose an exception in a worker that is no `Exception`, and wait for ever.
    raise (PausedInWorker if run.joined else RunPaused)(run.id, (event,))


class _Answer(NamedTuple):
    value: Any


def _on_terminal(question: str, choices: list[Any], kind: str) -> _Answer | None:
    """Ask on the terminal until the answer is valid; None without a terminal, or at the end of the input."""
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        return None
    with _terminal:
        while True:
            sys.stderr.write(f"{shown(question, choices)} ")
            sys.stderr.flush()
            line = sys.stdin.readline()
            if not line:
                return None
            try:
                return _Answer(parsed(line.strip(), choices, kind))
            except UsageError as error:
                sys.stderr.write(f"{error}\n")


def shown(question: str, choices: Sequence[Any]) -> str:
    """The question with its choices, in one line."""
    line = " ".join(question.split())
    return f"{line} ({', '.join(map(str, choices))})" if choices else line


def parsed(value: Any, choices: Sequence[Any], kind: str) -> Any:
    """The answer that `value` stands for: one of the choices, or of that type. Text may stand for any of them."""
    if choices:
        for each in choices:
            if (type(value) is type(each) and value == each) or value == str(each):
                return each
        raise UsageError(f"{value!r} is not one of the choices: {', '.join(map(str, choices))}")
    if type(value).__name__ == kind:
        return value
    try:
        if kind in ("int", "float") and isinstance(value, (str, int)) and not isinstance(value, bool):
            return int(value) if kind == "int" else float(value)
    except ValueError:
        pass
    if kind == "bool" and isinstance(value, str) and value.lower() in (*_YES, *_NO):
        return value.lower() in _YES
    raise UsageError(f"{value!r} is not {_KINDS.get(kind, kind)}")


# -- answers from outside


def pending(store: Store, record: Record) -> list[Asked]:
    """The questions of the run's last scope that nobody has answered."""
    found: dict[tuple[str, str], Asked] = {}
    for event in records.read_log(store, record.log):
        if isinstance(event, (RunStarted, RunResumed)):
            found.clear()
        elif isinstance(event, Asked):
            found[event.step, event.fingerprint] = event
        elif isinstance(event, StepCompleted):
            found.pop((event.step, event.fingerprint), None)
    return list(found.values())


def answer(store: Store, run_id: str, which: str, value: Any) -> Any:
    """Record the answer to a question, given by its name or node. Returns the answer, which `value` may be the text of."""
    record = records.read(store, run_id)
    questions = pending(store, record)
    named = [each for each in questions if each.node == which] or [each for each in questions if each.step == which]
    if not named:
        names = [name for each in questions for name in (each.step, each.node)]
        known = ", ".join(each.node for each in questions) or "none"
        hint = did_you_mean(which, names)
        raise UsageError(f"run {run_id} waits for no answer to {which!r}; open questions: {known}.{hint}")
    if len(named) > 1:
        nodes = ", ".join(each.node for each in named)
        raise UsageError(f"{len(named)} questions are named {which}; answer them one by one: {nodes}")
    [asked] = named
    found = parsed(value, asked.choices, asked.type)
    identity = _definition(asked.step).identity
    given = asked.question, asked.choices, asked.type
    arguments, behaviour = identity.identify(identity.bind(*given), given, {}), identity.look()
    entries = RunEntries(store, record.uid, record.prefix, record.log)
    node = entries.node(asked.step, arguments.digest, behaviour.digest)
    reason = f"answered: {shown(asked.question, asked.choices)}"
    parts = arguments.parts
    meta: dict[str, Any] = {"step": asked.step, "reason": reason, "arguments": {n: p.digest for n, p in parts.items()}}
    meta["shown"] = {n: p.to_json() for n, p in parts.items() if p.shown}
    data = CheckpointData(found, meta, behaviour.parts, seen=store.get(node.key))
    packed = entries.pack(node, data, seconds=0.0, time=time.time())
    fields: dict[str, Any] = {**node.about(), **Reason(reason).fields(), "seconds": 0.0}
    if asked.snapshot and asked.snapshot in store.get_many([asked.snapshot], most=0):  # else it has been pruned
        fields.update(snapshot=asked.snapshot, behind=asked.behind)
    if entries.write(node, packed, data, fields) is None:
        raise UsageError(f"run {run_id}: {asked.node} has just been answered by somebody else")
    return found


def instructions(store: Store, run_id: str, *, default_store: bool) -> str:
    """What people have to do now that the run is paused."""
    questions = pending(store, records.read(store, run_id))
    names = [each.step for each in questions]
    lines = [f"run {run_id} is paused until {'this is' if len(questions) == 1 else 'these are'} answered:"]
    where = [] if default_store else ["--store", store.url]
    for each in questions:
        which = each.step if names.count(each.step) == 1 else each.node
        command = ["oncemore", "answer", *where, run_id, which, str(each.choices[0]) if each.choices else "ANSWER"]
        lines += [f"  {shown(each.question, each.choices)}", f"    {shlex.join(command)}"]
    return "\n".join([*lines, "Then run the script again."])
