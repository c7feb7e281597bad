"""A node of the running cluster for callers that know no trio, as Spark's are: its event loop runs in one thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack

import trio
from anyio.from_thread import start_blocking_portal

from dafka.config import Config
from dafka.errors import StorageError
from dafka.records import Partition, RecordBatch
from dafka.roles import Range, open_reader
from dafka.spark.options import naming_towers

BUFFER_BYTES_MAX = 16 * 1024 * 1024
"""Records received and not yet taken by Spark."""


class ClusterNode:
    """A reader (see `dafka.roles.Reader`) in a thread that `close` ends. Every method may raise `DafkaError`."""

    def __init__(self, config: Config, topics: Iterable[str] = ()) -> None:
        self._config = config.with_consumer(buffer_bytes_max=min(config.consumer.buffer_bytes_max, BUFFER_BYTES_MAX))
        with ExitStack() as stack:
            self._portal = stack.enter_context(start_blocking_portal("trio", name="dafka"))
            opening = open_reader(self._config, topics)
            self._reader = stack.enter_context(self._portal.wrap_async_context_manager(opening))
            self._stack = stack.pop_all()

    def __enter__(self) -> ClusterNode:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the node, and ends its thread. May be called again."""
        self._stack.close()

    def wait_ready(self) -> None:
        """Waits until the stores have told what they hold. Raises `DiscoveryError` where there are none."""
        with naming_towers():
            self._portal.call(self._reader.wait_ready)

    def ends(self) -> dict[Partition, int]:
        """How far the stores have come."""
        return self._portal.call(self._reader.ends)

    def earliest(self, partitions: Iterable[Partition], seconds: float) -> dict[Partition, int]:
        """The first record of each partition that is still held, as far as stores answer."""
        return self._portal.call(self._reader.earliest, tuple(partitions), seconds)

    def read(
        self, partition: Partition, first_sequence: int, end_sequence: int, seconds: float
    ) -> Iterator[RecordBatch]:
        """The records of a range in runs, as they come; those that nobody holds any more are left out.

        Raises `DiscoveryError` where no cluster is found, `StorageError` where no record came for so long.
        """
        records = self._portal.call(self._reader.read, partition, first_sequence, end_sequence)
        try:
            next_sequence = first_sequence
            while True:
                batch = self._portal.call(self._next_batch, records, next_sequence, seconds)
                if batch is None:
                    return
                yield batch
                next_sequence = batch.end_sequence
        finally:
            self._portal.call(records.close)

    async def _next_batch(self, records: Range, next_sequence: int, seconds: float) -> RecordBatch | None:
        patience = self._config.node.tower_timeout_ms / 1000
        with trio.move_on_after(min(patience, seconds)):
            return await records.next_batch()
        with naming_towers():
            self._reader.check_settled()
        with trio.move_on_after(max(seconds - patience, 0)):
            return await records.next_batch()
        raise StorageError(
            f"no store sent record {next_sequence} of {records.partition} within {seconds:g} s, though one had it; "
            "are the stores that hold it running?"
        )
