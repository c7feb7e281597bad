"""Reads of logs that other brokers lead are shared, and those that failed or are not used are forgotten."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from dafka.batches import check_crc, encode_batch
from dafka.broker.core.metadata.brokers import BrokerRegistration
from dafka.http.forwarding.broker_client import BrokerError
from dafka.http.forwarding.leaders import Leaders
from dafka.http.forwarding.remote_reads import KEPT_S, RemoteReads
from dafka.http.logs.log_access import ReadRecords
from dafka.http.server.errors import WebError
from tests.http.forwarding.test_appends import make_log

BATCH = encode_batch(0, [bytes(100)], timestamps=1)
RECORDS = ReadRecords(0, 1, [(check_crc(BATCH), BATCH)])


@attrs.define
class Leader:
    """Stands for the leader of a log. The last one of its replies comes again and again."""

    replies: list[ReadRecords | Exception]
    asked: int = 0

    async def retry_on_leader_change(self, *_: object) -> list[ReadRecords]:
        await trio.sleep(1)
        self.asked += 1
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, Exception):
            raise reply
        return [reply]

    async def wait_leader_change(self, _log: object, wait_s: float) -> None:
        await trio.sleep(wait_s)


@asynccontextmanager
async def open_reads(*replies: ReadRecords | Exception) -> AsyncIterator[tuple[RemoteReads, Leader]]:
    leader = Leader([*replies])
    leaders: Any = leader
    async with trio.open_nursery() as nursery:
        start_soon: Any = nursery.start_soon
        reads = RemoteReads(leaders, start_soon)
        nursery.start_soon(reads.run)
        yield reads, leader
        nursery.cancel_scope.cancel()


async def test_a_read_is_shared_and_kept_while_it_is_used(autojump_clock: trio.testing.MockClock) -> None:
    log = make_log()
    async with open_reads(BrokerError("is lost"), WebError("not_leader", "not yet"), RECORDS) as (reads, leader):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(reads.begin(log, 0).wait)
        assert leader.asked == 3, "what passes is asked for again"
        for _ in range(5):
            await trio.sleep(KEPT_S - 1)
            assert reads.has_records(log, 0)
            assert reads.begin(log, 0).records is RECORDS
        assert leader.asked == 3
        await trio.sleep(2 * KEPT_S)
        assert not reads.has_records(log, 0)


async def test_a_read_that_failed_is_told_to_nobody_later(autojump_clock: trio.testing.MockClock) -> None:
    log = make_log()
    async with open_reads(WebError("storage_failed", "the disk is broken"), RECORDS) as (reads, _):
        first, second = reads.begin(log, 0), reads.begin(log, 0)
        for each in (first, second):
            with pytest.raises(WebError, match="the disk is broken"):
                await each.wait()
        assert not reads.has_records(log, 0)
        later = reads.begin(log, 0)
        await later.wait()
        assert later.records is RECORDS


async def test_reads_that_are_kept_take_limited_memory(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make_log()
    async with open_reads(RECORDS) as (reads, _):
        await reads.begin(log, 0).wait()
        size = reads.begin(log, 0).size
        monkeypatch.setattr("dafka.http.forwarding.remote_reads.KEPT_BYTES", 2 * size)
        for offset in (1, 0, 2):  # the offset 0 is used again
            await reads.begin(log, offset).wait()
        assert [offset for offset in range(3) if reads.has_records(log, offset)] == [0, 2]


def test_the_connection_to_a_leader_is_used_until_it_ends_or_the_leader_listens_elsewhere() -> None:
    log, known, started = (
        make_log(),
        BrokerRegistration(address="b" * 32, number=1, http_url="http://one:1"),
        list[Any](),
    )
    node = SimpleNamespace(address="a" * 32, brokers=SimpleNamespace(find=lambda _address: known))
    broker: Any = SimpleNamespace(node=node)
    client: Any = None
    leaders = Leaders(broker, client, lambda run, *_: started.append(run))
    first = leaders.link(log)
    assert leaders.link(log) is first
    known = attrs.evolve(known, http_url="http://two:1")
    second = leaders.link(log)
    assert (second is first, second.broker.http_url) == (False, "http://two:1")
    second.is_closed = True
    assert leaders.link(log) not in (first, second)
    assert len(started) == 3
