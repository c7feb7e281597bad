"""Leaders of logs drop states that an administrator has replaced, before the administrator gets an answer."""

from __future__ import annotations

from random import Random

import attrs
import pytest
import trio
from trio.testing import MockClock

from dafka.broker.broker import Broker
from dafka.broker.coordinator.groups import GroupCoordinators
from dafka.broker.coordinator.led_share_partition import LedSharePartition
from dafka.broker.coordinator.share_store import ANSWER_S
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.share.share_partition import Acknowledgement, AcknowledgeType
from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.log_replicas import LogKey
from tests.broker.coordinator.brokers import Brokers
from tests.broker.coordinator.test_several_brokers import led_log, named, open_orders
from tests.broker.coordinator.test_share_partitions import READ, append, load, topic_of, wait_error
from tests.broker.replication.virtual_cluster import LATENCY_S, PATIENCE_S

RECORDS, STEPS = 8, 60


@attrs.define
class History:
    """A share group at the leader of a log: where it begins, or that it does not exist, and what is accepted."""

    brokers: Brokers
    leader: Broker
    log: Log
    group: str
    draw: Random
    start: int | None = None
    accepted: set[int] = attrs.field(factory=set)
    acquired: set[int] = attrs.field(factory=set)
    found: set[LedSharePartition] = attrs.field(factory=set)

    @property
    def coordinator(self) -> GroupCoordinators:
        return self.brokers.coordinator_of(self.group).groups

    @property
    def key(self) -> LogKey:
        return LogKey(topic_of(self.leader), 0)

    def find(self) -> LedSharePartition:
        served = self.leader.shares.find(self.group, self.log, topic_of(self.leader))
        self.found.add(served)
        return served

    async def work(self) -> None:
        """Have a member acquire records and accept some of them."""
        if self.start is None:
            assert await wait_error(self.find()) is ErrorCode.GROUP_ID_NOT_FOUND
            return
        _, served = await load(self.brokers, self.group)
        ranges = (await self.leader.share_reader.read(served, READ, 2**20)).ranges
        found = [offset for each in ranges for offset in range(each.first, each.end)]
        left = [each for each in range(self.start, RECORDS) if each not in self.accepted | self.acquired]
        assert found == left[: READ.records_max]
        for offset in found:
            if self.draw.random() < 0.5:
                said = [Acknowledgement(offset, offset + 1, AcknowledgeType.ACCEPT)]
                assert self.leader.shares.acknowledge(served, "m", said) is ErrorCode.NONE
                self.accepted.add(offset)
            else:
                self.acquired.add(offset)
        if self.draw.random() < 0.5:
            assert not await self.leader.shares.wait_written([served])

    async def administrate(self) -> None:
        """Replace the state, perhaps while others load the share partition after it was idle."""
        if self.draw.random() < 0.5:
            self.leader.shares._end(self.find(), ErrorCode.FENCED_STATE_EPOCH)
            self.acquired = set()
        async with trio.open_nursery() as nursery:
            for delay in range(8):
                nursery.start_soon(self.look, delay * LATENCY_S / 2)
            await self.draw.choice((self.create, self.delete, self.move, self.forget))()
            served = self.leader.shares.served(self.group, *self.key)
            if served is not None and served.partition is not None and not self.accepted | self.acquired:
                assert (served.partition.start_offset, served.partition.count_acquired()) == (self.start, 0)

    async def look(self, delay_s: float) -> None:
        await trio.sleep(delay_s)
        self.find()

    def begin(self, start: int | None) -> None:
        self.start, self.accepted, self.acquired = start, set(), set()

    async def create(self) -> None:
        offset, has_begun = self.draw.randrange(RECORDS), self.start is not None
        assert await self.coordinator.create_share_group(self.group, {self.key: offset}) is ErrorCode.NONE
        if not has_begun:
            self.begin(offset)

    async def delete(self) -> None:
        (error,) = (await self.coordinator.delete_groups([self.group])).values()
        assert error is (ErrorCode.GROUP_ID_NOT_FOUND if self.start is None else ErrorCode.NONE)
        self.begin(None)

    async def move(self) -> None:
        offset = self.draw.randrange(RECORDS)
        error = await self.coordinator.set_share_starts(self.group, {self.key: offset})
        if not error:
            self.begin(offset)

    async def forget(self) -> None:
        """Have the group begin anew, which is at the end of the log."""
        if not await self.coordinator.delete_share_states(self.group, {self.key.topic_id}):
            self.begin(RECORDS)
            await load(self.brokers, self.group)


@pytest.mark.parametrize("is_here", [True, False])
@pytest.mark.parametrize("seed", range(3))
async def test_a_leader_never_serves_a_state_that_was_replaced(
    autojump_clock: MockClock, seed: int, is_here: bool
) -> None:
    async with open_orders() as brokers:
        leader, log = led_log(brokers)
        group = await named(brokers, leader, is_here=is_here)
        assert await append(leader, log, *[b"x"] * RECORDS)
        history = History(brokers, leader, log, group, Random(seed))
        for _ in range(STEPS):
            await history.draw.choice((history.work, history.administrate))()
        errors = {each.error for each in history.found}  # clients need not look for another leader
        assert errors <= {ErrorCode.NONE, ErrorCode.FENCED_STATE_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND}


async def test_a_leader_that_cannot_be_reached_delays_no_administrator_for_long(autojump_clock: MockClock) -> None:
    async with open_orders() as brokers:
        leader, log = led_log(brokers)
        group = await named(brokers, leader, is_here=False)
        history = History(brokers, leader, log, group, Random(0))
        await history.create()
        _, served = await load(brokers, group)
        names = {broker: name for name, broker in brokers.running.items()}
        brokers._cluster.cut(names[leader], names[brokers.coordinator_of(group)])
        with trio.fail_after(2 * ANSWER_S):
            await history.move()
        brokers._cluster.heal()
        with trio.fail_after(PATIENCE_S):
            while not served.error:
                await leader.shares.verify(served)
                await trio.sleep(ANSWER_S)
