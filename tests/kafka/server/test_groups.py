"""Groups of several members: every record is read by one of them, and after a rebalance nothing is read again."""

from __future__ import annotations

import time
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from tests.kafka.server.clients import Confluent, Message
from tests.kafka.server.fixtures import run_broker

DEADLINE_S = 240
LOGS = 6

pytestmark = pytest.mark.timeout(2 * DEADLINE_S)  # the tests' own deadlines say more than a timeout of pytest


def open_member(servers: str, group: str, strategy: str) -> Any:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "partition.assignment.strategy": strategy,
            "session.timeout.ms": 60_000,  # members leave by themselves: a slow machine must not end their sessions
            "heartbeat.interval.ms": 200,
        }
    )
    consumer.subscribe(["orders"])
    return consumer


def poll_all(members: list[Any], found: list[bytes]) -> None:
    """Read what members get, and commit it."""
    for member in members:
        message = member.poll(0.05)
        if message is not None and message.error() is None:
            found.append(message.value())
            with suppress(KafkaException):  # a commit in the middle of a rebalance may be refused
                member.commit(message, asynchronous=False)


def wait_divided(members: list[Any], found: list[bytes]) -> None:
    """Wait until each log is assigned to one member, and each member has as many logs as any other, or one fewer."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        poll_all(members, found)
        owned = [[each.partition for each in member.assignment()] for member in members]
        counts = sorted(map(len, owned))
        if sorted(chain.from_iterable(owned)) == list(range(LOGS)) and counts[-1] - counts[0] <= 1:
            return
        assert time.monotonic() < deadline, owned


def check_group(tmp_path: Path, strategy: str) -> None:
    with run_broker(f"filelog:{tmp_path}/log") as broker:
        servers = broker.bootstrap_servers
        admin = AdminClient({"bootstrap.servers": servers})
        admin.create_topics([NewTopic("orders", LOGS, 1)])["orders"].result(DEADLINE_S)
        values = [b"%d" % n for n in range(200)]
        Confluent().write(servers, "orders", [Message(each, each) for each in values], "none")
        found: list[bytes] = []
        members = [open_member(servers, "group", strategy)]
        wait_divided(members, found)
        members += [open_member(servers, "group", strategy) for _ in range(2)]
        wait_divided(members, found)
        members.pop(0).close()
        wait_divided(members, found)
        deadline = time.monotonic() + DEADLINE_S
        while len(set(found)) < len(values):
            assert time.monotonic() < deadline, len(set(found))
            poll_all(members, found)
        assert sorted(set(found)) == sorted(values)
        for member in members:
            member.close()
        assert admin.list_consumer_groups().result(DEADLINE_S).valid[0].group_id == "group"


@pytest.mark.parametrize("strategy", ["cooperative-sticky", pytest.param("range", marks=pytest.mark.long)])
def test_logs_are_divided_among_members(tmp_path: Path, strategy: str) -> None:
    check_group(tmp_path, strategy)
