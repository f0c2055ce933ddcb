"""Runs as JSON: for people and other languages. What JSON cannot hold exactly is left out and said so.

Nobody has signed such a file. An import takes values and plain facts from it, each from a list and of the type it must have, under
the run's own keys; nothing that a skipped step would act on (effects, files, reads, items, code) is ever taken from it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from .. import records
from ..codec import Decoded, alias, encode, tombstone
from ..effects_once import COMPLETED, RESOLVED
from ..errors import CodecError, IntegrityError, NotRecorded, StoreError, UsageError
from ..events import Event, Forked, RunImported, SnapshotSaved, StepCompleted
from ..identity import CallIdentity
from ..keys import intent_key, intents_of, record_key, state_of
from ..node import LEFT_OUT
from ..records import Record, checked, sealed, signed
from ..same_call import CLEARED, SAME_AS
from ..secret import secret
from ..stores import Bytes, Frames, Store
from .checkpoints import Checkpoint, checkpoints_of
from .timeline import place_of

FORMAT = "oncemore json 1"
_MORE_THAN_A_RESULT = {"effects", "reads", "items", "files", "roots", "blobs"}


def export_json(store: Store, path: str | os.PathLike[str], runs: Sequence[str]) -> None:
    """Write the runs. The file replaces what was there only when it is complete."""
    text = json.dumps({"format": FORMAT, "runs": [_run(store, run_id) for run_id in runs]}, indent=1)
    draft = f"{os.fspath(path)}.part"
    with open(draft, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(draft, path)


def _run(store: Store, run_id: str) -> dict[str, Any]:
    record = records.read(store, run_id)
    return {
        "id": run_id,
        "uid": record.uid,
        "workflow": record.workflow,
        "created": record.created,
        "attempts": record.attempts,
        "ending": record.ending,
        "parent": record.parent,
        "prefix": record.prefix,
        "events": [{"seq": e.seq, **json.loads(e.to_json())} for e in records.read_log(store, record.log)],
        "checkpoints": [_checkpoint(store, c) for c in checkpoints_of(store, run_id, record)],
        "once": [_intent(key, data) for key, data in store.scan(intents_of(record.uid)) if data is not None],
    }


_INTENT = ("step", "node", "given", "call", "identity", "doubt", "as", "of")  # what is said of one


def _intent(key: str, data: Bytes) -> dict[str, Any]:
    """What became of an effect="once" step."""
    entry = Decoded(data, key=key, secret=secret())
    fields = {name: entry.meta[name] for name in _INTENT if name in entry.meta} | {"time": entry.time}
    if entry.meta.get("settled") and not entry.meta.keys() & {"effects", "roots", "reads"}:
        try:
            value = entry.load()
        except CodecError:
            return fields
        if exact(value):
            fields.update(settled=entry.meta["settled"], result=value)
    return fields


def _checkpoint(store: Store, checkpoint: Checkpoint) -> dict[str, Any]:
    fields = checkpoint.as_dict() | {"entry": checkpoint.entry, "snapshot": checkpoint.snapshot}
    for name, load in (("result", checkpoint.result), ("state", checkpoint.state)):
        if name == "result" and not checkpoint.entry:
            continue
        try:
            value = load()
        except (NotRecorded, StoreError, CodecError):
            continue
        if exact(value):
            fields[name] = value
    if "result" in fields:
        meta = checkpoint.meta()
        if not meta.keys() & _MORE_THAN_A_RESULT:  # the result is all there is to it
            fields["kept"] = {name: meta[name] for name in ("step", "time", "seconds", "arguments")}
    return fields


def exact(value: Any) -> bool:
    """Whether JSON gives the same value back, types and all."""
    if type(value) is dict:
        return all(type(key) is str and exact(child) for key, child in value.items())
    if type(value) is list:
        return all(map(exact, value))
    return type(value) in (str, int, bool, type(None)) or (type(value) is float and value - value == 0)


def import_json(store: Store, path: str | os.PathLike[str]) -> list[str]:
    """Bring the runs in; importing twice changes nothing.

    States that the file holds count again, and so do results of steps that did nothing else to the run.
    """
    try:
        with open(path, encoding="utf-8") as file:
            content: dict[str, Any] = json.load(file)
        if content["format"] != FORMAT:
            raise UsageError(f"{os.fspath(path)} is a {content['format']!r}; this oncemore reads {FORMAT!r}")
        planned = [(run["id"], *_planned(run)) for run in content["runs"]]
        if len({record.uid for _, record, _, _ in planned}) < len(planned):
            raise ValueError("two of its runs have the same uid")
    except UsageError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise IntegrityError(f"{os.fspath(path)} is damaged ({error!r}); nothing was imported") from error
    here = dict(records.scan(store))
    marks = {record.uid for record in here.values()}
    for run_id, record, _, _ in planned:
        if run_id in here and here[run_id].uid != record.uid:
            raise UsageError(f"there is another run {run_id!r} in {store.url}: rename or delete it first")
    coming = [each for each in planned if each[1].uid not in marks]
    known = {record.uid for _, record, _, _ in coming if _has_entries(store, record)}  # deleted, and forks need them
    for run_id, record, _, _ in coming:
        if record.uid in known and store.get(f"gone/{record.uid}") is None:
            raise UsageError(
                f"run {run_id!r} of {os.fspath(path)} has entries in {store.url}, but its record there is missing or can't be "
                f"verified: nothing was imported. See `oncemore verify` and `oncemore key`"
            )
    for run_id, record, put, log in coming:
        there = store.get_many(put, most=0) if record.uid in known else {}  # what forks share stays as it is
        put = {key: frames for key, frames in put.items() if key not in there}
        put[record_key(run_id)] = sealed(record_key(run_id), record)
        append = {} if record.uid in known else {record.log: log}
        store.commit(put=put, append=append, delete=[f"gone/{record.uid}"], expect={record_key(run_id): None})
    return [run_id for run_id, *_ in planned]


def _has_entries(store: Store, record: Record) -> bool:
    starts = (record.log, f"node/{record.uid}", state_of(record.uid), intents_of(record.uid))
    return any(next(store.scan(start, limit=1, most=0), None) is not None for start in starts)


# -- what is taken from a file that anyone may have written

_DIGESTS = r"[0-9a-f]+\.[^/@]+"  # of a node: arguments and code
_TYPES: dict[str, Callable[[Any], bool]] = {  # by how the fields of events and records are declared
    "str": lambda value: type(value) is str,
    "str | None": lambda value: value is None or type(value) is str,
    "int": lambda value: type(value) is int and value >= 0,
    "float": lambda value: type(value) in (int, float) and value - value == 0,
    "bool": lambda value: type(value) is bool,
    "list[int]": lambda value: type(value) is list and all(map(_TYPES["int"], value)),
    "list[dict[str, str]]": lambda value: type(value) is list and all(map(_TYPES["Mapping[str, str]"], value)),
    "dict[str, Any]": lambda value: type(value) is dict and exact(value),
    "Mapping[str, str]": lambda value: type(value) is dict and all(map(_TYPES["str"], value.values())),
    "Mapping[str, Mapping[str, str]]": lambda value: (
        type(value) is dict and all(map(_TYPES["Mapping[str, str]"], value.values()))
    ),
    "tuple[str, ...]": lambda value: type(value) is list and all(map(_TYPES["str"], value)),
}


def _taken(fields: Mapping[str, Any], name: str, kind: str) -> Any:
    """A value of the file, if it has the type that it must have."""
    value = fields[name]
    if not _TYPES[kind](value):
        raise ValueError(f"{name!r} is {value!r:.60}, not {kind}")
    return value


def _is_node(uid: str, key: str) -> bool:
    """Whether it is the key of a node's entry that belongs to the run."""
    return re.fullmatch(rf"node/{uid}(\.[0-9a-f]+)?/[^/$^@][^/@]*/{_DIGESTS}(@[0-9a-f]+)?", key) is not None


