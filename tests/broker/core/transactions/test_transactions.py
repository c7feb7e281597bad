"""Transactional ids: the answer to each request in each phase of a transaction, from each producer, as a table says."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from dafka.broker.core.coordination.effects import Action, Answer, WriteMarkers, WriteState
from dafka.broker.core.coordination.state_records import StateRecord
from dafka.broker.core.error_codes import ErrorCode as E
from dafka.broker.core.log.producer_state import Producer
from dafka.broker.core.topic_partition import TopicPartition
from dafka.broker.core.transactions.coordinator import (
    EndResult,
    InitProducerResult,
    TransactionCoordinator,
    TransactionSettings,
)
from dafka.broker.core.transactions.producer_ids import BLOCK, ProducerIds
from dafka.broker.core.transactions.transaction import EPOCH_MAX, TransactionPhase

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
NAME = "payments"


class Transactions:
    """A coordinator, the time, its records, and the markers that are to be written."""

    def __init__(self, records: list[StateRecord] | None = None, **settings: int) -> None:
        self.now_ms = 1_000
        self.records = list(records or [])
        self.actions: list[Action] = []
        self.markers: list[WriteMarkers] = []
        self.answers: dict[int, Any] = {}
        self._tokens = itertools.count()
        self.coordinator = TransactionCoordinator(TransactionSettings(**settings))
        for record in self.records:
            self.coordinator.restore(record)
        self.take(self.coordinator.start())

    def take(self, actions: list[Action]) -> None:
        self.actions = actions
        for action in actions:
            if isinstance(action, WriteState):
                self.records += action.records
            elif isinstance(action, WriteMarkers):
                self.markers.append(action)
            else:
                assert isinstance(action, Answer)
                assert isinstance(action.token, int)
                self.answers[action.token] = action.result

    def call(self, method: Callable[..., list[Action]], *arguments: Any) -> Any:
        """Return the answer; None if there is none yet."""
        token = next(self._tokens)
        self.take(method(token, *arguments, self.now_ms))
        return self.answers.get(token)

    def init(
        self, name: str | None = NAME, *, timeout_ms: int = 60_000, expected: Producer | None = None
    ) -> InitProducerResult:
        result = self.call(self.coordinator.init_producer_id, name, timeout_ms, expected)
        assert isinstance(result, InitProducerResult)
        return result

    def add(self, producer: Producer, *logs: TopicPartition, name: str = NAME) -> E:
        return E(self.call(self.coordinator.join, name, producer, frozenset(logs), frozenset()))

    def add_offsets(self, producer: Producer, group_id: str = "g") -> E:
        return E(self.call(self.coordinator.join, NAME, producer, frozenset(), frozenset({group_id})))

    def end(self, producer: Producer, *, is_commit: bool = True, name: str = NAME, raises_epoch: bool = False) -> Any:
        """Return the error code; None if there is no answer yet."""
        end = partial(self.coordinator.end_transaction, raises_epoch=raises_epoch)
        result = self.call(end, name, producer, is_commit)
        assert result is None or isinstance(result, EndResult)
        return result and result.error_code

    def write_markers(self) -> None:
        for marker in self.markers:
            self.take(self.coordinator.markers_written(marker.transactional_id, self.now_ms))
        self.markers.clear()

    def wait(self, duration_ms: int) -> None:
        end_ms = self.now_ms + duration_ms
        while (deadline_ms := self.coordinator.next_deadline_ms()) is not None and deadline_ms <= end_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            self.take(self.coordinator.advance(self.now_ms))
        self.now_ms = end_ms

    def restart(self) -> Transactions:
        return Transactions(self.records)

    def phase(self) -> TransactionPhase | None:
        transaction = self.coordinator.describe_transaction(NAME)
        return transaction.phase if transaction else None


PHASES = ["Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"]

REQUESTS = ["add A", "add B", "add group g", "add group h", "commit", "abort"]
REQUESTS += ["batch A", "batch B", "offsets g", "offsets h", "commit v2", "abort v2"]

BUSY, STATE, WAITS = E.CONCURRENT_TRANSACTIONS, E.INVALID_TXN_STATE, None
ANSWERS: dict[str, list[E | None]] = {
    "Empty": [E.NONE, E.NONE, E.NONE, E.NONE, STATE, STATE, STATE, STATE, STATE, STATE, STATE, WAITS],
    "Ongoing": [E.NONE, E.NONE, E.NONE, E.NONE, WAITS, WAITS, E.NONE, STATE, E.NONE, STATE, WAITS, WAITS],
    "PrepareCommit": [BUSY, BUSY, BUSY, BUSY, BUSY, STATE, STATE, STATE, STATE, STATE, BUSY, STATE],
    "PrepareAbort": [BUSY, BUSY, BUSY, BUSY, STATE, BUSY, STATE, STATE, STATE, STATE, STATE, BUSY],
    "CompleteCommit": [E.NONE, E.NONE, E.NONE, E.NONE, E.NONE, STATE, STATE, STATE, STATE, STATE, STATE, WAITS],
    "CompleteAbort": [E.NONE, E.NONE, E.NONE, E.NONE, STATE, E.NONE, STATE, STATE, STATE, STATE, STATE, WAITS],
}
"""What the producer gets, by phase, in the order of `REQUESTS`. The log A and the group g take part if it is open."""

WRITES = {("Ongoing", request) for request in ("add B", "add group h", "commit", "abort", "commit v2", "abort v2")} | {
    (phase, request)
    for phase in ("Empty", "CompleteCommit", "CompleteAbort")
    for request in (*REQUESTS[:4], "abort v2")
}
"""Where something changes."""


def in_phase(phase: str) -> tuple[Transactions, Producer]:
    """Return a coordinator with a transactional id in a phase, and its producer, whose epoch is 2.

    Time passes before each step.
    """
    transactions = Transactions()
    transactions.init(None)
    for _ in range(3):
        transactions.wait(1)
        producer = transactions.init().producer
    if phase != "Empty":
        transactions.wait(1)
        transactions.add(producer, A)
        transactions.add_offsets(producer)
    if phase.endswith(("Commit", "Abort")):
        transactions.wait(1)
        transactions.end(producer, is_commit=phase.endswith("Commit"))
    if phase.startswith("Complete"):
        transactions.wait(1)
        transactions.write_markers()
    assert transactions.phase() is TransactionPhase(phase)
    return transactions, producer


def send(transactions: Transactions, request: str, producer: Producer, name: str = NAME) -> Any:
    coordinator = transactions.coordinator
    transactions.actions = []
    match request.split():
        case ["add", "group", group]:
            return transactions.call(coordinator.join, name, producer, frozenset(), frozenset({group}))
        case ["add", log]:
            return transactions.call(coordinator.join, name, producer, frozenset({A if log == "A" else B}), frozenset())
        case ["batch", log]:
            return coordinator.check_partition(name, producer, A if log == "A" else B)
        case ["offsets", group]:
            return coordinator.check_group(name, producer, group)
        case [end, *version]:
            return transactions.end(producer, is_commit=end == "commit", name=name, raises_epoch=bool(version))


def test_the_producer_is_answered_by_the_phase_and_others_are_refused_and_change_nothing() -> None:
    for phase, request in itertools.product(PHASES, REQUESTS):
        transactions, producer = in_phase(phase)
        before, written = transactions.coordinator.describe_transaction(NAME), len(transactions.records)
        fenced = E.INVALID_PRODUCER_EPOCH if request.startswith("batch") else E.PRODUCER_FENCED
        for change, name, error in [
            ((0, -1), NAME, fenced),
            ((0, 1), NAME, fenced),
            ((0, -1 - producer.producer_epoch), NAME, fenced),
            ((1, 0), NAME, E.INVALID_PRODUCER_ID_MAPPING),
            ((0, 0), "other", E.INVALID_PRODUCER_ID_MAPPING),
            ((0, 0), "", E.INVALID_REQUEST),
        ]:
            other = Producer(*map(sum, zip(producer, change, strict=True)))
            assert send(transactions, request, other, name) is error, (phase, request)
        assert (transactions.coordinator.describe_transaction(NAME), len(transactions.records)) == (before, written)
        assert send(transactions, request, producer) is ANSWERS[phase][REQUESTS.index(request)], (phase, request)
        kinds, writes = [type(each) for each in transactions.actions], (phase, request) in WRITES
        assert (kinds[:1] == [WriteState]) == writes
        assert kinds[1:] == ([WriteMarkers] if request.startswith(("commit", "abort")) else [Answer]) or not writes
        assert (transactions.coordinator.describe_transaction(NAME) != before) == writes
        assert transactions.restart().coordinator.list_transactions() == transactions.coordinator.list_transactions()


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
    check_others_are_fenced(transactions, result.producer, named)


def check_others_are_fenced(transactions: Transactions, current: Producer, former: Producer | None) -> None:
    """Check that only a producer, and one that has lost the response with its new epoch, can ask for an epoch."""
    for each in itertools.product(range(current.producer_id + 2), [*range(6), *range(32_764, 32_768)]):
        if each not in {current, former} and each != (current.producer_id, former and former.producer_epoch):
            assert transactions.init(expected=Producer(*each)) == InitProducerResult(E.PRODUCER_FENCED)


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("phase", PHASES)
def test_a_transaction_is_complete_when_all_markers_are_written_and_its_producer_is_answered_if_it_waits(
    phase: str, is_restarted: bool
) -> None:
    transactions, producer = in_phase(phase)
    transactions = transactions.restart() if is_restarted else transactions
    answers = set(transactions.answers.items())
    transactions.take(transactions.coordinator.markers_written(NAME, transactions.now_ms))
    is_prepared = phase.startswith("Prepare")
    waits = is_prepared and not is_restarted
    assert [type(each) for each in transactions.actions] == [WriteState] * is_prepared + [Answer] * waits
    assert [each for _, each in transactions.answers.items() - answers] == [EndResult(E.NONE, producer)] * waits
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


def with_epoch(epoch: int) -> tuple[Transactions, Producer]:
    """Return a coordinator with a producer that is in an epoch."""
    transactions = Transactions()
    transactions.init()
    value = json.loads(transactions.records[-1].value or b"")
    value["producer_epoch"] = epoch - 1
    transactions.records[-1] = transactions.records[-1]._replace(value=json.dumps(value).encode())
    transactions = transactions.restart()
    return transactions, transactions.init().producer


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("epoch", [1, EPOCH_MAX - 2, EPOCH_MAX - 1])
def test_each_transaction_has_an_epoch_of_its_own_and_a_repeated_end_is_answered_as_done(
    epoch: int, is_commit: bool, is_restarted: bool
) -> None:
    transactions, producer = with_epoch(epoch)
    assert producer.producer_epoch == epoch
    transactions.add(producer, A)
    assert transactions.end(producer, is_commit=is_commit, raises_epoch=True) is WAITS
    marker = Producer(producer.producer_id, epoch + 1)
    assert transactions.markers == [WriteMarkers(NAME, *marker, is_commit, (A,), ())]
    for again in (is_commit, not is_commit):  # the answer was lost
        transactions = transactions.restart() if is_restarted else transactions
        assert transactions.end(producer, is_commit=again, raises_epoch=True) is (BUSY if again is is_commit else STATE)
        for late in (producer, marker):
            assert transactions.add(late, B) is (
                BUSY if late == marker and epoch < EPOCH_MAX - 1 else E.PRODUCER_FENCED
            )
    transactions.write_markers()
    following = transactions.coordinator.describe_transaction(NAME)
    assert following is not None
    after = Producer(following.producer_id, following.producer_epoch)
    is_used_up = epoch == EPOCH_MAX - 1
    assert (after.producer_id != producer.producer_id, after.producer_epoch) == (
        is_used_up,
        0 if is_used_up else epoch + 1,
    )
    answers = [each for each in transactions.answers.values() if isinstance(each, EndResult) and not each.error_code]
    assert answers == [EndResult(E.NONE, after)] * (not is_restarted)
    transactions = transactions.restart() if is_restarted else transactions
    assert transactions.end(producer, is_commit=is_commit, raises_epoch=True) is E.NONE
    assert transactions.answers[max(transactions.answers)] == EndResult(E.NONE, after)
    assert transactions.end(producer, is_commit=not is_commit, raises_epoch=True) is STATE
    for name, other in (("add", producer), ("end", Producer(producer.producer_id, epoch - 1))):
        refused = transactions.add(other, A) if name == "add" else transactions.end(other, raises_epoch=True)
        assert refused is (E.INVALID_PRODUCER_ID_MAPPING if is_used_up else E.PRODUCER_FENCED)
    check_others_are_fenced(transactions.restart(), after, producer)
    assert transactions.add(after, B) is E.NONE
    assert transactions.end(producer, is_commit=is_commit, raises_epoch=True) in {
        E.PRODUCER_FENCED,
        E.INVALID_PRODUCER_ID_MAPPING,
    }, "its producer has gone on"


def test_nobody_uses_the_largest_epoch_which_fences() -> None:
    transactions, producer = with_epoch(EPOCH_MAX - 1)
    transactions.add(producer, A)
    transactions.wait(60_000)
    transactions.write_markers()
    fence = producer._replace(producer_epoch=EPOCH_MAX)
    for raises_epoch, is_commit in itertools.product((False, True), repeat=2):
        assert transactions.end(fence, is_commit=is_commit, raises_epoch=raises_epoch) is E.PRODUCER_FENCED
    assert transactions.add(fence, A) is E.PRODUCER_FENCED


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


def test_idempotent_producers_get_ids_of_their_own() -> None:
    transactions = Transactions()
    producers = [transactions.init(None, timeout_ms=0).producer for _ in range(1_500)]
    assert len(set(producers)) == 1_500
    assert {epoch for _, epoch in producers} == {0}
    assert transactions.restart().init(None).producer not in producers
    assert len(transactions.records) == 2


@pytest.mark.parametrize("asks_itself", [True, False])
def test_producer_gets_another_id_when_its_epochs_are_used_up(asks_itself: bool) -> None:
    transactions, last = with_epoch(32_766)
    producer = last
    assert transactions.restart().init().producer.producer_id != producer.producer_id
    transactions.add(last, A)
    transactions.wait(60_000)
    assert transactions.markers[0].producer_epoch == 32_767
    transactions.write_markers()
    expected = Producer(producer.producer_id, 32_767) if asks_itself else None
    fresh = transactions.init(expected=expected).producer
    assert fresh.producer_id != producer.producer_id
    assert fresh.producer_epoch == 0
    if asks_itself:
        assert transactions.init(expected=expected).producer == fresh  # it has lost the answer
    check_others_are_fenced(transactions, fresh, expected)
    assert transactions.add(last, A) is E.INVALID_PRODUCER_ID_MAPPING


def test_an_unused_id_is_forgotten_exactly_after_its_expiration_and_never_one_whose_transaction_is_being_ended() -> (
    None
):
    expiration_ms = 7 * 24 * 3_600_000
    for phase in ("Empty", "CompleteCommit", "CompleteAbort", "PrepareCommit", "PrepareAbort"):
        transactions, _ = in_phase(phase)
        transactions.wait(expiration_ms - 1)
        assert transactions.phase() is TransactionPhase(phase)
        transactions.wait(1)
        assert transactions.phase() is (TransactionPhase(phase) if phase.startswith("Prepare") else None)
        assert bool(transactions.restart().coordinator.list_transactions()) == phase.startswith("Prepare")


def test_timeouts_and_the_number_of_ids_are_limited() -> None:
    for timeout_ms in (-1, 0, 1, 900_000, 900_001):
        error = Transactions().init(timeout_ms=timeout_ms).error_code
        assert error is (E.NONE if 0 < timeout_ms <= 900_000 else E.INVALID_TRANSACTION_TIMEOUT)
    limited = Transactions(transactional_ids_max=1)
    assert [limited.init(name).error_code for name in (NAME, "another", NAME)] == [E.NONE, E.POLICY_VIOLATION, E.NONE]


def test_producer_ids_are_reserved_before_they_are_used_and_never_given_twice_by_any_shard() -> None:
    for count in (1, 2, 16):
        given: set[int] = set()
        for shard in range(count):
            records: list[StateRecord] = []
            reserved = 0
            for taken in (1, BLOCK - 1, BLOCK, BLOCK + 1, 3):  # and then the broker restarts
                ids = ProducerIds(shard, count)
                for each in records:
                    ids.restore(each)
                for number in range(taken):
                    found, written = ids.take()
                    assert bool(written) == (number % BLOCK == 0)
                    for each in written:
                        reserved = json.loads(each.value or b"")["next_producer_id"]
                    records += written
                    assert reserved - BLOCK <= found < reserved
                    assert found // BLOCK % count == shard
                    assert found not in given
                    given.add(found)


def test_shards_continue_after_what_any_of_them_has_reserved() -> None:
    record = ProducerIds().take()[1][0]
    for reserved, shard in itertools.product((0, 1, BLOCK, 33 * BLOCK, 33 * BLOCK + 1), range(16)):
        ids = ProducerIds(shard, 16)
        ids.restore(record._replace(value=json.dumps({"version": 1, "next_producer_id": reserved}).encode()))
        found, _ = ids.take()
        assert reserved <= found < reserved + 16 * BLOCK
        assert (found // BLOCK % 16, found % BLOCK) == (shard, 0)
