"""The public face: its names, its errors, its version of the promise."""

from __future__ import annotations

import inspect
import re

import pytest

import oncemore
from oncemore import errors, step
from tests.processes import Script

NAMES = """
    Block Change Checkpoint CheckpointWarning Checkpoints CodecError Explanation Failure File Fingerprint FingerprintError
    History HoldLost IntegrityError NotRecorded OncemoreError OutputMissing Recorded Result Results Run RunPaused RunRecord
    Step StepTimeout Store StoreDamaged StoreError StoreUnavailable Summary Surrounding UnknownOutcome UsageError checkpoint_scope
    checkpointed current_run fork idempotency_key memoized open_store register_identity register_surrounding
""".split()


def test_the_public_names_are_these() -> None:
    assert oncemore.__all__ == sorted(NAMES)
    assert all(hasattr(oncemore, name) for name in NAMES)


def test_a_star_import_gives_these_names(script: Script) -> None:
    done = script("before = set(dir())\nfrom oncemore import *\nprint(*sorted(set(dir()) - before - {'before'}))")
    assert done.out.split() == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_everything_public_says_what_it_is_for(name: str) -> None:
    thing = getattr(oncemore, name)
    assert inspect.getdoc(thing)


def test_all_errors_have_one_root_and_the_parents_that_a_caller_expects() -> None:
    expected = {
        "UsageError": ValueError,
        "FingerprintError": TypeError,
        "NotRecorded": LookupError,
        "UnknownOutcome": Exception,
        "CodecError": Exception,
        "StoreError": OSError,
        "StoreDamaged": oncemore.StoreError,
        "IntegrityError": oncemore.StoreError,
    }
    raised = {
        name: kind
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, Exception) and kind.__module__ == errors.__name__
    }
    assert expected.keys() <= raised.keys() <= set(oncemore.__all__)
    for name in raised.keys() - {"CheckpointWarning"}:
        assert issubclass(raised[name], oncemore.OncemoreError)
        assert issubclass(raised[name], expected.get(name, Exception))
        assert name in (errors.__doc__ or "")


def test_our_warning_is_a_warning_for_users() -> None:
    assert issubclass(oncemore.CheckpointWarning, UserWarning)


def test_the_options_of_memoized_are_those_of_checkpointed_without_share() -> None:
    assert step.Options.__annotations__.keys() == step.StepOptions.__annotations__.keys() - {"share"}


def test_all_options_are_keywords() -> None:
    for decorator in (oncemore.checkpointed, oncemore.memoized):
        with pytest.raises(TypeError, match="positional"):
            decorator(len, "name")  # type: ignore[call-overload]
    parameters = list(inspect.signature(oncemore.checkpoint_scope).parameters.values())
    assert [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY] == ["run_id"]


def test_every_option_has_a_default_and_is_explained() -> None:
    assert step.DEFAULTS.keys() == step.StepOptions.__annotations__.keys()
    text = inspect.getdoc(oncemore.checkpointed) or ""
    assert sorted(re.findall(r"^(\w+) {2,}\S", text, re.MULTILINE)) == sorted(step.DEFAULTS)
