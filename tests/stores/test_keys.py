"""The order of keys, and ranges of them."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from oncemore.stores.keys import above_prefix, first_key, log_key, log_number

text = st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=5)


@given(text, text)
@example("\ud7ff", "x")
@example("a\U0010ffff", "\U0010ffff")
def test_exactly_the_keys_with_a_prefix_are_in_its_range(prefix, key):
    end = above_prefix(prefix)
    for candidate in (key, prefix + key):
        inside = prefix <= candidate and (end is None or candidate < end)
        assert inside == candidate.startswith(prefix)
    assert end is None or end.encode()


@given(text, text)
def test_the_first_key_is_above_the_one_named(prefix, after):
    start = first_key(prefix, after)
    assert start >= prefix
    assert not after or start > after


@given(text, text)
def test_characters_sort_as_their_utf8_bytes_do(one, other):
    assert (one < other) == (one.encode() < other.encode())


@given(text, st.integers(0, 16**16 - 1))
def test_the_number_of_a_log_entry_is_read_back(log, number):
    assert log_number(log, log_key(log, number)) == number
    assert log_number(log, log_key(log, number) + "0") is None
