"""A storage plugin as a third party would write it: a file with a pickle of each change, all of which opening repeats.

The records are also in a storage in memory, which answers every read. The plugin uses only what docs/how-to/embed.md
documents: the protocol `Storage` with its types, `open_storage`, and `dafka.storage.plugin_helpers`.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import attrs
import trio

from dafka.errors import StorageError, StorageFormatError
from dafka.records import Partition, RecordBatch, new_address
from dafka.storage import Damage, RetentionPolicy, Storage, open_storage
from dafka.storage.plugin_helpers import now_ms, writer_lock

ANSWERS = (
    *("read", "find_sequence_by_time", "partitions", "find_partition", "statistics"),
    *("flush", "find_damage", "load_positions", "position_names"),
)
"""What the storage in memory answers."""


class PickleStorage:
    repairs: Sequence[Damage] = ()

    def __init__(self, path: str, memory: Storage, *, read_only: bool) -> None:
        self.identity = new_address()
        self._path = path
        self._memory = memory
        self._read_only = read_only
        self._lock = trio.Lock()
        for name in ANSWERS:
            setattr(self, name, getattr(memory, name))

    async def load(self) -> None:
        """Repeat all changes of the file, or create it."""
        if not await trio.Path(self._path).exists():
            if not self._read_only:
                await trio.to_thread.run_sync(self._write, self.identity)
            return
        try:
            self.identity, *changes = await trio.to_thread.run_sync(self._read_file)
        except (pickle.UnpicklingError, EOFError, ValueError):
            raise StorageFormatError(f"{self._path} is not a file of pickled changes") from None
        for name, arguments in changes:
            await getattr(self._memory, name)(*arguments)

    def _read_file(self) -> list[Any]:
        found = []
        with open(self._path, "rb") as file:
            while file.peek(1):
                found.append(pickle.load(file))
        return found

    def _write(self, *entries: object) -> None:
        with open(self._path, "ab") as file:
            for entry in entries:
                pickle.dump(entry, file)
            file.flush()
            os.fsync(file.fileno())

    async def _change(self, name: str, *arguments: object) -> Any:
        """Make a change in memory, where it may be refused, and then make it durable."""
        if self._read_only:
            raise StorageError(f"{self._path} was opened read-only; open it for writing to change it")
        await trio.lowlevel.checkpoint()
        with trio.CancelScope(shield=True):
            async with self._lock:
                found = await getattr(self._memory, name)(*arguments)
                changes = [(name, arguments)]
                if name == "apply_retention":  # it depends on the time
                    changes = [("trim", moved) for moved in found.items()]
                await trio.to_thread.run_sync(self._write, *changes)
        return found

    async def append(self, batches: Sequence[RecordBatch]) -> None:
        times = [now_ms()]
        timed = [each if each.stored_at else attrs.evolve(each, stored_at=times * len(each)) for each in batches]
        await self._change("append", timed)

    async def trim(self, partition: Partition, earliest_sequence: int) -> None:
        await self._change("trim", partition, earliest_sequence)

    async def reset_to(self, partition: Partition, next_sequence: int) -> None:
        await self._change("reset_to", partition, next_sequence)

    async def apply_retention(self, policy: RetentionPolicy, topic: str | None = None) -> dict[Partition, int]:
        moved: dict[Partition, int] = await self._change("apply_retention", policy, topic)
        return moved

    async def save_positions(self, name: str, positions: Mapping[Partition, int]) -> None:
        await self._change("save_positions", name, dict(positions))


@asynccontextmanager
async def open_pickle(place: str, *, read_only: bool = False) -> AsyncIterator[PickleStorage]:
    with nullcontext() if read_only else writer_lock(place):
        async with open_storage("memory:") as memory:
            storage = PickleStorage(place, memory, read_only=read_only)
            await storage.load()
            yield storage
