"""What the fuzzer feeds with bytes. Whatever they are, only errors of ours come out, and what was accepted can be read."""

from __future__ import annotations

import io
import json
import os
import secrets
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from typing import Any

from blake3 import blake3

from oncemore import CheckpointWarning, History, IntegrityError, OncemoreError, UsageError, open_store
from oncemore.codec import Decoded, encode, seal
from oncemore.history import archive as archives
from oncemore.stores import store_exists

KEY, SECRET, UNKNOWN = "node/fuzz", bytes(32), bytes([1]) * 32


def decoder(data: bytes) -> None:
    """An entry that nobody signed is refused; so is a signed one with a byte changed. A signed one is what was written."""
    refused(lambda: Decoded(data, key=KEY, secret=UNKNOWN))
    whole = b"".join(encode(data, {"text": data.hex()}, key=KEY, secret=SECRET).frames)
    entry = Decoded(whole, key=KEY, secret=SECRET)
    assert (entry.load(), entry.meta["text"]) == (data, data.hex())
    at = int.from_bytes(data[:4], "big") % len(whole)
    refused(lambda: Decoded(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :], key=KEY, secret=SECRET))
    refused(lambda: Decoded(whole, key=KEY + "2", secret=SECRET))
    try:
        Decoded(b"".join(map(bytes, seal([data], KEY, SECRET))), key=KEY, secret=SECRET)
    except IntegrityError:
        pass


def refused(read: Callable[[], object]) -> None:
    try:
        read()
    except IntegrityError:
        return
    raise AssertionError("an entry that was not written so was accepted")


def archive(data: bytes) -> None:
    """As the file itself, and as the manifest and the entries of an archive that is well formed."""
    imported(data, lambda history, path: history.import_(path, trust=True), look=False)
    try:
        content = json.loads(data)
        listed = [(key, text.encode()) for key, text in content["entries"]]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as packed:
        for number, (_, text) in enumerate(listed):
            packed.writestr(f"entries/{number}", text)
        entries = [{"key": key, "digest": blake3(text).hexdigest()} for key, text in listed]
        manifest = {"format": archives.FORMAT, "runs": content.get("runs"), "entries": entries}
        packed.writestr("manifest.json", json.dumps(manifest))
        packed.writestr("signature", b"")
    imported(file.getvalue(), lambda history, path: history.import_(path, trust=True), look=False)
    try:
        imported(file.getvalue(), lambda history, path: history.import_(path), tolerant=False)
    except (UsageError, IntegrityError):
        return
    raise AssertionError("an archive that nobody signed was imported")


def json_import(data: bytes) -> None:
    imported(data, lambda history, path: history.import_json(path))


def imported(data: bytes, take: Callable[[History, str], Any], tolerant: bool = True, look: bool = True) -> None:
    """Import a file into an empty store, and `look` at all that is there then; not after an archive that is trusted."""
    history = History(open_store(f"memory://{secrets.token_hex(8)}"))
    descriptor, path = tempfile.mkstemp()
    try:
        os.write(descriptor, data)
        os.close(descriptor)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CheckpointWarning)
            take(history, path)
            if not look:
                return
            for run in history.runs():
                past = history.run(run.id)
                list(past.events())
                list(past.checkpoints)
            history.verify()
    except OncemoreError:
        if not tolerant:
            raise
    finally:
        os.unlink(path)


def url(data: bytes) -> None:
    """A path or URL names a store or is refused."""
    text = data.decode("utf-8", "surrogateescape")
    try:
        store_exists(text)
        if text.lower().startswith("memory:"):
            assert open_store(open_store(text).url).url == open_store(text).url
    except UsageError:
        pass


TARGETS: dict[str, Callable[[bytes], None]] = {
    "decoder": decoder,
    "archive": archive,
    "json_import": json_import,
    "url": url,
}
