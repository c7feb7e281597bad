"""Coordinators that are spread over brokers, and survive the loss of any."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from dafka.broker import broker as broker_module
from dafka.broker.broker import Broker
from dafka.broker.core.coordination.state_records import shard_of
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.results import CommitRequest, JoinRequest, OffsetToCommit
from dafka.broker.core.log.log import Log
from dafka.broker.core.log.producer_batches import PRODUCER_EXPIRY_MS
from dafka.broker.core.log.producer_state import Producer
from dafka.broker.core.positions import Offset
from dafka.broker.core.topic_partition import TopicPartition
from dafka.broker.core.transactions.coordinator import EndResult
from dafka.broker.log.appending import AppendRefusedError
from dafka.steady_clock import steady_now_ms
from tests.broker.coordinator.brokers import Brokers, open_brokers, served
from tests.broker.replication.virtual_cluster import PATIENCE_S, batch, wait_for

PLACE = TopicPartition("orders", 0)

NAMES = ("A", "B", "C")


def commit(group: str, offset: int) -> CommitRequest:
    return CommitRequest(group_id=group, offsets={PLACE: OffsetToCommit(offset)})


def join(group: str, member_id: str = "") -> JoinRequest:
    return JoinRequest(
        group_id=group,
        member_id=member_id,
        group_instance_id=None,
        client_id="client",
        client_host="host",
        session_timeout_ms=60_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=(("range", b""),),
        requires_known_member_id=False,
    )


@asynccontextmanager
async def open_orders(log_count: int = 1) -> AsyncIterator[Brokers]:
    """Run three brokers with a topic that all of them know."""
    async with open_brokers(*NAMES) as brokers:
        await next(iter(brokers.running.values())).node.admin.create_topic("orders", log_count)
        await wait_for(lambda: all(find_leader(brokers, number) is not None for number in range(log_count)))
        await brokers.wait_committed()
        yield brokers


def find_leader(brokers: Brokers, number: int = 0) -> tuple[Broker, Log] | None:
    """Return a log of the topic with the broker that leads it, if all know it."""
    found = [(each, log) for each in brokers.running.values() if (log := each.node.find_log("orders", number))]
    led = [(broker, log) for broker, log in found if log.leadership.is_led]
    leaders = {log.leadership.leader for _, log in found}
    is_known = len(found) == len(brokers.running) and len(led) == 1 and leaders == {led[0][0].node.address}
    return led[0] if is_known else None


def led_log(brokers: Brokers, number: int = 0) -> tuple[Broker, Log]:
    found = find_leader(brokers, number)
    assert found is not None
    return found


async def append(brokers: Brokers, name: str, producer: Producer, sequence: int, number: int = 0) -> None:
    """Append a record in a transaction, as a client does: again and again while it is told to try again."""
    sent = batch(b"record %d" % sequence, producer=(*producer, sequence), is_transactional=True)
    with trio.fail_after(PATIENCE_S):
        while True:
            broker, log = led_log(brokers, number)
            try:
                appended = broker.appender.append(log, sent, name)
            except AppendRefusedError as refused:
                if refused.error_code is not ErrorCode.NOT_ENOUGH_REPLICAS:
                    raise
                await trio.sleep(0.01)
                continue
            await appended.wait_offset()
            return


async def begin(brokers: Brokers, name: str) -> Producer:
    result = await brokers.coordinator_of(name).transactions.init_producer_id(name, 60_000)
    assert result.error_code is ErrorCode.NONE
    return result.producer


async def named(brokers: Brokers, broker: Broker, *, is_here: bool) -> str:
    """Return a group or transactional id that a broker coordinates, or that it does not, once there is one."""
    candidates = [broker] if is_here else [each for each in brokers.running.values() if each is not broker]
    found: list[str] = []

    def find() -> bool:
        shards = {shard for each in candidates for shard in served(each)}
        found[:] = [name for name in map("name-{}".format, range(1000)) if shard_of(name) in shards]
        return bool(found)

    await wait_for(find)
    return found[0]


async def test_offsets_survive_the_loss_of_their_coordinator(autojump_clock: MockClock) -> None:
    groups = [f"group-{number}" for number in range(6)]
    async with open_brokers(*NAMES) as brokers:
        for number, group in enumerate(groups):
            coordinator = brokers.coordinator_of(group)
            assert await coordinator.groups.commit_offsets(commit(group, number)) == {PLACE: ErrorCode.NONE}
            for other in brokers.running.values():
                found = other.coordinator_of(group)
                assert found is not None
                assert found.address == coordinator.node.address
                if other is not coordinator:
                    refused = await other.groups.commit_offsets(commit(group, 99))
                    assert refused == {PLACE: ErrorCode.NOT_COORDINATOR}
        listed = [each.group_id for broker in brokers.running.values() for each in await broker.groups.list_groups()]
        assert sorted(listed) == sorted(groups)
        await brokers.stop(brokers.coordinator_of(groups[0]))
        await brokers.wait_committed()
        for number, group in enumerate(groups):
            committed = await brokers.coordinator_of(group).groups.fetch_offsets(group)
            assert committed[PLACE].offset == number


async def test_members_stay_in_their_group_when_the_wall_clock_is_set(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_brokers("A") as brokers:
        groups = brokers.coordinator_of("g").groups
        joined = await groups.join_group(join("g"))
        read = time.time_ns
        for jump_ns in (10**14, -(10**14), 2 * 10**14):
            monkeypatch.setattr(time, "time_ns", lambda jump_ns=jump_ns: read() + jump_ns)
            for _ in range(2):
                assert await groups.heartbeat("g", joined.generation_id, joined.member_id, None) in {
                    ErrorCode.NONE,
                    ErrorCode.REBALANCE_IN_PROGRESS,
                }


async def test_producers_are_forgotten_a_day_after_their_last_batch_whatever_the_wall_clock_says(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, jumped_ns, passed_ms = batch(b"once", producer=(7, 0, 0)), 10**15, 0
    read_wall, read_steady = time.time_ns, steady_now_ms
    monkeypatch.setattr(broker_module, "_EXPIRY_INTERVAL_S", 1.0)
    monkeypatch.setattr(broker_module, "steady_now_ms", lambda: read_steady() + passed_ms)
    async with open_brokers("A") as brokers:
        await brokers.running["A"].node.admin.create_topic("orders")
        await wait_for(lambda: find_leader(brokers) is not None)
        broker, log = led_log(brokers)
        assert await broker.appender.append(log, sent, "").wait_offset() == 0
        monkeypatch.setattr(time, "time_ns", lambda: read_wall() + jumped_ns)
        for passed_ms in (0, PRODUCER_EXPIRY_MS - 3_600_000, PRODUCER_EXPIRY_MS):
            await trio.sleep(1.5)
            assert (7 in log.producers.producers) == (passed_ms < PRODUCER_EXPIRY_MS)
            if passed_ms < PRODUCER_EXPIRY_MS:
                assert await broker.appender.append(log, sent, "").wait_offset() == 0
        assert log.index.end_offset == 1


@pytest.mark.parametrize("version", [1, 2])
async def test_transaction_ends_in_the_logs_and_groups_of_all_brokers(autojump_clock: MockClock, version: int) -> None:
    """In version 2, the leaders of logs and groups add these to the transaction."""
    async with open_orders(6) as brokers:
        leaders = {number: led_log(brokers, number)[0] for number in range(6)}
        assert len(set(leaders.values())) > 1
        name = await named(brokers, leaders[0], is_here=False)
        coordinator = brokers.coordinator_of(name)
        group = await named(brokers, coordinator, is_here=False)
        group_coordinator = brokers.coordinator_of(group)
        producer = await begin(brokers, name)
        logs = [TopicPartition("orders", number) for number in leaders]
        if version == 1:
            assert await coordinator.transactions.add_partitions(name, producer, logs) is ErrorCode.NONE
            assert await coordinator.transactions.add_offsets(name, producer, group) is ErrorCode.NONE
        for number in leaders:
            if version == 2:
                broker, log = led_log(brokers, number)
                assert await broker.joins.join_logs(name, producer, [log], adds=True) == {}
            await append(brokers, name, producer, 0, number)
        with trio.fail_after(PATIENCE_S):
            error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            while error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                added = await group_coordinator.groups.commit_transaction_offsets(
                    commit(group, 7), name, producer, adds_group=version == 2
                )
                error = added[PLACE]
                await trio.sleep(0.01)
        assert error is ErrorCode.NONE
        stranger = Producer(producer.producer_id + 1, 0)
        refused = await group_coordinator.groups.commit_transaction_offsets(
            commit(group, 8), name, stranger, adds_group=version == 2
        )
        assert refused[PLACE] is ErrorCode.INVALID_PRODUCER_ID_MAPPING, "trying again would not help"
        for number in leaders:
            _, log = led_log(brokers, number)
            assert (log.last_stable_offset, log.high_watermark) == (0, 1)
        with trio.fail_after(PATIENCE_S):
            ended = await coordinator.transactions.end_transaction(
                name, producer, is_commit=True, raises_epoch=version == 2
            )
        assert ended == EndResult(ErrorCode.NONE, Producer(producer.producer_id, producer.producer_epoch + version - 1))
        for number in leaders:
            _, log = led_log(brokers, number)
            assert (log.last_stable_offset, log.high_watermark) == (2, 2)
            aborted = log.aborted_between(Offset(0), Offset(2))
            assert aborted == []
        committed = await group_coordinator.groups.fetch_offsets(group, [PLACE], require_stable=True)
        assert committed[PLACE].offset == 7
