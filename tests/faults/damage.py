"""Ways to damage a disk store from outside, as a disk, another program or somebody with access to it would."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Callable

from oncemore import open_store


class Store:
    """The store in a folder, seen from outside."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = folder / "cache.db"

    def sql(self, statement: str, *parameters: object) -> list[tuple[object, ...]]:
        """Execute one statement on the database."""
        with closing(sqlite3.connect(self.database, timeout=30)) as connection, connection:
            return connection.execute(statement, parameters).fetchall()

    def key(self, part: str) -> str:
        """The only key that contains `part`."""
        ((key,),) = self.sql("SELECT key FROM Cache WHERE instr(key, ?)", part)
        return str(key)

    def large(self, part: str) -> str:
        """The only key that contains `part` and whose entry has a file."""
        ((key,),) = self.sql("SELECT key FROM Cache WHERE instr(key, ?) AND filename IS NOT NULL", part)
        return str(key)

    def value(self, key: str) -> bytes:
        """An entry's bytes, from its row."""
        ((value,),) = self.sql("SELECT value FROM Cache WHERE key = ?", key)
        assert isinstance(value, bytes)
        return value

    def set_value(self, key: str, value: bytes) -> None:
        self.sql("UPDATE Cache SET value = ? WHERE key = ?", value, key)

    def file(self, key: str) -> Path:
        """An entry's file."""
        ((name,),) = self.sql("SELECT filename FROM Cache WHERE key = ?", key)
        return self.folder / str(name)

    def close(self) -> None:
        """Have this process let go of the store."""
        open_store(self.folder).close()


Change = Callable[[bytes], bytes]


def flipped(at: float) -> Change:
    """One bit turned over; `at` says how far into the bytes."""

    def change(data: bytes) -> bytes:
        offset = min(int(at * len(data)), len(data) - 1)
        return data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :]

    return change


def cut(at: float) -> Change:
    """The end missing."""
    return lambda data: data[: int(at * len(data))]


def overwritten(data: bytes) -> bytes:
    """Zeros, as after a crash of the file system."""
    return bytes(len(data))


def emptied(data: bytes) -> bytes:
    return b""


def extended(data: bytes) -> bytes:
    return data + b"\0"


CHANGES: dict[str, Change] = {
    "a bit flipped at its start": flipped(0),
    "a bit flipped in its format number": lambda data: data[:4] + bytes([data[4] ^ 2]) + data[5:],
    "a bit flipped in its header": lambda data: data[:5] + bytes([data[5] ^ 1]) + data[6:],
    "a bit flipped in its signature": lambda data: data[:-20] + bytes([data[-20] ^ 128]) + data[-19:],
    "a bit flipped in its middle": flipped(0.5),
    "a bit flipped at its end": flipped(1),
    "cut to half": cut(0.5),
    "cut by a byte": lambda data: data[:-1],
    "emptied": emptied,
    "overwritten with zeros": overwritten,
    "extended": extended,
}


def in_row(change: Change) -> Callable[[Store, str], None]:
    return lambda store, key: store.set_value(key, change(store.value(key)))


def in_file(change: Change) -> Callable[[Store, str], None]:
    def damage(store: Store, key: str) -> None:
        path = store.file(key)
        path.write_bytes(change(path.read_bytes()))

    return damage


def deleted_file(store: Store, key: str) -> None:
    store.file(key).unlink()


def folder_in_its_place(store: Store, key: str) -> None:
    path = store.file(key)
    path.unlink()
    path.mkdir()


def pipe_in_its_place(store: Store, key: str) -> None:
    path = store.file(key)
    path.unlink()
    os.mkfifo(path)


def link_in_its_place(store: Store, key: str) -> None:
    path = store.file(key)
    elsewhere = store.folder.parent / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def name_outside(store: Store, key: str) -> None:
    """The row names a file outside the store that has the right content."""
    path = store.file(key)
    path.rename(store.folder.parent / "outside.val")
    store.sql("UPDATE Cache SET filename = '../outside.val' WHERE key = ?", key)
