"""The order of keys, and ranges of them."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from oncemore.stores import LAST, key_range, last_number, log_key

text = st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=5)


@given(text, text)
@example("\ud7ff", "x")
@example("a\U0010ffff", "\U0010ffff")
def test_exactly_the_keys_with_a_prefix_are_in_its_range(prefix, key):
    _, end = key_range(prefix)
    for candidate in (key, prefix + key):
        inside = prefix <= candidate and (end is None or candidate < end)
        assert inside == candidate.startswith(prefix)
    assert end is None or end.encode()


@given(text, text)
def test_the_first_key_is_above_the_one_named(prefix, after):
    start, _ = key_range(prefix, after)
    assert start >= prefix
    assert not after or start > after


@given(text, text)
def test_characters_sort_as_their_utf8_bytes_do(one, other):
    assert (one < other) == (one.encode() < other.encode())


@given(text, st.integers(0, LAST))
def test_the_number_of_a_log_entry_is_read_back(log, number):
    key = log_key(log, number)
    assert last_number(log, [key]) == number
    assert last_number(log, [key + "0", log + "g" * 16, key, log_key(log, 7)]) == number  # some keys are no entries
    assert last_number(log, []) == 0
