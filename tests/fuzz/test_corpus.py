"""What the fuzzer started with or found: bytes that a reader meets, replayed without the fuzzer. See __main__.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
FILES = sorted(path for path in CORPUS.glob("*/*"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_bytes_that_the_fuzzer_tried_give_only_our_errors(path: Path) -> None:
    TARGETS[path.parent.name](path.read_bytes())


def test_every_reader_has_a_corpus() -> None:
    assert {path.parent.name for path in FILES} == set(TARGETS)
