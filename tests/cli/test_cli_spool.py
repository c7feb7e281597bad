"""`dafka produce --spool`: repeated runs continue one partition, and a spool that fails is reported with a number."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import trio
import trio.testing

from dafka.cli.produce import _send
from dafka.config import Config
from dafka.roles import Producer
from tests.cli.harness import Dafka


def test_repeated_runs_continue_one_partition(cluster: Dafka, tmp_path: Path) -> None:
    spool = str(tmp_path / "spool.db")
    for number in range(2):
        produced = cluster.node("produce", "cron", "--spool", spool, stdin=b"%d\n" % number)
        assert (produced.status, produced.errors) == (0, "")
    info = cluster.run("storage", "info", f"sqlite:{cluster.folder / 'store.db'}", "--topic", "cron", "--json")
    (partition,) = json.loads(info.output)["partitions"]
    assert partition["records"] == 2


class SlowProducer:
    """A producer that has room for two records, and again for two when it was left alone."""

    def __init__(self) -> None:
        self.published: list[bytes] = []

    @property
    def records(self) -> int:
        return len(self.published)

    def statistics(self) -> SlowProducer:
        return self

    async def send_many(self, contents: Sequence[bytes]) -> None:
        self.published += contents[:2]
        assert len(self.published) <= 5
        await trio.lowlevel.checkpoint()
        if len(contents) > 2:
            await trio.sleep_forever()


async def test_lines_that_wait_for_room_are_published_once(autojump_clock: trio.testing.MockClock) -> None:
    producer = SlowProducer()
    lines = [b"%d" % number for number in range(5)]
    await _send(cast(Producer, producer), lines, Config())
    assert producer.published == lines
