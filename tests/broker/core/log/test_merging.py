"""Merging: what another branch or an RFC 46 producer has stored is appended once, whoever leads meanwhile."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dafka.broker.core.log.entries import CONTROL
from dafka.broker.core.log.log import Log
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.log.offset_assigner import OffsetAssigner
from dafka.broker.core.log.partitioner import log_of_key
from dafka.broker.core.log.producer_batches import BATCHES_REMEMBERED
from dafka.broker.core.log.producer_state import FORMER_EPOCHS_MAX
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.positions import FIRST_SEQUENCE, AtOffset, Offset, ProducerSequence, RecordSequence
from dafka.records import Partition, RecordBatch
from tests.broker.core.entries import batch_entry, marker_entry, run_entry

TOPIC = Topic("orders", "id", 2)
SIDE = "side/id/0/1"
"""The partition of the records that a branch has which the log does not continue. A producer sends each by itself."""

STORED = Partition("orders", "P")
"""A producer partition. Some of its records are in the other log of the topic, which somebody else leads."""

KEYS = [b"a", b"b", b"c", b"d", b"e"]
EPOCH_RECORDS = 10  # of the producer
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["heal", "store", "scan"]), st.integers(0, 30), st.integers(1, 30)),
        st.tuples(st.sampled_from(["lead", "lead again"]), st.just(0), st.integers(1, 9)),
        st.tuples(st.sampled_from(["write", "fail", "append", "end"]), st.just(0), st.just(0)),
    ),
    min_size=15,
    max_size=30,
)


def stored(first: int, end: int) -> RecordBatch:
    keys = [KEYS[each % len(KEYS)] for each in range(first, end)]
    return RecordBatch(STORED, first, [b""] * (end - first), keys=keys)


class Leaders:
    """The leaders of one log, one after the other, each of which knows what its index says."""

    def __init__(self) -> None:
        self.epoch = self.stored = self.markers = self.side_end = 0
        self.written: list[RecordBatch] = []
        self.own: dict[str, int] = {}  # the records in each leader partition
        self.lead()

    def lead(self, *, is_same_broker: bool = False) -> None:
        self.epoch += 1
        if not is_same_broker:
            self.order = OffsetAssigner(LogTable(f"broker-{self.epoch}"))
            self.order.table.add_topic(TOPIC)
            self.order.table.end_epoch(self.order.table.logs("orders")[1])
        self.order.table.begin_epoch(self.log, self.epoch)
        for batch in self.written:
            for value in batch.values:
                own = str(batch.partition.address)
                self.log.restore(FIRST_SEQUENCE, value or b"", leader_address=own)
        self.order.table.finish_epoch(self.log, {STORED: self.stored}, {})
        self.sequence = 0
        self.side_end = self.log.index.end_sequence(SIDE)
        self.markers = self.log.index.marker_count

    def stop(self) -> None:
        """Stop leading: another broker assigns the offsets from now on."""
        table, log, former_end = self.order.table, self.log, self.log.index.end_offset
        assert table.withdraw(log, log.leader_partition, RecordSequence(self.sequence), RecordSequence(99))
        table.end_epoch(log)
        earlier = [(log, stored(0, self.stored))] if self.stored else []
        own = RecordBatch(log.leader_partition, self.sequence, [b""])
        self.order.commit(self.order.plan([own, stored(self.stored, self.stored + 1)], 0, earlier))
        assert (log.index.end_offset, table.leads(log), table.has_unwritten()) == (former_end, False, False)
        assert not table.is_leader_partition(log.leader_partition)

    @property
    def log(self) -> Log:
        return self.order.table.logs("orders")[0]

    def write(
        self, *batches: RecordBatch, succeeds: bool = True, records: int = 0, earlier: RecordBatch | None = None
    ) -> None:
        own = RecordBatch(self.log.leader_partition, self.sequence, [b"x"] * records)
        given = [*batches, own] if records else batches
        plan = self.order.plan(given, 0, [] if earlier is None else [(self.log, earlier)])
        if not succeeds:
            self.order.undo(plan)
            return
        self.order.commit(plan)
        assert not self.order.table.has_unwritten()
        self.sequence += records
        self.own[self.log.leader_partition.address] = self.sequence
        self.written += [
            RecordBatch(Partition("", self.log.leader_partition.address), 0, each.values) for each in plan.index_records
        ]

    def heal(self, first: int, count: int) -> None:
        """Read what another branch has from somewhere on, as far as it holds that."""
        begin = min(first, self.side_end)
        end = max(self.side_end, begin + count)
        batches = [
            batch_entry(each, 1, 7, each // EPOCH_RECORDS, each % EPOCH_RECORDS, 1, 0) for each in range(begin, end)
        ]
        for sequence, batch in enumerate(batches, begin):
            is_forgotten = batch.producer_epoch < (self.side_end - 1) // EPOCH_RECORDS - FORMER_EPOCHS_MAX
            is_new = sequence >= self.side_end
            assert self.log.producers.admit_divergent(batch) == (is_new or is_forgotten)
            self.side_end = max(self.side_end, sequence + 1)
        self.order.table.merge_divergent(self.log, [run_entry(begin, SIDE, begin, end - begin), *batches])

    def scan(self, again: int, count: int) -> None:
        """Assign offsets to some records that were stored before this broker led the log, perhaps again."""
        scanned_until = self.log.backfill.get(STORED.address, self.stored)
        if scanned_until >= self.stored:
            self.log.backfill.pop(STORED.address, None)
        else:
            self.write(earlier=stored(max(scanned_until - again, 0), min(scanned_until + count, self.stored)))
            assert self.log.backfill[STORED.address] > scanned_until

    def end_transaction(self) -> None:
        marker = marker_entry(0, self.sequence, 8, 0, 1, 0, None)
        self.order.table.append_marker(self.log, marker)
        self.markers += 1

    def play(self, what: str, first: int, count: int) -> None:
        if what == "heal":
            self.heal(first, count)
        elif what == "scan":
            self.scan(first, count)
        elif what == "end":
            self.end_transaction()
        elif what in {"lead", "lead again"}:
            self.stop()
            self.stored += count - 1  # while another broker leads
            self.lead(is_same_broker=what == "lead again")
        elif what == "store":
            succeeds = first > 5
            self.write(stored(self.stored, self.stored + count), succeeds=succeeds)
            self.stored += count * succeeds
        else:
            self.write(succeeds=what != "fail", records=5 if what != "write" else 0)

    def places(self) -> list[tuple[str, int]]:
        found = []
        offset = 0
        while (location := self.log.index.locate(Offset(offset))) is not None:
            places = range(location.sequence, location.sequence + location.record_count)
            address = location.address or self.log.leader_partition.address
            found += [(address, each) for each in places]
            offset += location.record_count
        return found


@given(STEPS)
def test_no_record_is_merged_twice(steps: list[tuple[str, int, int]]) -> None:
    leaders = Leaders()
    for step in steps:
        leaders.play(*step)
    while leaders.log.backfill:
        leaders.scan(0, 30)
    leaders.write()
    found, log = leaders.places(), leaders.log
    assert len(set(found)) == len(found)
    counts = {**leaders.own, SIDE: leaders.side_end, CONTROL: leaders.markers}
    expected = {address: list(range(count)) for address, count in counts.items()}
    expected[STORED.address] = [
        each for each in range(leaders.stored) if log_of_key(KEYS[each % len(KEYS)], 2) == log.number
    ]
    assert {each: [sequence for address, sequence in found if address == each] for each in expected} == expected
    assert len(found) == sum(map(len, expected.values()))
    for sequence in range(max(leaders.side_end - BATCHES_REMEMBERED, 0), leaders.side_end):
        producer_epoch, base_sequence = divmod(sequence, EPOCH_RECORDS)
        batch = log.producer_batches.find(7, producer_epoch, ProducerSequence(base_sequence))
        offset = log.index.find(SIDE, RecordSequence(sequence))
        assert batch is not None
        assert (batch.position, batch.flags) == (AtOffset(Offset(offset or 0)), 0)
