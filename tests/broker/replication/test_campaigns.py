"""Whole brokers under faults that a seed decides, while clients write, and topics are deleted and made again."""

from __future__ import annotations

import random
from contextlib import suppress
from functools import partial
from itertools import count

import attrs
import pytest
import trio
from trio.testing import MockClock

from dafka.broker.core.log.log import Log
from dafka.broker.core.partition_address import parse_address
from dafka.broker.log.writer import LogWriter
from dafka.errors import NotLeaderError, OutcomeUnknownError, StorageError, TopicDeletedError
from tests.broker.replication.virtual_cluster import VirtualCluster, batch, open_virtual_cluster, wait_for

BROKERS = "ABC"
TOPICS = ("orders", "visits")
LOGS = 2
STEPS = 32
ANSWER_S = 30.0


@attrs.define(eq=False)
class Expected:
    """A topic that exists: the offsets of its acknowledged records by log, and all records that were sent to it."""

    acknowledged: list[dict[bytes, int]] = attrs.field(factory=lambda: [{} for _ in range(LOGS)])
    sent: set[bytes] = attrs.field(factory=set)


class Campaign:
    """What happens to a cluster. Topics are changed while all running brokers hear each other and can write."""

    def __init__(self, cluster: VirtualCluster, seed: int, nursery: trio.Nursery, rack: str) -> None:
        self.cluster = cluster
        self.rack = rack
        self.draw = random.Random(seed)
        self.nursery = nursery
        self.topics: dict[str, Expected] = {}
        self.numbers = count()
        self.is_cut = False
        self.acknowledged = self.pending = 0

    async def step(self) -> None:
        """Have something happen, and send records before and while it does."""
        await self.write()
        is_whole = not self.is_cut and not any(each.is_full for each in self.cluster.disks.values())
        changes = [self.change_topic] if is_whole and len(self.cluster.brokers) > 1 else []
        await self.draw.choice([self.stop, self.start, self.cut, self.fill, self.heal, self.heal, *changes])()
        await self.write()
        await trio.sleep(self.draw.choice([0.0, 0.1, 1.0, 3.0]))

    async def change_topic(self) -> None:
        name = self.draw.choice(TOPICS)
        broker = self.cluster.brokers[self.draw.choice(sorted(self.cluster.brokers))]
        await wait_for(self.agree)
        if name in self.topics:
            del self.topics[name]
            await broker.admin.delete_topic(name)
        if self.draw.random() < 0.8:
            self.topics[name] = Expected()
            await broker.admin.create_topic(name, LOGS)
        await wait_for(self.agree)

    def agree(self) -> bool:
        """Return whether all running brokers have the topics that exist, and no others."""
        found = [{name: each.find_topic(name) for name in each.topics} for each in self.cluster.brokers.values()]
        return found[0].keys() == self.topics.keys() and all(each == found[0] for each in found)

    async def write(self) -> None:
        """Send a record to each broker that leads a log, also if another one does so by now."""
        for topic, expected in self.topics.items():
            for broker in self.cluster.brokers.values():
                for log in broker.logs(topic):
                    if log.leadership.is_led:
                        self.nursery.start_soon(self.append, broker.writer, log, expected)

    async def append(self, writer: LogWriter, log: Log, expected: Expected) -> None:
        value = b"%d" % next(self.numbers)
        expected.sent.add(value)
        self.pending += 1
        with (
            trio.move_on_after(ANSWER_S),
            suppress(NotLeaderError, OutcomeUnknownError, StorageError, TopicDeletedError),
        ):
            expected.acknowledged[log.number][value] = await writer.append(log, batch(value)).wait_offset()
            self.acknowledged += 1
        self.pending -= 1

    async def stop(self) -> None:
        if len(self.cluster.brokers) == len(BROKERS):
            await self.cluster.stop(*self.draw.sample(BROKERS, self.draw.choice([1, 1, 2, 3])))

    async def start(self) -> None:
        for name in sorted(set(BROKERS) - set(self.cluster.brokers)):
            self.cluster.disks[name].is_full = False
            await self.cluster.start(name, are_cut=True, rack=self.rack)

    async def cut(self) -> None:
        name = self.draw.choice(BROKERS)
        self.cluster.cut(name, BROKERS.replace(name, ""), is_one_way=self.draw.random() < 0.3)
        self.is_cut = True

    async def heal(self) -> None:
        self.cluster.heal()
        self.is_cut = False
        for disk in self.cluster.disks.values():
            disk.is_full = False
        brokers = self.cluster.brokers.values()
        await wait_for(lambda: all(len(each.brokers.living()) == len(brokers) for each in brokers))

    def is_in_sync(self, topic: str, number: int) -> bool:
        return self.cluster.in_sync(topic, number) == BROKERS

    async def fill(self) -> None:
        for name in self.draw.sample(sorted(self.cluster.brokers), min(1, len(self.cluster.brokers))):
            self.cluster.disks[name].is_full = True

    async def check(self) -> None:
        """Check that every broker has the topics that exist, and their logs what was acknowledged, where it was.

        The logs also have what any broker stores of them. In racks, every broker gives clients the same records.
        """
        await self.start()
        await self.heal()
        await trio.sleep(5)
        await self.write()
        await wait_for(lambda: not self.pending)
        await trio.sleep(5)
        cluster = self.cluster
        assert self.agree()
        for broker in cluster.brokers.values():
            assert not any(broker.storage.ends(each) for each in TOPICS if each not in self.topics), "records are left"
        for topic, expected in self.topics.items():
            for number in range(LOGS):
                await wait_for(partial(self.is_in_sync, topic, number))
                leader = cluster.leader(topic, number)
                found = await cluster.read(leader, topic, number)
                assert len(set(found)) == len(found)
                assert expected.sent.issuperset(found)
                for value, offset in expected.acknowledged[number].items():
                    assert found[offset] == value
                for name in BROKERS:
                    for partition in cluster.brokers[name].storage.ends(topic):
                        address = parse_address(partition.address)
                        if address is not None and address.log == number:
                            assert set(await cluster.stored(name, partition)) <= set(found)
                    if self.rack and name != leader:
                        assert cluster.log(name, topic, number).leadership.is_follower_readable
                        assert await cluster.read(name, topic, number) == found


@pytest.mark.parametrize(("seed", "rack"), [(0, ""), (3, "r"), (5, "r")])
async def test_acknowledged_records_of_the_newest_topics_stay_where_they_are(
    autojump_clock: MockClock, seed: int, rack: str
) -> None:
    async with open_virtual_cluster() as cluster, trio.open_nursery() as nursery:
        await cluster.start(*BROKERS, rack=rack)
        campaign = Campaign(cluster, seed, nursery, rack)
        for _ in range(4):
            await campaign.change_topic()
            for _ in range(STEPS // 4):
                await campaign.step()
            await campaign.check()
        assert campaign.acknowledged > STEPS // 2
