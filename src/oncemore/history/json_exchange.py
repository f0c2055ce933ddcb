"""Runs as JSON, for people and other languages. Values that JSON can't represent exactly are left out and marked as such.

Such a file is not signed. An import takes only known fields from it, checks their types, and writes only under the run's own keys;
it never takes anything that a skipped step would apply (effects, files, reads, items, code).
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
from ..identity.same_call import CLEARED, SAME_AS
from ..keys import NODES, deleted_key, intent_key, intents_of, record_key, state_of
from ..node import LEFT_OUT
from ..records import Record, checked, sealed, signed
from ..settings import secret
from ..stores import Bytes, Frames, Store
from .checkpoints import Checkpoint, checkpoints_of
from .timeline import suffix_of

FORMAT = "oncemore json 1"
_MORE_THAN_A_RESULT = {"effects", "reads", "items", "files", "roots", "blobs"}


def export_json(store: Store, path: str | os.PathLike[str], runs: Sequence[str]) -> None:
    """Write the runs. An existing file is replaced only once the new one is complete."""
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


_INTENT = ("step", "node", "given", "call", "identity", "doubt", "as", "of")  # fields of an intent


def _intent(key: str, data: Bytes) -> dict[str, Any]:
    """An intent: what is known about one call of an effect="once" step."""
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
        if not meta.keys() & _MORE_THAN_A_RESULT:  # it consists of the result alone
            fields["kept"] = {name: meta[name] for name in ("step", "time", "seconds", "arguments")}
    return fields


def exact(value: Any) -> bool:
    """Whether JSON preserves the value exactly, including its types."""
    if type(value) is dict:
        return all(type(key) is str and exact(child) for key, child in value.items())
    if type(value) is list:
        return all(map(exact, value))
    return type(value) in (str, int, bool, type(None)) or (type(value) is float and value - value == 0)


def import_json(store: Store, path: str | os.PathLike[str]) -> list[str]:
    """Import the runs; importing twice changes nothing.

    States in the file become valid, and so do results of steps that had no other effects on the run.
    """
    try:
        with open(path, encoding="utf-8") as file:
            content: dict[str, Any] = json.load(file)
        if content["format"] != FORMAT:
            raise UsageError(f"{os.fspath(path)} has the format {content['format']!r}; this version reads {FORMAT!r}")
        planned = [(run["id"], *_plan_run(run)) for run in content["runs"]]
        if len({record.uid for _, record, _, _ in planned}) < len(planned):
            raise ValueError("two runs have the same uid")
    except UsageError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise IntegrityError(f"{os.fspath(path)} is damaged ({error!r}); nothing was imported") from error
    here = dict(records.scan(store))
    present = {record.uid for record in here.values()}
    for run_id, record, _, _ in planned:
        if run_id in here and here[run_id].uid != record.uid:
            raise UsageError(f"a different run {run_id!r} exists in {store.url}; rename or delete it first")
    new = [each for each in planned if each[1].uid not in present]
    # Runs that were deleted here, but forks need their entries.
    known = {record.uid for _, record, _, _ in new if _has_entries(store, record)}
    for run_id, record, _, _ in new:
        if record.uid in known and store.get(deleted_key(record.uid)) is None:
            raise UsageError(
                f"run {run_id!r} of {os.fspath(path)} has entries in {store.url}, but its record there is missing or can't be "
                f"verified, so nothing was imported. See `oncemore verify` and `oncemore key`"
            )
    for run_id, record, put, log in new:
        existing = store.get_many(put, most=0) if record.uid in known else {}  # shared with forks, so not replaced
        put = {key: frames for key, frames in put.items() if key not in existing}
        put[record_key(run_id)] = sealed(record_key(run_id), record)
        append = {} if record.uid in known else {record.log: log}
        store.commit(put=put, append=append, delete=[deleted_key(record.uid)], expect={record_key(run_id): None})
    return [run_id for run_id, *_ in planned]


def _has_entries(store: Store, record: Record) -> bool:
    starts = (record.log, f"node/{record.uid}", state_of(record.uid), intents_of(record.uid))
    return any(next(store.scan(start, limit=1, most=0), None) is not None for start in starts)


# -- reading an untrusted file

_DIGESTS = r"[0-9a-f]+\.[^/@]+"  # in the key of a node: arguments and code
_TYPES: dict[str, Callable[[Any], bool]] = {  # by the declared types of fields of events and records
    "str": lambda value: type(value) is str,
    "str | None": lambda value: value is None or type(value) is str,
    "int": lambda value: type(value) is int and 0 <= value < 1 << 63,  # a number that prints as a size
    "float": lambda value: type(value) in (int, float) and -6e10 < value < 2.5e11,  # a time that datetime can hold
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


def _checked_field(fields: Mapping[str, Any], name: str, kind: str) -> Any:
    """A field of the file, after checking its type."""
    value = fields[name]
    if not _TYPES[kind](value):
        raise ValueError(f"{name!r} is {value!r:.60}, not {kind}")
    return value


def _is_node(uid: str, key: str) -> bool:
    """Whether this is the key of a node's entry in the run."""
    return re.fullmatch(rf"node/{uid}(\.[0-9a-f]+)?/[^/$^@][^/@]*/{_DIGESTS}(@[0-9a-f]+)?", key) is not None


