from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from dafka import Config, Partition, Producer, RecordBatch, Store, serve_store, wire
from dafka.config.settings import StoreConfig
from dafka.errors import AddressInUseError, StorageBusyError, StorageError, StorageLostError
from dafka.protocol import Event, FetchResponder, PositionResponder, ReadRequest, StorageFailed
from dafka.protocol.store_events import RecordsDropped, StorageRecovered
from dafka.records import RECORD_MEMORY_BYTES
from dafka.roles import Health
from dafka.roles import replies as replies_module
from dafka.roles import store as store_module
from dafka.roles.replies import COLD_READS_MAX, FetchReplies, PositionReplies
from dafka.roles.store import describe_held
from dafka.storage import PartitionInfo
from dafka.storage.memory import MemoryStorage
from dafka.storage.sqlite.storage import SqliteStorage
from dafka.testing import Cluster, open_cluster
from tests.roles.helpers import (
    DEADLINE_S,
    contents,
    receive_partition,
    wait_event,
)
from tests.waiting import wait_until


def acknowledged(producer: Producer) -> int:
    statistics = producer.statistics()
    return statistics.next_sequence - statistics.unacknowledged


async def wait_stored(producer: Producer) -> None:
    with trio.fail_after(DEADLINE_S):
        await producer.wait_stored()


