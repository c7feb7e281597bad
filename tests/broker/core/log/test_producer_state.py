"""Idempotent producers and transactions in one log."""

from typing import Any

import attrs
import pytest

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.producer_state import (
    GAP_WAIT_MS,
    AppendedBatch,
    Marker,
    ProducerStates,
    ProducerStateSettings,
)
from dafka.broker.core.log.sequence_ranges import RANGES_MAX, SEQUENCES, SequenceRanges
from dafka.broker.core.positions import Offset, ProducerSequence, sequence_of
from tests.broker.core.coordination.model.broker import Log, make_header
from tests.broker.core.entries import batch_entry

SETTINGS = ProducerStateSettings()


def known_offset(batch: AppendedBatch) -> int:
    assert batch.position is not None
    return sequence_of(batch.position)


class OneLog:
    """A log that appends what its producers allow."""

    def __init__(self, settings: ProducerStateSettings = SETTINGS) -> None:
        self.log = Log(settings)
        self.now_ms = 0

    @property
    def producers(self) -> ProducerStates:
        return self.log.producers

    @property
    def end_offset(self) -> int:
        return self.log.end_offset

    def produce(
        self, base_sequence: int, count: int = 1, *, producer_id: int = 1, epoch: int = 0, transactional: bool = False
    ) -> int | ErrorCode:
        """Return the offset of a batch, or why it is refused."""
        header = make_header(self.end_offset, count, producer_id, epoch, base_sequence, is_transactional=transactional)
        check = self.producers.check_batch(header)
        if check.duplicate_of is not None:
            return known_offset(check.duplicate_of)
        if check.error_code:
            return check.error_code
        return self.log.append(header, None, self.now_ms)

    def end(self, producer_id: int, *, is_commit: bool, epoch: int = 0) -> None:
        self.log.append_marker(Marker(producer_id, epoch, is_commit), self.now_ms)

    def restart(self) -> None:
        """Restore the producers from an index that was rewritten."""
        self.log.flush()
        self.log.rewrite_index()
        self.log.recover(len(self.log.entries))


def test_batches_follow_each_other() -> None:
    log = OneLog()
    assert [log.produce(0, 3), log.produce(3, 2), log.produce(5)] == [0, 3, 5]
    assert log.produce(7) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.produce(6) == 6


@pytest.mark.parametrize("restarts", [False, True])
def test_repeated_batch_gets_the_same_offset(restarts: bool) -> None:
    log = OneLog()
    offsets = [log.produce(sequence, 10) for sequence in range(0, 80, 10)]
    if restarts:
        log.restart()
    assert [log.produce(sequence, 10) for sequence in range(30, 80, 10)] == offsets[3:]
    older = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER if restarts else ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    assert [log.produce(20, 10), log.produce(0, 30)] == [older, older], "no client sends these again"
    assert log.produce(25, 10) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.produce(30, 20) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.produce(75, 10) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.end_offset == 80


def test_batch_that_was_never_appended_is_not_called_a_duplicate() -> None:
    log = OneLog()
    assert log.produce(100) == 0  # the log has forgotten the producer
    assert log.produce(99) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    for sequence in range(101, 110):
        log.produce(sequence)
    assert log.produce(100) is ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    assert log.produce(99) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequences_wrap() -> None:
    log = OneLog()
    assert log.produce(SEQUENCES - 5, 5) == 0
    assert log.produce(0, 2) == 5
    assert log.produce(SEQUENCES - 5, 5) == 0
    again = OneLog()
    assert [again.produce(SEQUENCES - 5, 8), again.produce(3, 2)] == [0, 8]
    assert again.produce(SEQUENCES - 5, 8) == 0
    for sequence in range(5, 15):
        again.produce(sequence)
    assert again.produce(SEQUENCES - 5, 8) is ErrorCode.DUPLICATE_SEQUENCE_NUMBER


def test_epochs_begin_with_sequence_0() -> None:
    log = OneLog()
    log.produce(0, 10, epoch=3)
    assert log.produce(10, epoch=2) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert log.produce(10, epoch=4) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.produce(0, epoch=4) == 10
    assert log.produce(10, epoch=3) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert log.produce(0, epoch=4) == 10
    assert log.produce(1, epoch=4) == 11


@pytest.mark.parametrize(
    ("epoch", "base_sequence", "count", "is_known"),
    [(0, 0, 10, True), (1, 0, 2, True), (0, 10, 2, False), (1, 3, 2, False), (2, 0, 2, False)],
)
def test_batches_of_another_branch_are_admitted_once(
    epoch: int, base_sequence: int, count: int, is_known: bool
) -> None:
    log = OneLog()
    log.produce(0, 10)
    log.produce(0, 4, epoch=1)
    assert log.producers.admit_divergent(batch_entry(0, count, 1, epoch, base_sequence, 0, 0)) is not is_known


