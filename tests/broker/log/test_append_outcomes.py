"""What clients are told of records whose log got another leader while they were being written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio

from dafka.broker.core.log.log import Log
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.log.offset_assigner import OffsetAssigner
from dafka.broker.core.metadata.leader_and_isr import LeaderAndIsr
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.partition_address import name_log
from dafka.broker.core.positions import Offset, RecordSequence
from dafka.broker.interbroker.messenger import BrokerMessenger
from dafka.broker.log import append_outcomes as outcomes
from dafka.broker.log.append_outcomes import AppendOutcomes
from dafka.broker.log.waiters import LogWaiters
from dafka.broker.log.writer import PendingAppend
from dafka.errors import NotLeaderError, OutcomeUnknownError, TopicDeletedError
from dafka.records import Partition, RecordBatch

TOPIC = Topic("orders", "id", 1)
NAME = name_log("id", 0)


class Broker:
    """A broker with one log, of which tests say who leads it. It gives records their offsets, and stores nothing."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.log_table = LogTable(address)
        self.log_table.add_topic(TOPIC)
        self.watchers = LogWaiters()
        log = SimpleNamespace(topic=TOPIC.name, number=0)
        logs: Any = SimpleNamespace(find={NAME: log}.get)
        self.messenger = BrokerMessenger(address, self._send_bytes)
        self.outcomes = AppendOutcomes(
            self.log_table, logs, self.watchers, lambda log: log.leadership.is_led and self.has_lease, self.messenger
        )
        self.has_lease = True
        self.others: list[Broker] = []
        self.sequence = 0
        self.lead(1)

    def _send_bytes(self, address: str, data: bytes) -> None:
        for each in self.others:
            if each.address == address:
                each.messenger.receive(self.address, data)

    @property
    def log(self) -> Log:
        return self.log_table.logs("orders")[0]

    def lead(self, epoch: int) -> None:
        """Begin a branch, without any records before it."""
        self.log_table.begin_epoch(self.log, epoch)
        self.log_table.finish_epoch(self.log, {}, {})
        self.log.leadership = LeaderAndIsr(self.address, epoch, is_led=True)
        self.sequence = 0

    def follow(self, leader: str, epoch: int) -> None:
        self.log_table.end_epoch(self.log)
        self.log.leadership = LeaderAndIsr(leader, epoch, is_led=False)
        self.watchers.notify(self.log)

    def append(self, count: int = 1) -> PendingAppend:
        """Take records of a client, which are not written yet."""
        log = self.log
        first, self.sequence = self.sequence, self.sequence + count
        epoch = log.leadership.epoch
        return PendingAppend(
            self.watchers, self.log_table, log, log.leader_partition, RecordSequence(first), count, epoch, trio.Event()
        )

    def write(self, appended: PendingAppend) -> None:
        batch = RecordBatch(appended.own, appended.first_sequence, [b"x"] * appended.count)
        assigner = OffsetAssigner(self.log_table)
        assigner.commit(assigner.plan([batch], 0))
        appended.durable.set()

    def place(self, partition: Partition, first: int, count: int) -> None:
        """Give records of another broker's partition their offsets, as a leader that continues or heals a branch."""
        self.log.index.append(partition.address, RecordSequence(first), count, is_open=False)

    def commit(self, offset: int) -> None:
        self.log.high_watermark = Offset(offset)
        self.watchers.notify(self.log)


def make_brokers() -> tuple[Broker, Broker]:
    former, leader = Broker("former"), Broker("leader")
    former.others, leader.others = [leader], [former]
    return former, leader


async def wait(broker: Broker, appended: PendingAppend, **arguments: Any) -> int | str:
    """Return what a client is told."""
    try:
        return await broker.outcomes.find(appended, **arguments)
    except (NotLeaderError, OutcomeUnknownError, TopicDeletedError) as error:
        return type(error).__name__


@pytest.mark.parametrize("begins_again", [False, True])
async def test_records_that_the_next_leader_has_are_answered_with_their_offset(
    autojump_clock: object, *, begins_again: bool
) -> None:
    former, leader = make_brokers()
    first, second = former.append(2), former.append(3)
    former.write(first)
    former.write(second)
    former.follow(leader.address, 2)
    found: list[int | str] = []

    async def note(appended: PendingAppend) -> None:
        found.append(await wait(former, appended))

    async with trio.open_nursery() as nursery:
        for coordinator in (former, leader):
            nursery.start_soon(coordinator.outcomes.run)
        nursery.start_soon(note, first)
        nursery.start_soon(note, second)
        await trio.sleep(1)
        leader.place(first.own, 0, 2)  # the branch goes on after these
        leader.place(leader.log.leader_partition, 0, 10)
        leader.place(first.own, 2, 3)  # and these are healed behind others
        if begins_again:
            former.log_table.begin_epoch(former.log, 2)  # it follows the new branch for readers
        await trio.sleep(1)
        assert not found  # too few replicas have them
        leader.has_lease = False
        leader.commit(14)
        await trio.sleep(1)
        assert not found  # another broker may lead by now
        leader.has_lease = True
        await trio.sleep(1)
        assert found == [0]
        leader.commit(15)
        await trio.sleep(1)
        assert found == [0, 12]
        nursery.cancel_scope.cancel()


async def test_records_that_were_not_written_are_refused_and_get_no_offset_afterward(autojump_clock: object) -> None:
    former, leader = make_brokers()
    written, late = former.append(2), former.append(3)
    former.write(written)
    former.log.leadership = attrs.evolve(former.log.leadership, is_led=False)  # it cannot write, and others may lead
    assert await wait(former, late) == "NotLeaderError"
    former.log.leadership = attrs.evolve(former.log.leadership, is_led=True)
    former.write(late)
    assert former.log.index.end_offset == 2
    after = former.append(1)
    former.write(after)
    assert former.log.index.find("", after.first_sequence) == 2
    former.follow(leader.address, 2)
    for _ in range(2):
        assert await wait(former, former.append(4)) == "NotLeaderError"
        former.log_table.begin_epoch(former.log, 2)


def make_followed() -> tuple[Broker, Broker, PendingAppend]:
    """Return a former leader and its successor, and records of the former one that are durable there."""
    former, leader = make_brokers()
    appended = former.append(2)
    former.write(appended)
    former.follow(leader.address, 2)
    return former, leader, appended


async def test_records_that_this_broker_leads_again_are_answered_with_their_offset(autojump_clock: object) -> None:
    former, leader, appended = make_followed()
    former.lead(3)
    former.place(leader.log.leader_partition, 0, 5)
    former.place(appended.own, 0, 2)
    former.commit(7)
    assert await wait(former, appended) == 5


async def test_records_that_nobody_speaks_of_may_be_in_the_log_or_not(autojump_clock: object) -> None:
    former, _, appended = make_followed()
    began = trio.current_time()
    assert await wait(former, appended) == "OutcomeUnknownError"
    assert trio.current_time() - began == pytest.approx(outcomes.OUTCOME_S)
    assert await wait(former, appended, all_replicas=False) == 0, "one broker is enough for those who ask for no more"
    former.log_table.remove_topic("orders")
    assert await wait(former, appended) == "TopicDeletedError"
