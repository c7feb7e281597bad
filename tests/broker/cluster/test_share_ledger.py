"""Brokers and members of a share group that are killed while records flow: the ledger of the group balances.

Each record is accepted once, or has a dead letter, and none has both. It can be delivered again after a lock is lost,
but no second acceptance is confirmed.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
import trio
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from dafka.kafka.protocol.constants import ApiKey
from tests.broker.cluster.brokers import SILENT, ProcessCluster, find_leaders, open_cluster
from tests.broker.cluster.network import Place
from tests.kafka.apis.door import Client

TOPIC, GROUP, LETTERS = "orders", "workers", "dlq.orders"
LOGS, MEMBERS = 3, 3
SECONDS = 60 * float(os.environ.get("DAFKA_FAULT_MINUTES", "1"))
"""For how long processes are killed."""

SEED = int(os.environ.get("DAFKA_FAULT_SEED", "1"))
STORAGE = os.environ.get("DAFKA_FAULT_STORAGE", "filelog")
SETTLED_S = 240.0
"""How long the group can take to finish everything after the last kill."""

LOCK_MS = 5000
WORKER = Path(__file__).with_name("share_worker.py")

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="needs /proc"),
    pytest.mark.timeout(600 + SECONDS + SETTLED_S),
]


class RecordPlace(NamedTuple):
    """The place of a record."""

    log: int
    offset: int


class Ledger:
    """What all members have said of each record, and which of it is confirmed."""

    def __init__(self, folder: Path) -> None:
        self.said: dict[str, Counter[RecordPlace]] = defaultdict(Counter)
        self.done: dict[str, Counter[RecordPlace]] = defaultdict(Counter)
        for path in folder.glob("ledger-*"):
            for line in path.read_text().splitlines():
                word, kind, log, offset = line.split()
                (self.said if word == "said" else self.done)[kind][RecordPlace(int(log), int(offset))] += 1

    def find_problems(self, written: dict[RecordPlace, bytes], letters: Counter[RecordPlace]) -> Iterator[str]:
        accepted, rejected = self.done["accept"], self.done["reject"]
        for place in sorted({*written, *accepted, *rejected, *letters}):
            problems = {
                "it was never written": place not in written,
                "two acceptances are confirmed": accepted[place] > 1,
                "it is accepted and has a dead letter": accepted[place] and letters[place],
                "it is accepted and rejected": accepted[place] and rejected[place],
                "its rejection is confirmed, and it has no dead letter": rejected[place] and not letters[place],
                "nobody has accepted it, and it has no dead letter": not self.said["accept"][place]
                and not letters[place],
            }
            yield from (f"{place}: {text}" for text, is_wrong in problems.items() if is_wrong)


class Writer:
    """Writes numbered records, and notes the place of each."""

    def __init__(self, servers: str) -> None:
        self.written: dict[RecordPlace, bytes] = {}
        self.is_ending = False
        self._producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 20, **SILENT})

    def run(self) -> None:
        """Write until `is_ending`, in a thread."""
        number = 0
        while not self.is_ending:
            log = number % LOGS
            self._producer.produce(TOPIC, b"%d-%d" % (log, number), partition=log, on_delivery=self._note)
            self._producer.poll(0)
            number += 1
            time.sleep(0.004)
        while self._producer.flush(1.0):
            pass

    def _note(self, error: Any, message: Any) -> None:
        assert error is None, error
        self.written[RecordPlace(message.partition(), message.offset())] = message.value()


def prepare(servers: str) -> None:
    """Create the topic for dead letters, and set the group."""
    admin = AdminClient({"bootstrap.servers": servers, **SILENT})
    new = NewTopic(LETTERS, 2, 3, config={"errors.deadletterqueue.group.enable": "true"})
    admin.create_topics([new], operation_timeout=30)[LETTERS].result(60)
    settings = {
        "errors.deadletterqueue.topic.name": LETTERS,
        "share.auto.offset.reset": "earliest",
        "share.record.lock.duration.ms": str(LOCK_MS),
        "share.delivery.count.limit": "4",
    }
    entries = [ConfigEntry(*each, incremental_operation=AlterConfigOpType.SET) for each in settings.items()]
    group = ConfigResource(ConfigResource.Type.GROUP, GROUP, incremental_configs=entries)
    admin.incremental_alter_configs([group])[group].result(60)


def has_finished(servers: str, ends: dict[int, int]) -> bool:
    """Return whether the group has finished all records of all logs."""
    topics = [{"topic_name": TOPIC, "partitions": [*range(LOGS)]}]
    for each in servers.split(","):
        try:
            with Client(each) as client:
                asked = [{"group_id": GROUP, "topics": topics}]
                (group,) = client.ask(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1, groups=asked)["groups"]
        except (OSError, AssertionError):
            continue
        if not group["error_code"]:
            found = {part["partition_index"]: part["start_offset"] for part in group["topics"][0]["partitions"]}
            return found == ends
    return False


def read_letters(servers: str) -> Counter[RecordPlace]:
    """Return how many dead letters each record has."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "reader", "enable.auto.commit": False, **SILENT})
    found: Counter[RecordPlace] = Counter()
    try:
        for log in range(2):
            at = TopicPartition(LETTERS, log)
            _, end = consumer.get_watermark_offsets(at, timeout=30)
            consumer.assign([TopicPartition(LETTERS, log, 0)])
            while consumer.position([at])[0].offset < end:
                message = consumer.poll(1.0)
                if message is None or message.error() is not None:
                    continue
                headers = dict(message.headers() or ())
                assert headers["__dlq.errors.group"] == GROUP.encode()
                found[RecordPlace(*(int(headers[f"__dlq.errors.{name}"]) for name in ("partition", "offset")))] += 1
    except KafkaException as error:
        raise AssertionError(error) from None
    finally:
        consumer.close()
    return found


