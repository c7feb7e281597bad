"""Share groups whose coordinators and leaders are spread over brokers, and survive the loss of any."""

from __future__ import annotations

import operator
from functools import partial
from random import Random
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from dafka.broker.broker import Broker
from dafka.broker.coordinator import share_reads
from dafka.broker.coordinator.coordinator_shard import CoordinatorError
from dafka.broker.coordinator.led_share_partition import LedSharePartition
from dafka.broker.coordinator.share_reads import ShareRead
from dafka.broker.coordinator.share_store import ShareStateAnswer, WriteShareState
from dafka.broker.core.coordination.state_records import StateRecord
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.share.members import ShareHeartbeatRequest
from dafka.broker.core.groups.share.share_partition import (
    Acknowledgement,
    AcknowledgeType,
)
from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.log_replicas import LogKey
from dafka.broker.interbroker.messenger import Message
from dafka.errors import NotLeaderError, StorageError
from tests.broker.coordinator.brokers import Brokers, open_brokers
from tests.broker.coordinator.test_several_brokers import NAMES, find_leader, led_log, named, open_orders
from tests.broker.replication.virtual_cluster import PATIENCE_S, batch, wait_for

GROUPS = [f"group-{number}" for number in range(6)]
READ = ShareRead(member_id="m", records_max=3, range_max=3, is_exact=True)
STEPS = 120


async def join(brokers: Brokers, group: str) -> None:
    """Add a member to a group."""
    request = ShareHeartbeatRequest(group_id=group, member_id="m", member_epoch=0, topics=frozenset({"orders"}))
    result = await brokers.coordinator_of(group).groups.share_heartbeat(request)
    assert result.error_code is ErrorCode.NONE


async def load(brokers: Brokers, group: str) -> tuple[Broker, LedSharePartition]:
    """Return the share partition of a group at the leader of the log, when it is loaded."""
    with trio.fail_after(PATIENCE_S):
        while True:
            await wait_for(lambda: find_leader(brokers) is not None)
            broker, log = led_log(brokers)
            served = broker.shares.find(group, log, topic_of(broker))
            while served.is_current and served.partition is None:
                with trio.move_on_after(0.1):
                    await served.changed.wait()
            if served.is_current:
                return broker, served
            await trio.sleep(0.1)


async def wait_error(served: LedSharePartition) -> ErrorCode:
    """Wait until a share partition is no longer served, and return why."""
    await wait_for(lambda: bool(served.error))
    return served.error


def topic_of(broker: Broker) -> str:
    return broker.node.topics["orders"].topic_id


async def append(broker: Broker, log: Log, *values: bytes) -> bool:
    """Append records. Return whether they are committed."""
    try:
        await broker.appender.append(log, batch(*values), "").wait_offset()
    except (NotLeaderError, StorageError):
        return False
    return True


async def test_a_group_is_served_wherever_its_coordinator_is(autojump_clock: MockClock) -> None:
    async with open_orders() as brokers:
        broker, log = led_log(brokers)
        groups = [await named(brokers, broker, is_here=is_here) for is_here in (True, False)]
        for group in groups:
            assert await wait_error(broker.shares.find(group, log, topic_of(broker))) is ErrorCode.GROUP_ID_NOT_FOUND
            await join(brokers, group)
            await load(brokers, group)
        assert await append(broker, log, *[b"%d" % number for number in range(3)])
        for group in groups:
            broker, served = await load(brokers, group)
            found = await broker.share_reader.read(served, READ, 2**20)
            assert [(each.first, each.end) for each in found.ranges] == [(0, 3)]
            said = [Acknowledgement(0, 2, AcknowledgeType.ACCEPT), Acknowledgement(2, 3, AcknowledgeType.RELEASE)]
            assert broker.shares.acknowledge(served, "m", said) is ErrorCode.NONE
            assert not await broker.shares.wait_written([served])
            states = await brokers.coordinator_of(group).groups.share_states(group)
            assert states is not None
            (state,) = states.values()
            assert (state.start_offset, state.runs) == (2, ((1, 0, 1),))
        for group in groups:
            broker, served = await load(brokers, group)
            coordinator = brokers.coordinator_of(group).groups
            leaving = ShareHeartbeatRequest(group_id=group, member_id="m", member_epoch=-1)
            assert (await coordinator.share_heartbeat(leaving)).error_code is ErrorCode.NONE
            assert await coordinator.set_share_starts(group, {LogKey(topic_of(broker), 0): 1}) is ErrorCode.NONE
            await broker.shares.verify(served)
            assert served.error is ErrorCode.FENCED_STATE_EPOCH
            broker, served = await load(brokers, group)
            assert served.partition is not None
            assert served.partition.start_offset == 1


