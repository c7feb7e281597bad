"""The index of one log at one simulated broker, kept by the real code: what readers of committed records see there.

Each record has one index record, which it carries with it from its leader to the replicas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dafka.batches import encode_batch, read_header
from dafka.broker.core.log.entries import MarkerEntry, is_rewrite
from dafka.broker.core.log.log import LEADER
from dafka.broker.core.log.log_table import LogTable, leader_partition
from dafka.broker.core.log.offset_assigner import OffsetAssigner
from dafka.broker.core.log.producer_state import Marker
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.positions import FIRST_OFFSET, Offset, RecordSequence
from dafka.broker.core.replication.epoch_tree import EpochTree
from dafka.broker.core.replication.records import LeaderAndEpoch
from dafka.records import RecordBatch

TOPIC = Topic("orders", "1D")
PRODUCER_EPOCH = 0


class Indexed(str):
    """A record with the index record that gives it its offset."""

    producer_id: int | None
    transaction: int | None  # that it belongs to, or that it ends
    is_commit: bool | None  # if it is the end of a transaction
    entries: bytes  # the value of the index record

    @classmethod
    def make(
        cls, name: str, producer_id: int | None = None, transaction: int | None = None, is_commit: bool | None = None
    ) -> Indexed:
        found = cls(name)
        found.producer_id, found.transaction, found.is_commit = producer_id, transaction, is_commit
        found.entries = b""
        return found


class ReadLog:
    """One log, restored from the indexes of its branches, of which `branch` is the latest one."""

    def __init__(self, broker: str, branch: LeaderAndEpoch, rewrite_entries: int) -> None:
        self.leader_epoch = branch
        self.end = 0  # how far the branch was read
        self._order = OffsetAssigner(LogTable(broker), rewrite_entries=rewrite_entries)
        self._order.table.add_topic(TOPIC)
        (self.state,) = self._order.table.logs(TOPIC.name)
        self._order.table.begin_epoch(self.state, branch.epoch)
        self._next_sequence = 0
        self._producer_sequences: dict[int, int] = {}

    def restore(
        self, table: EpochTree, branches: Mapping[LeaderAndEpoch, tuple[int, Sequence[Indexed]]], *, is_led: bool
    ) -> None:
        """Read the index of the log from those of its branches, as `restore_log` does."""
        row = table.starts[self.leader_epoch]
        chain = [*(table.chain(row.parent) or [])][::-1]
        rows = table.starts
        epochs = [*(each.leader_epoch for each in chain), self.leader_epoch]
        self.state.epochs = [(each.epoch, rows[each].parent.end_offset) for each in epochs]
        self.state.epoch_count = len(chain) + 1
        for each in chain:
            start, records = branches.get(each.leader_epoch, (0, ()))
            self._read(each.leader_epoch, records[: max(each.end_offset - start, 0)], 0, each.end_offset)
            self.state.index.end_at(each.end_offset)
        self.state.index_end = RecordSequence(0)
        start, records = branches.get(self.leader_epoch, (row.parent.end_offset, ()))
        self.end = start
        if is_led:
            self._read(self.leader_epoch, records, 0, None, own=LEADER)
            self.end, self._next_sequence = start + len(records), sum(each.is_commit is None for each in records)
            self._order.table.finish_epoch(self.state, {}, {})
        else:
            self.follow(start, records)

    def follow(self, start: int, records: Sequence[Indexed]) -> None:
        self._read(self.leader_epoch, records[self.end - start :], self.end - start, None)
        self.end = start + len(records)

    def _read(
        self,
        branch: LeaderAndEpoch,
        records: Iterable[Indexed],
        sequence: int,
        end_offset: Offset | None,
        own: str | None = None,
    ) -> None:
        address = leader_partition(branch.leader, TOPIC, 0, branch.epoch).address if own is None else own
        for number, each in enumerate(records, sequence):
            if end_offset is not None and self.state.index.end_offset >= end_offset and is_rewrite(each.entries):
                break
            self.state.restore(
                RecordSequence(number),
                each.entries,
                leader_address=address,
                end_offset=end_offset,
            )

    def append(self, record: Indexed) -> None:
        producers = self.state.producers
        batches: list[RecordBatch] = []
        if record.producer_id is not None and record.is_commit is not None:
            first = producers.open_transactions.get(record.producer_id)
            marker = Marker(record.producer_id, PRODUCER_EPOCH, record.is_commit)
            position = RecordSequence(self._next_sequence)
            entry = MarkerEntry(FIRST_OFFSET, position, *marker[:2], int(record.is_commit), 0, first)
            self._order.table.append_marker(self.state, entry)
            producers.add_marker(marker, 0)
        else:
            encoded: tuple[bytes, ...] = ()
            if record.producer_id is not None:
                number = self._producer_sequences.get(record.producer_id, 0)
                self._producer_sequences[record.producer_id] = number + 1
                encoded = (
                    encode_batch(
                        self._next_sequence,
                        [b""],
                        timestamps=0,
                        producer_id=record.producer_id,
                        producer_epoch=PRODUCER_EPOCH,
                        base_sequence=number,
                        is_transactional=True,
                    ),
                )
                producers.add_batch(read_header(encoded[0]), RecordSequence(self._next_sequence), 0)
            batches = [RecordBatch(self.state.leader_partition, self._next_sequence, [b""], encoded=encoded)]
            self._next_sequence += 1
        plan = self._order.plan(batches, 0)
        (index,) = plan.index_records
        assert index.values[0] is not None
        record.entries = index.values[0]
        self._order.commit(plan)
        self.end += 1
        assert self.state.index.end_offset == self.end

    def visible(self, records: Sequence[Indexed], first_offset: int) -> Iterable[tuple[int, bool]]:
        """Yield the offset of each record up to the last stable offset, and whether readers of committed ones get it.

        This is what Kafka's clients do with the list of aborted transactions that comes with the records: they take it
        from its front.
        """
        end_offset = self.state.last_stable_offset
        waiting = list(self.state.transactions.aborted_between(Offset(first_offset), end_offset))
        runs = [
            number
            for first, end, number, _ in self.state.transaction_runs.split(Offset(first_offset), end_offset)
            for _ in range(first, end)
        ]
        skipped: set[int] = set()
        for offset in range(first_offset, end_offset):
            while waiting and waiting[0].first_offset <= offset:
                skipped.add(waiting.pop(0).producer_id)
            record = records[offset]
            if record.is_commit is None:
                yield offset, runs[offset - first_offset] not in skipped
            elif record.producer_id is not None:
                skipped.discard(record.producer_id)
