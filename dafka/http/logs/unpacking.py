"""Unpacks records of logs for clients of HTTP and WebSocket."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

from dafka.broker.connections.memory import MemoryPool
from dafka.errors import BatchError
from dafka.http.logs.log_access import ReadRecords
from dafka.http.server.errors import WebError

INLINE_BYTES_MAX = 2**20
"""The maximum size of records that are unpacked directly. More are unpacked in a thread."""

_UNPACKING = trio.CapacityLimiter(2)

_T = TypeVar("_T")


async def unpack(
    read: ReadRecords, log: int, work: Callable[[], _T], *, memory: MemoryPool, source: str, copies: int
) -> _T:
    """Unpack records when there is memory for them, in a thread if it can take long.

    Args:
        read: The records.
        log: The number of their log.
        work: Unpacks them.
        memory: The memory for unpacked records.
        source: The user, or the address of the client, for whom the memory is taken.
        copies: The number of copies of the records that `work` makes.

    Returns:
        What `work` returns.

    Raises:
        WebError: If a batch cannot be unpacked.
    """
    size = read.unpacked_bytes_max
    try:
        if size <= INLINE_BYTES_MAX:
            return work()
        async with memory.take(source, copies * size):
            return await trio.to_thread.run_sync(work, limiter=_UNPACKING)
    except BatchError as error:
        raise WebError("storage_failed", f"records of log {log} cannot be unpacked: {error}") from None