def _is_snapshot(uid: str, key: str) -> bool:
    return re.fullmatch(rf"state/{uid}/[0-9a-f]+", key) is not None


def _plan_run(run: Mapping[str, Any]) -> tuple[Record, dict[str, Frames], list[bytes]]:
    """The record, entries and log that importing one run writes."""
    checked(run["id"])
    uid, prefix = _checked_field(run, "uid", "str"), _checked_field(run, "prefix", "str")
    if not re.fullmatch("[0-9a-f]{16}", uid):
        raise ValueError(f"{uid!r} is not a valid uid of a run")
    if not re.fullmatch(rf"node/{uid}(\.[0-9a-f]+)?/", prefix):
        raise ValueError(f"{prefix!r} is not a prefix of the run")
    record = Record(
        uid,
        prefix,
        _checked_field(run, "workflow", "str | None"),
        created=_checked_field(run, "created", "float"),
        ending=_checked_field(run, "ending", "str"),
        attempts=_checked_field(run, "attempts", "int"),
    )
    put: dict[str, Frames] = {}
    for checkpoint in run["checkpoints"]:
        # Entries that a fork shares with its parent are not in the file. Only the run's own keys are written.
        entry, snapshot = _checked_field(checkpoint, "entry", "str"), _checked_field(checkpoint, "snapshot", "str")
        if "kept" in checkpoint and _is_node(uid, entry):
            put.update(_entries(entry, checkpoint["result"], checkpoint["kept"]))
            record.nodes += 1
            record.bytes += _checked_field(checkpoint, "stored_bytes", "int")
        if "state" in checkpoint and _is_snapshot(uid, snapshot):
            value = {"state": _checked_field(checkpoint, "state", "dict[str, Any]"), "generators": {}}
            put[snapshot] = encode(value, {}, key=snapshot, secret=secret()).frames
    for intent in run.get("once", ()):
        put.update(_performed(uid, intent))
    raw_events = sorted(run["events"], key=lambda raw: _checked_field(raw, "seq", "int"))
    if [raw["seq"] for raw in raw_events] != list(range(1, len(raw_events) + 1)):
        raise ValueError("its events are not numbered from 1 without gaps")
    events = [_event(uid, raw) for raw in raw_events]
    log = [signed(record.log, event, secret()) for event in events]
    record.counted = len(log)
    completed = [(number, e.entry) for number, e in enumerate(events, 1) if isinstance(e, StepCompleted)]
    left_out = [(number, entry) for number, entry in completed if entry not in put]
    for key in [key for key in put if key.startswith(NODES) and not key.startswith(prefix)]:
        put[prefix + suffix_of(key)] = alias(prefix + suffix_of(key), secret(), key)
    for _, entry in left_out:
        if _is_node(uid, entry):
            node = prefix + suffix_of(entry).partition("@")[0]
            put.setdefault(node, tombstone(node, secret(), LEFT_OUT))
    without = [number for number, _ in left_out]
    return record, put, [*log, signed(record.log, RunImported(without=without), secret())]


