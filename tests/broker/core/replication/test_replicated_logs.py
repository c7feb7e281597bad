"""What a broker fetches so that it has the logs that it keeps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from dafka.broker.core.log.entries import encode_entries
from dafka.broker.core.log.log import LEADER
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.positions import RecordSequence
from dafka.broker.core.replication.records import EpochStart, LeaderAndEpoch, next_epoch
from dafka.broker.core.replication.replicated_logs import FetchRecords, LogAction, ReplicatedLog, ReplicatedLogs
from dafka.broker.core.replication.settings import ReplicaSettings
from dafka.records import Partition, RecordBatch
from tests.broker.core.entries import epoch_end, run_entry

REPLICAS = ("a", "b", "c")
FIRST = LeaderAndEpoch(0, "a")
SECOND = LeaderAndEpoch(next_epoch(0, 1), "b")
RECORDS = 10


class Kept:
    """A log that the broker c keeps, if it is a replica."""

    def __init__(self, replicas: tuple[str, ...] = REPLICAS) -> None:
        self.ends: defaultdict[Partition, int] = defaultdict(int)
        self.logs = ReplicatedLogs("c", lambda: 2, self.ends.__getitem__, ReplicaSettings())
        self.log: ReplicatedLog = self.logs.add(Topic("orders", "f" * 32), 0, replicas, [])
        self.row = EpochStart(self.log.name, SECOND, epoch_end(FIRST, RECORDS), replicas)

    def store(self, batch: RecordBatch) -> list[FetchRecords]:
        self.ends[batch.partition] = batch.end_sequence
        return fetched(self.logs.stored([batch])[1])

    def store_index(self) -> list[FetchRecords]:
        """Store the index of the first branch, which names ten records of its leader's clients."""
        index = RecordBatch(self.log.index_partition(FIRST), 0, [encode_entries([run_entry(0, LEADER, 0, RECORDS)])])
        return self.store(index)

    def store_records(self) -> list[FetchRecords]:
        return self.store(RecordBatch(self.log.leader_partition(FIRST), 0, [b"x"] * RECORDS))


def fetched(actions: Iterable[LogAction]) -> list[FetchRecords]:
    return [each.action for each in actions if isinstance(each.action, FetchRecords)]


def test_a_replica_fetches_what_is_before_a_branch_that_begins() -> None:
    kept = Kept()
    index, records = kept.log.index_partition(FIRST), kept.log.leader_partition(FIRST)
    assert fetched(kept.logs.record_control("b", kept.row)) == [FetchRecords(index)]
    assert kept.store_index() == [FetchRecords(records, RecordSequence(RECORDS))]
    assert fetched(kept.logs.repeat_fetches()) == [FetchRecords(records, RecordSequence(RECORDS))]
    assert kept.store_records() == []
    assert fetched(kept.logs.repeat_fetches()) == []


def test_records_that_are_on_their_way_are_fetched_only_after_a_while() -> None:
    kept = Kept()
    assert kept.store_index() == []
    assert fetched(kept.logs.repeat_fetches()) == [
        FetchRecords(kept.log.leader_partition(FIRST), RecordSequence(RECORDS))
    ]


def test_a_broker_that_does_not_keep_a_log_fetches_nothing_of_it() -> None:
    kept = Kept(("a", "b"))
    assert fetched(kept.logs.record_control("b", kept.row)) == []
    assert fetched(kept.logs.repeat_fetches()) == []
