"""A log or group takes part in a transaction only after its coordinator has said so, durably and in current epochs."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from dafka.broker.coordinator import participants
from dafka.broker.coordinator.coordinator_shard import CoordinatorError
from dafka.broker.coordinator.participants import (
    LOCAL_RETRY_S,
    RETRY_S,
    TransactionParticipants,
    participants_of,
)
from dafka.broker.coordinator.transaction_messages import Ask, Begin, End, Ended, Refuse, TransactionParticipant
from dafka.broker.core.coordination.effects import Answer
from dafka.broker.core.coordination.state_records import COORDINATORS_TOPIC
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.results import CommitRequest, OffsetToCommit
from dafka.broker.core.log.log import Log
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.log.producer_state import Marker, Producer
from dafka.broker.core.metadata.leader_and_isr import LeaderAndIsr
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.positions import Offset, RecordSequence
from dafka.broker.core.topic_partition import TopicPartition
from dafka.broker.core.transactions.transaction import TransactionPhase
from dafka.broker.interbroker.messenger import BrokerMessenger, Message
from dafka.broker.log.waiters import LogWaiters
from dafka.errors import NotLeaderError
from dafka.steady_clock import steady_now_ms
from tests.broker.coordinator.shards import Records, Shard, serve
from tests.broker.replication.virtual_cluster import batch

ORDERS, PAYMENTS = TopicPartition("orders", 0), TopicPartition("payments", 0)
LOG, GROUP = TransactionParticipant("orders", number=0), TransactionParticipant(name="g")
OWN, OLDER, NEWER = Producer(7, 3), Producer(7, 2), Producer(7, 4)


class Broker:
    """A broker that leads the log `orders`, or not, and coordinates transactions, or not."""

    def __init__(self, address: str, *, leads: bool, shard: Shard | None = None) -> None:
        self.address = address
        self.log_table = LogTable(address)
        for topic in ("orders", "payments"):
            self.log_table.add_topic(Topic(topic, topic, 1))
        self.log.leadership = LeaderAndIsr(address if leads else "leader", 1, is_led=leads)
        self.shard = shard
        self.coordinator = Log(COORDINATORS_TOPIC, 0, self.log.leader_partition, self.log.index_partition)
        self.coordinator.leadership = LeaderAndIsr(
            "coordinator" if shard is None else address, 5, is_led=shard is not None
        )
        self.sent: list[tuple[str, Message]] = []
        self.others: list[Broker] = []
        self.markers: list[tuple[Log, Marker]] = []
        self.failures: list[bool] = []
        self.written = trio.Event()
        self.watchers = LogWaiters()
        self.changed = trio.Event()
        self.messenger = BrokerMessenger(address, self._send_bytes)
        coordinators: Any = SimpleNamespace(find=self._find, log_of=lambda _name: self.coordinator)
        led_logs: Any = SimpleNamespace(wait_leadership=lambda _log: self.changed.wait())
        writer: Any = SimpleNamespace(append_marker=self._append_marker)
        self.participants = TransactionParticipants(
            self.log_table, coordinators, led_logs, writer, self.watchers, self.messenger
        )
        send = self.messenger.send

        def note(to: str, message: Message) -> None:
            self.sent.append((to, message))
            send(to, message)

        self.messenger.send = note  # type: ignore[method-assign, assignment]

    @property
    def log(self) -> Log:
        return self.log_table.logs("orders")[0]

    def _find(self, _name: str) -> Any:
        if self.shard is None:
            raise CoordinatorError(ErrorCode.NOT_COORDINATOR)
        return self.shard.shard

    def _send_bytes(self, address: str, data: bytes) -> None:
        for each in self.others:
            if each.address == address:
                each.messenger.receive(self.address, data)

    def _append_marker(self, log: Log, marker: Marker) -> trio.Event:
        if not log.leadership.is_led or (self.failures and self.failures.pop()):
            raise NotLeaderError("another broker leads", "")
        self.markers.append((log, marker))
        return self.written

    async def commit(self, offset: int) -> None:
        self.log.high_watermark = Offset(offset)
        self.watchers.notify(self.log)
        await trio.testing.wait_all_tasks_blocked()

    def check(self, producer: Producer = OWN) -> ErrorCode:
        return self.participants.check_log(self.log, "t", producer)

    def hear(self, message: Message) -> None:
        """Get a message of the coordinator."""
        _, handler = self.messenger._handlers[message.KIND]
        handler("coordinator", message)

    def taken(self) -> list[tuple[str, Message]]:
        found, self.sent = self.sent, []
        return found


def begin(producer: Producer, shard_epoch: int = 5, epoch: int = 1) -> Begin:
    return Begin(0, shard_epoch, producer, LOG, epoch)


def append_transactional(log: Log, producer: Producer) -> None:
    """Add a record of an open transaction to a log."""
    ((header, _),) = batch(b"", producer=(*producer, 0), is_transactional=True)
    log.producers.add_batch(header, RecordSequence(0), 0)


@pytest.mark.parametrize("coordinates", [False, True])
async def test_late_messages_of_a_former_coordinator_count_for_nothing(*, coordinates: bool) -> None:
    """The leader of the log coordinates the transaction itself since then, or knows who does, and gets no message."""
    leader = Broker("leader", leads=True)
    leader.log_table.add_topic(Topic(COORDINATORS_TOPIC, COORDINATORS_TOPIC, 1))
    (shard,) = leader.log_table.logs(COORDINATORS_TOPIC)
    shard.leadership = LeaderAndIsr("leader" if coordinates else "other", 5, is_led=coordinates)
    for epoch, is_known in ((4, False), (5, True)):
        leader.hear(begin(OWN, epoch))
        assert leader.participants.knows(leader.log, LOG, OWN) == is_known
    leader.hear(End(0, 4, OWN, LOG, 1, False, 0))
    leader.hear(Refuse(0, 4, OWN, LOG, 1, ErrorCode.PRODUCER_FENCED))
    assert leader.markers == []
    assert leader.check() is ErrorCode.NONE


@pytest.mark.parametrize("known", ["nothing", "message", "records"])
async def test_a_leader_knows_transactions_from_the_coordinator_and_from_records(known: str) -> None:
    leader = Broker("leader", leads=True)
    if known == "message":
        leader.hear(begin(OWN))
        leader.hear(begin(OLDER))  # a late one
    elif known == "records":
        append_transactional(leader.log, OWN)
    expected = ErrorCode.NOT_ENOUGH_REPLICAS if known == "nothing" else ErrorCode.NONE
    assert leader.check(OWN) is expected
    if known != "nothing":
        assert leader.check(OLDER) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert leader.sent == []
    assert leader.check(NEWER) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert leader.check(Producer(8, 3)) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert ("coordinator", Ask("t", NEWER, LOG, 1)) in leader.sent


@pytest.mark.parametrize("stale", [begin(OWN, epoch=0), begin(OWN, epoch=2), begin(OWN, shard_epoch=4)])
async def test_messages_of_former_leaders_confirm_nothing(stale: Begin) -> None:
    leader = Broker("leader", leads=True)
    for shard_epoch in (3, 5):
        leader.hear(begin(Producer(9, 0), shard_epoch=shard_epoch))
    leader.hear(Begin(1, 7, Producer(9, 0), LOG, 1))  # of another shard
    leader.hear(stale)
    assert leader.check() is ErrorCode.NOT_ENOUGH_REPLICAS
    leader.hear(begin(OWN))
    assert leader.check() is ErrorCode.NONE
    leader.log.leadership = attrs.evolve(leader.log.leadership, epoch=2)
    assert leader.check() is ErrorCode.NOT_ENOUGH_REPLICAS, "it led the log in a former epoch"


async def test_a_leader_asks_once_in_a_while_and_repeats_a_refusal_once(autojump_clock: trio.testing.MockClock) -> None:
    leader = Broker("leader", leads=True)
    asked = [("coordinator", Ask("t", OWN, LOG, 1))]
    assert [leader.check(), leader.check()] == [ErrorCode.NOT_ENOUGH_REPLICAS] * 2
    assert leader.taken() == asked
    await trio.sleep(RETRY_S)
    assert leader.check() is ErrorCode.NOT_ENOUGH_REPLICAS
    assert leader.taken() == asked
    for refused in (Refuse(0, 5, OWN, LOG, 0, ErrorCode.PRODUCER_FENCED), Refuse(0, 4, OWN, LOG, 1, ErrorCode.NONE)):
        leader.hear(refused)  # to a former leader, or of one
        assert leader.check() is ErrorCode.NOT_ENOUGH_REPLICAS
        leader.hear(begin(Producer(9, 0)))
    leader.hear(Refuse(0, 5, OWN, LOG, 1, ErrorCode.PRODUCER_FENCED))
    assert leader.check() is ErrorCode.INVALID_PRODUCER_EPOCH
    assert leader.taken() == []
    assert leader.check() is ErrorCode.NOT_ENOUGH_REPLICAS
    assert leader.taken() == asked
    leader.hear(Refuse(0, 5, OWN, LOG, 1, ErrorCode.INVALID_TXN_STATE))
    await trio.sleep(RETRY_S)
    assert leader.check() is ErrorCode.NOT_ENOUGH_REPLICAS, "the refusal is old"
    leader.hear(Refuse(0, 5, OWN, LOG, 1, ErrorCode.INVALID_TXN_STATE))
    leader.hear(begin(OWN))
    assert leader.check() is ErrorCode.NONE
    assert leader.taken() == asked
    leader.participants._begun_in(leader.log).epochs.clear()  # the transaction has ended
    assert leader.check() is ErrorCode.NOT_ENOUGH_REPLICAS
    assert leader.taken() == asked, "at once, about the next one"


def execute(shard: Shard, actions: Iterable[Any]) -> None:
    """Execute actions of the coordinator. Nobody waits for answers."""
    shard.shard.execute([each for each in actions if not isinstance(each, Answer)])


async def add(shard: Shard, *logs: TopicPartition, groups: tuple[str, ...] = ()) -> Producer:
    """Begin a transaction, which is not durable yet."""
    transactions = shard.shard.transactions
    found: list[Any] = []

    def take(actions: list[Any]) -> None:
        found.extend(each.result for each in actions if isinstance(each, Answer))
        execute(shard, actions)

    take(transactions.init_producer_id(0, "t", 60_000, None, steady_now_ms()))
    producer: Producer = found[0].producer
    shard.records.commit()
    take(transactions.join(0, "t", producer, frozenset(logs), frozenset(groups), steady_now_ms()))
    return producer


async def test_a_leader_that_coordinates_too_believes_only_what_is_durable() -> None:
    async with serve(Shard(Records(), epoch=5)) as shard:
        leader = Broker("leader", leads=True, shard=shard)
        producer = await add(shard, ORDERS)
        assert leader.check(producer) is ErrorCode.NOT_ENOUGH_REPLICAS
        shard.records.commit()
        assert leader.check(producer) is ErrorCode.NONE
        fenced = producer._replace(producer_epoch=producer.producer_epoch - 1)
        assert leader.check(fenced) is ErrorCode.INVALID_PRODUCER_EPOCH
        other = leader.log_table.logs("payments")[0]
        assert leader.participants.check_log(other, "t", producer) is ErrorCode.INVALID_TXN_STATE
        assert leader.participants.check_group(shard.shard, "t", producer, "g") is ErrorCode.INVALID_TXN_STATE
        execute(shard, shard.shard.transactions.join(0, "t", producer, frozenset(), frozenset("g"), steady_now_ms()))
        error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert leader.participants.check_group(shard.shard, "t", producer, "g") is error, "clients know no other one"
        assert leader.sent == []


async def test_a_coordinator_confirms_what_is_durable_and_refuses_the_rest() -> None:
    async with serve(Shard(Records(), epoch=5)) as shard:
        coordinator = Broker("coordinator", leads=False, shard=shard)
        producer = await add(shard, ORDERS, groups=("g",))
        for participant in (LOG, GROUP, TransactionParticipant("payments", number=0), TransactionParticipant(name="h")):
            coordinator.hear(Ask("t", producer, participant, 9))
        coordinator.hear(Ask("t", producer._replace(producer_epoch=-1), LOG, 9))
        assert coordinator.taken() == []
        shard.records.commit()
        refused = ErrorCode.INVALID_TXN_STATE
        assert [message for _, message in coordinator.taken()] == [
            Begin(0, 5, producer, LOG, 9),
            Begin(0, 5, producer, GROUP, 9),
            Refuse(0, 5, producer, TransactionParticipant("payments", number=0), 9, refused),
            Refuse(0, 5, producer, TransactionParticipant(name="h"), 9, refused),
            Refuse(0, 5, producer._replace(producer_epoch=-1), LOG, 9, ErrorCode.INVALID_PRODUCER_EPOCH),
        ]


@pytest.mark.parametrize("is_current", [True, False])
async def test_a_leader_ends_a_transaction_once_and_confirms_when_enough_replicas_have_the_marker(
    is_current: bool,
) -> None:
    leader = Broker("leader", leads=True)
    async with trio.open_nursery() as nursery:
        await nursery.start(leader.participants.run)
        leader.hear(begin(OWN))
        for stale in (End(0, 4, OWN, LOG, 1, True, 1), End(0, 5, OWN, LOG, 0, True, 2)):
            leader.hear(stale)
        await trio.testing.wait_all_tasks_blocked()
        assert leader.markers == []
        assert leader.check() is ErrorCode.NONE
        leader.failures = [True]
        leader.hear(End(0, 5, OWN, LOG, 1, True, 3))
        leader.hear(Ask("t", OWN, LOG, 1))
        await trio.testing.wait_all_tasks_blocked()
        assert (leader.markers, leader.failures) == ([], []), "it does not lead the log, and coordinates nothing"
        leader.hear(End(0, 5, OWN, LOG, 1, True, 3))
        assert leader.markers == [(leader.log, Marker(7, 3, True))]
        assert leader.check() is ErrorCode.NOT_ENOUGH_REPLICAS, "the transaction has ended"
        leader.taken()
        leader.log.index.append("", RecordSequence(0), 4, is_open=False)
        leader.written.set()
        await trio.testing.wait_all_tasks_blocked()
        await leader.commit(3)
        assert leader.taken() == []
        if not is_current:
            leader.log.leadership = attrs.evolve(leader.log.leadership, epoch=2)
        await leader.commit(4)
        assert leader.taken() == ([("coordinator", Ended(3))] if is_current else [])
        nursery.cancel_scope.cancel()


async def test_a_coordinator_ends_a_transaction_everywhere_and_repeats_its_requests(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with serve(Shard(Records(), epoch=5)) as shard, trio.open_nursery() as nursery:
        coordinator = Broker("coordinator", leads=False, shard=shard)
        own = coordinator.log_table.logs("payments")[0]
        shard.end = coordinator.participants.end

        def phase() -> TransactionPhase:
            (transaction,) = shard.shard.transactions.list_transactions()
            return transaction.phase

        producer = await add(shard, ORDERS, PAYMENTS)
        shard.records.commit()
        coordinator.participants.begin(shard.shard, producer, participants_of([ORDERS, PAYMENTS]))
        assert coordinator.taken() == [("leader", Begin(0, 5, producer, LOG, 1))]
        execute(shard, shard.shard.transactions.end_transaction(0, "t", producer, False, steady_now_ms()))
        await trio.testing.wait_all_tasks_blocked()
        assert coordinator.markers == []
        await shard.commit()
        assert coordinator.markers == [(own, Marker(*producer, False))]
        coordinator.written.set()
        await trio.sleep(2.5 * RETRY_S)
        ends = [message for to, message in coordinator.taken() if to == "leader" and isinstance(message, End)]
        assert [each.request for each in ends] == [ends[0].request + number for number in range(3)]
        assert {attrs.evolve(each, request=0) for each in ends} == {End(0, 5, producer, LOG, 1, False, 0)}
        coordinator.hear(Ended(ends[0].request))  # too late: another request waits
        await trio.testing.wait_all_tasks_blocked()
        assert phase() is TransactionPhase.PREPARE_ABORT
        coordinator.hear(Ended(ends[-1].request))
        await trio.testing.wait_all_tasks_blocked()
        assert [each.phase for each in shard.shard.transactions.list_transactions()] == [
            TransactionPhase.COMPLETE_ABORT
        ]
        nursery.cancel_scope.cancel()


async def test_a_coordinator_ends_a_transaction_at_whoever_leads_a_log_at_the_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with serve(Shard(Records(), epoch=5)) as shard, trio.open_nursery() as nursery:
        coordinator = Broker("coordinator", leads=False, shard=shard)
        shard.end = coordinator.participants.end
        gone = TopicPartition("gone", 0)
        producer = await add(shard, ORDERS, gone)
        coordinator.participants.begin(shard.shard, producer, participants_of([gone]))
        execute(shard, shard.shard.transactions.end_transaction(0, "t", producer, True, steady_now_ms()))
        coordinator.log.leadership = LeaderAndIsr("", 1, is_led=False)
        await shard.commit()
        await trio.sleep(1.5 * RETRY_S)
        assert coordinator.taken() == []
        for leader, epoch in (("leader", 2), ("other", 3)):
            coordinator.log.leadership = LeaderAndIsr(leader, epoch, is_led=False)
            changed, coordinator.changed = coordinator.changed, trio.Event()
            changed.set()
            await trio.testing.wait_all_tasks_blocked()
            ((to, end),) = coordinator.taken()
            assert isinstance(end, End)
            assert (to, attrs.evolve(end, request=0)) == (leader, End(0, 5, producer, LOG, epoch, True, 0))
        coordinator.failures, coordinator.written = [True, True], trio.Event()
        coordinator.log.leadership = LeaderAndIsr("coordinator", 4)
        coordinator.changed.set()
        await trio.testing.wait_all_tasks_blocked()
        assert coordinator.markers == []
        await trio.sleep(2.5 * LOCAL_RETRY_S)
        assert coordinator.markers == [(coordinator.log, Marker(*producer, True))]
        (transaction,) = shard.shard.transactions.list_transactions()
        assert transaction.phase is TransactionPhase.PREPARE_COMMIT
        coordinator.written.set()
        await trio.testing.wait_all_tasks_blocked()
        (transaction,) = shard.shard.transactions.list_transactions()
        assert transaction.phase is TransactionPhase.COMPLETE_COMMIT
        nursery.cancel_scope.cancel()


async def test_a_leader_remembers_a_limited_number_of_questions_and_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(participants, "REFUSED_MAX", 3)
    leader = Broker("leader", leads=True)
    for number in range(10):
        assert leader.check(Producer(number, 0)) is ErrorCode.NOT_ENOUGH_REPLICAS
        leader.hear(Refuse(0, 5, Producer(number + 20, 0), LOG, 1, ErrorCode.PRODUCER_FENCED))
        begun = leader.participants._begun_in(leader.log)
        assert len(begun.asked) == len(begun.refused) == number % 3 + 1
        assert leader.check(Producer(number + 20, 0)) is ErrorCode.INVALID_PRODUCER_EPOCH
        leader.hear(Refuse(0, 5, Producer(number + 20, 0), LOG, 1, ErrorCode.PRODUCER_FENCED))


@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("is_lost", [True, False])
async def test_a_transaction_ends_in_a_group_when_that_is_durable(is_commit: bool, is_lost: bool) -> None:
    request = CommitRequest(group_id="g", offsets={ORDERS: OffsetToCommit(7)})
    async with serve(Shard(Records(), epoch=5)) as shard, trio.open_nursery() as nursery:
        leader = Broker("leader", leads=False, shard=shard)
        await nursery.start(leader.participants.run)
        groups = shard.shard.groups
        execute(shard, groups.commit_transaction_offsets(0, request, OWN.producer_id, steady_now_ms()))
        shard.records.commit()
        leader.hear(End(0, 5, OWN, GROUP, 5, is_commit, 3))
        await trio.testing.wait_all_tasks_blocked()
        assert leader.taken() == []
        if is_lost:
            shard.shard.close()
        await shard.commit()
        assert leader.taken() == ([] if is_lost else [("coordinator", Ended(3))])
        assert groups.fetch_offsets("g", [ORDERS])[ORDERS].offset == (7 if is_commit else -1)
        nursery.cancel_scope.cancel()


async def test_a_coordinator_ends_nothing_while_another_one_can_coordinate(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with serve(Shard(Records(), epoch=5)) as shard:
        coordinator = Broker("coordinator", leads=False, shard=shard)
        shard.end = coordinator.participants.end
        producer = await add(shard, ORDERS, PAYMENTS)
        shard.records.commit()
        shard.holds_lease = False
        coordinator.participants.begin(shard.shard, producer, participants_of([ORDERS]))
        execute(shard, shard.shard.transactions.end_transaction(0, "t", producer, True, steady_now_ms()))
        await shard.commit()
        await trio.sleep(1)
        assert (coordinator.markers, coordinator.taken()) == ([], [])
        shard.holds_lease = True
        await trio.sleep(2 * LOCAL_RETRY_S)
        assert [marker for _, marker in coordinator.markers] == [Marker(*producer, True)]
        assert [type(message) for _, message in coordinator.taken()] == [End]
