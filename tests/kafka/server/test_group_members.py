"""Members of groups join, leave and are killed: every record is handled, and none that was committed is again."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from dafka.testing import kafka
from tests.kafka.server.clients import Confluent, Message
from tests.waiting import poll_until

DEADLINE_S = 600
LOGS = 12

pytestmark = pytest.mark.timeout(2 * DEADLINE_S)  # the tests' own deadlines say more than a timeout of pytest


class Member:
    def __init__(self, folder: Path, *arguments: str) -> None:
        self._output = folder
        with folder.open("wb") as output:
            command = [sys.executable, "-W", "ignore", "-m", "tests.kafka.server.test_group_members", *arguments]
            self.process = subprocess.Popen(command, stdout=output)

    def records(self, what: str) -> list[tuple[int, int]]:
        """Return the logs and offsets of the records that it has `handled` or `committed`; one if it has `started`."""
        lines = self._output.read_text("ascii").split("\n")[:-1]  # what is behind the last end of a line is torn
        return [(int(log), int(offset)) for kind, log, offset in map(str.split, lines) if kind == what]


def check_members(tmp_path: Path, client: str, strategy: str, size: int, count: int, *, is_static: bool) -> None:
    with kafka(f"filelog:{tmp_path}/log") as broker:
        servers = broker.bootstrap_servers
        admin = AdminClient({"bootstrap.servers": servers})
        admin.create_topics([NewTopic("orders", LOGS, 1)])["orders"].result(60)
        members: list[Member] = []
        wait = partial(poll_until, deadline_s=DEADLINE_S)

        def write(first: int) -> None:
            values = [b"%d" % number for number in range(first, first + count)]
            Confluent().write(servers, "orders", [Message(each, each) for each in values], "none")

        def start(name: str) -> Member:
            instance = name if is_static else ""
            path = tmp_path / f"member-{len(members)}"
            members.append(Member(path, client, servers, "orders", "group", strategy, instance))
            return members[-1]

        def handled() -> set[tuple[int, int]]:
            return {record for each in members for record in each.records("handled")}

        try:
            write(0)
            start("0")
            wait(lambda: bool(members[0].records("committed")))
            running = [members[0], *(start(str(number)) for number in range(1, size))]
            wait(lambda: len(handled()) == count)
            write(count)  # all members that have joined have some of it
            left, killed = running[1], running[2:4]
            wait(lambda: len(handled()) > count and all(each.records("started") for each in running))
            left.process.send_signal(signal.SIGTERM)
            for each in killed:
                each.process.kill()
            if is_static:
                start("2")
            wait(lambda: len(handled()) == 2 * count)
            assert left.process.wait(60) == 0
        finally:
            for each in members:
                each.process.kill()
                each.process.wait()
        committed = Counter(record for each in members for record in each.records("committed"))
        assert [record for record, times in committed.items() if times > 1] == []
        assert len(committed) > count


def test_few_members_join_leave_and_are_killed(tmp_path: Path) -> None:
    check_members(tmp_path, "confluent-kafka", "cooperative-sticky", 4, 150, is_static=False)


@pytest.mark.long
@pytest.mark.parametrize("is_static", [False, True], ids=["dynamic", "static"])
@pytest.mark.parametrize(
    ("client", "strategy"),
    [("confluent-kafka", "range"), ("confluent-kafka", "cooperative-sticky"), ("aiokafka", ""), ("kafka-python", "")],
)
@pytest.mark.parametrize("size", [4, 10])
def test_members_join_leave_and_are_killed(
    tmp_path: Path, client: str, strategy: str, size: int, is_static: bool
) -> None:
    check_members(tmp_path, client, strategy, size, 1000, is_static=is_static)


# A member runs in a process of its own: it handles records one by one, and commits each. It prints `started 0 0` first,
# `handled LOG OFFSET` before it commits a record, and `committed LOG OFFSET` when that has succeeded. SIGTERM makes it
# leave the group.

_is_leaving = False


def _leave(_number: int, _frame: object) -> None:
    global _is_leaving  # noqa: PLW0603
    _is_leaving = True


def say(what: str, log: int, offset: int) -> None:
    print(f"{what} {log} {offset}", flush=True)


def _settings(servers: str, group: str, instance: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": servers,
        "group_id": group,
        "group_instance_id": instance or None,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "session_timeout_ms": 6000,
        "heartbeat_interval_ms": 200,
    }


def with_confluent_kafka(servers: str, topic: str, group: str, strategy: str, instance: str) -> None:
    from confluent_kafka import Consumer, KafkaException

    settings = {name.replace("_", "."): value for name, value in _settings(servers, group, instance).items() if value}
    consumer = Consumer({**settings, "enable.auto.commit": False, "partition.assignment.strategy": strategy})
    consumer.subscribe([topic])
    while not _is_leaving:
        message = consumer.poll(0.2)
        if message is None or message.error():
            continue
        say("handled", message.partition(), message.offset())
        with suppress(KafkaException):  # the log may belong to another member by then
            (committed,) = consumer.commit(message, asynchronous=False)
            if committed.error is None:
                say("committed", message.partition(), message.offset())
    consumer.close()


def with_aiokafka(servers: str, topic: str, group: str, _strategy: str, instance: str) -> None:
    from aiokafka import AIOKafkaConsumer, TopicPartition
    from aiokafka.errors import KafkaError

    async def run() -> None:
        consumer = AIOKafkaConsumer(topic, **_settings(servers, group, instance))
        await consumer.start()
        while not _is_leaving:
            for log, records in (await consumer.getmany(timeout_ms=200, max_records=1)).items():
                for record in records:
                    say("handled", log.partition, record.offset)
                    with suppress(KafkaError):
                        await consumer.commit({TopicPartition(topic, log.partition): record.offset + 1})
                        say("committed", log.partition, record.offset)
        await consumer.stop()

    asyncio.run(run())


def with_kafka_python(servers: str, topic: str, group: str, _strategy: str, instance: str) -> None:
    from kafka import KafkaConsumer
    from kafka.errors import KafkaError
    from kafka.structs import OffsetAndMetadata

    consumer = KafkaConsumer(topic, **_settings(servers, group, instance))
    while not _is_leaving:
        for log, records in consumer.poll(timeout_ms=200, max_records=1).items():
            for record in records:
                say("handled", log.partition, record.offset)
                with suppress(KafkaError):
                    consumer.commit({log: OffsetAndMetadata(record.offset + 1, "", -1)})
                    say("committed", log.partition, record.offset)
    consumer.close()


CLIENTS: dict[str, Callable[[str, str, str, str, str], None]] = {
    "confluent-kafka": with_confluent_kafka,
    "aiokafka": with_aiokafka,
    "kafka-python": with_kafka_python,
}


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _leave)
    say("started", 0, 0)
    CLIENTS[sys.argv[1]](*sys.argv[2:])
