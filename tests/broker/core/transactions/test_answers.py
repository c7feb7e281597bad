"""The answer to each request in each phase of a transaction, from each producer, as a table says."""

from __future__ import annotations

from typing import Any

import pytest

from dafka.broker.core.coordination.effects import Answer, WriteMarkers, WriteState
from dafka.broker.core.error_codes import ErrorCode as E
from dafka.broker.core.log.producer_state import Producer
from dafka.broker.core.transactions.coordinator import InitProducerResult
from dafka.broker.core.transactions.transaction import TransactionPhase
from tests.broker.core.transactions.test_transactions import NAME, A, B, Transactions

PHASES = ["Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"]

REQUESTS = [
    "add A",
    "add B",
    "add group g",
    "add group h",
    "commit",
    "abort",
    "batch A",
    "batch B",
    "offsets g",
    "offsets h",
]

BUSY, STATE, WAITS = E.CONCURRENT_TRANSACTIONS, E.INVALID_TXN_STATE, None
ANSWERS: dict[str, list[E | None]] = {
    "Empty": [E.NONE, E.NONE, E.NONE, E.NONE, STATE, STATE, STATE, STATE, STATE, STATE],
    "Ongoing": [E.NONE, E.NONE, E.NONE, E.NONE, WAITS, WAITS, E.NONE, STATE, E.NONE, STATE],
    "PrepareCommit": [BUSY, BUSY, BUSY, BUSY, BUSY, STATE, STATE, STATE, STATE, STATE],
    "PrepareAbort": [BUSY, BUSY, BUSY, BUSY, STATE, BUSY, STATE, STATE, STATE, STATE],
    "CompleteCommit": [E.NONE, E.NONE, E.NONE, E.NONE, E.NONE, STATE, STATE, STATE, STATE, STATE],
    "CompleteAbort": [E.NONE, E.NONE, E.NONE, E.NONE, STATE, E.NONE, STATE, STATE, STATE, STATE],
}
"""What the producer gets, by phase, in the order of `REQUESTS`. The log A and the group g take part if it is open."""

WRITES = {("Ongoing", "add B"), ("Ongoing", "add group h"), ("Ongoing", "commit"), ("Ongoing", "abort")} | {
    (phase, request) for phase in ("Empty", "CompleteCommit", "CompleteAbort") for request in REQUESTS[:4]
}
"""Where something changes."""


def in_phase(phase: str) -> tuple[Transactions, Producer]:
    """Return a coordinator with a transactional id in a phase, and its producer, whose epoch is 2."""
    transactions = Transactions()
    for _ in range(3):
        producer = transactions.init().producer
    if phase != "Empty":
        transactions.add(producer, A)
        transactions.add_offsets(producer)
    if phase.endswith(("Commit", "Abort")):
        transactions.end(producer, is_commit=phase.endswith("Commit"))
    if phase.startswith("Complete"):
        transactions.write_markers()
    assert transactions.phase() is TransactionPhase(phase)
    return transactions, producer


def send(transactions: Transactions, request: str, producer: Producer, name: str = NAME) -> Any:
    coordinator = transactions.coordinator
    transactions.actions = []
    match request.split():
        case ["add", "group", group]:
            return transactions.call(coordinator.add_offsets, name, producer, group)
        case ["add", log]:
            return transactions.call(coordinator.add_partitions, name, producer, [A if log == "A" else B])
        case ["batch", log]:
            return coordinator.check_partition(name, producer, A if log == "A" else B)
        case ["offsets", group]:
            return coordinator.check_group(name, producer, group)
        case [end]:
            return transactions.call(coordinator.end_transaction, name, producer, end == "commit")


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("request_name", REQUESTS)
def test_the_producer_is_answered_by_the_phase(phase: str, request_name: str) -> None:
    transactions, producer = in_phase(phase)
    before = transactions.coordinator.describe_transaction(NAME)
    assert send(transactions, request_name, producer) is ANSWERS[phase][REQUESTS.index(request_name)]
    kinds = [type(each) for each in transactions.actions]
    writes = (phase, request_name) in WRITES
    assert (kinds[:1] == [WriteState]) == writes
    assert kinds[1:] == ([WriteMarkers] if request_name in {"commit", "abort"} else [Answer]) or not writes
    assert (transactions.coordinator.describe_transaction(NAME) != before) == writes
    assert transactions.restart().coordinator.list_transactions() == transactions.coordinator.list_transactions()


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("request_name", REQUESTS)
def test_other_producers_are_refused_in_every_phase_and_change_nothing(phase: str, request_name: str) -> None:
    transactions, (producer_id, epoch) = in_phase(phase)
    fenced = E.INVALID_PRODUCER_EPOCH if request_name.startswith("batch") else E.PRODUCER_FENCED
    before, written = transactions.coordinator.describe_transaction(NAME), len(transactions.records)
    for producer, name, error in [
        (Producer(producer_id, epoch - 1), NAME, fenced),
        (Producer(producer_id, epoch + 1), NAME, fenced),
        (Producer(producer_id, -1), NAME, fenced),
        (Producer(producer_id + 1, epoch), NAME, E.INVALID_PRODUCER_ID_MAPPING),
        (Producer(producer_id, epoch), "other", E.INVALID_PRODUCER_ID_MAPPING),
        (Producer(producer_id, epoch), "", E.INVALID_REQUEST),
    ]:
        assert send(transactions, request_name, producer, name) is error
    assert (transactions.coordinator.describe_transaction(NAME), len(transactions.records)) == (before, written)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("expected", ["none", "unnamed", "own", "last", "older", "newer", "other"])
