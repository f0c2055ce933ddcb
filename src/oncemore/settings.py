"""Settings from the environment, the key file, and how users write and read durations and sizes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterable
from datetime import timedelta
from functools import lru_cache
from typing import NamedTuple, Union

from blake3 import blake3

from .errors import UsageError, warn

# -- words in environment variables

_OFF, _ON = ("", "0", "off", "no", "false"), ("1", "on", "yes", "true")
_SWITCH = {**dict.fromkeys(_OFF, False), **dict.fromkeys(_ON, True)}


def disabled() -> bool:
    """Whether `ONCEMORE_DISABLE` asks for plain calls."""
    return _switch("ONCEMORE_DISABLE")


def encrypt() -> bool:
    """Whether `ONCEMORE_ENCRYPT` asks for encrypted stores."""
    return _switch("ONCEMORE_ENCRYPT")


def _switch(name: str) -> bool:
    given = os.environ.get(name, "").strip()
    try:
        return _SWITCH[given.lower()]
    except KeyError:
        raise UsageError(f"{name}={given} is unknown; use one of {_words(_SWITCH)}") from None


class Report(NamedTuple):
    """What `ONCEMORE_LOG` asks for: the lines' destination ("stderr", "off" or a path), and whether log records are lines, too."""

    to: str
    debug: bool = False


def report() -> Report | None:
    """Where progress lines go, from `ONCEMORE_LOG`; None if it is not set."""
    given = os.environ.get("ONCEMORE_LOG", "").strip()
    known = {**{word: Report("stderr" if on else "off") for word, on in _SWITCH.items() if word}}
    known |= {"quiet": Report("off"), "stderr": Report("stderr"), "debug": Report("stderr", debug=True)}
    if not given or given.lower() in known:
        return known.get(given.lower())
    if os.path.dirname(given) or os.path.splitext(given)[1]:
        return Report(given)
    raise UsageError(
        f"ONCEMORE_LOG={given} is unknown; use one of {_words(known)}, or a path: ./{given} for a file of that name"
    )


class Refresh(NamedTuple):
    """What the user asks to run again: everything, or the steps and loops with these names."""

    everything: bool
    names: frozenset[str]

    def __or__(self, other: Refresh) -> Refresh:
        return Refresh(self.everything or other.everything, self.names | other.names)


def refresh_from_environment() -> Refresh:
    """What runs again, from `ONCEMORE_REFRESH`: names, separated by commas, or a word for everything or nothing."""
    given = os.environ.get("ONCEMORE_REFRESH", "").strip()
    everything = {**_SWITCH, "all": True, "*": True}.get(given.lower())
    names = frozenset(filter(None, map(str.strip, given.split(","))))
    return Refresh(False, names) if everything is None else Refresh(everything, frozenset())


def _words(known: Iterable[str]) -> str:
    return ", ".join(filter(None, known))


# -- the key: signs every entry, and encrypts them if asked to. Kept outside the store, so write access to the store is not
#    enough to forge an entry, and read access not enough to read an encrypted one

_CONTEXT = "oncemore 2026-11-16 entry authentication"
_ID_CONTEXT = "oncemore 2026-11-18 key id"
_ENCRYPTION_CONTEXT = "oncemore 2026-11-18 entry encryption"


class Key(NamedTuple):
    """A key: what signs, what encrypts, and a short id that tells keys apart and reveals nothing about them."""

    id: str
    signing: bytes
    encryption: bytes

    @staticmethod
    def of(material: bytes) -> Key:
        """The key made from the content of a key file, or of `ONCEMORE_KEY`."""
        signing = blake3(material, derive_key_context=_CONTEXT).digest()
        encryption = blake3(material, derive_key_context=_ENCRYPTION_CONTEXT).digest()
        return Key(blake3(signing, derive_key_context=_ID_CONTEXT).hexdigest(length=4), signing, encryption)


def key_file() -> str:
    """The path of the file that holds the key, unless `ONCEMORE_KEY` is set."""
    return os.path.join(_config_home() or os.path.join(os.path.expanduser("~"), ".config"), "oncemore", "key")


def _config_home() -> str:
    """The value of `XDG_CONFIG_HOME`; empty if it is to be ignored, as its specification says of relative paths."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    return base if os.path.isabs(base) else ""


def key_in_use() -> Key:
    """The key that signs and verifies entries: from `ONCEMORE_KEY`, or the user's key file, created on first use."""
    get = os.environ.get
    return _derived(get("ONCEMORE_KEY"), get("XDG_CONFIG_HOME"), get("HOME"))


def secret() -> bytes:
    """The 32 bytes that sign and verify entries."""
    return key_in_use().signing


@lru_cache(maxsize=8)
def _derived(given: str | None, *where: str | None) -> Key:
    """The key for these environment variables. Cached, as every entry needs it."""
    return Key.of(given.encode() if given else _read(key_file()))


def key_id() -> str:
    """A short id of the key in use, to tell keys apart. It reveals nothing about the key."""
    return key_in_use().id


class KeySource(NamedTuple):
    """Where the key in use comes from."""

    text: str
    file: str  # the key file, which is not used if ONCEMORE_KEY is set
    given: bool  # whether ONCEMORE_KEY is set


