"""The numbers of records: in a log, in a partition, and of their producer. mypy finds where one stands for another.

The nodes of RFC 46 know only sequences, and write them as plain numbers. They become a `RecordSequence` where the
broker's core receives them.
"""

from __future__ import annotations

from typing import NamedTuple, NewType, TypeAlias

from dafka.records import SEQUENCE_MAX

Offset = NewType("Offset", int)
"""The number of a record in a log."""

RecordSequence = NewType("RecordSequence", int)
"""The number of a record in a partition."""

ProducerSequence = NewType("ProducerSequence", int)
"""The number that an idempotent producer gives a record: Kafka's sequence number, of 31 bits."""


FIRST_OFFSET = Offset(0)
FIRST_SEQUENCE = RecordSequence(0)

UNKNOWN_OFFSET = Offset(-1)
"""The offset of records whose offset is not known, and the end of a log of which nothing is known."""

OFFSET_MAX = Offset(SEQUENCE_MAX)
"""An offset after the end of every log."""


class AtOffset(NamedTuple):
    """The position of a record that another leader has appended, or that was merged: its offset."""

    offset: Offset


Position: TypeAlias = RecordSequence | AtOffset
"""Where a record is in a log. Leaders write the sequences that records have in their leader partition, because the
records have no offsets yet."""


def sequence_of(position: Position) -> RecordSequence:
    """Return the sequence of a record that is known to be in the leader partition."""
    assert not isinstance(position, AtOffset)
    return position


def log_order(position: Position) -> tuple[bool, int]:
    """Return a key to sort the positions in an index: the records of other leaders come before its own leader's."""
    return (False, position.offset) if isinstance(position, AtOffset) else (True, position)
