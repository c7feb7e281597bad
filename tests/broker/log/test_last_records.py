"""The time of the last record of a log."""

from __future__ import annotations

from dafka.broker.core.log.log import LEADER, Log
from dafka.broker.core.positions import RecordSequence
from dafka.broker.log.reader import LAST_OFFSETS_MAX, LogReader
from dafka.records import Partition, RecordBatch
from dafka.storage.memory import MemoryStorage
from tests.broker.core.entries import marker_entry


async def test_the_last_record_is_found_unless_as_many_markers_follow_it_as_are_searched() -> None:
    """Otherwise it would take long to list the topics of a broker."""
    for count in (0, 1, LAST_OFFSETS_MAX - 1, LAST_OFFSETS_MAX, LAST_OFFSETS_MAX + 1):
        storage, log = MemoryStorage(), Log("orders", 0, Partition("orders", "a"), Partition("$logs", "a"))
        await storage.append([RecordBatch(log.leader_partition, 0, [b"first", b"last"], timestamps=[1000, 2000])])
        log.index.append(LEADER, RecordSequence(0), 2, is_open=False)
        for number in range(count):
            log.index.append_marker(marker_entry(2 + number, 2, 7, 0, 1, 3000, None))
        log.high_watermark = log.index.end_offset
        assert await LogReader(storage).find_last_timestamp(log) == (2000 if count < LAST_OFFSETS_MAX else None)
