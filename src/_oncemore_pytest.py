"""The pytest plugin: a temporary store for a test, and an option to turn steps into plain functions.

It is outside the package, so that pytest can load it in every session without importing oncemore.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from oncemore import Store


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("oncemore").addoption(
        "--oncemore-disable",
        action="store_true",
        help="turn steps into plain functions: nothing is reused or saved (sets ONCEMORE_DISABLE=1 for this session)",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--oncemore-disable"):
        patch = pytest.MonkeyPatch()
        patch.setenv("ONCEMORE_DISABLE", "1")
        config.add_cleanup(patch.undo)


@pytest.fixture
def oncemore_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A temporary store for this test: the default store while the test runs, removed afterwards.

    It has its own key, so that the user's key is neither needed nor created.
    """
    from oncemore import open_store

    folder = tmp_path_factory.mktemp("oncemore")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONCEMORE_STORE", str(folder / "store"))
        patch.setenv("ONCEMORE_KEY", secrets.token_hex(32))
        store = open_store(folder / "store")
        yield store
        store.close()
    shutil.rmtree(folder)
