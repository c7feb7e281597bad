"""Topics that are deleted and made again while broker processes are stopped, killed and paused, as a seed decides."""

from __future__ import annotations

import random
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from dafka.broker.core.partition_address import parse_address
from dafka.storage import open_storage
from tests.broker.cluster.brokers import SILENT, BrokerNode, ProcessCluster, open_cluster

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

NAMES = ("orders", "visits", "stock", "trips")
LOGS = 2
DEADLINE_S = 120.0
MISSING = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
PLAIN = 0
"""Which of the producers numbers no records."""
LEADER_TIMEOUT_S = 1.0
FAULTS = (signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP)


@attrs.define
class Expected:
    """A topic that exists.

    Attributes:
        replicas: On how many brokers it is.
        is_writable: Whether it takes records, although a broker may be away.
        values: The acknowledged records of its newest creation.
        given_up: Records of which the client does not know whether they are stored.
        repeatable: Records that may be there twice: a stopped broker had not answered a client that does not number
            them, and may store them, too, when it goes on.
    """

    replicas: int
    is_writable: bool
    values: set[bytes] = attrs.field(factory=set)
    given_up: set[bytes] = attrs.field(factory=set)
    repeatable: set[bytes] = attrs.field(factory=set)


class Campaign:
    """What a client does to a cluster, and what must be true after each round.

    Args:
        cluster: The cluster.
        seed: Decides what happens.
    """

    def __init__(self, cluster: ProcessCluster, seed: int) -> None:
        self._cluster = cluster
        self._count = len(cluster.brokers)
        self._draw = random.Random(seed)
        self._topics: dict[str, Expected] = {}
        self._number = 0
        self._is_one_stopped = False
        common = {
            "bootstrap.servers": cluster.servers,
            "acks": "all",
            "linger.ms": 0,
            **SILENT,
            "socket.timeout.ms": 10_000,
        }
        self._producers = [Producer(common), Producer({**common, "enable.idempotence": True})]

    async def run(self, rounds: int) -> None:
        """Run some rounds."""
        for number in range(rounds):
            self._cluster.timeline.note(f"round {number}")
            brokers = list(self._cluster.brokers.values())
            if len(brokers) > 1 and self._draw.random() < 0.6:
                async with self._without(self._draw.choice(brokers)):
                    await self._use(is_whole=False)
            else:
                await self._use(is_whole=True)
            stopped = self._draw.sample(brokers, self._draw.randint(1, len(brokers)))
            await self._restart(stopped)
            await self._check()
            for each in self._topics.values():
                each.is_writable = True
            await self._write()
        await self._check()
        for broker in self._cluster.brokers.values():
            await broker.node.terminate(DEADLINE_S)
            await self._check_stored(broker)

    # What happens

    async def _use(self, *, is_whole: bool) -> None:
        """Make and delete topics, and write to them, perhaps while a broker is away."""
        for each in self._topics.values():
            each.is_writable = is_whole or each.replicas == self._count
        for _ in range(self._draw.randint(2, 5)):
            name = self._draw.choice(NAMES)
            if name in self._topics and self._draw.random() < 0.7:
                await self._delete(name)
                if self._draw.random() < 0.3:
                    continue
            if name not in self._topics:
                few = self._draw.randint(1, self._count)
                await self._create(name, few if is_whole and self._draw.random() < 0.3 else self._count)
            await self._write()

    async def _restart(self, brokers: list[BrokerNode]) -> None:
        """Stop brokers and start them again, perhaps in the middle of a deletion and a creation."""
        async with trio.open_nursery() as nursery:
            if self._draw.random() < 0.5:
                name = self._draw.choice(NAMES)
                if name in self._topics:
                    nursery.start_soon(self._delete, name)
                else:
                    nursery.start_soon(self._create, name, self._count)
                await trio.sleep(self._draw.random() / 20)
            if self._draw.choice((True, False)):
                self._note("kill", *brokers)
                await self._cluster.kill(*brokers)
            else:
                self._note("end", *brokers)
                async with trio.open_nursery() as ending:
                    for each in brokers:
                        ending.start_soon(each.node.terminate, DEADLINE_S)
            await self._cluster.start(*brokers)
        await self._cluster.wait_members()

    @asynccontextmanager
    async def _without(self, broker: BrokerNode) -> AsyncIterator[None]:
        """Have a broker away during the block."""
        fault = self._draw.choice(FAULTS)
        self._note(fault.name, broker)
        if fault == signal.SIGSTOP:
            self._is_one_stopped = True
            self._cluster.stop(broker)
        elif fault == signal.SIGKILL:
            await self._cluster.kill(broker)
        else:
            await broker.node.terminate(DEADLINE_S)
        yield
        self._note("return", broker)
        if fault == signal.SIGSTOP:
            self._cluster.go_on(broker)
        else:
            await self._cluster.start(broker)
        self._is_one_stopped = False
        await self._cluster.wait_members()

    async def _create(self, name: str, replicas: int) -> None:
        """Create a topic, on fewer brokers if that many do not live."""
        self._cluster.timeline.note(f"create {name} on {replicas}")
        self._topics[name] = Expected(replicas, is_writable=True)
        try:
            await self._ask(
                lambda admin: admin.create_topics([NewTopic(name, LOGS, replicas)])[name],
                KafkaError.TOPIC_ALREADY_EXISTS,
            )
        except KafkaException as error:
            if error.args[0].code() != KafkaError.INVALID_REPLICATION_FACTOR or replicas == 1:
                raise
            await self._create(name, replicas - 1)

    async def _delete(self, name: str) -> None:
        del self._topics[name]
        self._cluster.timeline.note(f"delete {name}")
        await self._ask(lambda admin: admin.delete_topics([name])[name], KafkaError.UNKNOWN_TOPIC_OR_PART)

    async def _ask(self, ask: Callable[[AdminClient], Any], done: int) -> None:
        """Ask until it is done. An answer may be lost when a broker is stopped.

        Each attempt has a client of its own: one that knows a controller waits for it to come back.
        """

        def attempt() -> None:
            client = AdminClient(settings)
            ask(client).result(DEADLINE_S)

        settings = {"bootstrap.servers": self._cluster.servers, **SILENT, "socket.timeout.ms": 10_000}
        deadline = trio.current_time() + DEADLINE_S
        while True:
            try:
                await trio.to_thread.run_sync(attempt)
                return
            except KafkaException as error:
                code = error.args[0].code()
                if code == done:
                    return
                if code == KafkaError.INVALID_REPLICATION_FACTOR or trio.current_time() > deadline:
                    raise
                await trio.sleep(0.1)

    async def _write(self) -> None:
        for name, expected in self._topics.items():
            if expected.is_writable:
                values = [b"%d" % number for number in range(self._number, self._number + 10)]
                self._number += len(values)
                producer = self._draw.randrange(len(self._producers))
                self._cluster.timeline.note(f"write {values[0].decode()} to {name} with producer {producer}")
                given_up = await trio.to_thread.run_sync(write, self._producers[producer], name, values)
                expected.values.update(set(values) - given_up)
                expected.given_up.update(given_up)
                if producer == PLAIN and self._is_one_stopped:
                    expected.repeatable.update(values)

    def _note(self, what: str, *brokers: BrokerNode) -> None:
        self._cluster.timeline.note(f"{what} {' '.join(each.name for each in brokers)}")

    # What must be true

    async def _wait_known(self) -> None:
        """Wait until all brokers have the topics that exist."""

        def is_known() -> bool:
            known = [topic_ids(each.servers) for each in self._cluster.running()]
            return known[0].keys() == self._topics.keys() and all(each == known[0] for each in known)

        await self._cluster.wait_until(is_known, f"not every broker has the topics {sorted(self._topics)}")

    async def _check(self) -> None:
        """Check that all brokers have the topics that exist, with exactly the acknowledged records."""
        await self._wait_known()
        for name, expected in self._topics.items():
            found = await trio.to_thread.run_sync(read, self._cluster.servers, name)
            known = Counter(each for each in found if each not in expected.given_up)
            assert sorted(known, key=int) == sorted(expected.values, key=int), name
            assert {each for each, count in known.items() if count > 1} <= expected.repeatable, name

    async def _check_stored(self, broker: BrokerNode) -> None:
        """Check that a broker that has ended has nothing of deleted topics."""
        async with open_storage(broker.storage, read_only=True) as storage:
            partitions = await storage.partitions()
        named = {each for each in partitions if not each.topic.startswith("$")}
        assert {each.topic for each in named} <= self._topics.keys()
        addresses = [(each.topic, parse_address(each.address)) for each in named]
        ids = {(topic, address.topic_id) for topic, address in addresses if address is not None}
        assert len(ids) == len({topic for topic, _ in ids}), "partitions of a deleted topic are left"


