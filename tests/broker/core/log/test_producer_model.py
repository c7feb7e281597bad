"""Producers of a log against lists of everything that they have appended; ranges of sequences against a set."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest

from dafka.batches import BatchHeader, Compression, TimestampType
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.producer_state import GAP_WAIT_MS, Marker, ProducerStates, ProducerStateSettings
from dafka.broker.core.log.sequence_ranges import RANGES_MAX, SEQUENCES, SequenceRanges
from dafka.broker.core.positions import ProducerSequence, RecordSequence


def make_header(
    count: int, producer_id: int, producer_epoch: int, base_sequence: int, *, transactional: bool = False
) -> BatchHeader:
    kinds = Compression.NONE, TimestampType.CREATE_TIME, transactional, False
    return BatchHeader(0, 100, -1, 0, *kinds, count - 1, 0, 0, producer_id, producer_epoch, base_sequence, count)


class Batch(NamedTuple):
    epoch: int
    ordinal: int  # grows where sequences continue at 0
    size: int
    offset: int


class Model:
    """A log with three producers, and the batches of each since the log has known it.

    Records after a gap are accepted once their producer has repeated them for a while: the missing ones are on the
    other side of a split, and come later.
    """

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.states = ProducerStates(ProducerStateSettings(producer_id_expiration_ms=3_000))
        self.now_ms = self.end_offset = 0
        self.healed: dict[int, list[Batch]] = {}  # came later than those behind them
        self.refused: dict[int, dict[int, int]] = {}  # since when which records were refused that others must precede
        self.batches: dict[int, list[Batch]] = {}
        self.epochs: dict[int, int] = {}
        self.next: dict[int, int | None] = {}
        self.open: set[int] = set()
        self.seen_ms: dict[int, int] = {}

    def expected(
        self, producer: int, epoch: int, sequence: int, count: int, *, transactional: bool
    ) -> int | ErrorCode | None:
        """Return the offset of a repeated batch, an error, or None if the batch is appended."""
        if producer not in self.epochs:
            return None
        if epoch != self.epochs[producer]:
            if epoch < self.epochs[producer]:
                return ErrorCode.INVALID_PRODUCER_EPOCH
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER if sequence else None
        own = [each for each in self.batches[producer] if each.epoch == epoch]
        following = self.next[producer]
        is_plain = not transactional and producer in self.open
        for each in own[-5:]:
            if (each.ordinal % SEQUENCES, each.size) == (sequence, count):
                return ErrorCode.INVALID_TXN_STATE if is_plain else each.offset
        if following is None or sequence == following % SEQUENCES:
            return ErrorCode.INVALID_TXN_STATE if is_plain else None
        healed = [each for each in self.healed.get(producer, ()) if each.epoch == epoch]
        covered = {at % SEQUENCES for each in own + healed for at in range(each.ordinal, each.ordinal + each.size)}
        recent = {at % SEQUENCES for each in own[-5:] for at in range(each.ordinal, each.ordinal + each.size)}
        wanted = {(sequence + number) % SEQUENCES for number in range(count)}
        is_older = wanted <= covered and not wanted & recent
        return ErrorCode.DUPLICATE_SEQUENCE_NUMBER if is_older else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def produce(self) -> None:
        producer = self.draw.randrange(3)
        known = self.epochs.get(producer, 0)
        epoch = max(known + self.draw.choice([0] * 12 + [-1, 1]), 0)
        following = self.next.get(producer)
        base = SEQUENCES - 20 if following is None else following
        own = self.batches.get(producer, [])
        if own and self.draw.random() < 0.4:
            again = self.draw.choice(own[-9:])
            ordinal, count = again.ordinal + self.draw.choice([0, 0, 0, 1, -1]), again.size
        else:
            ordinal, count = base + self.draw.choice([0] * 5 + [1, -1, 4]), self.draw.randint(1, 4)
        if epoch > known and self.draw.random() < 0.7:
            ordinal = 0
        sequence, transactional = ordinal % SEQUENCES, self.draw.random() < 0.5
        expected = self.expected(producer, epoch, sequence, count, transactional=transactional)
        header = make_header(count, producer, epoch, sequence, transactional=transactional)
        check = self.states.check_batch(header)
        if expected is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and epoch == known:
            assert check.error_code is expected
            if abs(ordinal - (following or 0)) > 1000 or not self.check_gap(producer, ordinal, header):
                return
        elif isinstance(expected, ErrorCode):
            assert check.error_code is expected
            return
        elif expected is not None:
            assert check.error_code is ErrorCode.NONE
            assert check.duplicate_of is not None
            assert check.duplicate_of.position == expected
            return
        else:
            assert (check.error_code, check.duplicate_of) == (ErrorCode.NONE, None)
        is_late = epoch == known and following is not None and ordinal + count <= following
        batch = Batch(epoch, sequence if epoch != known or following is None else ordinal, count, self.end_offset)
        self.states.add_batch(header, RecordSequence(self.end_offset), self.now_ms)
        self.end_offset += count
        (self.healed if is_late else self.batches).setdefault(producer, []).append(batch)
        self.batches.setdefault(producer, [])
        self.epochs[producer], self.seen_ms[producer] = epoch, self.now_ms
        self.refused.pop(producer, None)
        if not is_late:
            self.next[producer] = batch.ordinal + count
        if transactional:
            self.open.add(producer)

    def check_gap(self, producer: int, ordinal: int, header: BatchHeader) -> bool:
        """Return whether records after a gap are accepted: the earliest ones are, after repetitions for a while."""
        refused = self.refused.setdefault(producer, {})
        lasts = ordinal == min(refused, default=None) and self.now_ms - refused[ordinal] >= GAP_WAIT_MS
        assert self.states.is_lasting_gap(header, self.now_ms) == lasts
        if not refused or ordinal <= min(refused):
            refused.setdefault(ordinal, self.now_ms)
        return lasts

    def end(self) -> None:
        """End a transaction, perhaps with an epoch that fences its producer, or that is late."""
        producer = self.draw.randrange(3)
        epoch = max(self.epochs.get(producer, 0) + self.draw.choice([0, 0, 1, -1]), 0)
        self.states.add_marker(Marker(producer, epoch, self.draw.random() < 0.5), self.now_ms)
        if producer in self.epochs and epoch < self.epochs[producer]:
            return
        if producer not in self.epochs:
            self.next[producer] = None
        elif epoch > self.epochs[producer]:
            self.next[producer] = 0
            self.refused.pop(producer, None)
        self.epochs[producer] = epoch
        self.batches.setdefault(producer, [])
        self.seen_ms[producer] = self.now_ms
        self.open.discard(producer)

    def wait(self) -> None:
        self.now_ms += self.draw.choice([1, 300, 700])
        self.states.expire(self.now_ms)
        for producer, seen_ms in list(self.seen_ms.items()):
            if seen_ms + 3_000 <= self.now_ms and producer not in self.open:
                for each in (self.batches, self.epochs, self.next, self.seen_ms, self.refused, self.healed):
                    each.pop(producer, None)

    def check(self) -> None:
        assert set(self.states.producers) == set(self.epochs)
        assert set(self.states.open_transactions) == self.open


@pytest.mark.parametrize("first", range(0, 30, 10))
def test_each_batch_is_appended_once_in_order_and_recognized_when_it_comes_again(first: int) -> None:
    for seed in range(first, first + 10):
        model = Model(seed)
        for _ in range(120):
            model.draw.choices([model.produce, model.end, model.wait], [12, 2, 2])[0]()
            model.check()


@pytest.mark.parametrize("seed", range(12))
def test_the_oldest_idle_producers_are_forgotten_when_there_are_too_many(seed: int) -> None:
    draw = random.Random(seed)
    states = ProducerStates(ProducerStateSettings(producers_max=4))
    order: list[int] = []
    busy: set[int] = set()
    for number in range(60):
        producer, transactional = draw.randrange(9), draw.random() < 0.1
        known = states.producers.get(producer)
        sequence = 0 if known is None or known.last_sequence is None else known.last_sequence + 1
        header = make_header(1, producer, 0, sequence, transactional=transactional)
        states.add_batch(header, RecordSequence(number), 0)
        order = [*(each for each in order if each != producer), producer]
        busy |= {producer} if transactional else set()
        if len(order) > 4:
            idle = [each for each in order if each not in busy]
            order.remove(idle[0]) if idle else None
        assert list(states.producers) == order


@pytest.mark.parametrize("origin", [0, 5, SEQUENCES - 40])
def test_ranges_have_exactly_the_sequences_that_were_added(origin: int) -> None:
    draw = random.Random(origin)
    for _ in range(40):
        ranges, added = SequenceRanges(), set[int]()
        ranges.add(ProducerSequence(origin), 1)
        added.add(origin)
        for _ in range(25):
            first, count = origin + draw.randrange(60), draw.randint(1, 5)
            is_last = ranges.add(ProducerSequence(first % SEQUENCES), count)
            assert is_last == (first + count > max(added) + 1)
            added |= set(range(first, first + count))
            assert ranges.end == max(added) + 1
            for at in range(origin - 2, origin + 66):
                for size in (1, 2, 4):
                    expected = set(range(at, at + size)) <= added
                    assert ranges.covers(ProducerSequence(at % SEQUENCES), size) == expected


def test_the_earliest_ranges_are_forgotten_when_there_are_too_many() -> None:
    ranges = SequenceRanges()
    for number in range(RANGES_MAX + 1):
        ranges.add(ProducerSequence(10 + 2 * number), 1)
    covered = [ranges.covers(ProducerSequence(10 + 2 * number), 1) for number in range(RANGES_MAX + 1)]
    assert covered == [False] + [True] * RANGES_MAX


def test_sequences_that_could_be_future_ones_are_forgotten() -> None:
    half = SEQUENCES // 2
    ranges = SequenceRanges()
    ranges.add(ProducerSequence(0), half)
    assert ranges.covers(ProducerSequence(0), 1)
    ranges.add(ProducerSequence(half), 10)
    assert [ranges.covers(ProducerSequence(each), 1) for each in (9, 10, half + 9, half + 10)] == [
        False,
        True,
        True,
        False,
    ]
