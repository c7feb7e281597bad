"""Transactional ids, as clients see them."""

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest

from dafka.broker.core.coordination.effects import Action, WriteMarkers, WriteState
from dafka.broker.core.coordination.state_records import StateRecord
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.producer_state import Producer
from dafka.broker.core.topic_partition import TopicPartition
from dafka.broker.core.transactions.coordinator import InitProducerResult, TransactionCoordinator, TransactionSettings
from dafka.broker.core.transactions.transaction import TransactionPhase

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
NAME = "payments"
DAY_MS = 24 * 3_600_000


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

    def add(self, producer: Producer, *logs: TopicPartition, name: str = NAME) -> ErrorCode:
        return ErrorCode(self.call(self.coordinator.add_partitions, name, producer, logs))

    def add_offsets(self, producer: Producer, group_id: str = "g") -> ErrorCode:
        return ErrorCode(self.call(self.coordinator.add_offsets, NAME, producer, group_id))

    def end(self, producer: Producer, *, is_commit: bool = True, name: str = NAME) -> Any:
        return self.call(self.coordinator.end_transaction, name, producer, is_commit)

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

    def restart(self) -> "Transactions":
        return Transactions(self.records)

    def phase(self) -> TransactionPhase | None:
        transaction = self.coordinator.describe_transaction(NAME)
        return transaction.phase if transaction else None


def ready(transactions: Transactions) -> Producer:
    result = transactions.init()
    assert result.error_code is ErrorCode.NONE
    return result.producer


def test_idempotent_producers_get_ids_of_their_own() -> None:
    transactions = Transactions()
    producers = [transactions.init(None, timeout_ms=0).producer for _ in range(1_500)]
    assert len(set(producers)) == 1_500
    assert {epoch for _, epoch in producers} == {0}
    assert transactions.restart().init(None).producer not in producers
    assert len(transactions.records) == 2


def test_number_of_transactional_ids_is_limited() -> None:
    transactions = Transactions(transactional_ids_max=1)
    assert transactions.init().error_code is ErrorCode.NONE
    assert transactions.init("another").error_code is ErrorCode.POLICY_VIOLATION
    assert transactions.init().error_code is ErrorCode.NONE


def test_producer_asks_for_a_new_epoch_itself() -> None:
    transactions = Transactions()
    first = ready(transactions)
    second = transactions.init(expected=first).producer
    assert second == (first.producer_id, first.producer_epoch + 1)
    transactions = transactions.restart()
    assert transactions.init(expected=first).producer == second  # it has lost the answer
    assert transactions.add(first, A) is ErrorCode.PRODUCER_FENCED
    assert transactions.add(second, A) is ErrorCode.NONE
    assert transactions.init(expected=first).error_code is ErrorCode.PRODUCER_FENCED
    assert transactions.phase() is TransactionPhase.ONGOING
    assert transactions.init(expected=second).error_code is ErrorCode.CONCURRENT_TRANSACTIONS
    transactions.write_markers()
    third = transactions.init(expected=second)
    assert (third.error_code, third.producer.producer_epoch) == (ErrorCode.NONE, second.producer_epoch + 1)


@pytest.mark.parametrize("asks_itself", [True, False])
def test_producer_gets_another_id_when_its_epochs_are_used_up(asks_itself: bool) -> None:
    transactions = Transactions()
    producer = ready(transactions)
    value = json.loads(transactions.records[-1].value or b"")
    value["producer_epoch"] = 32_765
    transactions.records[-1] = transactions.records[-1]._replace(value=json.dumps(value).encode())
    transactions = transactions.restart()
    last = transactions.init().producer
    assert last == (producer.producer_id, 32_766)
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
        for other in (last, fresh._replace(producer_epoch=1)):
            assert transactions.init(expected=other).error_code is ErrorCode.PRODUCER_FENCED
    assert transactions.add(last, A) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
