"""Identities of code, frozen: a change here makes every checkpoint of every user a miss.

`python tests/formats/test_code_digests.py` writes the table anew.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import FunctionType

from oncemore.identity.code import Code
from oncemore.identity.values import digest

HERE = Path(__file__).parent
TABLE = HERE / "code_digests.json"
VALUES = ("TABLE", "cached", "partial")


def identities() -> dict[str, dict[str, str]]:
    """All parts of every function of the samples, and the digests of their classes."""
    spec = importlib.util.spec_from_file_location("code_samples", HERE / "code_samples.py")
    assert spec is not None
    assert spec.loader is not None
    samples = sys.modules["code_samples"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(samples)
    found: dict[str, dict[str, str]] = {}
    for name, value in sorted(vars(samples).items()):
        if name in VALUES:
            found[name] = {"value": digest(value).hex()}
        elif isinstance(value, (FunctionType, type)) and value.__module__ == "code_samples":
            found[name] = {part: each.digest for part, each in Code(value).parts().items()}
    return found


def test_identities_of_code_are_those_of_every_python_and_every_version() -> None:
    known = json.loads(TABLE.read_text())
    found = identities()
    changed = {
        name: [
            part
            for part in parts.keys() | known.get(name, {}).keys()
            if parts.get(part) != known.get(name, {}).get(part)
        ]
        for name, parts in found.items()
        if parts != known.get(name)
    }
    assert changed == {}
    assert found.keys() == known.keys()


if __name__ == "__main__":
    TABLE.write_text(json.dumps(identities(), indent=1) + "\n")
