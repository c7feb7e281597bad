"""What the suite has published to the target, and what it asked it for: by this the target's answers are judged."""

from __future__ import annotations

from collections.abc import Iterable

import attrs


def record_content(partition: bytes, sequence: int) -> bytes:
    """A record's content that tells which record it is, so that a wrong one cannot look right."""
    return b"%b/%d" % (partition[-8:], sequence)


@attrs.define
class Partition:
    """A partition's records, as far as the target can know of them.

    Attributes:
        address: the producer's address.
        topic: the topic.
        contents: each record that was sent to the target (or that the target published), by sequence.
        head: the highest sequence up to which there is no gap in `contents`; -1 where the first is missing.
    """

    address: bytes
    topic: bytes
    contents: dict[int, bytes] = attrs.field(factory=dict)
    head: int = -1

    def add(self, sequence: int, content: bytes) -> None:
        """Takes note of a record; the first content that a sequence was given stays."""
        self.contents.setdefault(sequence, content)
        while self.head + 1 in self.contents:
            self.head += 1


@attrs.frozen
class FetchRequest:
    """A FETCH that was sent to the target: what may be answered."""

    sequence: int
    count: int

    def covers(self, sequence: int) -> bool:
        """Was this record asked for?"""
        return self.sequence <= sequence < self.sequence + self.count


class KnownRecords:
    """The partitions of one scenario, and the FETCHes of the nodes that the suite plays."""

    def __init__(self) -> None:
        self.partitions: dict[bytes, Partition] = {}
        self._requests: dict[tuple[bytes, bytes], list[FetchRequest]] = {}
        self._last_answer: dict[tuple[bytes, bytes], int] = {}

    def partition(self, address: bytes, topic: bytes) -> Partition:
        """The partition of this producer; made where it is new."""
        return self.partitions.setdefault(address, Partition(address, topic))

    def add_fetch(self, requestor: bytes, partition: bytes, sequence: int, count: int) -> None:
        """A FETCH was sent to the target."""
        self._requests.setdefault((requestor, partition), []).append(FetchRequest(sequence, count))

    def fetch_requests(self, requestor: bytes, partition: bytes) -> Iterable[FetchRequest]:
        """The FETCHes of one node for one partition."""
        return self._requests.get((requestor, partition), [])

    def note_answer(self, requestor: bytes, partition: bytes, sequence: int) -> int | None:
        """Takes note of a DIRECT-RECORD; gives the sequence of the one before it, None for the first."""
        key = (requestor, partition)
        before = self._last_answer.get(key)
        self._last_answer[key] = sequence
        return before