@pytest.mark.parametrize("is_exact", [True, False])
async def test_a_member_that_wants_few_records_has_few_read(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, is_exact: bool
) -> None:
    """Of one large batch, or of many small ones, which it gets completely."""
    count, value = (1, bytes(100)) if is_exact else (100, bytes(2**16))
    async with open_brokers("A") as brokers:
        (broker,) = brokers.running.values()
        await broker.node.admin.create_topic("orders", 1)
        await join(brokers, GROUPS[0])
        _, served = await load(brokers, GROUPS[0])
        for _ in range(count):
            assert await append(broker, served.log, *[value] * (10_000 if is_exact else 1))
        read, sizes = broker.node.reader.read, list[int]()

        async def measure(*arguments: Any) -> list[bytes]:
            found = await read(*arguments)
            sizes.append(sum(map(len, found)))
            return found

        monkeypatch.setattr(broker.node.reader, "read", measure)
        wanted = attrs.evolve(READ, is_exact=is_exact)
        for number in range(3):
            (found,) = (await broker.share_reader.read(served, wanted, 2**26)).ranges
            assert (found.first, found.end) == (number * 3, number * 3 + 3)
        assert sum(sizes) <= (2000 if is_exact else 3 * share_reads.READ_BYTES)


async def test_an_acknowledgement_waits_until_the_coordinator_has_committed_it_and_has_its_lease(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_orders() as brokers:
        broker, log = led_log(brokers)
        for is_here in (True, False):
            group = await named(brokers, broker, is_here=is_here)
            await join(brokers, group)
            _, served = await load(brokers, group)
            assert await append(broker, log, b"x")
            (found,) = (await broker.share_reader.read(served, READ, 2**20)).ranges
            shard = brokers.coordinator_of(group)._coordinators.find(group)
            put, held = shard._state.put, list[StateRecord]()
            with monkeypatch.context() as patch:
                patch.setattr(shard._state, "put", held.extend)
                said = [Acknowledgement(found.first, found.end, AcknowledgeType.ACCEPT)]
                assert broker.shares.acknowledge(served, "m", said) is ErrorCode.NONE
                with trio.move_on_after(20) as waiting:
                    await broker.shares.wait_written([served])
                assert waiting.cancelled_caught
                assert held
                patch.setattr(shard._leases, "holds_lease", partial(operator.is_, served.log))
                put(held)
                with trio.move_on_after(20) as waiting:
                    await broker.shares.wait_written([served])
                assert waiting.cancelled_caught
            assert not await broker.shares.wait_written([served])


async def test_a_write_that_arrives_after_its_coordinator_has_changed_overwrites_nothing(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_orders() as brokers:
        broker, log = led_log(brokers)
        group = await named(brokers, broker, is_here=False)
        await join(brokers, group)
        await load(brokers, group)
        assert await append(broker, log, b"x", b"y")
        send, sent = broker.node.messenger.send, list[WriteShareState]()

        def note(address: str, message: Message) -> None:
            sent.extend([message] if isinstance(message, WriteShareState) else ())
            send(address, message)

        monkeypatch.setattr(broker.node.messenger, "send", note)
        for offset in range(2):
            _, served = await load(brokers, group)
            said = [Acknowledgement(offset, offset + 1, AcknowledgeType.ACCEPT)]
            assert (await broker.share_reader.read(served, attrs.evolve(READ, records_max=1), 2**20)).ranges
            assert broker.shares.acknowledge(served, "m", said) is ErrorCode.NONE
            assert not await broker.shares.wait_written([served])
            if not offset:
                late = sent[-1]
                await brokers.stop(brokers.coordinator_of(group))
                await brokers.wait_committed()
        coordinator = brokers.coordinator_of(group)
        other = next(each for each in brokers.running.values() if each is not coordinator)
        put, take = trio.open_memory_channel[ShareStateAnswer](1)
        other.node.messenger.on(ShareStateAnswer, lambda _, answer: put.send_nowait(answer))
        other.node.messenger.send(coordinator.node.address, late)
        answer = await take.receive()
        states = await coordinator.groups.share_states(group)
        assert states is not None
        assert [each.start_offset for each in states.values()] == [2]
        assert answer.error_code is ErrorCode.NOT_COORDINATOR


@attrs.define
class Faults:
    """What has happened to the records of a group, by offset."""

    brokers: Brokers
    group: str
    draw: Random
    written: int = 0
    accepted: set[int] = attrs.field(factory=set)
    uncertain: set[int] = attrs.field(factory=set)
    delivered: set[int] = attrs.field(factory=set)
    stopped: list[str] = attrs.field(factory=list)

    async def play(self, steps: int) -> None:
        """Apply faults, and then have all brokers run."""
        await load(self.brokers, self.group)
        for _ in range(steps):
            try:
                await self.step()
            except CoordinatorError:
                await trio.sleep(1)
        if self.stopped:
            await self.stop()

    async def write(self) -> None:
        await wait_for(lambda: find_leader(self.brokers) is not None)
        broker, log = led_log(self.brokers)
        with trio.move_on_after(5):
            await append(broker, log, b"x")

    async def work(self) -> None:
        """Have a member get records and accept some of them."""
        broker, served = await load(self.brokers, self.group)
        found = await broker.share_reader.read(served, READ, 2**20)
        if not broker.shares.holds_lease(served):
            return
        offsets = [offset for each in found.ranges for offset in range(each.first, each.end)]
        assert not self.accepted.intersection(offsets)
        self.delivered.update(offsets)
        for offset in offsets:
            kind = self.draw.choice((AcknowledgeType.ACCEPT, AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE))
            error = broker.shares.acknowledge(served, "m", [Acknowledgement(offset, offset + 1, kind)])
            if error or kind is AcknowledgeType.RELEASE:
                continue
            self.uncertain.add(offset)
            with trio.move_on_after(self.draw.choice((0.1, 5, 40))):
                if not await broker.shares.wait_written([served]):
                    self.accepted.add(offset)

    async def stop(self) -> None:
        """Stop a broker, or start one that was stopped."""
        if self.stopped:
            await self.brokers.start(self.stopped.pop())
        else:
            name = self.draw.choice(NAMES)
            self.stopped.append(name)
            await self.brokers.stop(self.brokers.running[name])

    async def step(self) -> None:
        (kind,) = self.draw.choices(("write", "work", "stop"), (20, 30, 3))
        await (self.write() if kind == "write" else self.work() if kind == "work" else self.stop())

    async def end(self) -> None:
        """Have the group finish all records."""
        with trio.fail_after(PATIENCE_S * 5):
            while True:
                await self.work()
                with trio.move_on_after(5):
                    _, log = led_log(self.brokers) if find_leader(self.brokers) else (None, None)
                    _, served = await load(self.brokers, self.group)
                    assert served.partition is not None
                    if log is not None and served.partition.start_offset == log.high_watermark:
                        self.written = log.high_watermark
                        return
                await trio.sleep(1)


@pytest.mark.parametrize("seed", range(3))
async def test_what_was_confirmed_is_kept_when_brokers_are_lost(autojump_clock: MockClock, seed: int) -> None:
    draw = Random(seed)
    async with open_orders() as brokers:
        faults = Faults(brokers, draw.choice(GROUPS), draw)
        await join(brokers, faults.group)
        await faults.play(STEPS)
        await faults.end()
        assert faults.written > STEPS / 5
        assert faults.delivered == set(range(faults.written))
        assert len(faults.accepted) > faults.written / 2
