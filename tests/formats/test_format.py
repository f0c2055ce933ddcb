"""Bytes that format version 1 wrote once and for all. Every later version reads them.

From the first release on, `version1.json` is never written again. A new format gets a file of its own, made by
`python -m tests.formats.test_format`.
"""

from __future__ import annotations

import base64
import json
import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oncemore import IntegrityError
from oncemore.codec import MAGIC, VERSION, Decoded, dumps, encode, loads, seal, tombstone, unseal
from oncemore.events import Event
from oncemore.settings import secret

HERE = Path(__file__).parent
FROZEN = HERE / f"version{VERSION}.json"
KEY = "a secret that is not one"  # ONCEMORE_KEY when the entries were signed


@dataclass
class Row:
    """Kept by name: `tests.formats.test_format.Row`."""

    name: str
    tags: list[str]


def noise(count: int) -> bytes:
    return random.Random(1).randbytes(count)


def shared() -> list[Any]:
    part = [1, 2]
    return [part, part, {"part": part}]


VALUES: dict[str, Any] = {
    "none": None,
    "scalars": [True, 0, -1, 2**100, 1.5, float("inf"), "é🙂", b"\0\xff", 1j],
    "containers": {
        "list": [1, [2]],
        "tuple": (1, (2,)),
        "set": {1, 2},
        "frozenset": frozenset({1, 2}),
        3: bytearray(b"x"),
    },
    "sharing": shared(),
    "instance": Row("a", ["b", "c"]),
    "long text": "so it goes " * 200,
    "noise": noise(2000),
    "raw array": np.frombuffer(noise(2400), "<f8").reshape(3, 100),
    "packed array": np.zeros((20, 50), "<u1"),
    "few numbers": np.arange(500, dtype="<i8"),
    "shuffled array": np.arange(1000, dtype="<i8"),
    "big-endian array": np.arange(2000, dtype=">i4"),
    "fortran array": np.asfortranarray(np.arange(1200, dtype="<f4").reshape(20, 60)),
    "sorted array": np.cumsum(np.frombuffer(noise(4000), "u1").astype("<u4")) + (1 << 40),
    "array of small numbers": np.frombuffer(noise(4000), "<i1").astype("<i2"),
    "complex array": np.frombuffer(noise(4000), "<i2").astype("<f8").view("<c16"),
    "array in two blocks": np.arange((1 << 19) + 5, dtype="<i8"),
    "several arrays": {"a": np.frombuffer(noise(777), "u1"), "b": np.arange(300.0), "c": np.array([1 + 2j])},
}
META = {
    "step": "load",
    "reason": "new node",
    "arguments": {"argument `x`": "00ff"},
}
HEADER: dict[str, Any] = {"seconds": 0.5, "time": 1700000000.25}
NAMES = {"argument x": ["the caller's own"]}
ITEMS: list[Any] = [(0, {}), ("item", {}), ([1, 2], {})]


NODE = {"step": "load", "node": "load-00ff", "fingerprint": "00ff"}
RAN = {**NODE, "reason": "new node", "seconds": 0.5}
FACTS: dict[str, dict[str, Any]] = {
    "RunStarted": {"workflow": "churn"},
    "StepStarted": NODE,
    "StepCompleted": {**RAN, "raw_bytes": 10, "stored_bytes": 7, "entry": "node/0011/load/aa.bb", "snapshot": "cc"},
    "StepFailed": {**RAN, "error": "ValueError: x", "traceback": "..."},
    "StepNotKept": {**RAN, "reason": "disk full"},
    "RunFailed": {"error": "ValueError: x"},
    "RunResumed": {},
    "StepReused": {"step": "load", "times": 3, "seconds_saved": 1.5},
    "SnapshotSaved": {"loop": "epochs", "seen": 4, "entry": "node/0011/$/epochs"},
    "RunInterrupted": {},
    "RunFinished": {},
}
LOG, RUN = "event/0011/", "run/churn-nov"


def written() -> dict[str, bytes]:
    """Every kind of entry as this version writes it."""
    entries = [encode(value, META, key=f"node/{name}", secret=secret(), **HEADER) for name, value in VALUES.items()]
    own = NAMES["argument x"]
    named = encode([own, 1], META, key="node/named", secret=secret(), name=lambda o: "argument x" if o is own else None)
    chunk = encode([dumps(item) for item in ITEMS], {}, key="node/#/chunk", secret=secret())
    found = {entry.key: b"".join(entry.frames) for entry in (*entries, named, chunk)}
    found["node/forgotten"] = b"".join(tombstone("node/forgotten", secret(), "forgotten"))
    for number, (kind, facts) in enumerate(FACTS.items(), 1):
        fact = Event.kinds[kind](time=1700000000.25, lane="1", **facts)
        found[f"{LOG}{number:016x}"] = b"".join(seal([fact.to_json()], LOG, secret()))
    found[RUN] = b"".join(seal([json.dumps({"uid": "0011", "workflow": None, "created": 1.5}).encode()], RUN, secret()))
    return found


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """What was written then, and the secret of then in the environment."""
    monkeypatch.setenv("ONCEMORE_KEY", KEY)
    return entries_in()


