"""Publishing of a task without Spark: real nodes, real stores, and attempts that end halfway."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from random import Random

import attrs
import pyarrow as pa
import pytest
import trio
import trio.testing

from dafka import Config, Store, open_producer, serve_store
from dafka.errors import DiscoveryError
from dafka.records import Partition, ProducerRecord, Record
from dafka.roles import Reader
from dafka.spark import publishing
from dafka.spark.errors import InputChangedError, PublishingError, RowError
from dafka.spark.publishing import PublishResult, check_division, derive_address, publish
from dafka.spark.rows import RowColumns
from dafka.storage import open_storage
from dafka.storage.arrow import arrow_schema
from dafka.testing import Cluster, open_cluster
from tests.roles.helpers import contents
from tests.spark.stores import read_records, read_store
from tests.waiting import wait_until

ONE_TOPIC = RowColumns(0, None, "t")
WHOLE = RowColumns(0, None, "t", key=1, headers=2, timestamp=3)
TASK = ("test", 0)
PARTITION = Partition("t", derive_address(*TASK, "t"))


def rows(values: Sequence[bytes | None], size: int = 100) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(values), size):
        yield pa.record_batch([pa.array(values[start : start + size], pa.binary())], ["value"])


@asynccontextmanager
async def one_store(path: Path) -> AsyncIterator[Cluster]:
    async with open_cluster(storage=f"sqlite:{path}") as cluster:
        yield cluster


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_the_producers_that_were_used_last_stay_open_and_no_topic_has_two(
    limit: int, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    running: set[str] = set()
    opened: list[tuple[str, int]] = []

    @asynccontextmanager
    async def open_slow_producer(
        topic: str, config: Config, *, address: str, next_sequence: int
    ) -> AsyncIterator[RecordingProducer]:
        assert address not in running, f"two producers of {topic} have the address {address}"
        running.add(address)
        opened.append((topic, next_sequence))
        yield RecordingProducer(next_sequence)
        await trio.sleep(10)  # the ACKs come late
        running.remove(address)

    monkeypatch.setattr(publishing, "open_producer", open_slow_producer)
    monkeypatch.setattr(publishing, "find_stored_end", find_nothing)
    monkeypatch.setattr(publishing, "PRODUCERS_MAX", limit)
    reader = object.__new__(Reader)  # not used: the stores hold nothing
    expected: list[tuple[str, int]] = []
    held: list[str] = []
    topics = "abcabacbbcadabdc"
    async with publishing._open_task(reader, Config(), TASK) as task:
        for number, topic in enumerate(topics):
            await task.publish(iter([(topic, [b"0"])]))
            expected += [] if topic in held else [(topic, topics[:number].count(topic))]
            held = [*(each for each in held if each != topic), topic][-limit:]
            assert opened == expected
            assert len(running) == len(held)
    assert running == set()
    assert task.result() == PublishResult(len(topics), frozenset(topics), 0)


async def test_rows_that_wait_for_room_are_published_once(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    published: list[bytes] = []

    class SlowProducer(RecordingProducer):
        async def send_many(self, contents: Sequence[bytes]) -> None:
            """Publish two records, and wait for room longer than a task waits."""
            await super().send_many(contents[:2])
            published.extend(contents[:2])
            assert len(published) <= 5
            if len(contents) > 2:
                await trio.sleep_forever()

    @asynccontextmanager
    async def open_slow_producer(*_: object, next_sequence: int, **__: object) -> AsyncIterator[RecordingProducer]:
        yield SlowProducer(next_sequence)

    monkeypatch.setattr(publishing, "open_producer", open_slow_producer)
    monkeypatch.setattr(publishing, "find_stored_end", find_nothing)
    async with publishing._open_task(object.__new__(Reader), Config(), TASK) as task:
        await task.publish(iter([("a", contents(0, 5))]))
    assert published == contents(0, 5)


async def find_nothing(*arguments: object) -> int:
    return 0


@attrs.define
class RecordingProducer:
    """A producer without a node, which has only a position."""

    next_sequence: int

    async def send_many(self, contents: Sequence[bytes]) -> None:
        await trio.lowlevel.checkpoint()
        self.next_sequence += len(contents)

    def statistics(self) -> RecordingProducer:
        return self


@pytest.mark.parametrize(
    ("topics_by_task", "error"),
    [
        ([{"t"}, {"t", "u"}, {"t"}], ""),
        ([{"t"}, {"t", "u"}, {"t"}, set(), {"u"}], ""),
        ([{"t"}, {"t", "u"}], r"topic t: in an earlier attempt, task 2 has published 12 records .* now there are 2"),
        ([{"t", "u"}, {"t"}, {"t"}], r"topic u: in an earlier attempt, task 1 has published 5 records"),
        ([{"t"}, {"t", "u"}, set()], r"topic t: in an earlier attempt, task 2 has published 12 records"),
    ],
)
async def test_other_tasks_than_in_an_earlier_attempt_are_noticed(
    tmp_path: Path, topics_by_task: list[set[str]], error: str
) -> None:
    write, divided = ("batch", "x"), RowColumns(1, 0, "")
    async with one_store(tmp_path / "s.db") as cluster:
        for task, counts in enumerate([{"t": 10}, {"t": 11, "u": 5}, {"t": 12}]):
            names = [topic for topic, count in counts.items() for _ in range(count)]
            rows_of_task = pa.record_batch({"topic": names, "value": pa.array(contents(0, len(names)))})
            await publish(iter([rows_of_task]), divided, cluster.config, (*write, task))
        expected = pytest.raises(InputChangedError, match=error) if error else nullcontext()
        with expected:
            await check_division(cluster.config, write, [frozenset(topics) for topics in topics_by_task])
        await check_division(cluster.config, ("batch", "y"), [frozenset("t")])


async def test_no_rows_need_no_cluster() -> None:
    assert await publish(iter(()), ONE_TOPIC, Config(), TASK) == PublishResult()


def make_rows(seed: int) -> list[dict[str, object]]:
    """Return rows in which one column differs from row to row: the value, the key, a header or the timestamp."""
    random, found = Random(seed), []
    for number in range(400):
        row: dict[str, object] = {"value": None, "key": b"k", "headers": None, "timestamp": 5000}
        changes: list[dict[str, object]] = [
            {"value": b"%d" % number},
            {"key": b"%d" % number},
            {"headers": [{"key": "n", "value": b"%d" % number}, {"key": "n", "value": None}]},
            {"timestamp": 1000 * number},
            {},
        ]
        found.append(row | random.choice(changes))
    return found


def whole_rows(found: Sequence[dict[str, object]], size: int = 70) -> Iterator[pa.RecordBatch]:
    schema = arrow_schema(["value", "key", "headers", "timestamp"])
    for start in range(0, len(found), size):
        yield pa.RecordBatch.from_pylist(found[start : start + size], schema)


def as_row(record: Record) -> str:
    """Return a stored record as a row, in a text that sorts."""
    headers = [{"key": name, "value": value} for name, value in record.headers] or None
    time = (record.timestamp or 0) * 1000
    return repr({"value": record.value, "key": record.key, "headers": headers, "timestamp": time})


@pytest.mark.parametrize("seed", range(6))
async def test_each_row_is_published_once_whatever_an_earlier_attempt_stored(tmp_path: Path, seed: int) -> None:
    """The earlier attempt had the first rows, or all, in this order or in another one."""
    path, random, whole = tmp_path / "s.db", Random(seed), make_rows(seed)
    earlier = whole[: random.choice([0, 1, 250, 400])]
    if seed % 2:
        random.shuffle(earlier)
    async with one_store(path) as cluster:
        await publish(whole_rows(earlier), WHOLE, cluster.config, TASK)
        done = await publish(whole_rows(whole, size=random.randint(50, 400)), WHOLE, cluster.config, TASK)
        stored = [as_row(each) for each in (await read_records(path))[PARTITION]]
    assert done == PublishResult(400, frozenset("t"), len(earlier))
    assert stored[: len(earlier)] == [repr(row) for row in earlier]
    assert sorted(stored) == sorted(repr(row) for row in whole)


async def test_a_retry_in_the_libdafka_dialect_whose_acks_do_not_name_a_store(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    config = Config().with_node(wire="libdafka")
    async with open_cluster(config, storage=f"sqlite:{path}") as cluster:
        assert (await publish(rows(contents(0, 300)), ONE_TOPIC, cluster.config, TASK)).already_stored == 0
        assert (await publish(rows(contents(0, 500)), ONE_TOPIC, cluster.config, TASK)).already_stored == 300
        assert await read_store(path) == {PARTITION: contents(0, 500)}


@pytest.mark.parametrize("change", [{}, {"value": b""}, {"key": b"other"}, {"headers": []}, {"timestamp": 1_000_000}])
async def test_changed_rows_are_an_error(tmp_path: Path, change: dict[str, object]) -> None:
    """One row has changed, or has gone."""
    whole = make_rows(0)
    row = next(row for row in whole if row["headers"] is not None)
    async with one_store(tmp_path / "s.db") as cluster:
        await publish(whole_rows(whole), WHOLE, cluster.config, TASK)
        again = [each | change if each is row else each for each in whole if change or each is not row]
        expected = r"topic t: an earlier attempt .* has published 400 .* deterministic"
        with pytest.raises(InputChangedError, match=expected):
            await publish(whole_rows(again), WHOLE, cluster.config, TASK)


async def test_a_second_store_with_fewer_records_is_filled(tmp_path: Path) -> None:
    near, far = tmp_path / "near.db", tmp_path / "far.db"
    async with one_store(near) as cluster, trio.open_nursery() as nursery:
        late = cluster.config.with_store(storage=f"sqlite:{far}")
        await publish(rows(contents(0, 300)), ONE_TOPIC, cluster.config, TASK)
        await nursery.start(serve_store, late)
        config = cluster.config.with_producer(min_stores=2)
        done = await publish(rows(contents(0, 300)), ONE_TOPIC, config, TASK)
        assert await read_store(near) == await read_store(far) == {PARTITION: contents(0, 300)}
        nursery.cancel_scope.cancel()
    assert done.already_stored == 300


async def test_each_topic_has_a_partition_and_few_producers_serve_many_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "PRODUCERS_MAX", 2)
    path = tmp_path / "s.db"
    topics = ["a", "b", "c", "d", "e"]
    names = [topics[number * 7 % 5] for number in range(600)]
    columns = {"topic": pa.array(names), "value": pa.array([b"%d" % number for number in range(600)])}
    whole = pa.record_batch(columns)
    async with one_store(path) as cluster:
        batches = iter([whole.slice(0, 300), whole.slice(300)])
        done = await publish(batches, RowColumns(1, 0, ""), cluster.config, TASK)
        stored = await read_store(path)
    assert done == PublishResult(600, frozenset(topics), 0)
    for topic in topics:
        expected = [b"%d" % number for number, name in enumerate(names) if name == topic]
        assert stored[Partition(topic, derive_address(*TASK, topic))] == expected


async def test_a_retry_succeeds_though_retention_dropped_the_first_records(tmp_path: Path) -> None:
    async with one_store(path := tmp_path / "s.db") as cluster:
        await publish(rows(contents(0, 500)), ONE_TOPIC, cluster.config, TASK)
    async with open_storage(f"sqlite:{path}") as storage:
        await storage.trim(PARTITION, 450)
    async with one_store(path) as cluster:
        done = await publish(rows(contents(0, 600)), ONE_TOPIC, cluster.config, TASK)
        assert await read_store(path) == {PARTITION: contents(450, 600)}
        with pytest.raises(InputChangedError, match="rows have another order, and retention has dropped some of the"):
            await publish(rows(contents(0, 600)[::-1]), ONE_TOPIC, cluster.config, TASK)
    assert done == PublishResult(600, frozenset("t"), 500)


async def test_without_a_store_the_error_names_the_options() -> None:
    async with open_cluster(storage=None) as cluster:
        config = cluster.config.with_producer(close_timeout_ms=300)
        with pytest.raises(PublishingError, match=r"topic t: 0 of 1 store found .* towers .* minStores or ackTimeout"):
            await publish(rows(contents(0, 10)), ONE_TOPIC, config, TASK)


async def test_an_earlier_attempt_is_looked_for_at_as_many_stores_as_must_have_the_rows(tmp_path: Path) -> None:
    """One that does not answer could have rows of it that are then published twice."""
    async with one_store(tmp_path / "s.db") as cluster:
        config = cluster.config.with_producer(close_timeout_ms=300, min_stores=2)
        with pytest.raises(PublishingError, match=r"topic t: 1 of 2 stores found"):
            await publish(rows(contents(0, 10)), ONE_TOPIC, config, TASK)


async def test_without_a_tower_the_error_names_the_option() -> None:
    config = Config().with_node(tower_timeout_ms=300, bind="tcp://127.0.0.1:*")
    config = config.with_beacon(tower_sub="tcp://127.0.0.1:9", tower_pub="tcp://127.0.0.1:9")
    with pytest.raises(DiscoveryError, match=r"no tower answered at tcp://127.0.0.1:9 .*option towers"):
        await publish(rows(contents(0, 10)), ONE_TOPIC, config, TASK)


async def test_a_store_that_stops_answering_is_an_error() -> None:
    stopping = trio.CancelScope()
    started: list[Store] = []

    async def run_store(config: Config, task_status: trio.TaskStatus[None]) -> None:
        with stopping:
            async with trio.open_nursery() as nursery:
                started.append(await nursery.start(serve_store, config))
                task_status.started()

    async def stop_when_stored() -> None:
        await wait_until(lambda: started[0].statistics().records_stored == 100)
        stopping.cancel()

    def dying() -> Iterator[pa.RecordBatch]:
        yield from rows(contents(0, 100))
        trio.from_thread.run(stop_when_stored)
        yield from rows(contents(100, 5000))

    async with open_cluster(storage=None) as cluster, trio.open_nursery() as nursery:
        config = cluster.config.with_producer(close_timeout_ms=2000, unacknowledged_records_max=100)
        await nursery.start(run_store, config.with_store(storage="memory:"))
        with pytest.raises(
            PublishingError, match=r"topic t: .* not acknowledged by a store .* minStores or ackTimeout"
        ):
            await publish(dying(), ONE_TOPIC, config, TASK)


async def test_an_attempt_fails_while_another_is_publishing(tmp_path: Path) -> None:
    async with (
        one_store(tmp_path / "s.db") as cluster,
        open_producer("t", cluster.config, address=PARTITION.address) as twin,
        trio.open_nursery() as nursery,
    ):
        await twin.send_many(contents(0, 300))
        await twin.wait_stored()

        async def go_on() -> None:
            while True:
                await twin.send(b"more")
                await trio.sleep(0.2)

        nursery.start_soon(go_on)
        config = cluster.config.with_producer(close_timeout_ms=3000)
        # On a busy machine the other attempt may pause for a second. It is then detected by the records that it added.
        still_publishing = r"another attempt of this task is still publishing .* set spark.speculation to false"
        expected = rf"{still_publishing}|and \d+ of them are not among its present rows"
        with pytest.raises((PublishingError, InputChangedError), match=expected):
            await publish(rows(contents(0, 300)), ONE_TOPIC, config, TASK)
        nursery.cancel_scope.cancel()


async def test_an_attempt_fails_while_another_is_idle(tmp_path: Path) -> None:
    """The tower announces an address for the connection that used it first, as long as that is open."""
    async with (
        one_store(tmp_path / "s.db") as cluster,
        open_producer("t", cluster.config, address=PARTITION.address) as twin,
    ):
        await twin.wait_settled()
        config = cluster.config.with_producer(close_timeout_ms=3000)
        with pytest.raises(
            PublishingError, match=r"300 records were not acknowledged .* an earlier attempt of the task"
        ):
            await publish(rows(contents(0, 300)), ONE_TOPIC, config, TASK)
        await twin.send_many(contents(0, 300))
        await twin.wait_stored()


async def test_times_before_1970_are_rounded_down_as_others_are() -> None:
    (batch,) = whole_rows([{**make_rows(0)[0], "timestamp": microseconds} for microseconds in (1999, -1, -1001)])
    ((_, found),) = WHOLE.split_by_topic(batch)
    assert [each.timestamp for each in found if isinstance(each, ProducerRecord)] == [1, -1, -2]


async def test_null_timestamps_topics_and_headers_are_refused() -> None:
    (batch,) = whole_rows([{**make_rows(0)[0], "headers": [None]}])
    with pytest.raises(RowError, match="column headers: expected no header that is null"):
        list(WHOLE.split_by_topic(batch))
    (batch,) = whole_rows([{**make_rows(0)[0], "timestamp": None}])
    with pytest.raises(RowError, match="column timestamp: expected a time in each row, not null"):
        list(WHOLE.split_by_topic(batch))
    batch = pa.record_batch({"topic": pa.array(["a", None]), "value": pa.array([b"1", b"2"])})
    with pytest.raises(RowError, match="column topic: expected a topic in each row, not null"):
        list(RowColumns(1, 0, "").split_by_topic(batch))