def test_init_gives_the_next_epoch_once_the_transaction_has_ended(phase: str, expected: str) -> None:
    transactions, (producer_id, epoch) = in_phase(phase)
    named = {
        "none": None,
        "unnamed": Producer(-1, -1),
        "own": Producer(producer_id, epoch),
        "last": Producer(producer_id, -1),  # no producer has asked for this epoch itself
        "older": Producer(producer_id, epoch - 1),
        "newer": Producer(producer_id, epoch + 1),
        "other": Producer(producer_id + 1, epoch),
    }[expected]
    result = transactions.init(expected=named)
    if expected == "unnamed":
        named = None
    if expected not in {"none", "unnamed", "own"}:
        assert result == InitProducerResult(E.PRODUCER_FENCED)
        assert transactions.phase() is TransactionPhase(phase)
        return
    following = epoch + 1
    if phase in {"Ongoing", "PrepareCommit", "PrepareAbort"}:
        assert result == InitProducerResult(BUSY)
        kinds = [type(each) for each in transactions.actions]
        assert kinds == ([WriteState, WriteMarkers, Answer] if phase == "Ongoing" else [Answer])
        fence = epoch + (phase == "Ongoing")
        is_commit = phase == "PrepareCommit"
        assert transactions.markers[-1] == WriteMarkers(NAME, producer_id, fence, is_commit, (A,), ("g",))
        transactions.write_markers()
        if phase == "Ongoing" and named is None:  # the epoch that fences a producer is nobody's
            following += 1
        result = transactions.init(expected=named)
    assert result.producer == (producer_id, following)
    assert transactions.phase() is TransactionPhase.EMPTY
    if named is not None:  # the response was lost
        assert transactions.restart().init(expected=named) == transactions.init(expected=named) == result


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("phase", PHASES)
def test_a_transaction_is_complete_when_all_markers_are_written_and_its_producer_is_answered_if_it_waits(
    phase: str, is_restarted: bool
) -> None:
    transactions, _ = in_phase(phase)
    transactions = transactions.restart() if is_restarted else transactions
    answers = set(transactions.answers.items())
    transactions.take(transactions.coordinator.markers_written(NAME, transactions.now_ms))
    is_prepared = phase.startswith("Prepare")
    waits = is_prepared and not is_restarted
    assert [type(each) for each in transactions.actions] == [WriteState] * is_prepared + [Answer] * waits
    assert [each for _, each in transactions.answers.items() - answers] == [E.NONE] * waits
    assert transactions.restart().phase() is TransactionPhase(phase.replace("Prepare", "Complete"))


@pytest.mark.parametrize("phase", ["Empty", "CompleteCommit", "CompleteAbort"])
def test_the_next_transaction_has_only_its_own_logs_and_groups(phase: str) -> None:
    transactions, producer = in_phase(phase)
    described = transactions.coordinator.describe_transaction(NAME)
    assert described is not None
    assert not described.partitions | described.groups
    assert described.started_at_ms == -1
    transactions.add(producer, B)
    transactions.add_offsets(producer, "h")
    transactions.end(producer, is_commit=True)
    assert transactions.markers == [WriteMarkers(NAME, *producer, True, (B,), ("h",))]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_transaction_is_aborted_exactly_at_its_timeout_however_often_it_grows(is_restarted: bool) -> None:
    transactions = Transactions()
    producer = transactions.init(timeout_ms=900_000).producer
    producer = transactions.init(timeout_ms=5_000).producer  # a producer changes its timeout when it begins again
    transactions.wait(2_000)
    transactions.add(producer, A)
    transactions.wait(4_000)
    transactions.add(producer, B)
    if is_restarted:
        now_ms, transactions = transactions.now_ms, transactions.restart()
        transactions.now_ms = now_ms
    transactions.wait(999)
    assert (transactions.phase(), transactions.markers) == (TransactionPhase.ONGOING, [])
    assert transactions.coordinator.check_partition(NAME, producer, B) is E.NONE
    transactions.wait(1)
    assert transactions.phase() is TransactionPhase.PREPARE_ABORT
    fence = producer.producer_epoch + 1
    assert transactions.markers == [WriteMarkers(NAME, producer.producer_id, fence, False, (A, B), ())]
    assert [type(each) for each in transactions.actions] == [WriteState, WriteMarkers]


@pytest.mark.parametrize("phase", ["Empty", "CompleteCommit", "CompleteAbort"])
def test_an_unused_id_is_forgotten_exactly_after_its_expiration(phase: str) -> None:
    transactions, _ = in_phase(phase)
    expiration_ms = 7 * 24 * 3_600_000
    transactions.wait(expiration_ms - 1)
    assert transactions.phase() is TransactionPhase(phase)
    transactions.wait(1)
    assert transactions.phase() is None
    assert transactions.restart().coordinator.list_transactions() == []


@pytest.mark.parametrize("phase", ["PrepareCommit", "PrepareAbort"])
def test_a_transaction_that_is_being_ended_is_never_forgotten(phase: str) -> None:
    transactions, _ = in_phase(phase)
    transactions.wait(30 * 24 * 3_600_000)
    assert transactions.phase() is TransactionPhase(phase)


@pytest.mark.parametrize("timeout_ms", [-1, 0, 1, 900_000, 900_001])
def test_timeouts_are_positive_and_at_most_the_limit(timeout_ms: int) -> None:
    error = Transactions().init(timeout_ms=timeout_ms).error_code
    assert error is (E.NONE if 0 < timeout_ms <= 900_000 else E.INVALID_TRANSACTION_TIMEOUT)
