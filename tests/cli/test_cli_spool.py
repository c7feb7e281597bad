"""`dafka produce --spool`: repeated runs continue one partition, and a spool that fails is reported with a number."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest
import trio
import trio.testing

from dafka.cli.lines import read_lines
from dafka.cli.produce import InputLeftError, _publish, _send
from dafka.cli.record_lines import LineFormat
from dafka.cli.runner import Supervisor
from dafka.config import Config
from dafka.errors import StorageError
from dafka.records import RecordBatch
from dafka.roles import Producer
from dafka.storage.memory import MemoryStorage
from dafka.testing import open_cluster
from tests.cli.harness import Dafka
from tests.waiting import wait_until


def test_repeated_runs_continue_one_partition(cluster: Dafka, tmp_path: Path) -> None:
    spool = str(tmp_path / "spool.db")
    for number in range(2):
        produced = cluster.node("produce", "cron", "--spool", spool, stdin=b"%d\n" % number)
        assert (produced.status, produced.errors) == (0, "")
    info = cluster.run("storage", "info", f"sqlite:{cluster.folder / 'store.db'}", "--topic", "cron", "--json")
    (partition,) = json.loads(info.output)["partitions"]
    assert partition["records"] == 2


def test_a_spool_of_an_unknown_kind_is_refused(dafka: Dafka) -> None:
    produced = dafka.run("produce", "orders", "--spool", "nope:x", stdin=b"")
    assert produced.status == 2
    assert "unknown storage 'nope'" in produced.error


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


async def test_a_full_spool_is_reported_with_what_is_not_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    append = MemoryStorage.append

    async def fail_at_the_second(self: MemoryStorage, batches: Sequence[RecordBatch]) -> None:
        if any(batch.first_sequence for batch in batches):
            raise StorageError("database or disk is full")
        await append(self, batches)

    monkeypatch.setattr(MemoryStorage, "append", fail_at_the_second)
    async with open_cluster(storage=None) as cluster:
        config = cluster.config.with_producer(spool="memory:", close_timeout_ms=10)
        reader, writer = os.pipe()
        message = (
            "the spool failed: database or disk is full; 1 published records are not acknowledged, and the rest of "
            "the input was not published"
        )
        with trio.CancelScope() as scope:
            async with cluster.producer("hello", config) as producer, trio.open_nursery() as nursery:
                expected = pytest.raises(InputLeftError, match=message)

                async def publish() -> None:
                    with expected:
                        await _publish(
                            producer, read_lines(reader), LineFormat(), config, Supervisor(config, "producer")
                        )
                    scope.cancel()

                nursery.start_soon(publish)
                os.write(writer, b"first\n")
                await wait_until(lambda: producer.statistics().records == 1)
                os.write(writer, b"second\n")
        os.close(writer)
        os.close(reader)