def test_batch_of_a_former_epoch_that_comes_from_another_branch_changes_nothing() -> None:
    log = OneLog()
    log.produce(0, 10)
    log.produce(0, 4, epoch=1)
    log.log.append(make_header(log.end_offset, 5, 1, 0, 10), None, log.now_ms)
    assert log.produce(4, epoch=1) == 19


def test_marker_fences_older_epochs() -> None:
    log = OneLog()
    log.produce(0, 10, transactional=True)
    log.end(1, is_commit=False, epoch=1)
    assert log.produce(10, transactional=True) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert log.produce(5, transactional=True, epoch=1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.produce(0, transactional=True, epoch=1) == 11
    log.end(1, is_commit=False)
    assert 1 in log.producers.open_transactions


def test_marker_for_a_forgotten_producer_allows_any_sequence() -> None:
    log = OneLog()
    log.end(1, is_commit=True)
    assert log.produce(17) == 1
    assert log.produce(19) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_producers_do_not_mix() -> None:
    log = OneLog()
    assert [log.produce(0, producer_id=1), log.produce(0, producer_id=2), log.produce(0, producer_id=1)] == [0, 1, 0]
    assert [log.produce(-1, producer_id=-1), log.produce(-1, producer_id=-1)] == [2, 3]
    assert len(log.producers) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"is_control": True},
        {"producer_id": -1, "is_transactional": True},
        {"producer_epoch": -1},
        {"base_sequence": -1},
    ],
)
def test_malformed_headers_are_refused(change: dict[str, Any]) -> None:
    header = attrs.evolve(make_header(0, 1, 1, 0, 0), **change)
    assert ProducerStates(SETTINGS).check_batch(header).error_code is ErrorCode.INVALID_RECORD


def test_plain_batch_within_a_transaction_is_refused() -> None:
    log = OneLog()
    log.produce(0, transactional=True)
    assert log.produce(1) is ErrorCode.INVALID_TXN_STATE
    log.end(1, is_commit=True)
    assert log.produce(1) == 2


def test_quiet_producers_are_forgotten() -> None:
    log = OneLog(ProducerStateSettings(producer_id_expiration_ms=1_000))
    log.produce(0, producer_id=1)
    log.produce(0, producer_id=2, transactional=True)
    log.now_ms = 600
    log.produce(0, producer_id=3)
    log.producers.expire(1_000)
    assert set(log.producers.producers) == {2, 3}
    assert log.produce(8, producer_id=1) == 3
    log.restart()
    log.producers.expire(10_000)
    assert set(log.producers.producers) == {2}


def test_number_of_producers_is_limited() -> None:
    log = OneLog(ProducerStateSettings(producers_max=3))
    log.produce(0, producer_id=0, transactional=True)
    for producer_id in (1, 2, 3, 2, 4):
        log.produce(0, producer_id=producer_id)
        log.produce(1, producer_id=producer_id)
    assert list(log.producers.producers) == [0, 3, 4]


def test_last_stable_offset_stays_before_open_transactions() -> None:
    log = OneLog()
    log.produce(0, 5, producer_id=9)
    assert log.log.transactions.last_stable_offset(Offset(5)) == 5
    log.produce(0, 2, producer_id=1, transactional=True)
    log.produce(0, 2, producer_id=2, transactional=True)
    assert log.log.transactions.last_stable_offset(Offset(3)) == 3
    assert log.log.transactions.last_stable_offset(Offset(9)) == 5
    log.end(1, is_commit=True)
    assert log.log.transactions.last_stable_offset(Offset(9)) == 5
    assert log.log.transactions.last_stable_offset(Offset(10)) == 7
    log.restart()
    assert log.log.transactions.last_stable_offset(Offset(10)) == 7
    log.end(2, is_commit=False)
    assert log.log.transactions.last_stable_offset(Offset(11)) == 11


def test_transaction_is_undecided_until_its_marker_is_durable() -> None:
    log = OneLog()
    log.produce(0, 5, transactional=True)
    log.end(1, is_commit=True)
    assert [log.log.transactions.last_stable_offset(Offset(end)) for end in (3, 5, 6)] == [0, 0, 6]


def test_aborted_transactions_of_a_range() -> None:
    log = OneLog()
    log.produce(0, 10, producer_id=1, transactional=True)  # 0 to 9
    log.produce(0, 10, producer_id=2, transactional=True)  # 10 to 19
    log.end(2, is_commit=False)  # 20
    log.produce(0, 10, producer_id=3, transactional=True)  # 21 to 30
    log.end(3, is_commit=True)  # 31
    log.end(1, is_commit=False)  # 32
    log.produce(10, 10, producer_id=2, transactional=True)  # 33 to 42
    log.end(2, is_commit=False)  # 43
    log.restart()

    def between(start: int, end: int) -> list[tuple[int, int]]:
        return [
            (each.producer_id, each.first_offset)
            for each in log.log.transactions.aborted_between(Offset(start), Offset(end))
        ]

    assert between(0, 44) == [(1, 0), (2, 10), (2, 33)]
    assert between(0, 10) == [(1, 0)]
    assert between(5, 11) == [(1, 0), (2, 10)]
    assert between(21, 33) == [(1, 0)]
    assert between(33, 40) == [(2, 33)]
    assert between(44, 50) == []
    log.log.transactions.drop_before(Offset(33))
    assert between(0, 44) == [(2, 33)]


