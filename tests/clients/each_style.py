"""The tests that hold for each style of the API."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import aclosing
from datetime import timedelta
from functools import partial, wraps
from pathlib import Path
from typing import Any

import pytest
import trio

from dafka import Config, Partition, ProducerRecord, blocking
from dafka.errors import ConfigError, RecordError, StorageBusyError
from tests.clients.styles import DEADLINE_S, Style
from tests.roles.helpers import contents

HOUR = timedelta(hours=1)


def in_style(program: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test of a program, which runs in the style of its class."""

    @wraps(program)
    def test(self: EachStyle, **fixtures: Any) -> None:
        self.style.run(partial(program, self, **fixtures))

    return test


class EachStyle:
    """A subclass says which style its tests use."""

    style: Style

    @pytest.fixture
    def stored(self, config: Config) -> Partition:
        """Store 100 records of a producer that has ended."""
        with blocking.open_producer("hello", config) as producer:
            producer.send_many(contents(0, 100))
            return producer.partition

    @in_style
    async def test_what_is_sent_is_stored_and_received_each_once(self, config: Config) -> None:
        async with self.style.opened("open_producer", "hello", config) as producer:
            assert await self.style.call(producer.send, b"0") == 0
            assert await self.style.call(producer.send_many, contents(1, 100)) == range(1, 100)
            await self.style.call(producer.wait_stored)
            statistics = await self.style.call(producer.statistics)
            assert (statistics.records, statistics.bytes, statistics.unacknowledged) == (100, 190, 0)
            partition = producer.partition
        async with self.style.opened("open_consumer", ["hello"], config) as consumer:
            found = []
            async with aclosing(self.style.each(consumer)) as records:
                async for record in records:
                    found.append(record.value)
                    if len(found) == 10:
                        break
            assert await self.style.call(consumer.positions) == {partition: 10}
            batch = await self.style.call(consumer.next_batch, 5)
            assert (batch.first_sequence, len(batch)) == (10, 5)
            assert await self.style.call(consumer.positions) == {partition: 15}
            found += batch.values
            async with aclosing(self.style.each(consumer.batches())) as batches:
                async for batch in batches:
                    found += batch.values
                    if len(found) == 100:
                        break
            assert found == contents(0, 100)
            assert (await self.style.call(consumer.statistics)).positions == {partition: 100}
            await self.style.call(consumer.unsubscribe, "hello")
            await self.style.call(consumer.subscribe, "other")
            assert consumer.topics == ("other",)

    @in_style
    async def test_consumers_and_readers_begin_at_a_time(self, config: Config, stored: Partition) -> None:
        async with self.style.opened("open_consumer", ["hello"], config, start=HOUR) as consumer:
            assert (await self.style.call(consumer.next_record)).sequence == 0
            assert await self.style.call(consumer.positions_at, -HOUR) == {stored: 100}
            await self.style.call(consumer.seek_time, HOUR)
            assert (await self.style.call(consumer.next_record)).sequence == 0
        async with self.style.opened("open_reader", ["hello"], config) as reader:
            assert await self.style.call(reader.positions_at, HOUR) == {stored: 0}

    @in_style
    async def test_positions_are_moved_and_partitions_paused(self, config: Config, stored: Partition) -> None:
        async with self.style.opened("open_consumer", ["hello"], config) as consumer:
            assert await self.style.call(consumer.ends) == {stored: 100}
            await self.style.call(consumer.seek_tail, 3)
            assert (await self.style.call(consumer.next_record)).sequence == 97
            assert await self.style.call(consumer.lag) == {stored: 2}
            await self.style.call(consumer.pause, "hello")
            assert consumer.paused == {"hello"}
            await self.style.call(consumer.resume, "hello")
            assert consumer.paused == frozenset()
            await self.style.call(consumer.seek, {stored: 1})
            found = [
                value async for each in self.style.each(consumer.batches(until={stored: 90})) for value in each.values
            ]
            assert found == contents(1, 90)
            assert (await self.style.call(consumer.next_record)).sequence == 90
            with pytest.raises(ConfigError, match="expected a topic that"):
                async for _ in self.style.each(consumer.batches(until={Partition("other", "A" * 32): 1})):
                    pass

    @in_style
    async def test_whole_records_keep_their_parts(self, config: Config) -> None:
        async with self.style.opened("open_producer", "hello", config) as producer:
            await self.style.call(producer.send, b"v", key=b"k", headers=[("h", b"1")], timestamp=5)
            await self.style.call(producer.send_many, [ProducerRecord(None, b"k")])
        async with self.style.opened("open_consumer", ["hello"], config) as consumer:
            first, second = await self.style.call(consumer.next_record), await self.style.call(consumer.next_record)
            assert (first.value, first.key, first.headers, first.timestamp) == (b"v", b"k", (("h", b"1"),), 5)
            assert (second.value, second.key) == (None, b"k")

    @in_style
    async def test_readers_and_observers_see_what_is_stored(self, config: Config, stored: Partition) -> None:
        async with self.style.opened("open_reader", ["hello"], config) as reader:
            await self.style.call(reader.wait_ready)
            await self.style.call(reader.check_settled)
            assert await self.style.call(reader.ends) == {stored: 100}
            assert await self.style.call(reader.held_end, stored, DEADLINE_S) == 100
            assert await self.style.call(reader.earliest, [stored], DEADLINE_S) == {stored: 0}
            found = reader.read(stored, 10, 20)
            assert await self.style.call(found.first_sequence) == 10
            with pytest.raises(ValueError, match="close that range first"):
                async for _ in self.style.each(reader.read(stored, 0, 1)):
                    pass
            assert [record.value async for batch in self.style.each(found) for record in batch] == contents(10, 20)
            await self.style.call(found.close)
            await self.style.call(found.close)
            assert [len(batch) async for batch in self.style.each(reader.read(stored, 0, 1))] == [1]
        async with self.style.opened("open_observer", [], config) as observer:
            assert await self.style.call(observer.list_topics, DEADLINE_S) == ("hello",)
            survey = await self.style.call(observer.survey, DEADLINE_S)
            assert [topic.name for topic in survey.topics] == ["hello"]

    @in_style
    async def test_exceptions_keep_their_types_and_a_closed_node_says_so(self, config: Config) -> None:
        with pytest.raises(ConfigError, match="expected several"):
            async with self.style.opened("open_consumer", "hello", config):
                pass
        async with self.style.opened("open_producer", "hello", config) as producer:
            with pytest.raises(RecordError, match="encode it first"):
                await self.style.call(producer.send, "text")
        with pytest.raises(trio.ClosedResourceError, match="this producer is closed"):
            await self.style.call(producer.send, b"late")

    @in_style
    async def test_saved_positions_are_continued(self, config: Config, stored: Partition, tmp_path: Path) -> None:
        named = config.with_consumer(name="billing", positions=f"sqlite:{tmp_path}/p.db")
        async with self.style.opened("open_consumer", ["hello"], named) as consumer:
            end = (await self.style.call(consumer.next_batch, 30)).end_sequence
            await self.style.call(consumer.save_positions)
            await self.style.call(consumer.next_batch, 7)
            with pytest.raises(StorageBusyError):
                async with self.style.opened("open_consumer", ["hello"], named):
                    pass
        async with self.style.opened("open_consumer", ["hello"], named) as consumer:
            assert (await self.style.call(consumer.next_record)).sequence == end
            assert stored in await self.style.call(consumer.positions)
