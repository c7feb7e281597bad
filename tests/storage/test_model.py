"""Every storage against one model: its records, reads and searches by time after each step, at every edge."""

from __future__ import annotations

import random
from pathlib import Path

import attrs
import pytest

from dafka.errors import StorageSequenceError
from dafka.packed_bytes import count_bytes
from dafka.records import Partition, RecordBatch
from dafka.storage import RetentionPolicy, Storage, open_storage
from dafka.storage.base import PartitionInfo

PARTITIONS = [Partition("t", "A"), Partition("t", "B"), Partition("u", "A")]
URLS = ["sqlite:{}?synchronous=OFF", "memory:", "filelog:{}?fsync=never&segment_bytes=300", "filelog:{}?fsync=never"]
START_MS = 1_000


@attrs.define
class Log:
    """The records of one partition: their contents and times, from `earliest` on."""

    earliest: int = 0
    contents: list[bytes | None] = attrs.field(factory=list)
    times: list[int] = attrs.field(factory=list)
    latest_at: int = 0

    @property
    def end(self) -> int:
        return self.earliest + len(self.contents)

    def append(self, contents: list[bytes | None], times: list[int]) -> None:
        for content, time in zip(contents, times, strict=True):
            self.latest_at = max(self.latest_at, time)
            self.contents.append(content)
            self.times.append(self.latest_at)

    def drop_before(self, sequence: int) -> None:
        count = min(max(sequence - self.earliest, 0), len(self.contents))
        del self.contents[:count], self.times[:count]
        self.earliest += count

    def retain(self, policy: RetentionPolicy, now: int) -> None:
        while self.contents and (
            (policy.age_ms is not None and self.times[0] < now - policy.age_ms)
            or (policy.records_max is not None and len(self.contents) > policy.records_max)
            or (policy.bytes_max is not None and count_bytes(self.contents) > policy.bytes_max)
        ):
            self.drop_before(self.earliest + 1)

    def info(self) -> PartitionInfo:
        edges = (self.times[0], self.times[-1]) if self.times else (None, None)
        return PartitionInfo(self.earliest, self.end, count_bytes(self.contents), *edges)

    def sequence_by_time(self, time: int) -> int:
        later = [number for number, each in enumerate(self.times) if each >= time]
        return self.earliest + later[0] if later else self.end


async def check(storage: Storage, logs: dict[Partition, Log]) -> None:
    """Compare everything that the storage tells with the model."""
    expected = {partition: log.info() for partition, log in logs.items()}
    assert await storage.partitions() == expected
    assert await storage.partitions("t") == {each: expected[each] for each in expected if each.topic == "t"}
    statistics = await storage.statistics()
    infos = expected.values()
    assert (statistics.partitions, statistics.records) == (len(expected), sum(info.count for info in infos))
    assert statistics.content_bytes == sum(info.content_bytes for info in infos)
    for partition, log in logs.items():
        for sequence in (log.earliest - 1, log.end, log.end + 1):
            assert sequence < 0 or await storage.read(partition, sequence, 5) is None
        assert await storage.read(partition, log.earliest, 0) is None
        position = log.earliest
        while position < log.end:
            batch = await storage.read(partition, position, log.end - position, with_times=True)
            assert batch is not None
            start, stop = position - log.earliest, batch.end_sequence - log.earliest
            assert (batch.first_sequence, list(batch.values)) == (position, log.contents[start:stop])
            assert batch.stored_at is not None
            assert list(batch.stored_at) == log.times[start:stop]
            position = batch.end_sequence
        times = sorted({time + step for time in log.times for step in (-1, 0, 1)})[:6]
        for time in (0, *times, log.latest_at, log.latest_at + 1):
            assert await storage.find_sequence_by_time(partition, time) == log.sequence_by_time(time), time


def some_batch(random_: random.Random, partition: Partition, log: Log) -> RecordBatch:
    count = random_.choice((1, 1, 2, 3, 15, 16, 17, 31, 32, 33, 70))
    even = random_.random() < 0.5
    contents = [b"x" * (4 if even else random_.randrange(6)) for _ in range(count)]
    spread = random_.choice((0, 0, 1, 4))
    begin = log.latest_at - 3 + random_.randrange(8) if log.latest_at else START_MS
    times = [max(begin, 1) + (number * spread) // 2 for number in range(count)]
    return RecordBatch(partition, log.end, contents, stored_at=times)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "url",
    ["sqlite:{}?synchronous=OFF", "memory:", "filelog:{}?fsync=never&segment_bytes=300", "filelog:{}?fsync=never"],
)
async def test_a_storage_is_as_its_model(url: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random_ = random.Random(seed)
    now = 2_000
    for module in ("sqlite.storage", "memory", "filelog.storage", "filelog.writer"):
        monkeypatch.setattr(f"dafka.storage.{module}.now_ms", lambda: now)
    logs: dict[Partition, Log] = {}
    async with open_storage(url.format(tmp_path / "store")) as storage:
        for _ in range(25):
            partition = random_.choice(PARTITIONS)
            log = logs.get(partition, Log())
            kind = random_.randrange(7)
            if kind <= 3 or partition not in logs:
                batch = some_batch(random_, partition, log)
                await storage.append([batch])
                assert batch.stored_at is not None
                log.append(list(batch.values), list(batch.stored_at))
                logs[partition] = log
            elif kind == 4:
                sequence = random_.randrange(log.earliest, log.end + 3)
                await storage.trim(partition, sequence)
                log.drop_before(sequence)
            elif kind == 5 and log.end:
                with pytest.raises(StorageSequenceError):
                    await storage.append([RecordBatch(partition, log.end + random_.choice((1, -1)), [b"gap"])])
            elif not url.startswith("filelog"):
                policy = RetentionPolicy(
                    age_ms=random_.choice((None, now - log.latest_at, now - log.latest_at + 1)),
                    records_max=random_.choice((None, 1, 20)),
                    bytes_max=random_.choice((None, 10, 200)),
                )
                before = {each: logs[each].earliest for each in logs}
                moved = await storage.apply_retention(policy, partition.topic)
                for each, other in logs.items():
                    if each.topic == partition.topic:
                        other.retain(policy, now)
                assert moved == {each: logs[each].earliest for each in logs if logs[each].earliest > before[each]}
            await check(storage, logs)
    if not url.startswith("memory"):
        async with open_storage(url.format(tmp_path / "store"), read_only=True) as reader:
            await check(reader, logs)
