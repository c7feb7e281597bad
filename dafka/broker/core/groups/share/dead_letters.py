"""Dead letters: the records that a topic gets for the records that a share group gives up (KIP-1191)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import attrs

from dafka.batches import HEADER_BYTES, encode_batch
from dafka.broker.core.groups.share.runs import Run
from dafka.broker.core.log.producer_state import Producer
from dafka.records import Header, Record

_OVERHEAD_BYTES = 40
"""The largest size of the lengths and times of a record in a batch."""

_HEADER_OVERHEAD_BYTES = 10


class LetterSource(NamedTuple):
    """Where dead letters come from: a log, and the group that has given up its records."""

    topic: str
    number: int
    group_id: str


@attrs.frozen
class DeadLetter:
    """A dead letter.

    Attributes:
        offset: The offset of the record that was given up.
        reasons: The headers that say where it comes from, and why.
        record: The record, if the letter copies it.
    """

    offset: int
    reasons: tuple[Header, ...]
    record: Record | None = None

    @property
    def headers(self) -> tuple[Header, ...]:
        """All headers. Those of the record come first, so that it cannot hide the others."""
        return self.reasons if self.record is None else (*self.record.headers, *self.reasons)

    @property
    def size(self) -> int:
        """The largest size of the letter in a batch, in bytes."""
        key, value = (b"", b"") if self.record is None else (self.record.key or b"", self.record.value or b"")
        headers = sum(len(name.encode()) + len(each or b"") + _HEADER_OVERHEAD_BYTES for name, each in self.headers)
        return _OVERHEAD_BYTES + len(key) + len(value) + headers


def write_letter(
    source: LetterSource, offset: int, run: Run, deliveries_max: int, record: Record | None = None
) -> DeadLetter:
    """Return the dead letter of a record in a run.

    A leader that has loaded the run knows only its delivery count. So a record that was rejected in its last delivery
    counts as delivered too often.
    """
    count = run.delivery_count
    message = f"the record was delivered {count} times" if count >= deliveries_max else "a member rejected the record"
    named = {
        "topic": source.topic,
        "partition": source.number,
        "offset": offset,
        "group": source.group_id,
        "delivery.count": count,
        "message": message,
    }
    reasons = tuple((f"__dlq.errors.{name}", str(value).encode()) for name, value in named.items())
    return DeadLetter(offset, reasons, record)


def take_letters(letters: Sequence[DeadLetter], bytes_max: int) -> list[DeadLetter]:
    """Return the first letters that fit into a batch, at least one. A letter that is too large alone copies nothing."""
    found, left = list[DeadLetter](), bytes_max - HEADER_BYTES
    for each in letters:
        if each.size > bytes_max - HEADER_BYTES:
            each = attrs.evolve(each, record=None)  # noqa: PLW2901
        if found and each.size > left:
            break
        found.append(each)
        left -= each.size
    return found


def encode_letters(letters: Iterable[DeadLetter], time_ms: int, producer: Producer, sequence: int) -> bytes:
    """Return letters as a batch of an idempotent producer."""
    found = list(letters)
    records = [each.record for each in found]
    return encode_batch(
        0,
        [None if each is None else each.value for each in records],
        timestamps=time_ms,
        keys=[None if each is None else each.key for each in records],
        headers=[each.headers for each in found],
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=sequence,
    )
