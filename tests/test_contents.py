"""Packed contents behave as the list of them does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka.contents import PackedContents, count_bytes, count_within, join_contents, pack, take_within

LISTS = st.lists(st.binary(max_size=5), max_size=12) | st.lists(st.binary(min_size=3, max_size=3), max_size=12)


@given(contents=LISTS)
def test_packed_contents_equal_the_list(contents: list[bytes]) -> None:
    packed = pack(contents)
    assert list(packed) == contents == packed
    assert packed == contents
    assert packed == pack(contents)
    assert pack(packed) is packed
    assert (len(packed), bool(packed), count_bytes(packed)) == (len(contents), bool(contents), count_bytes(contents))
    assert list(reversed(packed)) == contents[::-1]
    assert [packed[index] for index in range(-len(contents), len(contents))] == contents * 2
    with pytest.raises(IndexError):
        packed[len(contents)]


@given(contents=LISTS, index=st.slices(12))
def test_a_slice_equals_the_slice_of_the_list(contents: list[bytes], index: slice) -> None:
    part = pack(contents)[index]
    assert list(part) == contents[index]
    if index.step in (None, 1):
        assert isinstance(part, PackedContents)
        assert part.data == b"".join(contents[index])


@given(contents=LISTS, other=LISTS)
def test_different_contents_are_not_equal(contents: list[bytes], other: list[bytes]) -> None:
    assert (pack(contents) == pack(other)) == (contents == other)
    assert (pack(contents) == other) == (contents == other)
    assert pack(contents) != b"".join(contents)


@given(parts=st.lists(LISTS, min_size=1, max_size=4), packed=st.integers(0, 15))
def test_packed_and_other_parts_are_joined(parts: list[list[bytes]], packed: int) -> None:
    whole = [content for part in parts for content in part]
    assert join_contents([pack(part) if packed >> number & 1 else part for number, part in enumerate(parts)]) == whole
    assert isinstance(join_contents([pack(part) for part in parts]), PackedContents)


@given(contents=LISTS, bytes_max=st.integers(0, 40), start=st.integers(0, 12), count_max=st.integers(1, 13))
def test_take_within_keeps_both_limits_but_takes_at_least_one(
    contents: list[bytes], bytes_max: int, start: int, count_max: int
) -> None:
    kept = count_within(contents, bytes_max)
    assert count_bytes(contents[:kept]) <= bytes_max
    assert kept == len(contents) or count_bytes(contents[: kept + 1]) > bytes_max
    assert count_within(pack(contents), bytes_max) == kept
    taken = take_within(contents, start, count_max, bytes_max)
    assert taken == contents[start : start + len(taken)]
    assert take_within(pack(contents), start, count_max, bytes_max) == taken
    rest = contents[start : start + count_max]
    assert len(taken) == max(count_within(rest, bytes_max), min(len(rest), 1))
