"""A pytest plugin that lets joblib's own tests, as they are installed, meet oncemore. See test_joblib_upstream.py.

ONCEMORE_TEST_JOBLIB says what they meet: "memory", our `Memory` in the place of joblib's; "backend", joblib's with our store
backend. The outcome of each test is written as a line of JSON into the file that ONCEMORE_TEST_OUTCOMES names.
"""

from __future__ import annotations

import json
import os
from importlib import import_module
from typing import Any

import pytest

from oncemore import register_identity
from oncemore.compat import joblib as ours


class Witness(list[Any]):
    """A list in which a test counts how often its function ran: declared to be without influence on what the function does."""


register_identity(Witness, lambda witness: "witness")

MEMORY = {name: getattr(ours, name) for name in ("MemorizedFunc", "MemorizedResult", "Memory", "expires_after")}


@pytest.fixture(autouse=True)
def with_oncemore(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    upstream: Any = import_module("joblib.test.test_memory")
    if os.environ["ONCEMORE_TEST_JOBLIB"] == "backend":
        monkeypatch.setitem(upstream._STORE_BACKENDS, "local", ours.OncemoreStoreBackend)
        return
    for name, value in MEMORY.items():
        monkeypatch.setattr(upstream, name, value)
    monkeypatch.setattr(upstream, "list", Witness, raising=False)
    # A helper of these tests asks for the digest of the arguments, to find folders in which joblib would have put results.
    digest = lambda function, *args, **kwargs: function.fingerprint(*args, **kwargs).digest
    monkeypatch.setattr(ours.MemorizedFunc, "_get_args_id", digest, raising=False)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        with open(os.environ["ONCEMORE_TEST_OUTCOMES"], "a", encoding="utf-8") as file:
            file.write(json.dumps([report.nodeid.partition("::")[2], report.outcome, str(report.longrepr)[-400:]]) + "\n")
