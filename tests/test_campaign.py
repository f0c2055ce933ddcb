"""A short campaign, and the page that it writes: every test that the page names exists."""

from __future__ import annotations

import re

import pytest

from tests import campaign
from tests.pythons import ROOT


@pytest.mark.slow
def test_a_short_campaign_finds_nothing() -> None:
    total, _, failures = campaign.campaign(0, seed=17, short=True)
    assert failures == []
    assert {"random", "crowd", "scripts"} <= set(total)


def test_every_fault_on_the_page_is_guarded_by_a_test_that_exists() -> None:
    named = re.findall(r"`(tests/[a-z_/]+\.py)::(test_\w+)`", campaign.PAGE.read_text(encoding="utf-8"))
    assert len(named) > 10
    for path, name in named:
        assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path} has no {name}"
