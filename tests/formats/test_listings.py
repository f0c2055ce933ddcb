"""What listings say, pinned to their edition: those of another edition in users' caches don't count.

If this is red because a listing says something else now, give `EDITION` in src/oncemore/fingerprint/syntax.py a new number.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from oncemore.identity.code.syntax import EDITION, make_listing

SAMPLES = Path(__file__).parent / "code_samples.py"


def test_listings_of_one_edition_say_one_thing() -> None:
    said: list[object] = []
    for lambdas in (False, True):
        functions, classes = make_listing(SAMPLES.read_bytes(), "code_samples.py", 0, lambdas)
        listed = [
            (first, last, digest.hex(), sorted(names), imports)
            for found in functions.values()
            for first, last, digest, names, imports in found
        ]
        said.append([sorted(listed, key=repr), sorted(classes.items())])
    assert (EDITION, sha256(repr(said).encode()).hexdigest()[:16]) == (3, "c5472833b123edef")
