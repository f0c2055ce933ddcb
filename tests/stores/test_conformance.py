"""Every store of ours passes the suite that ships with the package."""

from __future__ import annotations

from pathlib import Path

from oncemore.codec.keyed import Keyed
from oncemore.stores import Store
from oncemore.stores.disk import DiskStore
from oncemore.stores.layered import Overlay, Within
from oncemore.stores.memory import MemoryStore
from oncemore.testing import StoreContract


class TestDiskStore(StoreContract):
    def make_store(self, tmp_path: Path) -> Store:
        return DiskStore(tmp_path / "a store, 100% é")


class TestDiskStoreThatSurvivesPowerCuts(StoreContract):
    def make_store(self, tmp_path: Path) -> Store:
        return DiskStore(tmp_path / "store", durable="power")


class TestMemoryStore(StoreContract):
    def make_store(self, tmp_path: Path) -> Store:
        return MemoryStore(str(tmp_path))


class TestOverlay(StoreContract):
    test_it_travels_by_url_and_by_pickle = None  # it belongs to who looks through it

    def make_store(self, tmp_path: Path) -> Store:
        return _overlays.setdefault(tmp_path, Overlay(MemoryStore(f"below-{tmp_path}")))


_overlays: dict[Path, Store] = {}


class TestWithin(StoreContract):
    test_a_key_has_up_to_1024_bytes = None  # the prefix takes some of them
    test_it_travels_by_url_and_by_pickle = None  # its URL leads to it only together with the key it was made for

    def make_store(self, tmp_path: Path) -> Store:
        return Within(DiskStore(tmp_path), "other/abc/")


class TestKeyed(StoreContract):
    test_it_travels_by_url_and_by_pickle = None  # its URL is that of the store below

    def make_store(self, tmp_path: Path) -> Store:
        return Keyed(DiskStore(tmp_path), encrypts=True)


class TestKeyedInMemory(StoreContract):
    test_it_travels_by_url_and_by_pickle = None

    def make_store(self, tmp_path: Path) -> Store:
        return Keyed(MemoryStore(str(tmp_path)), encrypts=True)