class Disk:
    """The effect of appending to a storage, which a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error = ""
        self.is_open = trio.Event()
        self.is_open.set()
        append = MemoryStorage.append

        async def append_or_not(storage: MemoryStorage, batches: Sequence[RecordBatch]) -> None:
            await self.is_open.wait()
            if self.error:
                raise StorageError(self.error)
            await append(storage, batches)

        monkeypatch.setattr(MemoryStorage, "append", append_or_not)


async def test_failing_storage_acknowledges_nothing_until_it_recovers(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    disk.error = "disk full"
    async with open_cluster(Config().with_store(retry_ms=20)) as cluster:
        store = cluster.store
        assert store is not None
        async with cluster.producer("hello") as producer:
            await producer.send_many(contents(0, 1000))
            assert await wait_event(store.events, StorageFailed) == StorageFailed("disk full")
            await producer.send_many(contents(1000, 2000))
            await wait_until(lambda: store.statistics().lag == {producer.partition: 2000})
            assert acknowledged(producer) == 0
            assert store.health().unready == "the storage fails: disk full"
            async with cluster.consumer(["hello"]) as consumer:
                await receive_partition(consumer, 0, 2000)
            disk.error = ""
            await wait_event(store.events, StorageRecovered)
            await wait_stored(producer)
        assert store.statistics().records_stored == 2000
        assert store.health().unready == ""
        assert store.statistics().lag == {}
        async with cluster.consumer(["hello"]) as consumer:
            await receive_partition(consumer, 0, 2000)


async def test_a_store_is_not_live_while_its_storage_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "STUCK_S", 0.2)
    disk = Disk(monkeypatch)
    async with open_cluster() as cluster, cluster.producer("t") as producer:
        assert cluster.store is not None
        store = cluster.store
        await wait_until(lambda: store.health() == Health())
        disk.is_open = trio.Event()
        await producer.send(b"0")
        await wait_until(lambda: bool(store.health().trouble))
        health = cluster.store.health()
        assert health.trouble.startswith("one transaction of the storage has taken ")
        assert health.unready.startswith("one transaction of the storage has taken ")
        disk.is_open.set()
        await producer.wait_stored()
        assert cluster.store.health() == Health()


@pytest.mark.parametrize(
    ("error", "is_opened", "grace_s", "reasons"),
    [
        ("", True, (30, inf), []),
        ("the disk is full", True, (30, inf), ["the disk is full"]),
        ("", False, (0.05, inf), [""]),
        ("", False, (300, 0.05), [""]),
    ],
    ids=["in time", "refused", "too slow", "too slow for its process"],
)
async def test_a_stopping_store_writes_the_records_that_it_has_received(
    error: str,
    is_opened: bool,
    grace_s: tuple[float, float],
    reasons: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = Disk(monkeypatch)
    running = trio.CancelScope()
    ended = trio.Event()

    async def serve(config: Config, *, task_status: trio.TaskStatus[Store]) -> None:
        with running:
            await serve_store(config, task_status=task_status)
        ended.set()

    async with open_cluster(storage=None) as cluster, trio.open_nursery() as nursery:
        config = cluster.config.with_store(storage="memory:")
        config = config.with_node(grace_ms=round(grace_s[0] * 1000))
        store = await nursery.start(serve, config)
        with trio.CancelScope() as leaving:
            async with cluster.producer("t") as producer:
                disk.is_open = trio.Event()
                await producer.send_many([b"0"] * 10)
                received = 10 * (1 + RECORD_MEMORY_BYTES)
                await wait_until(lambda: store.statistics().pending_bytes >= received)
                store.finish_by = trio.current_time() + grace_s[1]
                running.cancel()
                disk.error = error
                if is_opened:
                    disk.is_open.set()
                with trio.fail_after(DEADLINE_S):
                    await ended.wait()
                    if not reasons:
                        await producer.wait_stored()
                assert producer.statistics().unacknowledged == (10 if reasons else 0)
                leaving.cancel()
    lines = [getattr(record, "dafka", {}) for record in caplog.records]
    assert [line["reason"] for line in lines if line.get("event") == "records_unwritten"] == reasons


async def test_statistics_count_stored_and_sent_records(dafka_cluster: Cluster) -> None:
    store = dafka_cluster.store
    assert store is not None
    async with dafka_cluster.producer("a") as first, dafka_cluster.producer("b") as second:
        await first.send_many([b"x" * 10] * 50)
        await second.send_many([b"y"] * 7)
        await wait_stored(first)
        await wait_stored(second)
        async with dafka_cluster.consumer(["a"]) as consumer:
            with trio.fail_after(DEADLINE_S):
                while consumer.statistics().records < 50:
                    await consumer.next_batch()
        statistics = store.statistics()
    assert (statistics.partitions, statistics.records_stored, statistics.bytes_stored) == (2, 57, 507)
    assert (statistics.pending_bytes, statistics.lag) == (0, {})
    assert 1 <= statistics.commits <= 57
    assert statistics.fetches_received >= 1
    assert 50 <= statistics.records_sent <= 50 * statistics.fetches_received
    assert statistics.discarded == {}


async def test_storage_in_use_is_a_storage_busy_error(tmp_path: Path) -> None:
    storage = f"sqlite:{tmp_path / 'store.db'}"
    async with open_cluster(storage=storage) as cluster:
        with pytest.raises(StorageBusyError):
            await serve_store(cluster.config)


async def test_taken_endpoint_is_an_address_in_use_error(dafka_cluster: Cluster) -> None:
    assert dafka_cluster.store is not None
    with pytest.raises(AddressInUseError):
        await serve_store(dafka_cluster.config.with_node(bind=dafka_cluster.store.endpoint))


async def test_a_store_learns_what_its_bounded_storage_has_dropped() -> None:
    async with open_cluster(storage="memory:?records_max=10") as cluster:
        async with cluster.producer("hello") as producer:
            await producer.send_many(contents(0, 20))
            await producer.wait_stored()
            await producer.send_many(contents(20, 30))
        assert cluster.store is not None
        config = cluster.config.with_consumer(offset_reset="earliest")
        async with cluster.consumer(["hello"], config) as consumer:
            with trio.fail_after(DEADLINE_S):
                batch = await consumer.next_batch()
        assert batch.first_sequence == 20
        assert cluster.store.statistics().records_dropped == 20


async def test_a_loss_that_retention_notices_ends_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise StorageLostError("the storage was removed")

    monkeypatch.setattr(MemoryStorage, "apply_retention", fail)
    async with open_cluster(storage=None) as cluster, cluster.producer("hello") as producer:
        config = cluster.config.with_store(storage="memory:", retention_records=5, retention_interval_ms=20)
        await producer.send(b"0")
        with trio.fail_after(DEADLINE_S), pytest.raises(StorageLostError, match="the storage was removed"):
            await serve_store(config)


async def test_a_loss_that_two_tasks_notice_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running: set[str] = set()

    def fail_together(call: str) -> Callable[..., Awaitable[None]]:
        async def fail(*_: object) -> None:
            running.add(call)
            with trio.CancelScope(shield=True):
                await wait_until(lambda: len(running) == 2)
            raise StorageLostError("the storage was removed")

        return fail

    for call in ("append", "check_not_removed"):
        monkeypatch.setattr(SqliteStorage, call, fail_together(call))
    async with open_cluster(storage=None) as cluster:
        with trio.CancelScope() as scope:
            async with cluster.producer("hello") as producer:
                await producer.send(b"0")
                with pytest.raises(StorageLostError, match="the storage was removed"):
                    await serve_store(cluster.config.with_store(storage=f"sqlite:{tmp_path}/store"))
                scope.cancel()


# The order in which FETCHes are answered when a part of the records is in a slow object store

COLD_END = 50
END = 100


class Sent:
    """Takes the place of the sockets."""

    def __init__(self) -> None:
        self.runs: list[tuple[str, int, int]] = []
        self.events = self
        self.reported: list[str] = []

    def put(self, event: Event) -> None:
        self.reported.append(str(event))

    def publish(self, runs: Sequence[wire.RecordRun]) -> None:
        for each in runs:
            assert each.requestor is not None
            self.runs.append((each.requestor, each.batch.first_sequence, each.batch.end_sequence))


class SlowTier:
    """Two tiers; the cold one answers when it is told to.

    Attributes:
        is_answering: Set when the cold tier answers.
        reading: How many reads wait for it.
    """

    def __init__(self) -> None:
        self.is_answering = trio.Event()
        self.reading = 0

    async def read(self, request: ReadRequest) -> RecordBatch:
        end = request.first_sequence + request.count
        if request.first_sequence < COLD_END:
            self.reading += 1
            await self.is_answering.wait()
            self.reading -= 1
            end = min(end, COLD_END)
        await trio.lowlevel.checkpoint()
        return RecordBatch(request.partition, request.first_sequence, [b"x"] * (end - request.first_sequence))


async def test_a_slow_object_store_delays_only_who_asks_for_what_is_in_it() -> None:
    responder = FetchResponder(lambda _: range(END), 1000)
    sent, tier = Sent(), SlowTier()
    sockets: Any = sent
    replies = FetchReplies(sockets, responder, tier.read, lambda _: COLD_END)

    def fetch(requestor: str, first: int) -> None:
        responder.add_fetch(wire.Fetch("p", requestor, "orders", first, END))
        replies.wake()

    slow = [f"slow-{number}" for number in range(COLD_READS_MAX + 2)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(replies.run)
        for each in slow:
            fetch(each, 0)
        await trio.testing.wait_all_tasks_blocked()
        assert tier.reading == COLD_READS_MAX
        fetch("quick", COLD_END)
        await trio.testing.wait_all_tasks_blocked()
        assert sent.runs == [("quick", COLD_END, END)]
        tier.is_answering.set()
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    for each in slow:
        found = [run[1:] for run in sent.runs if run[0] == each]
        assert found == [(0, COLD_END), (COLD_END, END)]


# Storages that fail to read or to compact: each failure is reported once, and work goes on when they recover


async def test_a_record_that_cannot_be_read_is_reported_once_and_sent_when_it_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replies_module, "REPORTS_MAX", 2)
    responder = FetchResponder(lambda _: range(END), 1000)
    failures = [*("one", "one", "two", "one", "two", "beyond the limit"), ""]
    sent = Sent()
    sockets: Any = sent

    async def read(request: ReadRequest) -> RecordBatch:
        await trio.lowlevel.checkpoint()
        if failure := failures.pop(0):
            raise StorageError(failure)
        return RecordBatch(request.partition, request.first_sequence, [b"x"] * request.count)

    replies = FetchReplies(sockets, responder, read)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(replies.run)
        while failures:
            assert sent.runs == []
            responder.add_fetch(wire.Fetch("p", "consumer", "orders", 3, 5))
            replies.wake()
            await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert sent.runs == [("consumer", 3, 8)]
    assert sent.reported == [str(StorageFailed(each)) for each in ("one", "two")]


async def test_questions_for_times_are_answered_one_after_the_other_although_some_cannot_be() -> None:
    """A store answers for its durable records. A question that fails is dropped, since the node asks again."""
    ends = {"empty": 0, "some": 3, "all": 5, "failing": 5}
    answers: list[Any] = []
    sockets: Any = SimpleNamespace(publish=answers.extend, events=SimpleNamespace(put=answers.append))
    responder = PositionResponder("STORE", lambda partition: ends[partition.topic], lambda _: True)

    class Failing(MemoryStorage):
        async def find_sequence_by_time(self, partition: Partition, time_ms: int) -> int:
            if partition.topic == "failing":
                raise StorageError("unreadable")
            return await super().find_sequence_by_time(partition, time_ms)

    storage = Failing()
    async with trio.open_nursery() as nursery:
        for topic in ends:
            await storage.append([RecordBatch(Partition(topic, "P"), 0, [b""] * 5, timestamps=range(0, 50, 10))])
        replies = PositionReplies(sockets, responder, storage, lambda partition: ends[partition.topic])
        nursery.start_soon(replies.run)
        await trio.testing.wait_all_tasks_blocked()
        for topic, time in (("failing", 0), ("empty", 0), ("some", 25), ("all", 25), ("failing", 0), ("all", 20)):
            assert responder.add_question(wire.GetPosition("STORE", "asker", "P", topic, time))
            replies.wake()
            await trio.testing.wait_all_tasks_blocked()
            assert not responder
        nursery.cancel_scope.cancel()
    found = [
        str(each) if isinstance(each, StorageFailed) else (each.subject, each.sequence, each.end) for each in answers
    ]
    none = wire.NUMBER_8_MAX
    assert found == [
        str(StorageFailed("unreadable")), ("empty", none, 0), ("some", none, 3), ("all", 3, 5), ("all", 2, 5)
    ]  # fmt: skip


def test_a_store_begins_with_what_its_storage_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "now_ms", lambda: 10_000)
    old, new = Partition("orders", "A"), Partition("orders", "B")
    held = {old: PartitionInfo(3, 9, 6, last_append_at=7_500), new: PartitionInfo(0, 4, 4)}
    assert describe_held(held) == ({old: 9, new: 4}, {old: 3}, {old: 2.5})


async def test_retention_is_repeated_at_each_interval_until_the_storage_is_lost(
    autojump_clock: trio.testing.MockClock,
) -> None:
    outcomes: list[Any] = [{Partition("orders", "A"): 3}, StorageError("full"), {}, StorageLostError("removed")]
    reports: list[object] = []
    times: list[float] = []
    began = trio.current_time()

    async def apply() -> dict[Partition, int]:
        await trio.lowlevel.checkpoint()
        times.append(trio.current_time() - began)
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return dict(outcome)

    store: Any = SimpleNamespace(
        _config=StoreConfig(retention_interval_ms=5000),
        _machine=SimpleNamespace(records_trimmed=lambda moved: 4 * len(moved)),
        _records_dropped=1,
        events=SimpleNamespace(put=reports.append),
    )
    retention: Any = SimpleNamespace(apply=apply)
    with pytest.raises(StorageLostError):
        await Store._retain(store, retention)
    assert times == pytest.approx([0, 5, 10, 15])
    assert (reports, store._records_dropped) == ([RecordsDropped(4, 1), StorageFailed("full")], 5)
