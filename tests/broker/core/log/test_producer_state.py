"""Idempotent producers and transactions in one log."""

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.producer_state import (
    GAP_WAIT_MS,
    AppendedBatch,
    Marker,
    ProducerStates,
    ProducerStateSettings,
)
from dafka.broker.core.positions import sequence_of
from tests.broker.core.log.producer_log import Log, make_header

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
        header = make_header(self.end_offset, count, producer_id, epoch, base_sequence, is_transactional=transactional)
        check = self.producers.check_batch(header)
        if check.duplicate_of is not None:
            return known_offset(check.duplicate_of)
        if check.error_code:
            return check.error_code
        return self.log.append(header, self.now_ms)

    def end(self, producer_id: int, *, is_commit: bool, epoch: int = 0) -> None:
        self.log.append_marker(Marker(producer_id, epoch, is_commit), self.now_ms)

    def restart(self) -> None:
        self.log.restart()


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


def send_to_branch(log: OneLog, base_sequence: int, count: int = 1) -> int | ErrorCode:
    header = make_header(log.end_offset, count, 1, 0, base_sequence)
    check = log.producers.check_batch(header)
    is_gap = check.error_code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    if is_gap and not log.producers.is_lasting_gap(header, log.now_ms):
        return ErrorCode.NOT_ENOUGH_REPLICAS
    return log.log.append(header, log.now_ms) if check.duplicate_of is None else known_offset(check.duplicate_of)


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
    assert log.log.append(make_header(log.end_offset, 2, 1, 0, 8), log.now_ms) == 28  # both sides have met
    assert log.produce(8, 2) is ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    assert [log.produce(0, 30), log.produce(12)] == [
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
    ]
    assert log.produce(30) == 30
