"""What an index remembers of producers with an id."""

from __future__ import annotations

import random
from functools import partial

from dafka.batches import encode_batch
from dafka.broker.core.log.entries import BatchEntry, batch_entries
from dafka.broker.core.log.producer_batches import PRODUCER_EXPIRY_MS, ProducerBatches, TransactionRuns
from dafka.broker.core.positions import AtOffset, Offset
from dafka.records import Partition, RecordBatch
from tests.broker.core.entries import batch_entry, marker_entry


def entry(sequence: int, producer_id: int = 1, count: int = 1, flags: int = 0, timestamp_ms: int = 0) -> BatchEntry:
    return batch_entry(sequence, count, producer_id, 0, sequence, flags, timestamp_ms)


def test_batches_of_producers_with_an_id_have_entries_as_their_headers_say() -> None:
    """The smallest id is 0."""
    encode = partial(encode_batch, values=[b"x"] * 2, timestamps=1)
    encoded = (
        encode(10),
        encode(12, producer_id=0, producer_epoch=0, base_sequence=3),
        encode(14, producer_id=5, producer_epoch=2, base_sequence=0, is_transactional=True),
    )
    batch = RecordBatch(Partition("orders", "a"), 10, [b"x"] * 6, encoded=encoded)
    assert batch_entries(batch, 7) == [batch_entry(12, 2, 0, 0, 3, 0, 7), batch_entry(14, 2, 5, 2, 0, 1, 7)]


def test_runs_say_which_records_belong_to_which_transaction() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        runs, restored, expected = TransactionRuns(), TransactionRuns(), list[int]()
        for _ in range(rng.randint(0, 12)):
            producer_id, count = rng.choice([-1, 1, 2]), rng.randint(1, 4)
            if producer_id >= 0:
                runs.add(Offset(len(expected)), entry(0, producer_id, count, 1))
            expected += [producer_id] * count
        dropped = rng.randint(0, len(expected))
        runs.drop_before(Offset(dropped))
        for each in runs.entries() * 2:  # what is known stays
            assert isinstance(each.position, AtOffset)
            restored.add(each.position.offset, each)
        first = rng.randint(dropped, len(expected))
        end = rng.randint(first, len(expected))
        for each_runs in (runs, restored):
            pieces = list(each_runs.split(Offset(first), Offset(end)))
            assert [piece[2] for piece in pieces for _ in range(piece[0], piece[1])] == expected[first:end]
            assert [sequence for piece in pieces for sequence in range(piece[0], piece[1])] == list(range(first, end))


def test_five_batches_and_the_first_of_an_open_transaction_are_kept() -> None:
    producers = ProducerBatches()
    for sequence in range(20):
        producers.add(entry(sequence, flags=1))
    assert [each.position for each in producers.entries()] == [0, 15, 16, 17, 18, 19]
    producers.end_transaction(marker_entry(20, 20, 1, 0, 1, 0, 0))
    assert [each.position for each in producers.entries()] == [15, 16, 17, 18, 19]
    assert not any(each.flags for each in producers.entries()), "the marker may be dropped before them"
    assert len(producers) == 5


def test_silent_producers_are_forgotten_unless_they_have_a_transaction() -> None:
    producers = ProducerBatches()
    producers.add(entry(0, 1))
    producers.add(entry(1, 2, flags=1))
    producers.add(entry(2, 3, timestamp_ms=PRODUCER_EXPIRY_MS))
    producers.expire(PRODUCER_EXPIRY_MS)
    assert [each.producer_id for each in producers.entries()] == [2, 3]