def _is_snapshot(uid: str, key: str) -> bool:
    return re.fullmatch(rf"state/{uid}/[0-9a-f]+", key) is not None


def _planned(run: Mapping[str, Any]) -> tuple[Record, dict[str, Frames], list[bytes]]:
    """What importing one run writes."""
    checked(run["id"])
    uid, prefix = _taken(run, "uid", "str"), _taken(run, "prefix", "str")
    if not re.fullmatch("[0-9a-f]{16}", uid):
        raise ValueError(f"{uid!r} is no mark of a run")
    if not re.fullmatch(rf"node/{uid}(\.[0-9a-f]+)?/", prefix):
        raise ValueError(f"{prefix!r} is no prefix of the run")
    record = Record(
        uid,
        prefix,
        _taken(run, "workflow", "str | None"),
        created=_taken(run, "created", "float"),
        ending=_taken(run, "ending", "str"),
        attempts=_taken(run, "attempts", "int"),
    )
    put: dict[str, Frames] = {}
    for checkpoint in run["checkpoints"]:
        # What a fork shares with its parent is not in the file, and nothing outside the run's own keys is written.
        entry, snapshot = _taken(checkpoint, "entry", "str"), _taken(checkpoint, "snapshot", "str")
        if "kept" in checkpoint and _is_node(uid, entry):
            put.update(_entries(entry, checkpoint["result"], checkpoint["kept"]))
            record.nodes += 1
            record.bytes += _taken(checkpoint, "stored_bytes", "int")
        if "state" in checkpoint and _is_snapshot(uid, snapshot):
            value = {"state": _taken(checkpoint, "state", "dict[str, Any]"), "generators": {}}
            put[snapshot] = encode(value, {}, key=snapshot, secret=secret()).frames
    for intent in run.get("once", ()):
        put.update(_performed(uid, intent))
    fields = sorted(run["events"], key=lambda fact: _taken(fact, "seq", "int"))
    if [fact["seq"] for fact in fields] != list(range(1, len(fields) + 1)):
        raise ValueError("its events are not numbered from 1 without gaps")
    events = [_event(uid, fact) for fact in fields]
    log = [signed(record.log, event, secret()) for event in events]
    record.counted = len(log)
    completed = [(number, e.entry) for number, e in enumerate(events, 1) if isinstance(e, StepCompleted)]
    left_out = [(number, entry) for number, entry in completed if entry not in put]
    for key in [key for key in put if key.startswith("node/") and not key.startswith(prefix)]:
        put[prefix + place_of(key)] = alias(prefix + place_of(key), secret(), key)
    for _, entry in left_out:
        if _is_node(uid, entry):
            node = prefix + place_of(entry).partition("@")[0]
            put.setdefault(node, tombstone(node, secret(), LEFT_OUT))
    without = [number for number, _ in left_out]
    return record, put, [*log, signed(record.log, RunImported(without=without), secret())]


