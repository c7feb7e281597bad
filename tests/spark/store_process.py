"""What a store's SQLite file holds, read while the store runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dafka.records import Partition
from dafka.storage import open_storage


async def read_store(path: Path) -> dict[Partition, list[bytes]]:
    """The contents of every partition, in order."""
    held: dict[Partition, list[bytes]] = {}
    async with open_storage(f"sqlite:{path}", read_only=True) as storage:
        for partition, info in (await storage.partitions()).items():
            contents = held[partition] = []
            position = info.earliest_sequence
            while position < info.end_sequence:
                batch = await storage.read(partition, position, info.end_sequence - position)
                assert batch is not None
                contents += batch.contents
                position = batch.end_sequence
    return held


def tower_option(options: Sequence[str]) -> str:
    """The data source's option `towers`, for a node's options on the command line."""
    sub, pub = (options[options.index(name) + 1] for name in ("--tower-sub", "--tower-pub"))
    host, _, sub_port = sub.removeprefix("tcp://").rpartition(":")
    return f"{host}:{sub_port}:{pub.rpartition(':')[2]}"
