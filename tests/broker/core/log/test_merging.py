"""Healing: what another branch has is appended once, however often it is tried and whoever leads meanwhile."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dafka.broker.core.log.log import Log
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.log.offset_assigner import OffsetAssigner
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.positions import FIRST_SEQUENCE, Offset, RecordSequence
from dafka.records import Partition, RecordBatch
from tests.broker.core.entries import marker_entry, run_entry

TOPIC = Topic("orders", "id", 1)
SIDE = "side/id/0/1"
"""The partition of the records that a branch has which the log does not continue."""

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("heal"), st.integers(0, 30), st.integers(1, 30)),
        st.tuples(st.sampled_from(["write", "fail", "append", "lead", "lead again"]), st.just(0), st.just(0)),
    ),
    max_size=30,
)


class Leaders:
    """The leaders of one log, one after the other, each of which knows what its index says."""

    def __init__(self) -> None:
        self.epoch = 0
        self.written: list[RecordBatch] = []
        self.lead()

    def lead(self, *, is_same_broker: bool = False) -> None:
        self.epoch += 1
        if not is_same_broker:
            self.order = OffsetAssigner(LogTable(f"broker-{self.epoch}"))
            self.order.table.add_topic(TOPIC)
        self.order.table.begin_epoch(self.log, self.epoch)
        for batch in self.written:
            for value in batch.values:
                own = str(batch.partition.address)
                self.log.restore(FIRST_SEQUENCE, value or b"", keeps_record_batches=True, leader_address=own)
        self.order.table.finish_epoch(self.log, {}, {})
        self.sequence = 0

    @property
    def log(self) -> Log:
        return self.order.table.logs("orders")[0]

    def write(self, *, succeeds: bool = True, records: int = 0) -> None:
        batch = RecordBatch(self.log.leader_partition, self.sequence, [b"x"] * records)
        plan = self.order.plan([batch] if records else [], 0)
        if not succeeds:
            self.order.undo(plan)
            return
        self.order.commit(plan)
        self.sequence += records
        self.written += [
            RecordBatch(Partition("", self.log.leader_partition.address), 0, each.values) for each in plan.index_records
        ]

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
def test_no_record_is_healed_twice(steps: list[tuple[str, int, int]]) -> None:
    leaders, end = Leaders(), 0
    for what, first, count in steps:
        if what == "heal":  # a leader reads what another branch has from somewhere on, as far as it holds that
            begin = min(first, end)
            end = max(end, begin + count)
            leaders.order.table.merge_divergent(leaders.log, [run_entry(begin, SIDE, begin, end - begin)])
        elif what in {"lead", "lead again"}:
            leaders.lead(is_same_broker=what == "lead again")
            end = leaders.log.index.end_sequence(SIDE)
        else:
            leaders.write(succeeds=what != "fail", records=5 if what == "append" else 0)
    leaders.write()
    found = leaders.places()
    assert len(set(found)) == len(found)
    healed = [sequence for address, sequence in found if address == SIDE]
    assert healed == list(range(end))


def test_what_waits_in_a_former_epoch_is_not_appended_in_the_next_one_of_the_same_broker() -> None:
    leaders = Leaders()
    leaders.write(records=1)
    former, table = leaders.log.leader_partition, leaders.order.table
    table.append_marker(leaders.log, marker_entry(0, 1, 7, 0, 1, 0, None))
    table.merge_divergent(leaders.log, [run_entry(0, SIDE, 0, 5)])
    assert table.withdraw(leaders.log, former, RecordSequence(1), RecordSequence(2))
    leaders.lead(is_same_broker=True)
    leaders.write(records=3)
    own = leaders.log.leader_partition
    assert leaders.places() == [(former.address, 0), *((own.address, each) for each in range(3))]
