import pytest

from dafka import Partition, RecordBatch
from dafka.protocol.ordering import buffers
from dafka.protocol.ordering.buffers import BatchBuffer

A, B = Partition("hello", "A"), Partition("other", "B")


def run(partition: Partition, first: int, end: int) -> RecordBatch:
    return RecordBatch(partition, first, [b"%d" % sequence for sequence in range(first, end)])


def filled() -> BatchBuffer:
    runs = BatchBuffer()
    for batch in (run(A, 5, 7), run(B, 0, 1), run(A, 7, 8)):
        runs.add_batch(batch)
    return runs


def test_batches_of_a_partition_are_taken_joined() -> None:
    runs = filled()
    assert runs.first_sequences() == {A: 5, B: 0}
    assert [runs.take_batch(), runs.take_batch()] == [run(A, 5, 8), run(B, 0, 1)]
    assert not runs


def test_take_all_returns_one_batch_for_each_partition() -> None:
    runs = filled()
    assert runs.take_all() == [run(A, 5, 8), run(B, 0, 1)]
    assert not runs


def test_added_batches_are_not_changed() -> None:
    first, second = run(A, 0, 1), run(A, 1, 2)
    runs = BatchBuffer()
    runs.add_batch(first)
    runs.add_batch(second)
    runs.take_batch()
    assert (first, second) == (run(A, 0, 1), run(A, 1, 2))


def test_partitions_take_turns_when_one_has_many_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "TAKE_RECORDS_MAX", 4)
    runs = BatchBuffer()
    for first in range(0, 9, 3):
        runs.add_batch(run(A, first, first + 3))
    runs.add_batch(run(B, 0, 9))
    taken = []
    while runs:
        taken.append(runs.take_batch())
    assert taken == [run(A, 0, 3), run(B, 0, 9), run(A, 3, 6), run(A, 6, 9)]


def test_dropping_a_topic_returns_its_memory() -> None:
    runs = filled()
    assert runs.drop_topic("hello") == run(A, 5, 7).memory_bytes + run(A, 7, 8).memory_bytes
    assert runs.take_all() == [run(B, 0, 1)]
