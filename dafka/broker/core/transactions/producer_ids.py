"""The ids of producers. Each is given away once, by one slot of the coordinators, also across restarts."""

from __future__ import annotations

from dafka.broker.core.coordination.state_records import (
    TRANSACTIONS_TOPIC,
    StateRecord,
    decode_fields,
    encode_state,
    field_errors,
)

PRODUCER_IDS_KIND = "producer-ids"
"""The key of the record, as its only element."""

PRODUCER_IDS_VERSION = 1
"""The version of the record's value."""

BLOCK = 1_000
"""The number of ids that one record reserves. A restart skips what is left of it.

The slots take turns: of each `BLOCK` times their number of ids, each slot has its own block."""


class ProducerIds:
    """The next producer id, and the ids that are reserved by a record.

    Args:
        slot: The number of the slot.
        slot_count: The number of slots.
    """

    def __init__(self, slot: int = 0, slot_count: int = 1) -> None:
        self._first_id = slot * BLOCK
        self._step = slot_count * BLOCK
        self._next_id = 0
        self._reserved_end = 0

    def restore(self, record: StateRecord) -> None:
        """Go on behind the ids that a record reserves, whichever slot has written it."""
        if record.value is not None:
            fields = decode_fields(record, PRODUCER_IDS_VERSION)
            with field_errors(record):
                self._next_id = self._reserved_end = int(fields["next_producer_id"])

    def take(self) -> tuple[int, list[StateRecord]]:
        """Return a new id, and what must be written before it is used."""
        records = []
        if self._next_id == self._reserved_end:
            turns = max(-((self._first_id - self._next_id) // self._step), 0)
            self._next_id = self._first_id + turns * self._step
            self._reserved_end = self._next_id + BLOCK
            fields = {"next_producer_id": self._reserved_end}
            records.append(encode_state(TRANSACTIONS_TOPIC, (PRODUCER_IDS_KIND,), fields, PRODUCER_IDS_VERSION))
        self._next_id += 1
        return self._next_id - 1, records
