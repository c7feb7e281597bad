"""The limits of topics, the waits for durability, and what wakes up the tasks that wait for a log."""

from __future__ import annotations

from itertools import product
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from dafka import wire
from dafka.broker.core.log.log import Log
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.metadata.leader_and_isr import LeaderAndIsr
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.partition_policy import CONTROL_TOPICS
from dafka.broker.log.compaction import LogCompaction, LogPolicy
from dafka.broker.log.durable_waits import DURABLE_S, FAILING_S, DurableWaits
from dafka.broker.log.own_partitions import HEAD_WAITS_S, HeadAnnouncer, OwnPartitions
from dafka.broker.log.retention import _limits_of, _limits_without_leader
from dafka.broker.log.waiters import TICK_MS, LogWaiters
from dafka.config import Config, StoreConfig
from dafka.errors import StorageError
from dafka.records import Partition, RecordBatch
from dafka.storage import RetentionPolicy

DEFAULT = RetentionPolicy(age_ms=100, bytes_max=200, records_max=300)


@pytest.mark.parametrize(
    ("settings", "is_compacted", "expected"),
    [
        ({}, False, DEFAULT),
        ({}, True, RetentionPolicy()),
        ({"cleanup.policy": "compact"}, False, RetentionPolicy()),
        ({"cleanup.policy": "", "retention.ms": "1"}, True, RetentionPolicy()),
        ({"cleanup.policy": "delete"}, True, DEFAULT),
        ({"cleanup.policy": "compact,delete"}, False, DEFAULT),
        ({"retention.ms": "0", "retention.bytes": "7"}, False, RetentionPolicy(age_ms=0, bytes_max=7, records_max=300)),
        ({"retention.ms": "-1"}, False, RetentionPolicy(bytes_max=200, records_max=300)),
        ({"retention.bytes": "-1"}, False, RetentionPolicy(age_ms=100, records_max=300)),
    ],
)
def test_settings_of_a_topic_replace_the_limits_of_the_broker(
    settings: dict[str, str], is_compacted: bool, expected: RetentionPolicy
) -> None:
    compacted = ("orders",) if is_compacted else ()
    config = StoreConfig(retention_ms=100, retention_bytes=200, retention_records=300, compact_topics=compacted)
    assert _limits_of(Topic("orders", "1D", 1, settings), config) == expected


def test_internal_topics_have_no_limits_except_groups_of_nodes() -> None:
    config = StoreConfig(retention_ms=100, retention_bytes=200, retention_records=300)
    for name, expected in {
        "orders": RetentionPolicy(),  # a record that belongs to no log stays
        "$group/billing": DEFAULT,
        "$x": RetentionPolicy(),
    }.items():
        assert _limits_without_leader(name, config) == expected, name
        assert name == "orders" or _limits_of(Topic(name, "1D", 1, {"retention.ms": "7"}), config) == RetentionPolicy()


async def test_readable_logs_of_compacted_topics_are_compacted_again_and_again_as_their_topics_say(
    autojump_clock: MockClock,
) -> None:
    store = StoreConfig(
        compact_topics=("default", "$internal"),
        compaction_dirty_percent=30,
        tombstone_ms=5,
        compaction_keys_max=9,
        compaction_interval_ms=7000,
    )
    settings = {
        "cleanup.policy": "compact,delete",
        "min.cleanable.dirty.ratio": "0.1",
        "delete.retention.ms": "8",
        "min.compaction.lag.ms": "6",
        "max.compaction.lag.ms": "7",
    }
    default = LogPolicy(dirty_ratio=0.3, tombstone_ms=5, keys_max=9)
    own = LogPolicy(dirty_ratio=0.1, tombstone_ms=8, keys_max=9, lag_min_ms=6, lag_max_ms=7)
    table = LogTable("A")
    for name, each in {"default": {}, "own": settings, "not": {"cleanup.policy": "delete"}, "$internal": {}}.items():
        table.add_topic(Topic(name, name, 3, each))
    for name in ("default", "own"):
        for number, is_readable in enumerate((False, True, False)):
            leadership = LeaderAndIsr("A", 0, is_led=number == 0, is_follower_readable=is_readable)
            table.logs(name)[number].leadership = leadership
    done: list[Any] = []

    async def attempt(partition: Partition, work: Any) -> None:
        log, policy = work.args
        done.append((trio.current_time(), partition, log.topic, log.number, policy))

    unused: Any = None
    compactor: Any = SimpleNamespace(is_possible=True, attempt=attempt)
    began = trio.current_time()
    with trio.move_on_after(13):
        await LogCompaction(table, unused, unused, compactor, Config(store=store), unused).run()
    assert done == [
        (pytest.approx(began + later), table.logs(name)[number].leader_partition, name, number, policy)
        for later in (0, 7)
        for name, policy in (("default", default), ("own", own))
        for number in (0, 1)
    ]


async def test_waits_end_after_their_time_or_when_writes_have_failed_for_a_while(autojump_clock: MockClock) -> None:
    for limit_s in (DURABLE_S, 3.0):
        began = trio.current_time()
        with pytest.raises(StorageError, match="it may be stored later"), DurableWaits().bounded(limit_s):
            await trio.sleep_forever()
        assert trio.current_time() - began == pytest.approx(limit_s)
    waits = DurableWaits()
    ended: list[float] = []

    async def wait() -> None:
        with pytest.raises(StorageError, match="disk full"), waits.bounded():
            await trio.sleep_forever()
        ended.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.sleep(1)
        waits.record_failure("disk full")
        await trio.sleep(FAILING_S - 0.25)
        waits.record_failure("disk full")
        waits.check()
        waits.record_success()  # one write that succeeds is enough
        for waited_s in (FAILING_S - 0.25, 0.0):
            waits.record_failure("disk full")
            await trio.sleep(waited_s)
        assert (ended, waits.problem) == ([], "")
        await trio.sleep(0.25)
        waits.record_failure("disk full")
        with pytest.raises(StorageError, match="disk full"):
            waits.check()
    assert ended == [trio.current_time()]
    waits.record_success()
    waits.check()


