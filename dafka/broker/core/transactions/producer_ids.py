"""Producer ids. Each is assigned once, by one shard of the coordinators, also across restarts."""

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
"""The number of ids that one record reserves. A restart skips the rest of them.

The shards take turns: of each `BLOCK` times their number of ids, each shard has its own block."""


class ProducerIds:
    """The next producer id of a shard, and the ids that are reserved by a record."""

    def __init__(self, shard: int = 0, shard_count: int = 1) -> None:
        self._first_id = shard * BLOCK
        self._step = shard_count * BLOCK
        self._next_id = 0
        self._reserved_end = 0

    def restore(self, record: StateRecord) -> None:
        """Continue after the ids that a record reserves, whichever shard has written it."""
        if record.value is not None:
            fields = decode_fields(record, PRODUCER_IDS_VERSION)
            with field_errors(record):
                self._next_id = self._reserved_end = int(fields["next_producer_id"])

    def take(self) -> tuple[int, list[StateRecord]]:
        """Return a new id, and the records that must be written before it is used."""
        records = []
        if self._next_id == self._reserved_end:
            turns = max(-((self._first_id - self._next_id) // self._step), 0)
            self._next_id = self._first_id + turns * self._step
            self._reserved_end = self._next_id + BLOCK
            fields = {"next_producer_id": self._reserved_end}
            records.append(encode_state(TRANSACTIONS_TOPIC, (PRODUCER_IDS_KIND,), fields, PRODUCER_IDS_VERSION))
        self._next_id += 1
        return self._next_id - 1, records
