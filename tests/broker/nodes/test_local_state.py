"""The state of a broker: keys and values that outlive restarts, failed writes and rewrites of their partition."""

from __future__ import annotations

import random

import attrs
import pytest

from dafka.broker import local_state
from dafka.broker.local_state import LocalState
from dafka.records import Partition, RecordBatch
from dafka.storage.memory import MemoryStorage

OWN = "a" * 32
SPARE = {"$one": 5, "$two": 5, "$large": 0}
"""By topic, how many obsolete records are kept, in addition to one for each value."""


@attrs.define
class Model:
    """The values of a partition, and how many of its records are durable, trimmed, and not written yet."""

    spare: int
    values: dict[bytes, bytes] = attrs.field(factory=dict)
    durable: dict[bytes, bytes] = attrs.field(factory=dict)
    end: int = 0
    earliest: int = 0
    unwritten: int = 0
    rewritten: range | None = None

    def put(self, key: bytes, value: bytes | None) -> None:
        self.values.pop(key, None)
        if value is not None:
            self.values[key] = value
        self.unwritten += 1

    def begin(self) -> None:
        current, obsolete = len(self.values), self.end - self.earliest - len(self.values)
        if self.rewritten is None and obsolete > current + self.spare:
            self.rewritten = range(self.end + self.unwritten, self.end + self.unwritten + current)
            self.unwritten += current

    def trim(self) -> None:
        if self.rewritten is not None and self.end >= self.rewritten.stop:
            self.earliest, self.rewritten = self.rewritten.start, None

    def restart(self) -> None:
        self.values, self.unwritten, self.rewritten = dict(self.durable), 0, None


class World:
    """A state in a storage, and the models of its partitions."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.storage = MemoryStorage()
        self.models = {topic: Model(spare) for topic, spare in SPARE.items()}

    async def load(self) -> None:
        self.state = LocalState()
        await self.state.load(self.storage, *(Partition(topic, OWN) for topic in ("$one", "$two")))
        await self.state.load(self.storage, Partition("$large", OWN), are_large=True)

    async def put(self) -> None:
        topic, key = self.draw.choice([*SPARE]), self.draw.choice([b"k", b"l", b"m"])
        value = self.draw.choice([b"%d" % self.draw.randrange(10**6), None])
        self.state.put(topic, [(key, value)])
        self.models[topic].put(key, value)

    async def write(self) -> None:
        """Write all changes. Another one comes meanwhile."""
        batches = self.begin()
        assert {each.partition.topic: (each.first_sequence, len(each)) for each in batches} == {
            topic: (each.end, each.unwritten) for topic, each in self.models.items() if each.unwritten
        }
        for each in self.models.values():
            each.durable, each.end, each.unwritten = dict(each.values), each.end + each.unwritten, 0
        await self.put()
        await self.storage.append(batches)
        self.state.write_done()

    def begin(self) -> list[RecordBatch]:
        for each in self.models.values():
            each.begin()
        return self.state.begin_write(1000)

    async def fail(self) -> None:
        self.begin()  # and the storage refuses it

    async def trim(self) -> None:
        await self.state.trim(self.storage)
        for each in self.models.values():
            each.trim()

    async def restart(self) -> None:
        await self.load()
        for each in self.models.values():
            each.restart()

    async def check(self) -> None:
        assert bool(self.state) == any(each.unwritten for each in self.models.values())
        for topic, model in self.models.items():
            partition = Partition(topic, OWN)
            assert dict(self.state.values(topic)) == model.values
            assert self.state.end_of(partition) == model.end
            info = await self.storage.find_partition(partition)
            found = (0, 0) if info is None else (info.earliest_sequence, info.end_sequence)
            assert found == (model.earliest, model.end)


async def test_what_was_written_is_there_after_any_failures_restarts_and_rewrites(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A partition with many obsolete records is rewritten, and trimmed when that is durable."""
    monkeypatch.setattr(local_state, "REWRITE_RECORDS", SPARE["$one"])
    for seed in range(25):
        world = World(seed)
        await world.load()
        steps = [world.put, world.write, world.fail, world.trim, world.restart]
        for step in world.draw.choices(steps, [20, 6, 4, 5, 1], k=60):
            await step()
            await world.check()
    assert world.state.end_of(Partition("$one", "b")) == world.state.end_of(Partition("orders", OWN)) == 0