def key_source() -> KeySource:
    """Where `key_in_use` takes the key from. Neither reads nor creates the key file."""
    path, home, config = key_file(), os.environ.get("HOME"), _config_home()
    if os.environ.get("ONCEMORE_KEY"):
        return KeySource("ONCEMORE_KEY", path, True)
    where = f"XDG_CONFIG_HOME={config}" if config else f"HOME={home}" if home else "HOME is not set"
    return KeySource(f"{path} ({where}, ONCEMORE_KEY is not set)", path, False)


def _read(path: str) -> bytes:
    if not os.path.isabs(path):  # else each working directory had a key of its own
        home = os.environ.get("HOME")
        cause = (
            "HOME is not set, and this user has no home directory" if home is None else f"HOME={home} is not absolute"
        )
        raise UsageError(f"can't locate the key file: {cause}; set HOME, or set ONCEMORE_KEY to a secret of your own")
    try:
        if not os.path.exists(path):
            _create(path)
        if os.stat(path).st_mode & 0o077:
            warn(f"other users can read {path}, which signs your checkpoints: run `chmod 600 {path}`")
        with open(path, "rb") as file:
            material = file.read()
    except OSError as error:
        raise UsageError(
            f"cannot read or create the key file {path} ({error.strerror}); set ONCEMORE_KEY to a secret of your own"
        ) from error
    if len(material) < 32:
        raise UsageError(
            f"the key file {path} is truncated; restore it from a copy, or delete it and lose the checkpoints it signed"
        )
    return material


def _create(path: str) -> None:
    os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
    draft = _draft(path)
    try:
        os.link(draft, path)  # unlike rename, never replaces a key that another process has just created
    except FileExistsError:
        pass
    finally:
        os.unlink(draft)


def _draft(path: str) -> str:
    """Write 32 new random bytes to a temporary file beside the key file. Returns its path."""
    draft = f"{path}.{os.urandom(8).hex()}"
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(os.urandom(32))
        file.flush()
        os.fsync(file.fileno())
    return draft


# -- earlier keys, which `oncemore key rotate` has replaced. They stay beside the key file until the user deletes them


def earlier_key_file(key: str) -> str:
    """The path at which the key with this id is kept once another has replaced it."""
    return f"{key_file()}.{key}"


def earlier_key(key: str) -> Key | None:
    """The earlier key with this id: from `ONCEMORE_OLD_KEY`, or from its file beside the key file; None if there is none."""
    given = os.environ.get("ONCEMORE_OLD_KEY")
    if given and (found := Key.of(given.encode())).id == key:
        return found
    path = earlier_key_file(key)
    if re.fullmatch("[0-9a-f]{8}", key) and os.path.exists(path) and (found := Key.of(_read(path))).id == key:
        return found
    return None


def earlier_keys() -> list[Key]:
    """All earlier keys that are known here."""
    folder, name = os.path.split(key_file())
    ids = [each.removeprefix(f"{name}.") for each in sorted(os.listdir(folder))] if os.path.isdir(folder) else []
    given = os.environ.get("ONCEMORE_OLD_KEY")
    found = map(earlier_key, [*ids, *([Key.of(given.encode()).id] if given else [])])
    return list({key.id: key for key in found if key is not None}.values())


def replace_key(before: Key) -> Key:
    """Put a new key into the key file and keep `before`, the present one, beside it. Survives a power cut once it returns."""
    path = key_file()
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # two at once could lose the key of the one that was faster
        if Key.of(_read(path)) != before:
            raise UsageError(f"another process has just replaced the key in {path}: run `oncemore key rotate` again")
        draft = _draft(path)
        try:
            with contextlib.suppress(FileExistsError):  # left by a process that was killed
                os.link(path, earlier_key_file(before.id))
            os.replace(draft, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft)
        os.fsync(folder)
    finally:
        os.close(folder)
    _derived.cache_clear()
    return key_in_use()


# -- durations and sizes

Duration = Union[str, float, timedelta]

_SECONDS = {"s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}


def seconds(duration: Duration) -> float:
    """A duration in seconds: from "90s", "5min", "2h", "1d", "1w", a number or a timedelta. UsageError if it is invalid."""
    if isinstance(duration, timedelta):
        return duration.total_seconds()
    if isinstance(duration, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", duration.lower())
        if match and match[2] in _SECONDS:
            return float(match[1]) * _SECONDS[match[2]]
    elif not isinstance(duration, bool) and duration >= 0:
        return float(duration)
    raise UsageError(
        f"{duration!r} is not a duration; use '90s', '5min', '2h', '1d', '1w', a number of seconds or a timedelta"
    )


def duration(seconds: float, *, milliseconds: bool = False) -> str:
    """Format a duration: 2.1 s, 12 min 5 s, 3 h 20 min. With `milliseconds`, 3 ms instead of 0.0 s."""
    if milliseconds and seconds < 0.95:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def size(count: float) -> str:
    """Format a number of bytes: 512 B, 9 MB, 1.2 GB."""
    power = 0
    while count >= 999.5 and power < 4:
        count, power = count / 1000, power + 1
    return f"{count:.{int(count < 9.95 and power > 0)}f} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"