def _event(uid: str, fact: Mapping[str, Any]) -> Event:
    """An event of the file. It names entries of its own run only: retention removes what events name."""
    kind = Event.kinds.get(fact["event"], Event)
    left_out = ("seq", "log", "until", "within") if kind is Forked else ("seq",)  # what it took over is not in the file
    known = {each.name: each for each in fields(kind) if each.name in fact and each.name not in left_out}
    given = {name: _taken(fact, name, str(each.type)) for name, each in known.items()}
    if given.get("log") and not re.fullmatch("event/[0-9a-f]{16}/", given["log"]):
        raise ValueError(f"{given['log']!r} is no log")
    entry = given.get("entry", "")
    loop = kind is SnapshotSaved and (not entry or re.fullmatch(rf"node/{uid}(\.[0-9a-f]+)?/\$/[^/]+/[^/]+", entry))
    shared = re.fullmatch(rf"shared/[^/]+/{_DIGESTS}(@[0-9a-f]+)?", entry)
    if "entry" in given and not (loop or shared or _is_node(uid, entry)):
        raise ValueError(f"event {fact['seq']} names {entry!r:.60}, which is no entry of the run")
    if not re.fullmatch(_DIGESTS, given.get("fingerprint", "0.0")):
        raise ValueError(f"{given['fingerprint']!r:.60} is no fingerprint")
    if "snapshot" in given and not _is_snapshot(uid, given["snapshot"]):
        given["snapshot"] = ""  # that of a parent: it is not in the file
    if "compared_with" in given and not _is_node(uid, given["compared_with"]):
        given["compared_with"] = ""
    return kind(**given)


def _performed(uid: str, intent: Mapping[str, Any]) -> dict[str, Frames]:
    """What became of an effect="once" step. Without a result that could be kept, its outcome is for the user to settle."""
    about = {name: _taken(intent, name, "str") for name in _INTENT if name in intent and name != "identity"}
    identity = intent["identity"]
    about["identity"] = {each.name: _taken(identity, each.name, str(each.type)) for each in fields(CallIdentity)}
    result = None
    if intent.get("settled") in (COMPLETED, RESOLVED, SAME_AS, CLEARED):
        about["settled"] = intent["settled"]
        result = intent.get("result") if intent["settled"] in (COMPLETED, RESOLVED) else None
    key = intent_key(uid, about["call"])
    return {key: encode(result, about, key=key, secret=secret(), time=_taken(intent, "time", "float")).frames}


def _entries(key: str, value: Any, kept: Mapping[str, Any]) -> dict[str, Frames]:
    """A checkpoint's entry, and where it stands beside its node's own, that one, too."""
    about = {"step": _taken(kept, "step", "str"), "arguments": _taken(kept, "arguments", "Mapping[str, str]")}
    seconds, time = _taken(kept, "seconds", "float"), _taken(kept, "time", "float")
    entry = encode(value, about, key=key, secret=secret(), seconds=seconds, time=time)
    node, _, beside = key.partition("@")
    pointer = {**about, "readings": [[]], "reads": {}}
    more = {node: encode(None, pointer, key=node, secret=secret()).frames} if beside else {}
    return {key: entry.frames, **more}
