"""Packed contents behave as the list of them does."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka.packed_bytes import PackedContents, Repeated, content_ends, count_bytes, join_contents, join_numbers, pack

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


@given(contents=LISTS)
def test_ends_of_contents_are_the_sums_of_lengths(contents: list[bytes]) -> None:
    ends = [len(b"".join(contents[:count])) for count in range(len(contents) + 1)]
    assert content_ends(contents) == ends
    assert list(content_ends(pack(contents))) == ends


@given(
    value=st.integers(0, 1), count=st.integers(0, 5), index=st.slices(5), other=st.lists(st.integers(0, 1), max_size=5)
)
def test_repeated_numbers_equal_the_list(value: int, count: int, index: slice, other: list[int]) -> None:
    repeated, numbers = Repeated(value, count), [value] * count
    assert (len(repeated), list(repeated), list(repeated[index])) == (count, numbers, numbers[index])
    assert isinstance(repeated[index], Repeated)
    assert [repeated[number] for number in range(-count, count)] == numbers * 2
    for form in (other, array("q", other)):
        assert (repeated == form) == (numbers == other)
    assert (repeated == Repeated(1, len(other))) == (numbers == [1] * len(other))
    assert repeated != bytes(numbers)
    with pytest.raises(IndexError):
        repeated[count]


def test_numbers_are_joined_in_the_smallest_form() -> None:
    same = join_numbers([Repeated(7, 2), Repeated(7, 3)])
    assert isinstance(same, Repeated)
    assert same == [7] * 5
    several = join_numbers([Repeated(7, 2), array("q", [1, 2]), Repeated(2**63 - 1, 1)])
    assert several == array("q", [7, 7, 1, 2, 2**63 - 1])
    assert join_numbers([Repeated(7, 2), [2**64]]) == [7, 7, 2**64]


def test_the_longest_content() -> None:
    assert [pack(each).longest() for each in ([], [b"", b""], [b"ab", b"cd"], [b"a", b"abc", b""])] == [0, 0, 2, 3]
