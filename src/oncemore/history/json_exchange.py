"""Runs as JSON: for people and other languages. What JSON cannot hold exactly is left out and said so."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from .. import records
from ..codec import Decoded, alias, encode, tombstone
from ..errors import CodecError, IntegrityError, NotRecorded, StoreError, UsageError
from ..events import Event, RunImported
from ..node import LEFT_OUT, intent_key, intents_of, state_of
from ..records import Record, checked, record_key, sealed, signed
from ..secret import secret
from ..stores import Bytes, Frames, Store
from .checkpoints import Checkpoint, checkpoints_of
from .timeline import place_of

FORMAT = "oncemore json 1"


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
    facts = {name: entry.meta[name] for name in _INTENT if name in entry.meta} | {"time": entry.time}
    if entry.meta.get("settled") and not entry.meta.keys() & {"effects", "roots", "reads"}:
        try:
            value = entry.load()
        except CodecError:
            return facts
        if exact(value):
            facts.update(settled=entry.meta["settled"], result=value)
    return facts


def _checkpoint(store: Store, checkpoint: Checkpoint) -> dict[str, Any]:
    facts = checkpoint.as_dict() | {"entry": checkpoint.entry, "snapshot": checkpoint.snapshot}
    for name, load in (("result", checkpoint.result), ("state", checkpoint.state)):
        if name == "result" and not checkpoint.entry:
            continue
        try:
            value = load()
        except (NotRecorded, StoreError, CodecError):
            continue
        if exact(value):
            facts[name] = value
    if "result" in facts:
        meta = checkpoint.meta()
        if not meta.keys() & {"effects", "reads", "items"}:  # the result is all there is to it
            facts["kept"] = {name: meta[name] for name in ("step", "time", "seconds", "arguments")}
    return facts


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
    except UsageError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise IntegrityError(f"{os.fspath(path)} is damaged ({error!r}); nothing was imported") from error
    here = dict(records.scan(store))
    marks = {record.uid for record in here.values()}
    for run_id, record, _, _ in planned:
        if run_id in here and here[run_id].uid != record.uid:
            raise UsageError(f"there is another run {run_id!r} in {store.url}: rename or delete it first")
    for run_id, record, put, log in planned:
        if record.uid not in marks:
            put[record_key(run_id)] = sealed(record_key(run_id), record)
            known = next(store.scan(record.log, limit=1), None) is not None  # of a deleted run that forks need
            append = {} if known else {record.log: log}
            store.commit(put=put, append=append, delete=[f"gone/{record.uid}"], expect={record_key(run_id): None})
    return [run_id for run_id, *_ in planned]


def _planned(run: Mapping[str, Any]) -> tuple[Record, dict[str, Frames], list[bytes]]:
    """What importing one run writes."""
    checked(run["id"])
    old = run["uid"]
    if not re.fullmatch("[0-9a-f]{16}", old):
        raise ValueError(f"{old!r} is no mark of a run")
    # What a fork shares with its parent is not in the file, and nothing outside the run's own place is written.
    own, prefix = (f"node/{old}/", f"node/{old}."), run["prefix"]
    if not re.fullmatch(rf"node/{old}(\.[0-9a-f]+)?/", prefix):
        raise ValueError(f"{prefix!r} is no prefix of the run")
    record = Record(
        old, prefix, run["workflow"], created=run["created"], ending=run["ending"], attempts=run["attempts"]
    )
    put: dict[str, Frames] = {}
    for checkpoint in run["checkpoints"]:
        if "kept" in checkpoint and checkpoint["entry"].startswith(own):
            put.update(_entries(checkpoint["entry"], checkpoint["result"], checkpoint["kept"]))
            record.nodes += 1
            record.bytes += checkpoint["stored_bytes"]
        if "state" in checkpoint and checkpoint["snapshot"].startswith(state_of(old)):
            value = {"state": checkpoint["state"], "generators": {}}
            put[checkpoint["snapshot"]] = encode(value, {}, key=checkpoint["snapshot"], secret=secret()).frames
    for intent in run.get("once", ()):  # without a result that could be kept, its outcome is for the user to settle
        key = intent_key(old, intent["call"])
        about = {name: intent[name] for name in (*_INTENT, "settled") if name in intent}
        put[key] = encode(intent.get("result"), about, key=key, secret=secret(), time=intent["time"]).frames
    log = []
    for fact in sorted(run["events"], key=lambda fact: fact["seq"]):
        left_out = ("seq", "log") if fact["event"] == "Forked" else ("seq",)  # what it took over is not in the file
        event = Event.from_json(json.dumps({k: v for k, v in fact.items() if k not in left_out}).encode(), 0)
        log.append(signed(record.log, event, secret()))
    record.counted = len(log)
    without = [e["seq"] for e in run["events"] if e["event"] == "StepCompleted" and e["entry"] not in put]
    for key in [key for key in put if key.startswith(own) and not key.startswith(prefix)]:
        put[prefix + place_of(key)] = alias(prefix + place_of(key), secret(), key)
    for event in run["events"]:
        if event["seq"] in without and event["entry"].startswith(own):
            node = prefix + place_of(event["entry"]).partition("@")[0]
            put.setdefault(node, tombstone(node, secret(), LEFT_OUT))
    return record, put, [*log, signed(record.log, RunImported(without=without), secret())]


def _entries(key: str, value: Any, kept: Mapping[str, Any]) -> dict[str, Frames]:
    """A checkpoint's entry, and where it stands beside its node's own, that one, too."""
    about = {"step": kept["step"], "arguments": kept["arguments"]}
    entry = encode(value, about, key=key, secret=secret(), seconds=kept["seconds"], time=kept["time"])
    node, _, beside = key.partition("@")
    pointer = {**about, "readings": [[]], "reads": {}}
    more = {node: encode(None, pointer, key=node, secret=secret()).frames} if beside else {}
    return {key: entry.frames, **more}
