"""Random operations on every storage, compared with a model in memory."""

from __future__ import annotations

import shutil
import tempfile
from bisect import bisect_left
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import attrs
import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from dafka.errors import StorageSequenceError
from dafka.records import Partition, RecordBatch
from dafka.storage import DeletesPartitions, PartitionInfo, RetentionPolicy, Storage, StorageStatistics, open_storage
from dafka.storage.plugin_helpers import now_ms

PARTITIONS = [Partition("orders", "A" * 32), Partition("orders", "B" * 32), Partition("\udcff/..\0", "")]

HOUR_MS = 3_600_000

partitions = st.sampled_from(PARTITIONS)
sizes = st.lists(st.one_of(st.integers(0, 40), st.sampled_from([1000, 5000])), min_size=1, max_size=12)
ages_h = st.integers(1, 100)

_T = TypeVar("_T")


@attrs.define
class Model:
    """The model of one partition."""

    earliest: int
    contents: list[bytes] = attrs.field(factory=list)
    times: list[int] = attrs.field(factory=list)
    latest_time: int = 0

    @property
    def end(self) -> int:
        return self.earliest + len(self.contents)

    def append(self, contents: list[bytes], times: list[int]) -> None:
        for content, time in zip(contents, times, strict=True):
            self.latest_time = max(self.latest_time, time)
            self.contents.append(content)
            self.times.append(self.latest_time)

    def trim(self, earliest: int) -> None:
        count = min(max(earliest - self.earliest, 0), len(self.contents))
        del self.contents[:count], self.times[:count]
        self.earliest += count

    def kept_from(self, retention: RetentionPolicy, now: int) -> int:
        """Return the sequence of the first record that the limits keep."""
        first = self.earliest
        if retention.records_max is not None:
            first = max(first, self.end - retention.records_max)
        if retention.age_ms is not None:
            first = max(first, self.earliest + bisect_left(self.times, now - retention.age_ms))
        if retention.bytes_max is not None:
            while sum(map(len, self.contents[first - self.earliest :])) > retention.bytes_max:
                first += 1
        return first

    def is_older(self, age_ms: int, now: int) -> bool:
        """Return whether the batch equals the model."""
        return all(time < now - age_ms for time in self.times)

    def info(self) -> PartitionInfo:
        times = (self.times[0], self.times[-1]) if self.times else (None, None)
        return PartitionInfo(self.earliest, self.end, sum(map(len, self.contents)), *times)


