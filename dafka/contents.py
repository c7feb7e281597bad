"""Contents of many records in one piece: what hot paths hand on without making an object of each.

A record's content is a bytes object to whoever asks for it. On the way from a socket to a disk and back nobody does:
there the contents of a run lie one behind the other, beside their lengths, and move as two pieces of memory.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate, chain, pairwise
from typing import overload

LENGTH_BYTES = 4


class PackedContents(Sequence[bytes]):
    """A sequence of bytes objects that are made when asked for. Equal to any sequence of the same contents.

    Attributes:
        octets: the contents, one behind the other.
        lengths: the length of each, in 4 octets, big-endian.
    """

    def __init__(self, octets: bytes, lengths: bytes) -> None:
        """The lengths must add up to the octets: nobody looks again."""
        self.octets = octets
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths) // LENGTH_BYTES

    def __iter__(self) -> Iterator[bytes]:
        octets = self.octets
        if length := self.common_length():
            return chain.from_iterable(struct.iter_unpack(f"{length}s", octets))
        return (octets[start:end] for start, end in pairwise(self.ends))

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[bytes]: ...

    def __getitem__(self, index: int | slice) -> bytes | Sequence[bytes]:
        """One content; or of a slice the same kind of thing, which does not keep this one in memory."""
        ends = self.ends
        if not isinstance(index, slice):
            number = range(len(self))[index]
            return self.octets[ends[number] : ends[number + 1]]
        start, stop, step = index.indices(len(self))
        if step != 1:
            return list(self)[index]
        stop = max(start, stop)
        if start == 0 and stop == len(self):
            return self
        return PackedContents(
            self.octets[ends[start] : ends[stop]], self.lengths[LENGTH_BYTES * start : LENGTH_BYTES * stop]
        )

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PackedContents):
            return self.lengths == other.lengths and self.octets == other.octets
        if isinstance(other, Sequence) and not isinstance(other, (bytes, str)):
            return list(self) == list(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self)} contents of {len(self.octets)} octets>"

    @cached_property
    def ends(self) -> Sequence[int]:
        """0, and where in the octets each content ends."""
        if length := self.common_length():
            return range(0, length * len(self) + 1, length)
        return list(accumulate(struct.unpack(f">{len(self)}I", self.lengths), initial=0))

    def common_length(self) -> int | None:
        """The length that all contents have, if they have one."""
        first = self.lengths[:LENGTH_BYTES]
        return int.from_bytes(first, "big") if first and self.lengths == first * len(self) else None


def pack(contents: Sequence[bytes]) -> PackedContents:
    """These contents in one piece. Raises `struct.error` for one of 4 GiB or more."""
    if isinstance(contents, PackedContents):
        return contents
    return PackedContents(b"".join(contents), struct.pack(f">{len(contents)}I", *map(len, contents)))


def join_contents(parts: Sequence[Sequence[bytes]]) -> Sequence[bytes]:
    """These contents as one sequence, packed if all of them are."""
    if len(parts) == 1:
        return parts[0]
    packed = [part for part in parts if isinstance(part, PackedContents)]
    if len(packed) == len(parts):
        return PackedContents(b"".join([part.octets for part in packed]), b"".join([part.lengths for part in packed]))
    return [content for part in parts for content in part]


def count_bytes(contents: Sequence[bytes]) -> int:
    """The contents' octets, added up."""
    return len(contents.octets) if isinstance(contents, PackedContents) else sum(map(len, contents))


def count_within(contents: Sequence[bytes], bytes_max: int) -> int:
    """How many of the first contents have no more than so many octets together."""
    ends: Sequence[int] = (
        contents.ends if isinstance(contents, PackedContents) else list(accumulate(map(len, contents), initial=0))
    )
    return bisect_right(ends, bytes_max) - 1


def take_within(contents: Sequence[bytes], start: int, count_max: int, bytes_max: int) -> Sequence[bytes]:
    """Contents from `start` on: at most so many, of at most so many octets together, but at least one."""
    part = contents[start : start + count_max]
    return part if count_bytes(part) <= bytes_max else part[: max(count_within(part, bytes_max), 1)]
