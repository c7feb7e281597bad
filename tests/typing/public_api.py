"""A program that uses the public names of the library. `test_public_api.py` checks its types; nothing runs it."""

from __future__ import annotations

from collections.abc import Iterable

import trio

import dafka
import dafka.asyncio
import dafka.blocking
from dafka import errors, events


def describe_event(event: dafka.Event) -> str:
    """Return a description of an event."""
    if isinstance(event, events.PeerJoined):
        return f"{event.address} at {event.endpoint.endpoint}"
    if isinstance(event, events.RecordsUnrecoverable):
        return f"{event.partition.topic}: {event.end_sequence - event.first_sequence} records lost"
    return str(event)


async def log_events(feed: dafka.EventFeed) -> None:
    """Print a node's events."""
    async for event in feed:
        print(describe_event(event))


def choose_config() -> dafka.Config:
    """Build a configuration from sections, and change it."""
    config = dafka.Config(
        node=dafka.NodeConfig(),
        beacon=dafka.BeaconConfig(),
        tower=dafka.TowerConfig(),
        security=dafka.SecurityConfig(),
        producer=dafka.ProducerConfig(min_stores=2),
        consumer=dafka.ConsumerConfig(offset_reset="earliest"),
        store=dafka.StoreConfig(storage="memory:"),
        fetch=dafka.FetchConfig(),
        log=dafka.LogConfig(),
        metrics=dafka.MetricsConfig(),
    )
    return config.with_producer(min_stores=1)


async def produce(config: dafka.Config, contents: Iterable[bytes]) -> range:
    """Publish records, and wait until stores have them."""
    async with dafka.open_producer("orders", config, address=None, next_sequence=0) as producer:
        sequence: int = await producer.send(b"first")
        try:
            sequences: range = await producer.send_many(list(contents))
            await producer.wait_stored()
        except errors.RecordError as error:
            print(error)
            return range(sequence, sequence + 1)
        statistics: dafka.ProducerStatistics = producer.statistics()
        print(producer.partition.topic, producer.endpoint, statistics.unacknowledged)
        return sequences


async def consume(config: dafka.Config, positions: dict[dafka.Partition, int]) -> int:
    """Receive records in every way."""
    count = 0
    async with dafka.open_consumer(["orders"], config, positions=positions) as consumer:
        consumer.subscribe("bills")
        async for batch in consumer.batches():
            count += len(batch)
            break
        batch = await consumer.next_batch(records_max=10)
        record: dafka.Record = await consumer.next_record()
        async for record in consumer:
            value: bytes | None = record.value
            key: bytes | None = record.key
            timestamp: int | None = record.timestamp
            print(record.partition, record.sequence, value, key, timestamp)
            break
        await consumer.save_positions()
        statistics: dafka.ConsumerStatistics = consumer.statistics()
        lag: dict[dafka.Partition, int] = statistics.lag
        return count + len(batch) + sum(lag.values())


async def read(config: dafka.Config) -> list[dafka.RecordBatch]:
    """Read ranges of what stores hold."""
    batches: list[dafka.RecordBatch] = []
    async with dafka.open_reader(["orders"], config) as reader:
        await reader.wait_ready()
        for partition, end in reader.ends().items():
            found: dafka.Range = reader.read(partition, 0, end)
            batches += [batch async for batch in found]
        try:
            await reader.held_end(dafka.Partition("orders", "A" * 32), 5.0, min_stores=1)
        except errors.UnansweredError as error:
            print(error.stores)
    return batches


async def observe(config: dafka.Config) -> list[str]:
    """Look at the whole cluster."""
    async with dafka.open_observer(["orders"], config) as observer:
        await observer.wait_settled()
        survey: dafka.ClusterSurvey = await observer.survey(5.0)
    stores = [node.address for node in survey.nodes if node.state is not dafka.NodeState.SILENT]
    behind = [holder.store for partition in survey.partitions for holder in partition.holders if holder.lag]
    return stores + behind


def use_threads(config: dafka.Config) -> int:
    """Use the API for plain threads."""
    with dafka.blocking.serve_tower(config) as tower, dafka.blocking.serve_store(config) as store:
        endpoint: str = tower.sub_endpoint
        print(endpoint, store.statistics().records_stored, store.health().unready)
        producer: dafka.blocking.Producer = dafka.blocking.open_producer("orders", config)
        sequences: range = producer.send_many([b"1", b"2"], timeout_s=1)
        producer.close()
        with dafka.blocking.open_consumer(["orders"], config) as consumer:
            batch: dafka.RecordBatch = consumer.next_batch(records_max=10, timeout_s=1.5)
            for record in consumer:
                value: bytes | None = record.value
                print(value)
                break
            for event in consumer.events:
                print(describe_event(event))
        with dafka.blocking.open_reader(["orders"], config) as reader:
            batches = [batch for partition, end in reader.ends().items() for batch in reader.read(partition, 0, end)]
    return len(sequences) + len(batch) + len(batches)


async def use_asyncio(config: dafka.Config) -> int:
    """Use the API for asyncio."""
    producer: dafka.asyncio.Producer = await dafka.asyncio.open_producer("orders", config)
    sequence: int = await producer.send(b"1", key=b"k")
    await producer.aclose()
    async with dafka.asyncio.open_consumer(["orders"], config) as consumer:
        batch: dafka.RecordBatch = await consumer.next_batch()
        async for record in consumer:
            value: bytes | None = record.value
            print(value)
            break
        statistics: dafka.ConsumerStatistics = await consumer.statistics()
        async for event in consumer.events:
            print(describe_event(event))
    return sequence + len(batch) + len(statistics.lag)


async def main() -> None:
    """Run a tower, a store and a producer in one program."""
    config = choose_config()
    async with trio.open_nursery() as nursery:
        tower: dafka.Tower = await nursery.start(dafka.serve_tower, config)
        store: dafka.Store = await nursery.start(dafka.serve_store, config)
        nursery.start_soon(log_events, store.events)
        try:
            await produce(config, [b"second", b"third"])
        except errors.DafkaError as error:
            print(error)
        health: dafka.Health = store.health()
        commits: dafka.Histogram = store.statistics().commit_seconds
        print(tower.statistics().nodes, health.unready, commits.count, store.statistics().lag)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main)