class StorageMachine(RuleBasedStateMachine):
    """A storage and its models. `url` may contain `{folder}`; `exact` says whether retention is exact."""

    url: str
    reopens: bool
    exact: bool

    def __init__(self) -> None:
        super().__init__()
        self.models: dict[Partition, Model] = {}
        self.positions: dict[Partition, int] = {}
        self.folder = Path(tempfile.mkdtemp(prefix="dafka-stateful-"))
        self.portal_context = start_blocking_portal("trio")
        self.portal = self.portal_context.__enter__()
        self.now = now_ms()
        self.open()

    def open(self) -> None:
        self.context = self.portal.wrap_async_context_manager(open_storage(self.url.format(folder=self.folder)))
        self.storage: Storage = self.context.__enter__()

    def call(self, function: Callable[..., Awaitable[_T]], *arguments: Any) -> _T:
        return self.portal.call(function, *arguments)

    def teardown(self) -> None:
        self.context.__exit__(None, None, None)
        self.portal_context.__exit__(None, None, None)
        shutil.rmtree(self.folder)

    def model(self, partition: Partition) -> Model:
        return self.models.get(partition, Model(0))

    def make(self, first: int, sizes: list[int], age_h: int) -> tuple[list[bytes], list[int]]:
        contents = [(b"%d." % sequence).ljust(size, b"x")[:size] for sequence, size in enumerate(sizes, first)]
        return contents, [self.now - (age_h - index % 3) * HOUR_MS for index in range(len(sizes))]

    @rule(
        chosen=st.lists(partitions, min_size=1, max_size=4), sizes=sizes, age_h=ages_h, first=st.sampled_from([0, 0, 7])
    )
    def append(self, chosen: list[Partition], sizes: list[int], age_h: int, first: int) -> None:
        batches = []
        for partition in chosen:
            model = self.models.setdefault(partition, Model(first))
            contents, times = self.make(model.end, sizes, age_h)
            batches.append(RecordBatch(partition, model.end, contents, stored_at=times))
            model.append(contents, times)
        self.call(self.storage.append, batches)

    @precondition(lambda self: any(model.end for model in self.models.values()))
    @rule(data=st.data(), by=st.sampled_from([-2, -1, 1, 5]), good_first=st.booleans())
    def append_wrongly(self, data: st.DataObject, by: int, good_first: bool) -> None:
        wrong = data.draw(st.sampled_from([each for each, model in self.models.items() if model.end]))
        batches = [RecordBatch(wrong, max(self.model(wrong).end + by, 0), [b"wrong"])]
        if self.model(wrong).end + by < 0:
            return
        for partition in PARTITIONS:
            if partition != wrong:
                batches.insert(0 if good_first else 1, RecordBatch(partition, self.model(partition).end, [b"good"]))
        with pytest.raises(StorageSequenceError):
            self.call(self.storage.append, batches)

    @rule(partition=partitions, offset=st.integers(-3, 40), count=st.integers(1, 30), bytes_max=st.integers(1, 9000))
    def read(self, partition: Partition, offset: int, count: int, bytes_max: int) -> None:
        model = self.model(partition)
        first = max(model.earliest + offset, 0)

        async def read() -> RecordBatch | None:
            return await self.storage.read(partition, first, count, bytes_max, with_times=True)

        batch = self.call(read)
        if not model.earliest <= first < model.end:
            assert batch is None
            return
        assert batch is not None
        assert batch.stored_at is not None
        start = first - model.earliest
        assert 1 <= len(batch) <= count
        assert list(batch.values) == model.contents[start : start + len(batch)]
        assert list(batch.stored_at) == model.times[start : start + len(batch)]
        assert (batch.partition, batch.first_sequence) == (partition, first)

    @rule(partition=partitions, age_h=ages_h, shift=st.sampled_from([-1, 0, 1]))
    def find_sequence_by_time(self, partition: Partition, age_h: int, shift: int) -> None:
        model = self.model(partition)
        at = self.now - age_h * HOUR_MS + shift
        assert self.call(self.storage.find_sequence_by_time, partition, at) == model.earliest + bisect_left(
            model.times, at
        )

    @rule(partition=partitions, back=st.integers(-2, 30))
    def trim(self, partition: Partition, back: int) -> None:
        earliest = max(self.model(partition).end - back, 0)
        self.call(self.storage.trim, partition, earliest)
        if partition in self.models:
            self.models[partition].trim(earliest)

    @rule(partition=partitions, by=st.integers(-3, 20))
    def skip(self, partition: Partition, by: int) -> None:
        model = self.model(partition)
        to = model.end + by
        if to < 1:
            return
        if by < 0:
            with pytest.raises(StorageSequenceError):
                self.call(self.storage.reset_to, partition, to)
        else:
            self.call(self.storage.reset_to, partition, to)
            self.models[partition] = Model(to, latest_time=model.latest_time)

    @rule(chosen=st.sets(partitions))
    def delete(self, chosen: set[Partition]) -> None:
        assert isinstance(self.storage, DeletesPartitions)
        self.call(self.storage.delete_partitions, chosen)
        for partition in chosen:
            self.models.pop(partition, None)

    @rule(
        age_h=st.none() | ages_h,
        bytes_max=st.none() | st.integers(0, 8000),
        records_max=st.none() | st.integers(0, 30),
        topic=st.sampled_from([None, *{partition.topic for partition in PARTITIONS}]),
    )
    def retain(self, age_h: int | None, bytes_max: int | None, records_max: int | None, topic: str | None) -> None:
        # Half an hour away from the age of any record, because the test takes time.
        age_ms = None if age_h is None else age_h * HOUR_MS + HOUR_MS // 2
        retention = RetentionPolicy(age_ms=age_ms, bytes_max=bytes_max, records_max=records_max)
        moved = self.call(self.storage.apply_retention, retention, topic)
        for partition, model in self.models.items():
            before = model.earliest
            kept_from = model.kept_from(retention, self.now) if topic in {None, partition.topic} else before
            earliest = moved.pop(partition, before)
            keeps_nothing = (
                records_max == 0 or bytes_max == 0 or (age_ms is not None and model.is_older(age_ms, self.now))
            )
            if self.exact or (keeps_nothing and topic in {None, partition.topic}):
                assert earliest == kept_from
            assert before <= earliest <= kept_from
            model.trim(earliest)
        assert moved == {}

    @rule(saved=st.dictionaries(partitions, st.integers(0, 2**40)))
    def save_positions(self, saved: dict[Partition, int]) -> None:
        self.call(self.storage.save_positions, "reader", saved)
        self.positions.update(saved)

    @rule()
    def flush(self) -> None:
        self.call(self.storage.flush)

    @precondition(lambda self: self.reopens)
    @rule()
    def reopen(self) -> None:
        self.context.__exit__(None, None, None)
        self.open()
        assert list(self.storage.repairs) == []

    @invariant()
    def all_is_as_in_the_model(self) -> None:
        expected = {partition: model.info() for partition, model in self.models.items()}
        assert self.call(self.storage.partitions) == expected
        topic = PARTITIONS[0].topic
        assert self.call(self.storage.partitions, topic) == {
            partition: info for partition, info in expected.items() if partition.topic == topic
        }
        assert self.call(self.storage.load_positions, "reader") == self.positions
        found = attrs.evolve(self.call(self.storage.statistics), stored_bytes=0)
        records = sum(info.count for info in expected.values())
        assert found == StorageStatistics(len(expected), records, sum(i.content_bytes for i in expected.values()), 0)

    @rule()
    def check(self) -> None:
        assert self.call(self.storage.find_damage) == []


@pytest.mark.parametrize(
    ("storage_url", "does_reopen", "is_exact"),
    [
        ("memory:", False, True),
        ("sqlite:{folder}/store.db?synchronous=OFF", True, True),
        ("filelog:{folder}/log?segment_bytes=2000&fsync=never", True, False),
    ],
    ids=["memory", "sqlite", "filelog"],
)
def test_random_operations_match_the_model(storage_url: str, does_reopen: bool, is_exact: bool) -> None:
    class Machine(StorageMachine):
        url = storage_url
        reopens = does_reopen
        exact = is_exact

    checks = settings(max_examples=40, stateful_step_count=40, suppress_health_check=list(HealthCheck), database=None)
    run_state_machine_as_test(Machine, settings=checks)
