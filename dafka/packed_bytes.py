"""Compact columns of many records: contents in one bytes object, and repeated numbers.

A program reads a record's content as a bytes object. The hot path from a socket to a disk and back does not need single
contents. There, all contents of a batch are joined in one bytes object with a table of their lengths, so that there is
no object for each record.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, chain, pairwise
from typing import TypeVar, cast, overload

_Content = TypeVar("_Content", bytes, bytes | None)

LENGTH_BYTES = 4
"""The size of one length in `PackedContents.lengths`, in bytes."""


class PackedContents(Sequence[bytes]):
    """A sequence of bytes objects that are created when they are accessed. It equals any sequence of the same contents.

    `data` has the joined contents, and `lengths` the length of each as a big-endian number of 4 bytes. They must add up
    to the size of the data; this is not checked.
    """

    def __init__(self, data: bytes, lengths: bytes) -> None:
        self.data = data
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths) // LENGTH_BYTES

    def __iter__(self) -> Iterator[bytes]:
        data = self.data
        if length := self.common_length():
            return chain.from_iterable(struct.iter_unpack(f"{length}s", data))
        return (data[start:end] for start, end in pairwise(self.ends))

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[bytes]: ...

    def __getitem__(self, index: int | slice) -> bytes | Sequence[bytes]:
        """Return one content, or for a slice a packed copy, which does not keep this object alive."""
        ends = self.ends
        if not isinstance(index, slice):
            number = range(len(self))[index]
            return self.data[ends[number] : ends[number + 1]]
        start, stop, step = index.indices(len(self))
        if step != 1:
            return list(self)[index]
        stop = max(start, stop)
        if start == 0 and stop == len(self):
            return self
        return PackedContents(
            self.data[ends[start] : ends[stop]], self.lengths[LENGTH_BYTES * start : LENGTH_BYTES * stop]
        )

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PackedContents):
            return self.lengths == other.lengths and self.data == other.data
        if isinstance(other, Sequence) and not isinstance(other, (bytes, str)):
            return list(self) == list(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self)} contents of {self.size()} bytes>"

    def size(self) -> int:
        """Return the total length of the contents in bytes."""
        return len(self.data)

    def join(self, others: Sequence[PackedContents]) -> PackedContents:
        """Return these contents and others as one sequence."""
        parts = (self, *others)
        return PackedContents(b"".join([part.data for part in parts]), b"".join([part.lengths for part in parts]))

    @cached_property
    def ends(self) -> Sequence[int]:
        """0, and the position in the data after each content."""
        if length := self.common_length():
            return range(0, length * len(self) + 1, length)
        return list(accumulate(struct.unpack(f">{len(self)}I", self.lengths), initial=0))

    def longest(self) -> int:
        """Return the length of the longest content; 0 if there is none."""
        return self.common_length() or max(struct.unpack(f">{len(self)}I", self.lengths), default=0)

    def common_length(self) -> int | None:
        """Return the length of every content, or None if they differ in length or there are none."""
        first = self.lengths[:LENGTH_BYTES]
        return int.from_bytes(first, "big") if first and self.lengths == first * len(self) else None


class Repeated(Sequence[int]):
    """A sequence of equal numbers, such as the timestamps of records that were made together."""

    def __init__(self, value: int, count: int) -> None:
        self.value = value
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        return iter((self.value,) * self._count)

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...

    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        selected = range(self._count)[index]
        return self.value if isinstance(selected, int) else Repeated(self.value, len(selected))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Repeated):
            return self._count == other._count and (self.value == other.value or not self._count)
        if isinstance(other, (Sequence, array)) and not isinstance(other, (bytes, str)):
            return list(self) == list(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Repeated({self.value}, {self._count})"


def pack(contents: Sequence[bytes]) -> PackedContents:
    """Return the same contents, packed; raise `struct.error` if one has 4 GiB or more."""
    if isinstance(contents, PackedContents):
        return contents
    return PackedContents(b"".join(contents), struct.pack(f">{len(contents)}I", *map(len, contents)))


def join_contents(parts: Sequence[Sequence[_Content]]) -> Sequence[_Content]:
    """Return several contents as one sequence, packed if all of them are packed."""
    if len(parts) == 1:
        return parts[0]
    packed = [part for part in parts if isinstance(part, PackedContents)]
    if len(packed) == len(parts):
        joined: Sequence[_Content] = packed[0].join(packed[1:])
        return joined
    return [content for part in parts for content in part]


def join_numbers(parts: Sequence[Sequence[int]]) -> Sequence[int]:
    """Return several sequences of numbers as one."""
    repeated = [part for part in parts if isinstance(part, Repeated)]
    if len(repeated) == len(parts) and len({part.value for part in repeated}) == 1:
        return Repeated(repeated[0].value, sum(map(len, repeated)))
    if not all(isinstance(part, (array, Repeated)) for part in parts):
        return list(chain.from_iterable(parts))
    joined = array("q")
    for part in parts:
        joined += array("q", (part.value,)) * len(part) if isinstance(part, Repeated) else cast("array[int]", part)
    return joined


def has_null(contents: Sequence[bytes | None]) -> bool:
    """Return whether a content is None."""
    return not isinstance(contents, PackedContents) and None in contents


def count_bytes(contents: Sequence[bytes | None]) -> int:
    """Return the total length of contents in bytes."""
    return contents.size() if isinstance(contents, PackedContents) else sum(_lengths(contents))


def _lengths(contents: Sequence[bytes | None]) -> Iterable[int]:
    return (0 if each is None else len(each) for each in contents) if None in contents else map(len, contents)  # type: ignore[arg-type]


def content_ends(contents: Sequence[bytes | None]) -> Sequence[int]:
    """Return 0, and the total length of the contents up to each, in bytes."""
    return contents.ends if isinstance(contents, PackedContents) else list(accumulate(_lengths(contents), initial=0))
