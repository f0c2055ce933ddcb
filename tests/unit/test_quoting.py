"""Percent-encoding: what `urllib.parse` gives, without loading it."""

from __future__ import annotations

import urllib.parse

from hypothesis import given
from hypothesis import strategies as st

from oncemore.quoting import quote, unquote, unquote_to_bytes

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))  # a surrogate is no character
QUOTED = st.text("%0aF/x~+é", max_size=30)


@given(TEXTS, st.sampled_from(["", "/"]))
def test_texts_are_quoted_as_in_urls(text: str, safe: str) -> None:
    assert quote(text, safe) == urllib.parse.quote(text, safe=safe)
    assert unquote(quote(text, safe)) == text


@given(st.binary())
def test_bytes_are_quoted_as_in_urls(data: bytes) -> None:
    assert quote(data) == urllib.parse.quote(data)
    assert unquote_to_bytes(quote(data)) == data


@given(QUOTED)
def test_whatever_was_quoted_is_read_as_in_urls(text: str) -> None:
    assert unquote_to_bytes(text) == urllib.parse.unquote_to_bytes(text)
    assert unquote(text) == urllib.parse.unquote(text)
