"""A log joins a transaction when its coordinator has said so: in current epochs, and while it has its lease."""

from __future__ import annotations

from collections.abc import Iterable

import attrs
import pytest
import trio
import trio.testing

from dafka.broker.coordinator.participants import participant_of
from dafka.broker.coordinator.transaction_joins import ANSWER_S, TransactionJoins
from dafka.broker.coordinator.transaction_messages import Ask, Begin, Join, Joined
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.log import Log
from dafka.broker.core.log.producer_state import Producer
from tests.broker.coordinator.shards import Records, Shard, serve
from tests.broker.coordinator.test_participants import GROUP, LOG, OLDER, ORDERS, OWN, PAYMENTS, Broker, add, begin

NONE, RETRY = ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS


def make(broker: Broker, *, is_supported: bool = True) -> TransactionJoins:
    participants = broker.participants
    return TransactionJoins(participants._coordinators, participants, broker.messenger, lambda: is_supported)


def asked(broker: Broker) -> Join:
    ((to, message),) = broker.taken()
    assert to == "coordinator"
    assert isinstance(message, Join)
    return message


async def join(broker: Broker, answers: Iterable[Joined], *, adds: bool = True) -> dict[Log, ErrorCode]:
    """Return the errors of the log after answers to the request with the number 0."""
    found: list[dict[Log, ErrorCode]] = []
    joins = make(broker)

    async def ask() -> None:
        found.append(await joins.join_logs("t", OWN, [broker.log], adds=adds))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        for each in answers:
            broker.hear(each)
    return found[0]


def joined(error: ErrorCode = NONE, *, shard_epoch: int = 5, request: int = 0, count: int = 1) -> Joined:
    return Joined(0, shard_epoch, (error,) * count, request)


@pytest.mark.parametrize("adds", [True, False])
async def test_a_leader_asks_once_for_a_log_that_it_does_not_know(
    adds: bool, autojump_clock: trio.testing.MockClock
) -> None:
    leader = Broker("leader", leads=True)
    leader.hear(begin(OLDER))
    assert await join(leader, [joined()], adds=adds) == {}
    assert asked(leader) == Join("t", OWN, (LOG,), adds, 0)
    assert leader.check() is NONE
    assert await join(leader, [], adds=adds) == {}
    assert leader.taken() == []
    assert trio.current_time() < ANSWER_S


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ([joined(ErrorCode.PRODUCER_FENCED)], ErrorCode.INVALID_PRODUCER_EPOCH),
        ([joined(ErrorCode.INVALID_TXN_STATE)], ErrorCode.INVALID_TXN_STATE),
        ([joined(shard_epoch=4)], RETRY),
        ([joined(request=1), joined(count=2)], RETRY),
        ([], RETRY),
    ],
)
async def test_a_log_without_a_current_answer_does_not_take_part(
    answers: list[Joined], error: ErrorCode, autojump_clock: trio.testing.MockClock
) -> None:
    leader = Broker("leader", leads=True)
    leader.hear(begin(Producer(9, 0)))
    assert await join(leader, answers) == {leader.log: error}
    assert leader.check() is RETRY, "it is not known"


async def test_an_answer_to_a_former_leader_confirms_nothing(autojump_clock: trio.testing.MockClock) -> None:
    leader = Broker("leader", leads=True)

    def answers() -> Iterable[Joined]:
        leader.log.leadership = attrs.evolve(leader.log.leadership, epoch=2)
        yield joined()

    assert await join(leader, answers()) == {leader.log: RETRY}
    assert leader.check() is RETRY


async def test_nothing_is_asked_at_a_level_without_it_or_when_nobody_coordinates() -> None:
    leader = Broker("leader", leads=True)
    assert await make(leader, is_supported=False).join_logs("t", OWN, [leader.log], adds=True) == {}
    for address, is_led in (("", False), ("leader", True)):  # it still loads what it will coordinate itself
        leader.coordinator.leadership = attrs.evolve(leader.coordinator.leadership, leader=address, is_led=is_led)
        assert await join(leader, []) == {leader.log: RETRY}
        assert leader.taken() == []


async def test_a_log_that_takes_no_part_is_not_taken_for_one_that_does() -> None:
    async with serve(Shard(Records(), epoch=5)) as shard:
        broker = Broker("both", leads=True, shard=shard)
        producer = await add(shard, ORDERS)
        shard.records.commit()
        ((orders,), (payments,)) = (broker.log_table.logs(each) for each in ("orders", "payments"))
        payments.leadership = orders.leadership
        refused = {payments: ErrorCode.INVALID_TXN_STATE}
        assert await make(broker).join_logs("t", producer, [orders, payments], adds=False) == refused
        assert [broker.participants.knows(each, participant_of(each), producer) for each in (orders, payments)] == [
            True,
            False,
        ]


async def test_a_group_without_an_answer_does_not_take_part(autojump_clock: trio.testing.MockClock) -> None:
    async with serve(Shard(Records(), epoch=5)) as shard:
        broker = Broker("coordinates the group", leads=False)
        error = await make(broker).join_group(shard.shard, "t", OWN, "g", adds=True)
        assert error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert asked(broker).participants == (GROUP,)


@pytest.mark.parametrize("holds_lease", [True, False])
@pytest.mark.parametrize("is_own", [True, False])
async def test_a_coordinator_confirms_what_is_durable_while_it_has_its_lease(is_own: bool, holds_lease: bool) -> None:
    async with serve(Shard(Records(), epoch=5)) as shard, trio.open_nursery() as nursery:
        broker = Broker("both", leads=is_own, shard=shard)
        joins, found = make(broker), list[dict[Log, ErrorCode]]()
        producer = await add(shard)
        shard.records.commit()
        logs = [*broker.log_table.logs("orders"), *broker.log_table.logs("payments")]
        names = tuple(map(participant_of, logs))

        async def ask() -> None:
            found.append(await joins.join_logs("t", producer, logs, adds=True))

        if is_own:
            nursery.start_soon(ask)
        else:
            broker.hear(Join("t", producer, names, True, 7))
        await trio.testing.wait_all_tasks_blocked()
        assert (found, broker.taken()) == ([], [])
        shard.holds_lease = holds_lease
        await shard.commit()
        (transaction,) = shard.shard.transactions.list_transactions()
        assert transaction.partitions == {ORDERS, PAYMENTS}
        if is_own:
            assert found == [{}]
            assert broker.check(producer) is (NONE if holds_lease else RETRY)
        else:
            answer = Joined(0, 5, (NONE,) * len(names), 7)
            assert broker.taken() == ([("coordinator", answer)] if holds_lease else [])
        broker.participants.begin(shard.shard, producer, names)
        for message in (Ask("t", producer, LOG, 9), Join("t", producer, names, False, 8)):
            broker.hear(message)
        sent = [message for _, message in broker.taken()]
        assert (
            any(isinstance(each, Begin) for each in sent)
            == any(isinstance(each, Joined) for each in sent)
            == holds_lease
        )
        nursery.cancel_scope.cancel()
