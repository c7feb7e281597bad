"""aiokafka."""

from __future__ import annotations

import asyncio
import time

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from tests.kafka.server.matrix.drivers.arguments import DEADLINE_S, run
from tests.kafka.server.matrix.record_files import Record


def write(servers: str, topic: str, compression: str, records: list[Record]) -> None:
    async def write_all() -> None:
        kind = None if compression == "none" else compression
        producer = AIOKafkaProducer(bootstrap_servers=servers, compression_type=kind, linger_ms=20)
        await producer.start()
        try:
            futures = [
                await producer.send(
                    topic, each.value, each.key, headers=list(each.headers), timestamp_ms=each.timestamp
                )
                for each in records
            ]
            await asyncio.gather(*futures)
        finally:
            await producer.stop()

    asyncio.run(asyncio.wait_for(write_all(), DEADLINE_S))


def read(servers: str, topic: str, count: int) -> list[Record]:
    async def read_all() -> list[Record]:
        consumer = AIOKafkaConsumer(
            topic, bootstrap_servers=servers, group_id=f"aiokafka-{time.time_ns()}", auto_offset_reset="earliest"
        )
        await consumer.start()
        found: list[Record] = []
        try:
            while len(found) < count:
                batches = await consumer.getmany(timeout_ms=1000, max_records=count - len(found))
                for batch in batches.values():
                    found += [Record(each.timestamp, each.key, each.value, tuple(each.headers)) for each in batch]
        finally:
            await consumer.stop()
        return found

    return asyncio.run(asyncio.wait_for(read_all(), DEADLINE_S))


if __name__ == "__main__":
    run(write, read)