def write(producer: Producer, topic: str, values: list[bytes]) -> set[bytes]:
    """Write records until they are acknowledged. Return those that the client gives up, as their broker is gone.

    A producer takes a topic that was just made for missing.
    """
    deadline = time.monotonic() + DEADLINE_S
    missing, given_up = list(values), set[bytes]()
    while missing:
        assert time.monotonic() < deadline, f"the producer does not go on with {topic}"
        failed: list[tuple[bytes, int]] = []

        def note(error: KafkaError | None, message: Any, failed: list[tuple[bytes, int]] = failed) -> None:
            if error is not None:
                failed.append((message.value(), error.code()))

        for value in missing:
            try:
                producer.produce(topic, value, on_delivery=note)
            except KafkaException as error:
                failed.append((value, error.args[0].code()))
        assert producer.flush(DEADLINE_S) == 0, f"the producer does not go on with {topic}"
        assert {code for _, code in failed} <= {*MISSING, KafkaError._DESTROY}, failed
        given_up.update(value for value, code in failed if code == KafkaError._DESTROY)
        missing = [value for value, code in failed if code in MISSING]
        time.sleep(0.05 if missing else 0)
    return given_up


def read(servers: str, topic: str) -> list[bytes]:
    """Return the values of all records of a topic."""
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "look", "enable.auto.commit": False, "enable.partition.eof": True}
    )
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(LOGS)])
        found: list[bytes] = []
        ended: set[int] = set()
        deadline = time.monotonic() + DEADLINE_S
        while len(ended) < LOGS:
            assert time.monotonic() < deadline, f"{topic} is not read: {len(found)} records, {len(ended)} ends"
            message = consumer.poll(1)
            if message is None:
                continue
            error = message.error()
            if error is None:
                found.append(message.value())
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
        return found
    finally:
        consumer.close()


def topic_ids(servers: str) -> Mapping[str, str]:
    """Return the ids of the topics that a broker lists, by name; nothing if it does not answer."""
    admin = AdminClient({"bootstrap.servers": servers, **SILENT})
    try:
        names = [each for each in admin.list_topics(timeout=5).topics if not each.startswith("$")]
        described = admin.describe_topics(TopicCollection(names)) if names else {}
        return {name: str(described[name].result(5).topic_id) for name in names}
    except KafkaException:
        return {"": servers}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("scheme", "brokers", "rounds", "seed"),
    [
        ("filelog", 1, 1, 0),
        *(
            pytest.param(scheme, brokers, 40, seed, marks=pytest.mark.long)
            for seed, (scheme, brokers) in enumerate([("filelog", 1), ("sqlite", 1), ("filelog", 3), ("sqlite", 3)], 1)
        ),
    ],
)
async def test_acknowledged_records_are_those_of_the_newest_topic(
    tmp_path: Path, scheme: str, brokers: int, rounds: int, seed: int
) -> None:
    async with open_cluster(tmp_path, brokers, scheme=scheme, kafka={"auto_create_topics": "off"}) as cluster:
        await Campaign(cluster, seed).run(rounds)
        assert cluster.timeline.problems == []
