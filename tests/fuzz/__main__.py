"""Coverage-guided fuzzing with atheris: `python -m tests.fuzz TARGET SECONDS SEED`. What it finds is in build/fuzz.

The corpus in this folder is replayed by test_corpus.py; add what was found there.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["oncemore"]):
    from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"

if __name__ == "__main__":
    name, seconds, seed = sys.argv[1:]
    found = Path("build/fuzz")
    found.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as new:
        options = [f"-max_total_time={seconds}", f"-seed={seed}", f"-artifact_prefix={found}/{name}-", "-verbosity=1"]
        atheris.Setup([sys.argv[0], *options, "-timeout=20", "-max_len=8192", new, str(CORPUS / name)], TARGETS[name])
        atheris.Fuzz()
