"""What the stores agree on about keys: their length, their order, which is that of their characters, and that a log is a range."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import UsageError

LONGEST = 1024  # bytes of a key in UTF-8; what object stores take

DIGITS = 16  # of the number that ends a log entry's key


def above_prefix(prefix: str) -> str | None:
    """The smallest text above every key that starts with `prefix`; None where there is none."""
    stem = prefix.rstrip("\U0010ffff")
    if not stem:
        return None
    following = ord(stem[-1]) + 1
    if following == 0xD800:  # surrogates are no characters
        following = 0xE000
    return stem[:-1] + chr(following)


def first_key(prefix: str, after: str) -> str:
    """The smallest key that starts with `prefix` and is greater than `after`."""
    return max(prefix, after + "\0") if after else prefix


def log_key(log: str, number: int) -> str:
    """The key of a log's entry."""
    return f"{log}{number:016x}"


def log_number(log: str, key: str) -> int | None:
    """Which entry of `log` this key is, or None when it is none."""
    digits = key[len(log) :]
    return int(digits, 16) if len(digits) == DIGITS and not digits.strip("0123456789abcdef") else None


def checked(key: str) -> str:
    """The key, if a store can have it."""
    try:
        size = len(key.encode()) if len(key) > LONGEST // 4 or not key.isascii() else 0
    except UnicodeEncodeError:
        raise UsageError(f"the key {key!r} is not valid text") from None
    if size > LONGEST:
        raise UsageError(f"a key has at most {LONGEST} bytes, not {size}: {key[:40]!r}...")
    return key


def check_change(put: Iterable[str], append: Iterable[str], delete: Iterable[str], expect: Iterable[str]) -> None:
    """Raise UsageError unless all keys of a commit are keys."""
    for keys in (put, delete, expect):
        for key in keys:
            checked(key)
    for log in append:
        checked(log_key(log, 0))
