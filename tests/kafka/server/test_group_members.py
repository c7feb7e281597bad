"""Members of groups join, leave and are killed: every record is handled, and none that was committed is again."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from dafka.testing import kafka
from tests.kafka.server.clients import Confluent, Message

DEADLINE_S = 600
LOGS = 12

pytestmark = pytest.mark.timeout(2 * DEADLINE_S)  # the tests' own deadlines say more than a timeout of pytest


class Member:
    def __init__(self, folder: Path, *arguments: str) -> None:
        self._output = folder
        with folder.open("wb") as output:
            command = [sys.executable, "-W", "ignore", "-m", "tests.kafka.server.group_member", *arguments]
            self.process = subprocess.Popen(command, stdout=output)

    def records(self, what: str) -> list[tuple[int, int]]:
        """Return the logs and offsets of the records that it has `handled` or `committed`; one if it has `started`."""
        lines = self._output.read_text("ascii").split("\n")[:-1]  # what is behind the last end of a line is torn
        return [(int(log), int(offset)) for kind, log, offset in map(str.split, lines) if kind == what]


def wait(is_done: Callable[[], bool], members: list[Member]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_done():
        assert time.monotonic() < deadline, [len(each.records("committed")) for each in members]
        time.sleep(0.05)


def check_members(tmp_path: Path, client: str, strategy: str, size: int, count: int, *, is_static: bool) -> None:
    with kafka(f"filelog:{tmp_path}/log") as broker:
        servers = broker.bootstrap_servers
        admin = AdminClient({"bootstrap.servers": servers})
        admin.create_topics([NewTopic("orders", LOGS, 1)])["orders"].result(60)
        members: list[Member] = []

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
            wait(lambda: bool(members[0].records("committed")), members)
            running = [members[0], *(start(str(number)) for number in range(1, size))]
            wait(lambda: len(handled()) == count, members)
            write(count)  # all members that have joined have some of it
            left, killed = running[1], running[2:4]
            wait(lambda: len(handled()) > count and all(each.records("started") for each in running), members)
            left.process.send_signal(signal.SIGTERM)
            for each in killed:
                each.process.kill()
            if is_static:
                start("2")
            wait(lambda: len(handled()) == 2 * count, members)
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