class Chaos:
    """Kills brokers and members, one of each at a time, and starts them again."""

    def __init__(self, cluster: ProcessCluster, draw: Random) -> None:
        self.cluster, self.draw = cluster, draw
        self.kills: Counter[str] = Counter()
        self.members = [self._add_member(number) for number in range(MEMBERS)]

    def _add_member(self, number: int) -> Any:
        ledger = self.cluster.folder / f"ledger-{number}"
        command = (sys.executable, str(WORKER), self.cluster.servers, TOPIC, GROUP, str(number), str(ledger))
        node = self.cluster.run(f"member-{number}", Place("", ()), command, "")
        node.start()
        return node

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._kill_brokers)
            nursery.start_soon(self._kill_members)
            await trio.sleep(SECONDS)
            nursery.cancel_scope.cancel()
        for each in self.cluster.brokers.values():
            if not each.node.is_running:
                await self.cluster.start(each)

    async def _kill_brokers(self) -> None:
        while True:
            await trio.sleep(self.draw.uniform(3, 9))
            leaders = await trio.to_thread.run_sync(
                find_leaders, self.cluster.servers, self.draw.choice((TOPIC, LETTERS))
            )
            numbers = [*leaders.values()] or [each.number for each in self.cluster.brokers.values()]
            number = self.draw.choice(numbers)
            broker = next(each for each in self.cluster.brokers.values() if each.number == number)
            await broker.node.kill()
            self.kills["broker"] += 1
            await trio.sleep(self.draw.uniform(0.5, 4))
            await self.cluster.start(broker)

    async def _kill_members(self) -> None:
        while True:
            await trio.sleep(self.draw.uniform(1, 5))
            member = self.draw.choice(self.members)
            await member.kill()
            self.kills["member"] += 1
            await trio.sleep(self.draw.uniform(0, 2))
            member.start()


async def test_each_record_is_accepted_once_or_has_a_dead_letter(tmp_path: Path) -> None:
    async with open_cluster(tmp_path, storage=STORAGE) as cluster:
        await cluster.create_topic(TOPIC, LOGS)
        await trio.to_thread.run_sync(prepare, cluster.servers)
        writer, chaos = Writer(cluster.servers), Chaos(cluster, Random(SEED))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, writer.run)
            await chaos.run()
            writer.is_ending = True
        ends = {log: 1 + max(each.offset for each in writer.written if each.log == log) for log in range(LOGS)}
        try:
            await cluster.wait_until(lambda: has_finished(cluster.servers, ends), "records are left", SETTLED_S)
        finally:
            for each in chaos.members:
                await each.kill()
            letters = await trio.to_thread.run_sync(read_letters, cluster.servers)
            ledger = Ledger(tmp_path)
            repeated, accepted = sum(letters.values()) - len(letters), len(ledger.done["accept"])
            cluster.timeline.note(
                f"{len(writer.written)} records, {accepted} accepted, {len(letters)} with dead letters, {repeated} "
                f"letters repeated; killed: {dict(chaos.kills)}"
            )
            problems = [*ledger.find_problems(writer.written, letters)]
        assert problems == []
        assert chaos.kills["broker"]
        assert chaos.kills["member"]
