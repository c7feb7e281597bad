"""A rewritten index names what its readers need: also the batches that another leader epoch may not have."""

from __future__ import annotations

from random import Random

import pytest

from dafka.batches import encode_batch
from dafka.broker.core.log.entries import BatchEntry, DivergentEntry, IndexRewriteEntry, MergedEntry, decode_entries
from dafka.broker.core.log.log import UNSHARED_BATCHES_MAX
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.log.offset_assigner import OffsetAssigner
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.positions import AtOffset, Offset, ProducerSequence, RecordSequence
from dafka.records import Partition, RecordBatch
from tests.broker.core.entries import run_entry
from tests.seeds import each_seed

Name = tuple[int, int]
"""A producer and the sequence of a batch."""


class Leader:
    """The leader of one log, whose producers send a record at a time, and which is leader again and again."""

    def __init__(self, availability: str, rewrite_entries: int) -> None:
        self.assigner = OffsetAssigner(LogTable("broker"), rewrite_entries)
        self.assigner.table.add_topic(Topic("orders", "id", 1, settings={"availability": availability}))
        (self.log,) = self.assigner.table.logs("orders")
        self.can_diverge = availability == "branch"
        self.indexes: list[tuple[str, list[bytes]]] = []
        self.offsets: dict[Name, int] = {}
        self.sent: dict[int, int] = {}
        self.rewrites = self.epoch = 0
        self.lead()

    def lead(self) -> None:
        """Lead the log in another epoch, after its index was restored."""
        table, self.epoch = self.assigner.table, self.epoch + 1
        table.begin_epoch(self.log, self.epoch)
        for address, values in self.indexes:
            for sequence, value in enumerate(values):
                self.log.restore(RecordSequence(sequence), value, leader_address=address)
        self.log.index_end = RecordSequence(0)
        self.log.epoch_count = len(self.indexes) + 1
        table.finish_epoch(self.log, {}, {})
        self.indexes.append((self.log.leader_partition.address, []))
        self.sequence = 0

    def append(self, producer: int) -> None:
        """Append a batch of a producer."""
        number = self.sent[producer] = self.sent.get(producer, -1) + 1
        data = encode_batch(
            self.sequence, [b"x"], timestamps=1, producer_id=producer, producer_epoch=0, base_sequence=number
        )
        batch = RecordBatch(self.log.leader_partition, self.sequence, [b"x"], encoded=(data,))
        self.offsets[producer, number] = self.log.index.end_offset
        plan = self.assigner.plan([batch], 0)
        self.assigner.commit(plan)
        self.sequence += 1
        values = [value or b"" for each in plan.index_records for value in each.values]
        if isinstance(decode_entries(values[0])[0], IndexRewriteEntry):
            self.rewrites += 1
            self.indexes = [(self.log.leader_partition.address, [])]
        self.indexes[-1][1].extend(values)

    def move_common_offset(self, offset: int) -> None:
        """Let the replicas have the log up to an offset, so that every epoch has it."""
        if self.can_diverge:
            self.log.shared_offset = Offset(offset)
            self.log.high_watermark = self.log.index.end_offset
        else:
            self.log.high_watermark = Offset(offset)
        self.log.drop_shared_batches()

    def named(self) -> set[Name]:
        """Return the batches that the stored indexes name."""
        entries = [each for _, values in self.indexes for value in values for each in decode_entries(value)]
        return {
            (each.producer_id, each.base_sequence)
            for each in entries
            if isinstance(each, BatchEntry) and each.base_sequence is not None
        }


@each_seed(30)
def test_the_index_names_all_batches_that_another_epoch_may_not_have(seed: int) -> None:
    draw = Random(seed)
    leader, common = Leader(draw.choice(("majority", "branch")), rewrite_entries=draw.choice((1, 10))), 0
    for _ in range(150):
        step = draw.randrange(20)
        if step == 0:
            leader.lead()
        elif step < 4:
            common = draw.randint(common, leader.log.index.end_offset)
            leader.move_common_offset(common)
        else:
            leader.append(draw.choice((1, 1, 1, 2)))
        needed = {name for name, offset in leader.offsets.items() if offset >= common}
        assert needed <= leader.named()
    leader.move_common_offset(leader.log.index.end_offset)
    before = leader.rewrites
    for _ in range(200):
        leader.append(3)
        leader.move_common_offset(leader.log.index.end_offset)
    assert leader.rewrites > before, "an index that is not rewritten grows without end"
    leader.lead()
    for name in leader.named():
        entry = BatchEntry(AtOffset(Offset(0)), 1, name[0], 0, ProducerSequence(name[1]), 0, 0)
        assert not leader.log.producers.admit_divergent(entry)


@each_seed(10)
def test_what_was_merged_of_another_epoch_is_not_merged_again_by_later_leaders(seed: int) -> None:
    """They may have forgotten the batches that were left out because their producers had sent them again."""
    draw = Random(seed)
    leader, records = Leader("branch", rewrite_entries=1), draw.randrange(1, 5)
    leader.append(1)
    left_out = draw.randrange(records + 1)
    side: list[DivergentEntry] = [run_entry(0, "side", first, 1) for first in range(records)]
    end = MergedEntry(Offset(0), "side", RecordSequence(records))
    leader.assigner.table.merge_divergent(leader.log, [*side[left_out:], end])
    leader.append(1)
    expected = int(leader.log.index.end_offset)
    assert expected == 2 + records - left_out
    for _ in range(draw.randrange(3)):
        leader.move_common_offset(leader.log.index.end_offset)
        for _ in range(draw.choice((1, 20))):
            leader.append(1)
            expected += 1
        leader.lead()
    leader.assigner.table.merge_divergent(leader.log, [*side, end])
    leader.append(1)
    assert leader.log.index.end_offset == expected + 1
    more: list[DivergentEntry] = [
        run_entry(0, "side", records, 2),
        MergedEntry(Offset(0), "side", RecordSequence(records + 2)),
    ]
    leader.assigner.table.merge_divergent(leader.log, more)
    leader.append(1)
    assert leader.log.index.end_offset == expected + 4
    leader.assigner.table.forget_dropped(leader.log, {Partition("orders", "side"): records + 2})
    assert not leader.log.index.merged_ends


def test_the_end_of_a_merge_belongs_to_a_log_only_with_the_records_before_it() -> None:
    leader = Leader("branch", rewrite_entries=10)
    leader.assigner.table.merge_divergent(
        leader.log, [run_entry(0, "side", 0, 2), MergedEntry(Offset(0), "side", RecordSequence(3))]
    )
    leader.append(1)
    ((address, values),) = leader.indexes
    for end in (0, 1, 2, 3):  # where a later leader epoch continues this one
        log = Leader("branch", rewrite_entries=10).log
        for sequence, value in enumerate(values):
            log.restore(RecordSequence(sequence), value, leader_address=address, end_offset=Offset(end))
        assert (log.index.merged_end("side"), "side" in log.index.merged_ends) == (
            (3, True) if end >= 2 else (end, False)
        )


def test_an_index_is_rewritten_again_when_all_replicas_have_what_was_too_much_to_keep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert UNSHARED_BATCHES_MAX >= 1000
    monkeypatch.setattr("dafka.broker.core.log.log.UNSHARED_BATCHES_MAX", 5)
    leader = Leader("branch", rewrite_entries=1)
    for _ in range(50):
        leader.append(1)
        assert len(leader.log.unshared_batches) <= 5
    assert leader.rewrites == 0
    assert {(1, number) for number in range(50)} <= leader.named()
    leader.move_common_offset(50)
    for _ in range(10):
        leader.append(1)
    assert leader.rewrites > 0
