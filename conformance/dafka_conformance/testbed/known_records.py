"""The records and FETCHes that the suite sent to the target: the target's answers are checked against them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs

from dafka_conformance.grammar.record_batches import read_content


class UncarriedError(Exception):
    """A scenario needs a record that the target's input or output cannot carry: a fault of the scenario, not of it."""


def record_content(partition: bytes, sequence: int) -> bytes:
    """Return a record's content, unique to the record, so that a wrong record is always detected."""
    return b"%b/%d" % (partition[-8:], sequence)


@attrs.define
class Partition:
    """A partition's records, as far as the target can know them.

    Attributes:
        address: The producer's address.
        topic: The topic.
        contents: The content of each record that was sent to the target or published by it, by sequence.
        head: The last sequence before the first gap in `contents`; -1 if record 0 is missing.
    """

    address: bytes
    topic: bytes
    contents: dict[int, bytes] = attrs.field(factory=dict)
    head: int = -1

    def add(self, sequence: int, content: bytes) -> None:
        """Add a record. If the sequence already has a content, it keeps that one."""
        self.contents.setdefault(sequence, content)
        while self.head + 1 in self.contents:
            self.head += 1


@attrs.frozen
class FetchRequest:
    """A FETCH that was sent to the target: the records that may be in its answer."""

    sequence: int
    count: int

    def covers(self, sequence: int) -> bool:
        """Return whether the FETCH requests this record."""
        return self.sequence <= sequence < self.sequence + self.count


class KnownRecords:
    """The partitions of one testbed, and the FETCHes of the suite's nodes.

    Args:
        carries: Returns whether the target can deliver a value so that the suite reads it as it is.
    """

    def __init__(self, carries: Callable[[bytes], bool] = lambda _value: True) -> None:
        self._carries = carries
        self.partitions: dict[bytes, Partition] = {}
        self._requests: dict[tuple[bytes, bytes], list[FetchRequest]] = {}
        self._last_answer: dict[tuple[bytes, bytes], int] = {}

    def partition(self, address: bytes, topic: bytes) -> Partition:
        """Return the partition of this producer. Create it if it is new."""
        return self.partitions.setdefault(address, Partition(address, topic))

    def add_sent(self, address: bytes, topic: bytes, sequence: int, content: bytes) -> None:
        """Add a record that is sent to the target. Raise `UncarriedError` if its output could not carry the value."""
        value = read_content(content).value or b""
        if not self._carries(value):
            raise UncarriedError(f"the target's output cannot carry the value {value[:80]!r}: send another one")
        self.partition(address, topic).add(sequence, content)

    def add_fetch(self, requestor: bytes, partition: bytes, sequence: int, count: int) -> None:
        """Add a FETCH that was sent to the target."""
        self._requests.setdefault((requestor, partition), []).append(FetchRequest(sequence, count))

    def fetch_requests(self, requestor: bytes, partition: bytes) -> Iterable[FetchRequest]:
        """Return the FETCHes of one node for one partition."""
        return self._requests.get((requestor, partition), [])

    def record_answer(self, requestor: bytes, partition: bytes, sequence: int) -> int | None:
        """Add a DIRECT-RECORD of the target, and return the sequence of the previous one; None for the first."""
        key = (requestor, partition)
        before = self._last_answer.get(key)
        self._last_answer[key] = sequence
        return before
