"""Limits the memory that the clients of all servers share, for requests, responses and unpacked records.

A source is a user or the address of a client. Sources take turns, so that one with many connections does not displace
the others. The memory of a request grows while it is received: to at most twice the received size, or by a 64th of
what is free while that is more than half. A client that does not read its responses, or sends a request slowly, is
disconnected when others need the memory.

Requests that are received in pieces cannot deadlock: a piece is granted only if the remaining memory can still complete
each request that has begun. Otherwise the request waits until it can get all the memory that it still needs.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager

import attrs
import trio

from dafka.broker.connections.uploads import PACE_BYTES, SMALL_BYTES, Upload

PATIENCE_S = 0.5
"""Seconds after which a client is disconnected to free memory: it has read nothing or was too slow for this time, and
others have waited for this time."""


_AGAIN_S = 0.05
"""Seconds that disconnected clients have to release their memory, before more are disconnected."""


@attrs.define(eq=False)
class _Waiter:
    source: str
    size: int
    upload: Upload | None = None
    admitted: trio.Event = attrs.field(factory=trio.Event)


@attrs.frozen(eq=False)
class _Holder:
    pool: MemoryPool
    size: int
    begun_at: float
    upload: Upload | None = None

    @property
    def late_since(self) -> float:
        """Since when the broker has waited for the client, or the client is behind the slowest rate of uploads."""
        return self.begun_at if self.upload is None else self.begun_at + self.upload.count_arrived() / PACE_BYTES


class Memory:
    """The memory for all clients of a broker, `[broker] memory`. Its parts are `MemoryPool`s.

    The memory in use can exceed the size for a moment, as small amounts are not refused. `ended_holders` is the number
    of clients that were disconnected to free memory.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self.ended_holders = 0
        self._pools: deque[MemoryPool] = deque()
        self._holders: OrderedDict[trio.CancelScope, _Holder] = OrderedDict()

    @property
    def waiting(self) -> int:
        """Number of requests and responses that wait for memory."""
        return sum(pool.waiting for pool in self._pools)

    def make_pool(self, bytes_max: int) -> MemoryPool:
        """Create a pool, a part of the memory. It is at most half of the memory."""
        pool = MemoryPool(min(bytes_max, max(self.bytes_max // 2, 1)), self)
        self._pools.append(pool)
        return pool

    @property
    def left_bytes(self) -> int:
        """The free memory; negative if too much is in use."""
        return self.bytes_max - self.used_bytes

    def missing_max(self, upload: Upload) -> int:
        """Return the largest amount that a request in any pool still needs, except for an upload."""
        return max(pool.missing_max(upload) for pool in self._pools)

    def is_ample(self, size: int) -> bool:
        """Return whether the memory left after taking a size suffices for any request that has begun."""
        return self.left_bytes - size >= max(pool.missing_bound for pool in self._pools)

    @contextmanager
    def holding(self, scope: trio.CancelScope, holder: _Holder) -> Iterator[None]:
        """Record for the duration of a block that the broker waits for a client that uses memory."""
        self._holders[scope] = holder
        try:
            yield
        finally:
            self._holders.pop(scope, None)

    def reclaim(self, pool: MemoryPool, size: int) -> int:
        """Disconnect the clients that the broker has waited for, or that were too slow, for the longest time.

        Return the part of the size needed by the pool that these clients do not free.
        """
        latest = trio.current_time() - PATIENCE_S
        is_short = self.left_bytes < size
        late = [
            (scope, holder)
            for scope, holder in self._holders.items()
            if (is_short or holder.pool is pool) and holder.late_since <= latest
        ]
        for scope, holder in sorted(late, key=lambda each: each[1].late_since):
            if size <= 0:
                break
            self._end(scope)
            size -= holder.size
        return size

    def end_one_of(self, pool: MemoryPool, source: str) -> None:
        """Disconnect the slowest sender among the clients of a source, unless all are fast."""
        found = [
            (each.upload.receiving_s, number, scope)
            for number, (scope, each) in enumerate(self._holders.items())
            if each.upload is not None and each.pool is pool and each.upload.source == source
        ]
        longest_s, _, scope = max(found, default=(0.0, 0, None))
        if scope is not None and longest_s > 2 * PATIENCE_S:
            self._end(scope)

    def _end(self, scope: trio.CancelScope) -> None:
        del self._holders[scope]
        scope.cancel()
        self.ended_holders += 1

    def admit(self) -> None:
        """Grant memory to waiters. The pools take turns."""
        for _ in range(len(self._pools)):
            self._pools[0].admit_waiting()
            self._pools.rotate(-1)


class MemoryPool:
    """A part of the memory, for one purpose: requests, responses, or records that were unpacked for them.

    A request larger than the pool gets the whole pool. Without a memory that it is a part of, it is separate. Any
    request that has begun still needs `missing_bound` at most.
    """

    def __init__(self, bytes_max: int, memory: Memory | None = None) -> None:
        self.bytes_max = bytes_max
        self._memory = Memory(bytes_max) if memory is None else memory
        self.taken_bytes = 0
        self._waiting: OrderedDict[str, deque[_Waiter]] = OrderedDict()
        self._begun: set[Upload] = set()
        self.missing_bound = 0
        self._freed_at = float("-inf")
        if memory is None:
            self._memory._pools.append(self)

    @property
    def left_bytes(self) -> int:
        """The free memory; negative if too much is in use."""
        return min(self.bytes_max - self.taken_bytes, self._memory.left_bytes)

    @property
    def waiting(self) -> int:
        """Number of waiters."""
        return sum(map(len, self._waiting.values()))

    @asynccontextmanager
    async def take(self, source: str, size: int) -> AsyncIterator[None]:
        """Wait for memory for a user or the address of a client, and keep it for the duration of a block."""
        taken = await self.wait(source, size)
        try:
            yield
        finally:
            self.give_back(taken)

    async def wait(self, source: str, size: int) -> int:
        """Wait for memory for a user or the address of a client. Return the size to give back."""
        return await self._wait(_Waiter(source, min(size, self.bytes_max)))

    async def wait_piece(self, upload: Upload, size: int) -> int:
        """Wait for memory for a piece of a request. Return its size, or that of the whole missing part."""
        return await self._wait(_Waiter(upload.source, size, upload))

    async def _wait(self, waiter: _Waiter) -> int:
        waiters = self._waiting.setdefault(waiter.source, deque())
        if waiter.upload is not None and waiter.upload.size:
            waiters.appendleft(waiter)  # requests that have begun are completed first
        else:
            waiters.append(waiter)
        self.admit_waiting()
        patience_s = PATIENCE_S
        try:
            while not waiter.admitted.is_set():
                with trio.move_on_after(patience_s):
                    await waiter.admitted.wait()
                if not waiter.admitted.is_set():
                    self._free_memory(waiter.source)
                    patience_s = _AGAIN_S
        except BaseException:
            if waiter.admitted.is_set():
                if waiter.upload is None:
                    self.give_back(waiter.size)
            else:
                self._waiting[waiter.source].remove(waiter)
                if not self._waiting[waiter.source]:
                    del self._waiting[waiter.source]
                self._memory.admit()
            raise
        return waiter.size

    def _free_memory(self, source: str) -> None:
        """Disconnect clients for all waiters: slow ones, or else one of a source that uses more than half."""
        now = trio.current_time()
        if now < self._freed_at + _AGAIN_S:
            return
        self._freed_at = now
        needed = min(sum(each.size for waiters in self._waiting.values() for each in waiters), self.bytes_max)
        missing = max((each.missing_bytes for each in self._begun), default=0)
        needed += max(missing - max(self.left_bytes, 0), 0)
        if self._memory.reclaim(self, needed) < needed or not self._begun:
            return
        used: Counter[str] = Counter()
        for each in self._begun:
            used[each.source] += each.size
        ((most, size),) = used.most_common(1)
        if size > self.bytes_max // 2 and any(each != most for each in self._waiting):
            self._memory.end_one_of(self, most)

    def grant(self, accepted: int) -> int:
        """Take memory for a response with records from logs, at most half of the free memory. It does not wait.

        Return the allowed size of the response: at most what the client accepts, and at least `SMALL_BYTES` of that. If
        little is free, responses are smaller and clients send more requests.
        """
        half = self.left_bytes // 2
        if half < accepted:
            self._memory.reclaim(self, accepted - half)
        granted = min(accepted, max(half, SMALL_BYTES))
        self.take_now(granted)
        return granted

    def has_room(self, size: int, granted: int) -> bool:
        """Return whether there is memory for a response, after a grant for it was given back.

        A single batch can be larger than the grant. If it is even larger than the pool, it needs the whole pool.
        """
        return size <= granted or min(size, self.bytes_max) <= self.left_bytes

    def take_now(self, size: int) -> None:
        """Take memory for data that exists already, without waiting."""
        self.taken_bytes += size
        self._memory.used_bytes += size

    def give_back(self, size: int) -> None:
        """Give memory back."""
        self.taken_bytes -= size
        self._memory.used_bytes -= size
        self._memory.admit()

    def waiting_for_client(self, scope: trio.CancelScope, size: int) -> AbstractContextManager[None]:
        """Mark memory as used by a client while the broker waits for the client to read.

        The scope of the wait is cancelled if others need the memory, which is given back when the connection ends.
        """
        return self._memory.holding(scope, _Holder(self, size, trio.current_time()))

    def waiting_for_upload(self, scope: trio.CancelScope, upload: Upload) -> AbstractContextManager[None]:
        """Mark memory as used by a client while the broker waits for a piece of its request.

        The scope of the wait is cancelled if others need the memory.
        """
        return self._memory.holding(scope, _Holder(self, upload.size, trio.current_time() - upload.lag_s, upload))

    def record_begun(self, upload: Upload) -> None:
        """Record that a request uses memory, or no longer does."""
        if upload.size:
            self._begun.add(upload)
            self.missing_bound = max(self.missing_bound, upload.missing_bytes)
        else:
            self._begun.discard(upload)
            if not self._begun:
                self.missing_bound = 0

    def missing_max(self, upload: Upload) -> int:
        """Return the largest amount that a request in this pool still needs, except for an upload."""
        return max((each.missing_bytes for each in self._begun if each is not upload), default=0)

    def admit_waiting(self) -> None:
        """Grant memory to the waiters for which it suffices."""
        while self._waiting:
            waiter = next(iter(self._waiting.values()))[0]
            if not (size := self._admissible(waiter)):
                # The others wait too, so that smaller requests do not pass a large one forever. Only requests that have
                # begun pass it, since they give memory back when they are complete.
                for waiters in self._waiting.values():
                    waiter, upload = waiters[0], waiters[0].upload
                    if upload is not None and upload.size and (size := self._admissible(waiter)):
                        break
                else:
                    return
            self._admit(waiter, size)

    def _admit(self, waiter: _Waiter, size: int) -> None:
        waiters = self._waiting[waiter.source]
        waiters.popleft()
        if waiters:
            self._waiting.move_to_end(waiter.source)
        else:
            del self._waiting[waiter.source]
        waiter.size = size
        self.take_now(size)
        if waiter.upload is not None:
            waiter.upload.size += size
            self.record_begun(waiter.upload)
        waiter.admitted.set()

    def _admissible(self, waiter: _Waiter) -> int:
        """Return the size to grant to a waiter: its piece, or the missing part of its request; 0 if it must wait."""
        upload, size, left = waiter.upload, waiter.size, self.left_bytes
        if upload is None:
            return size if size <= left else 0
        missing = upload.missing_bytes
        own = self.bytes_max - self.taken_bytes - size
        if own >= missing - size and self._memory.left_bytes - size >= missing - size:
            if own >= self.missing_bound and self._memory.is_ample(size):
                return size
            self.missing_bound = max(self.missing_max(upload), missing if upload.size else 0)
            if own >= self.missing_max(upload) and self._memory.left_bytes - size >= self._memory.missing_max(upload):
                return size
        return missing if missing <= left else 0