def send_to_branch(log: OneLog, base_sequence: int, count: int = 1) -> int | ErrorCode:
    """Return the offset of a batch in a log that may lack records of another branch, or why it is refused."""
    header = make_header(log.end_offset, count, 1, 0, base_sequence)
    check = log.producers.check_batch(header)
    is_gap = check.error_code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    if is_gap and not log.producers.is_lasting_gap(header, log.now_ms):
        return ErrorCode.NOT_ENOUGH_REPLICAS
    return log.log.append(header, None, log.now_ms) if check.duplicate_of is None else known_offset(check.duplicate_of)


def test_records_behind_those_on_the_other_side_of_a_split_are_accepted_after_a_while() -> None:
    log = OneLog()
    log.produce(0, 8)
    assert [send_to_branch(log, 10), send_to_branch(log, 11)] == [ErrorCode.NOT_ENOUGH_REPLICAS] * 2
    log.now_ms += GAP_WAIT_MS
    assert send_to_branch(log, 11) is ErrorCode.NOT_ENOUGH_REPLICAS, "the earlier one comes first"
    assert [send_to_branch(log, 10), send_to_branch(log, 11)] == [8, 9]
    assert [log.produce(10), log.produce(11)] == [8, 9]


def test_records_that_are_sent_again_come_before_those_that_follow() -> None:
    log = OneLog()
    log.produce(0, 8)
    assert send_to_branch(log, 9) is ErrorCode.NOT_ENOUGH_REPLICAS
    log.now_ms += GAP_WAIT_MS // 2
    assert send_to_branch(log, 8) == 8
    assert send_to_branch(log, 9) == 9
    assert send_to_branch(log, 12) is ErrorCode.NOT_ENOUGH_REPLICAS
    log.now_ms += GAP_WAIT_MS // 2
    assert send_to_branch(log, 11) is ErrorCode.NOT_ENOUGH_REPLICAS
    log.now_ms += GAP_WAIT_MS // 2
    assert send_to_branch(log, 11) is ErrorCode.NOT_ENOUGH_REPLICAS, "an earlier one waits as long"
    log.now_ms += GAP_WAIT_MS // 2
    assert send_to_branch(log, 11) == 10


def test_records_of_the_other_side_are_known_when_they_come_again() -> None:
    log = OneLog()
    log.produce(0, 8)
    send_to_branch(log, 10)
    log.now_ms += GAP_WAIT_MS
    assert [send_to_branch(log, sequence) for sequence in range(10, 30)] == list(range(8, 28))
    assert log.log.append(make_header(log.end_offset, 2, 1, 0, 8), None, log.now_ms) == 28  # both sides have met
    assert log.produce(8, 2) is ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    assert [log.produce(0, 30), log.produce(12)] == [
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
    ]
    assert log.produce(30) == 30


def test_ranges_of_sequences() -> None:
    ranges = SequenceRanges()
    assert ranges.add(ProducerSequence(SEQUENCES - 3), 2)
    assert ranges.add(ProducerSequence(SEQUENCES - 1), 3)
    assert ranges.covers(ProducerSequence(SEQUENCES - 3), 5)
    assert not ranges.covers(ProducerSequence(2), 1)
    assert ranges.add(ProducerSequence(10), 5)
    assert not ranges.add(ProducerSequence(4), 2)
    assert ranges.end == SEQUENCES + 15
    assert [ranges.covers(ProducerSequence(first), 2) for first in (2, 4, 6, 9, 10, 14)] == [
        False,
        True,
        False,
        False,
        True,
        False,
    ]
    assert not ranges.add(ProducerSequence(2), 8)
    assert ranges.covers(ProducerSequence(SEQUENCES - 3), 18)
    assert ranges.add(ProducerSequence(15 + SEQUENCES // 2 - 1), 1)
    assert ranges.add(ProducerSequence(15 + SEQUENCES // 2), 100)
    assert not ranges.covers(ProducerSequence(15 + SEQUENCES // 2 + 1), SEQUENCES // 2), "it is too far back"
    for number in range(2 * RANGES_MAX):
        ranges.add(ProducerSequence(1000 + SEQUENCES // 2 + 2 * number), 1)
    assert ranges.covers(ProducerSequence(1000 + SEQUENCES // 2 + 4 * RANGES_MAX - 2), 1)
    assert not ranges.covers(ProducerSequence(1000 + SEQUENCES // 2), 1)
