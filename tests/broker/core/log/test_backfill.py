"""Records that were stored before a log gave them offsets get one offset each, whatever comes meanwhile."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dafka.broker.core.log.entries import RunEntry
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.log.offset_assigner import OffsetAssigner
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.positions import FIRST_SEQUENCE
from dafka.records import Partition, RecordBatch

PRODUCER = Partition("orders", "P" * 32)


def records(first: int, end: int) -> RecordBatch:
    return RecordBatch(PRODUCER, first, [b"x"] * (end - first), keys=[b"%d" % each for each in range(first, end)])


@given(st.integers(2, 3), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 30)), max_size=12))
def test_each_stored_record_gets_one_offset(log_count: int, steps: list[tuple[int, int, int]]) -> None:
    """Each log scans the stored records by itself, possibly from an earlier place than where it is then."""
    table = LogTable("A" * 32)
    assigner = OffsetAssigner(table)
    table.add_topic(Topic("orders", "1D", log_count))
    logs, stored = table.logs("orders"), 10
    for log in logs:
        log.backfill[PRODUCER.address] = FIRST_SEQUENCE
    for live, number, back in [*steps, *((0, each, 0) for each in range(log_count))]:
        log = logs[number % log_count]
        scanned_until = log.backfill[PRODUCER.address]
        earlier = records(max(scanned_until - back, 0), stored)
        batches = [records(stored, stored + live)] if live else []
        assigner.commit(assigner.plan(batches, 0, [(log, earlier)] if len(earlier) else []))
        stored += live
    for log in logs:
        assigner.commit(assigner.plan([], 0, [(log, records(0, stored))]))
    found: Counter[int] = Counter()
    for log in logs:
        for entry in log.index.entries():
            if isinstance(entry, RunEntry):
                found.update(range(entry.first_sequence, entry.first_sequence + entry.record_count))
    assert found == Counter(range(stored))