def entries_in() -> dict[str, bytes]:
    return {key: base64.b64decode(data) for key, data in json.loads(FROZEN.read_text(encoding="ascii")).items()}


def decoded(frozen: dict[str, bytes], name: str) -> Decoded:
    return Decoded(frozen[f"node/{name}"], key=f"node/{name}", secret=secret())


def test_the_secret_is_derived_as_it_was_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEMORE_KEY", KEY)
    assert secret().hex() == "9a963600cd9895cb2b171da193f89a1010ce0918d0cc2d43abd95165096ab03c"


@pytest.mark.parametrize("name", VALUES)
def test_a_value_of_version_1_is_read(frozen: dict[str, bytes], name: str) -> None:
    entry, expected = decoded(frozen, name), VALUES[name]
    value = entry.load()
    assert META.items() <= entry.meta.items()
    assert (entry.seconds, entry.time, entry.value_only) == (0.5, 1700000000.25, True)
    assert type(value) is type(expected)
    if isinstance(expected, np.ndarray):
        assert (value.dtype.str, value.shape) == (expected.dtype.str, expected.shape)
        assert value.flags.f_contiguous == expected.flags.f_contiguous
        assert value.tobytes() == expected.tobytes()
    else:
        assert repr(value) == repr(expected)


def test_sharing_of_version_1_is_read(frozen: dict[str, bytes]) -> None:
    value = decoded(frozen, "sharing").load()
    assert value[0] is value[1] is value[2]["part"]


def test_objects_kept_by_name_in_version_1_are_found(frozen: dict[str, bytes]) -> None:
    own, one = decoded(frozen, "named").load(NAMES.__getitem__)
    assert own is NAMES["argument x"]
    assert one == 1


def test_a_tombstone_of_version_1_is_read(frozen: dict[str, bytes]) -> None:
    entry = decoded(frozen, "forgotten")
    assert (entry.is_tombstone, entry.value_only, entry.meta) == (True, False, {"hides": "forgotten"})


def test_items_of_generators_of_version_1_are_read(frozen: dict[str, bytes]) -> None:
    assert [loads(item) for item in decoded(frozen, "#/chunk").load()] == ITEMS


def test_events_of_version_1_are_read(frozen: dict[str, bytes]) -> None:
    keys = sorted(key for key in frozen if key.startswith(LOG))
    facts = [Event.from_json(bytes(unseal(frozen[key], LOG, secret())), int(key[len(LOG) :], 16)) for key in keys]
    assert [type(fact).__name__ for fact in facts] == list(FACTS)
    for number, fact in enumerate(facts, 1):
        told = {"time": 1700000000.25, "lane": "1", "seq": number, **FACTS[type(fact).__name__]}
        assert told.items() <= vars(fact).items()


def test_the_record_of_a_run_of_version_1_is_read(frozen: dict[str, bytes]) -> None:
    assert json.loads(bytes(unseal(frozen[RUN], RUN, secret())))["uid"] == "0011"


def test_an_entry_of_version_1_is_refused_when_it_was_altered(frozen: dict[str, bytes]) -> None:
    data = frozen["node/none"]
    with pytest.raises(IntegrityError):
        Decoded(data[:-1] + bytes([data[-1] ^ 1]), key="node/none", secret=secret())


def layout(key: str, data: bytes) -> tuple[int, list[tuple[int, int, int]]]:
    """An entry's flags, how its frames are packed, and how long they are unpacked."""
    entry = Decoded(data, key=key, secret=secret())
    return entry.flags, [(packing, item, raw) for packing, item, _, raw in entry._frames()]


def test_this_version_writes_what_it_wrote_then(frozen: dict[str, bytes]) -> None:
    """Other bytes under the same version number would be misread by the versions that are out there."""
    now = written()
    assert now.keys() == frozen.keys()
    assert all(data.startswith(MAGIC + bytes([VERSION])) for data in (*now.values(), *frozen.values()))
    for key in now.keys() - {"node/instance"}:  # the script that wrote it then was this module
        if key.startswith("node/"):
            assert layout(key, now[key]) == layout(key, frozen[key]), key
        else:
            assert now[key] == frozen[key]


if __name__ == "__main__":
    os.environ["ONCEMORE_KEY"] = KEY
    with open(FROZEN, "x", encoding="ascii") as file:
        json.dump({key: base64.b64encode(data).decode() for key, data in written().items()}, file, indent=1)