def test_only_tasks_that_watch_a_log_are_woken_up() -> None:
    logs = [Log("orders", number, Partition("orders", "a"), Partition("$logs", "a")) for number in range(3)]
    watchers = LogWaiters()
    with watchers.watching(logs[:2]) as both, watchers.watching(logs[1:2]) as second:
        assert len(watchers) == 2
        watchers.notify(logs[2])
        assert not both.is_set()
        watchers.notify(logs[0])
        assert (both.is_set(), second.is_set()) == (True, False)
        watchers.notify(logs[1])
        assert second.is_set()
    assert len(watchers) == 0


async def test_waits_end_at_their_deadlines_or_when_a_log_advances(autojump_clock: MockClock) -> None:
    watchers, choose, late_s = LogWaiters(), Random(1), list[float]()
    address = Partition("orders", "a"), Partition("$logs", "a")
    quiet, advancing = (Log("orders", number, *address) for number in range(2))

    async def wait(log: Log, wait_s: float) -> None:
        await trio.sleep(choose.choice((0.0, 0.1, 0.7)))
        deadline = trio.current_time() + wait_s
        with watchers.watching([log], deadline) as advanced:
            await advanced.wait()
            late_s.append(trio.current_time() - deadline)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watchers.run)
        async with trio.open_nursery() as waits:
            for _ in range(200):
                waits.start_soon(wait, quiet, choose.choice((0.0, 0.01, 0.3, 10.0)) * choose.random())
        assert len(late_s) == 200
        assert min(late_s) >= 0
        assert max(late_s) <= 2 * TICK_MS / 1000
        async with trio.open_nursery() as waits:
            for _ in range(20):
                waits.start_soon(wait, advancing, 1000.0)
            await trio.sleep(1)
            watchers.notify(advancing)
        assert max(late_s[200:]) < -900
        nursery.cancel_scope.cancel()
    assert len(watchers) == 0


KEPT, DELETED, LATER, AGAIN = (Partition("orders", name) for name in ("kept", "deleted", "later", "again"))


async def test_heads_are_sent_less_and_less_often_and_none_of_deleted_partitions(autojump_clock: MockClock) -> None:
    sent: list[tuple[float, str, int]] = []

    def publish(heads: list[wire.Head]) -> None:
        sent.extend((trio.current_time(), each.address, each.sequence) for each in heads)

    begun = trio.current_time()
    ends = {KEPT: 3, DELETED: 0, LATER: 3, AGAIN: 3}
    heads = HeadAnnouncer(cast(Any, SimpleNamespace(publish=publish)), ends.__getitem__)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(heads.run)
        heads.add([KEPT, DELETED, AGAIN])
        await trio.sleep(0.5)
        heads.add([LATER])
        await trio.sleep(2)
        heads.add([AGAIN])
        await trio.sleep(2 * sum(HEAD_WAITS_S))
        nursery.cancel_scope.cancel()
    for name, first in (("kept", begun), ("later", begun + 0.5), ("again", begun + 2.5)):
        due = [first + sum(HEAD_WAITS_S[: number + 1]) for number in range(len(HEAD_WAITS_S))]
        due = [begun + 1.0, *due] if name == "again" else due
        assert [each[0] for each in sent if each[1:] == (name, 2)] == pytest.approx(due)
    assert {each[1:] for each in sent} == {("kept", 2), ("later", 2), ("again", 2)}


async def test_own_records_are_published_if_others_could_see_them_before_or_after_the_write() -> None:
    for before, after in product((False, True), repeat=2):
        table, sent, stored = LogTable("A"), list[Any](), set[tuple[Partition, int]]()
        table.add_topic(Topic("orders", "1D", 1))
        (log,) = table.logs("orders")
        parts: Any = SimpleNamespace(
            address="A",
            stored=SimpleNamespace(durable_end=lambda _partition: 0),
            store_own=lambda partition, end, stored=stored: stored.add((partition, end)),
            publish=sent.extend,
            owns=lambda partition: partition.address == "A",
            end_of=lambda _partition: 4,
        )
        own = OwnPartitions(parts, parts, parts, table, parts)
        own.lead(log)
        brokers, branches = (Partition(each, "A") for each in CONTROL_TOPICS)
        added = [RecordBatch(each, 3, [b"x"]) for each in (log.index_partition, brokers)]
        batches = [RecordBatch(Partition("orders", each), 0, [b"y"]) for each in "AB"]
        commit: Any = SimpleNamespace(added=added, batches=batches)
        log.is_replicated = before
        own.prepare(commit)
        log.is_replicated = after
        if after:
            own.announce_control()
            assert sent == [wire.Head("A", each, 3) for each in CONTROL_TOPICS]
            assert stored == {(each, 4) for each in (brokers, branches)}
            sent.clear()
        own.done(commit)
        expected = [log.index_partition] * (before or after) + [brokers]
        assert [each.batch.partition for each in sent] == [*expected, batches[0].partition]
        assert stored == {(each, 4) for each in (*expected, *([branches] if after else []))}
        assert set(own.heads.partitions) == {*expected, batches[0].partition} | ({branches} if after else set())
        own.forget([brokers])
        assert brokers not in own.heads.partitions