def _event(uid: str, raw: Mapping[str, Any]) -> Event:
    """An event of the file. It may refer only to entries of its own run, because retention removes what events refer to."""
    kind = Event.kinds.get(raw["event"], Event)
    left_out = ("seq", "log", "until", "within") if kind is Forked else ("seq",)  # what it inherits is not in the file
    known = {each.name: each for each in fields(kind) if each.name in raw and each.name not in left_out}
    values = {name: _checked_field(raw, name, str(each.type)) for name, each in known.items()}
    if values.get("log") and not re.fullmatch("event/[0-9a-f]{16}/", values["log"]):
        raise ValueError(f"{values['log']!r} is not a valid log")
    entry = values.get("entry", "")
    loop = kind is SnapshotSaved and (not entry or re.fullmatch(rf"node/{uid}(\.[0-9a-f]+)?/\$/[^/]+/[^/]+", entry))
    shared = re.fullmatch(rf"shared/[^/]+/{_DIGESTS}(@[0-9a-f]+)?", entry)
    if "entry" in values and not (loop or shared or _is_node(uid, entry)):
        raise ValueError(f"event {raw['seq']} refers to {entry!r:.60}, which is not an entry of the run")
    if not re.fullmatch(_DIGESTS, values.get("fingerprint", "0.0")):
        raise ValueError(f"{values['fingerprint']!r:.60} is not a valid fingerprint")
    if "snapshot" in values and not _is_snapshot(uid, values["snapshot"]):
        values["snapshot"] = ""  # belongs to a parent, and is not in the file
    if "compared_with" in values and not _is_node(uid, values["compared_with"]):
        values["compared_with"] = ""
    return kind(**values)


def _performed(uid: str, intent: Mapping[str, Any]) -> dict[str, Frames]:
    """The entry of an intent. If its result could not be exported, the user has to settle its outcome."""
    about = {name: _checked_field(intent, name, "str") for name in _INTENT if name in intent and name != "identity"}
    identity = intent["identity"]
    about["identity"] = {
        each.name: _checked_field(identity, each.name, str(each.type)) for each in fields(CallIdentity)
    }
    result = None
    if intent.get("settled") in (COMPLETED, RESOLVED, SAME_AS, CLEARED):
        about["settled"] = intent["settled"]
        result = intent.get("result") if intent["settled"] in (COMPLETED, RESOLVED) else None
    key = intent_key(uid, about["call"])
    return {key: encode(result, about, key=key, secret=secret(), time=_checked_field(intent, "time", "float")).frames}


def _entries(key: str, value: Any, raw: Mapping[str, Any]) -> dict[str, Frames]:
    """The entry of a checkpoint; for a variant of a node, also the node's own entry, which points to it."""
    about = {
        "step": _checked_field(raw, "step", "str"),
        "arguments": _checked_field(raw, "arguments", "Mapping[str, str]"),
    }
    seconds, time = _checked_field(raw, "seconds", "float"), _checked_field(raw, "time", "float")
    entry = encode(value, about, key=key, secret=secret(), seconds=seconds, time=time)
    node, _, variant = key.partition("@")
    pointer = {**about, "readings": [[]], "reads": {}}
    own = {node: encode(None, pointer, key=node, secret=secret()).frames} if variant else {}
    return {key: entry.frames, **own}
