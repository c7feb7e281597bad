"""A shard answers once everything behind the answer is durable, in order, and never when it is lost."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from dafka.broker.coordinator import coordinator_shard
from dafka.broker.core.coordination.effects import Action, Answer, WriteState
from dafka.broker.core.coordination.state_records import OFFSETS_TOPIC, StateRecord
from dafka.broker.core.groups.consumer.results import ConsumerHeartbeatRequest
from dafka.broker.core.groups.results import CommitRequest, OffsetToCommit
from dafka.broker.core.groups.settings import GroupSettings
from dafka.broker.core.log.producer_state import Producer
from dafka.broker.core.topic_partition import TopicPartition
from dafka.broker.core.transactions.transaction import TransactionPhase
from dafka.steady_clock import steady_now_ms
from tests.broker.coordinator.shards import Records, Shard, serve

ORDERS = TopicPartition("orders", 0)


def record(number: int) -> StateRecord:
    return StateRecord(OFFSETS_TOPIC, b'["offset","g","orders",%d]' % number, b"{}")


async def send(nursery: trio.Nursery, shard: Shard, answers: list[Any], call: Any) -> None:
    """Send a request that may wait, and note what it gets."""

    async def ask() -> None:
        answers.append(await shard.shard.ask(call))

    nursery.start_soon(ask)
    await trio.testing.wait_all_tasks_blocked()


@pytest.mark.parametrize("seed", range(20))
async def test_answers_come_in_order_as_soon_as_all_earlier_records_are_durable(seed: int) -> None:
    draw = random.Random(seed)
    async with serve(Shard(Records())) as shard, trio.open_nursery() as nursery:
        answers: list[int] = []
        executed: list[int] = []
        needed: list[int] = []
        for number in range(12):
            actions: list[Action] = [
                WriteState(tuple(record(each) for each in range(draw.randint(1, 3))))
                for _ in range(draw.choice([0, 1, 2]))
            ]

            def call(token: int, actions: list[Action] = actions, number: int = number) -> list[Any]:
                return [*actions, partial(executed.append, number), Answer(token, number)]

            await send(nursery, shard, answers, call)
            needed.append(len(shard.records.put_records))
            if draw.random() < 0.6 and shard.records.durable < len(shard.records.put_records):
                await shard.commit(draw.randint(1, len(shard.records.put_records) - shard.records.durable))
            assert executed == [each for each, end in enumerate(needed) if end <= shard.records.durable]
            assert sorted(answers) == executed
            assert shard.shard.is_settled == (shard.records.durable == len(shard.records.put_records))
        await shard.commit()
        assert executed == sorted(answers) == list(range(12))


async def restored(records: list[StateRecord], **fields: Any) -> Shard:
    """Return a shard that has served its records for a moment."""
    async with serve(Shard(Records(records), **fields)) as shard:
        await shard.commit()
    return shard


async def test_the_next_coordinator_knows_what_is_durable_completes_decisions_and_aborts_what_is_late() -> None:
    late: list[StateRecord] = []
    shard = Shard(Records())
    transactions, groups = shard.shard.transactions, shard.shard.groups

    def do(actions: list[Action]) -> Any:
        late.extend(each for action in actions if isinstance(action, WriteState) for each in action.records)
        return next((each.result for each in actions if isinstance(each, Answer)), None)

    producers: dict[str, Producer] = {}
    for name, begun_ms in (
        ("decided", steady_now_ms()),
        ("late", steady_now_ms() - 61_000),
        ("open", steady_now_ms() - 30_000),
    ):
        producers[name] = do(transactions.init_producer_id(0, name, 60_000, None, begun_ms)).producer
        do(transactions.join(0, name, producers[name], frozenset({ORDERS}), frozenset(), begun_ms))
    do(transactions.end_transaction(0, "decided", producers["decided"], True, steady_now_ms()))
    kept = CommitRequest(group_id="g", offsets={ORDERS: OffsetToCommit(7, topic_id="kept")})
    gone = CommitRequest(group_id="g", offsets={TopicPartition("orders", 1): OffsetToCommit(7, topic_id="gone")})
    for request in (kept, gone):
        do(groups.commit_offsets(0, request, steady_now_ms()))
    again = await restored(late, deleted_ids={"gone"})
    assert {(each.transactional_id, each.is_commit) for each in again.ended} == {("decided", True), ("late", False)}
    phases = {each.transactional_id: each.phase for each in again.shard.transactions.list_transactions()}
    assert phases == {
        "decided": TransactionPhase.PREPARE_COMMIT,
        "late": TransactionPhase.PREPARE_ABORT,
        "open": TransactionPhase.ONGOING,
    }
    assert set(again.shard.groups.fetch_offsets("g", None)) == {ORDERS}
    assert again.records.values[b'["offset","g","orders",0]']
    assert b'["offset","g","orders",1]' not in again.records.values


async def test_a_silent_member_is_removed_when_its_time_has_passed_also_by_the_next_coordinator(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_shard, "steady_now_ms", lambda: int(trio.current_time() * 1000))
    join = ConsumerHeartbeatRequest(
        group_id="g",
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=1000,
        topics=frozenset({"orders"}),
        owned=frozenset(),
    )
    timeout_s = GroupSettings().group_consumer_session_timeout_ms / 1000

    def members(shard: Shard) -> int:
        return len(shard.shard.groups.describe_consumer_group("g").members)

    records = list[StateRecord]()
    for number in range(2):
        async with serve(Shard(Records(records))) as shard:
            if number == 0:
                shard.shard.execute(
                    each
                    for each in shard.shard.groups.consumer_heartbeat(0, join, int(trio.current_time() * 1000))
                    if not isinstance(each, Answer)
                )
                await shard.commit()
                records = list(shard.records.put_records)
            await trio.sleep(timeout_s - 0.1)
            assert members(shard) == 1
            await trio.sleep(0.2)
            assert members(shard) == 0


@pytest.mark.parametrize(("epoch", "is_settled"), [(0, True), (0, False), (3, True)])
async def test_a_broker_starts_with_its_shards_loaded_unless_others_must_help(epoch: int, is_settled: bool) -> None:
    shard = Shard(Records(), epoch=epoch)
    shard.records.is_settled = is_settled
    started = trio.Event()

    async def start(nursery: trio.Nursery) -> None:
        await nursery.start(shard.shard.run)
        started.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(start, nursery)
        await trio.testing.wait_all_tasks_blocked()
        assert started.is_set() == (epoch > 0 or not is_settled)
        assert not shard.shard.loaded.is_set()
        shard.records.loads.set()
        await started.wait()
        await shard.shard.loaded.wait()
        nursery.cancel_scope.cancel()
