"""Every store of ours passes the suite that ships with the package."""

from __future__ import annotations

from pathlib import Path

from oncemore.stores import Store
from oncemore.stores.disk import DiskStore
from oncemore.stores.layered import Overlay
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
        return _overlays.setdefault(tmp_path, _Named(MemoryStore(f"below-{tmp_path}")))


class _Named(Overlay):
    shared_between_processes = False


_overlays: dict[Path, Store] = {}
