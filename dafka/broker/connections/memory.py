"""MemoryPool: the memory that the clients of all listeners share, for requests, for responses and for unpacked records.

The sources of requests, which are users or the addresses of clients, take turns, so that one with many connections does
not push the others aside. A request takes room as it comes, at most twice of what was received. A client that does not
take what is sent to it, or sends a request slowly, loses its connection when others need the memory.

Requests that are received in pieces cannot block each other: a piece is given only if each of the begun requests could
still be completed with what is left, and if one of them cannot have a piece so, it gets all that it needs.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sized
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import TypeVar

import attrs
import trio

SMALL_BYTES = 16 * 1024
"""Requests up to this size need no room: they are received in one piece."""

PATIENCE_S = 0.5
"""How long a client may take nothing of what is sent to it, or be behind the pace with what it sends, and how long
others wait for room, until it loses its connection to make room for them."""

PACE_BYTES = 2**20
"""What a client has to send of a request in a second."""

_AGAIN_S = 0.05
"""How long the ended connections may take to give back what they hold, until further ones end."""


_Data = TypeVar("_Data", bound=Sized)


class SlowUploadError(Exception):
    """A client has sent a request too slowly."""


@attrs.define(eq=False)
class _Waiter:
    source: str
    size: int
    upload: Upload | None = None
    admitted: trio.Event = attrs.field(factory=trio.Event)


@attrs.frozen(eq=False)
class _Holder:
    room: MemoryPool
    size: int
    since: float
    upload: Upload | None = None


class Memory:
    """The memory of all clients of a broker, of which each listener has rooms.

    Args:
        bytes_max: Its size, `[broker] memory`.

    Attributes:
        bytes_max: Its size.
        used_bytes: How much is taken. It may be more than there is for the moment: small things are not refused.
        ended_holders: How many connections have ended to make room.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self.ended_holders = 0
        self._rooms: deque[MemoryPool] = deque()
        self._holders: OrderedDict[trio.CancelScope, _Holder] = OrderedDict()

    @property
    def waiting(self) -> int:
        """How many requests and responses wait for room."""
        return sum(room.waiting for room in self._rooms)

    def room(self, bytes_max: int) -> MemoryPool:
        """Return a part of the memory.

        Args:
            bytes_max: The most that it may take. It never takes more than half of the memory.

        Returns:
            The part.
        """
        room = MemoryPool(min(bytes_max, max(self.bytes_max // 2, 1)), self)
        self._rooms.append(room)
        return room

    @property
    def left_bytes(self) -> int:
        """How much is left; negative if too much is taken."""
        return self.bytes_max - self.used_bytes

    def missing_max(self, upload: Upload) -> int:
        """Return the most that a begun request needs yet, an upload and those beside it."""
        return max(room.missing_max(upload) for room in self._rooms)

    def is_ample(self, size: int) -> bool:
        """Return whether more is left beside a size than any begun request can need."""
        return self.left_bytes - size >= max(room.missing_bound for room in self._rooms)

    def add_holder(self, scope: trio.CancelScope, holder: _Holder) -> None:
        """Note that a client is waited for while it holds room."""
        self._holders[scope] = holder

    def remove_holder(self, scope: trio.CancelScope) -> None:
        """Note that a client is not waited for any more."""
        self._holders.pop(scope, None)

    def make_room(self, room: MemoryPool, size: int) -> int:
        """End the connections of the clients that have been waited for, or were behind, for the longest time.

        Args:
            room: Where room is needed.
            size: How much.

        Returns:
            How much is needed beyond what they held.
        """
        latest = trio.current_time() - PATIENCE_S
        is_short = self.left_bytes < size
        late = [
            (scope, holder)
            for scope, holder in self._holders.items()
            if holder.since <= latest and (is_short or holder.room is room)
        ]
        for scope, holder in sorted(late, key=lambda each: each[1].since):
            if size <= 0:
                break
            self._end(scope)
            size -= holder.size
        return size

    def end_one_of(self, room: MemoryPool, source: str) -> None:
        """End the connection of a source that has taken the longest to send what holds room, unless all are fast."""
        found = [
            (each.upload.receiving_s, number, scope)
            for number, (scope, each) in enumerate(self._holders.items())
            if each.upload is not None and each.room is room and each.upload.source == source
        ]
        longest_s, _, scope = max(found, default=(0.0, 0, None))
        if scope is not None and longest_s > 2 * PATIENCE_S:
            self._end(scope)

    def _end(self, scope: trio.CancelScope) -> None:
        del self._holders[scope]
        scope.cancel()
        self.ended_holders += 1

    def admit(self) -> None:
        """Admit what waits for room. The rooms take turns."""
        for _ in range(len(self._rooms)):
            self._rooms[0].admit_waiting()
            self._rooms.rotate(-1)


class MemoryPool:
    """A part of the memory, for one purpose: requests, responses, or records that were unpacked for them.

    Args:
        bytes_max: Its size. What is larger has it for itself.
        memory: The memory that it is a part of; None for one of its own.

    Attributes:
        missing_bound: No begun request needs more than this yet.
    """

    def __init__(self, bytes_max: int, memory: Memory | None = None) -> None:
        self._bytes_max = bytes_max
        self._memory = Memory(bytes_max) if memory is None else memory
        self._taken = 0
        self._waiting: OrderedDict[str, deque[_Waiter]] = OrderedDict()
        self._begun: set[Upload] = set()
        self.missing_bound = 0
        self._made_room_at = float("-inf")
        if memory is None:
            self._memory._rooms.append(self)

    @property
    def bytes_max(self) -> int:
        """Its size."""
        return self._bytes_max

    @property
    def taken_bytes(self) -> int:
        """How much is taken."""
        return self._taken

    @property
    def left_bytes(self) -> int:
        """How much is left; negative if too much is taken."""
        return min(self._bytes_max - self._taken, self._memory.left_bytes)

    @property
    def waiting(self) -> int:
        """How many wait for room."""
        return sum(map(len, self._waiting.values()))

    @asynccontextmanager
    async def take(self, source: str, size: int) -> AsyncIterator[None]:
        """Wait for room, and keep it for the duration of a block.

        Args:
            source: The user, or the address of the client.
            size: How much.

        Yields:
            Nothing.
        """
        taken = await self.wait(source, size)
        try:
            yield
        finally:
            self.give_back(taken)

    async def wait(self, source: str, size: int) -> int:
        """Wait for room.

        Args:
            source: The user, or the address of the client.
            size: How much.

        Returns:
            How much was taken. The caller gives it back.
        """
        return await self._wait(_Waiter(source, min(size, self._bytes_max)))

    async def wait_piece(self, upload: Upload, size: int) -> int:
        """Wait for room for a piece of a request.

        Args:
            upload: The request.
            size: The size of the piece.

        Returns:
            How much was taken: the piece, or all that is missing of the request.
        """
        return await self._wait(_Waiter(upload.source, size, upload))

    async def _wait(self, waiter: _Waiter) -> int:
        waiters = self._waiting.setdefault(waiter.source, deque())
        if waiter.upload is not None and waiter.upload.size:
            waiters.appendleft(waiter)  # what was begun is completed first
        else:
            waiters.append(waiter)
        self.admit_waiting()
        patience_s = PATIENCE_S
        try:
            while not waiter.admitted.is_set():
                with trio.move_on_after(patience_s):
                    await waiter.admitted.wait()
                if not waiter.admitted.is_set():
                    self._make_room(waiter.source)
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

    def _make_room(self, source: str) -> None:
        """End connections for all that wait: those that are behind, or one of a source that has more than half."""
        now = trio.current_time()
        if now < self._made_room_at + _AGAIN_S:
            return
        self._made_room_at = now
        needed = min(sum(each.size for waiters in self._waiting.values() for each in waiters), self._bytes_max)
        missing = max((each.missing_bytes for each in self._begun), default=0)
        needed += max(missing - max(self.left_bytes, 0), 0)
        if self._memory.make_room(self, needed) < needed or not self._begun:
            return
        held: Counter[str] = Counter()
        for each in self._begun:
            held[each.source] += each.size
        ((most, size),) = held.most_common(1)
        if size > self._bytes_max // 2 and any(each != most for each in self._waiting):
            self._memory.end_one_of(self, most)

    def grant(self, wanted: int) -> int:
        """Take room for an answer that will be read from logs: half of what is left at most. Nobody waits for it.

        If little is left, answers are smaller, and clients ask more often.

        Args:
            wanted: The largest size that the client accepts.

        Returns:
            The size that the answer may have, at least `SMALL_BYTES` or `wanted`.
        """
        half = self.left_bytes // 2
        if half < wanted:
            self._memory.make_room(self, wanted - half)
        granted = min(wanted, max(half, SMALL_BYTES))
        self.take_now(granted)
        return granted

    def take_now(self, size: int) -> None:
        """Take room for something that is there."""
        self._taken += size
        self._memory.used_bytes += size

    def give_back(self, size: int) -> None:
        """Give room back."""
        self._taken -= size
        self._memory.used_bytes -= size
        self._memory.admit()

    @contextmanager
    def waiting_for_client(self, scope: trio.CancelScope, size: int) -> Iterator[None]:
        """Note that a client holds room while it is waited for. If others need the room, the scope is cancelled.

        Args:
            scope: The scope in which the client is waited for.
            size: How much room is given back when the client's connection ends.

        Yields:
            Nothing.
        """
        with self._holding(scope, _Holder(self, size, trio.current_time())):
            yield

    @contextmanager
    def waiting_for_upload(self, scope: trio.CancelScope, upload: Upload) -> Iterator[None]:
        """Note that a client holds room while a piece of its request is waited for.

        Args:
            scope: The scope in which the client is waited for. It is cancelled if others need the room.
            upload: The request.

        Yields:
            Nothing.
        """
        with self._holding(scope, _Holder(self, upload.size, trio.current_time() - upload.lag_s, upload)):
            yield

    @contextmanager
    def _holding(self, scope: trio.CancelScope, holder: _Holder) -> Iterator[None]:
        self._memory.add_holder(scope, holder)
        try:
            yield
        finally:
            self._memory.remove_holder(scope)

    def note_begun(self, upload: Upload) -> None:
        """Note that a request holds room, or that it does not any more."""
        if upload.size:
            self._begun.add(upload)
            self.missing_bound = max(self.missing_bound, upload.missing_bytes)
        else:
            self._begun.discard(upload)
            if not self._begun:
                self.missing_bound = 0

    def missing_max(self, upload: Upload) -> int:
        """Return the most that a begun request needs yet, beside an upload."""
        return max((each.missing_bytes for each in self._begun if each is not upload), default=0)

    def admit_waiting(self) -> None:
        """Admit those that wait and that there is room for."""
        while self._waiting:
            waiter = next(iter(self._waiting.values()))[0]
            if not (size := self._admissible(waiter)):
                # The others wait, too, so that a large request is not passed by smaller ones forever. Only what was
                # begun passes it, since it gives room back when it is complete.
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
            self.note_begun(waiter.upload)
        waiter.admitted.set()

    def _admissible(self, waiter: _Waiter) -> int:
        """Return how much room there is for one that waits: what it wants, or all that is missing of its request."""
        upload, size, left = waiter.upload, waiter.size, self.left_bytes
        if upload is None or size > left:
            return size if size <= left else 0
        missing = upload.missing_bytes
        own = self._bytes_max - self._taken - size
        if own >= missing - size and self._memory.left_bytes - size >= missing - size:
            if own >= self.missing_bound and self._memory.is_ample(size):
                return size
            self.missing_bound = max(self.missing_max(upload), missing if upload.size else 0)
            if own >= self.missing_max(upload) and self._memory.left_bytes - size >= self._memory.missing_max(upload):
                return size
        return missing if missing <= left else 0


class Upload:
    """A request that is being received. It takes room as it comes, at most twice of what was received.

    Leaving the context gives the room back.

    Args:
        room: The memory for requests.
        source: The user, or the address of the client.
        claimed_bytes: The size of the request, or the most that it may have. Up to 16 KiB, it needs no room.
        limit_ms: How far the client may be behind the pace of 1 MiB/s when nobody else needs the room.

    Attributes:
        source: The user, or the address of the client.
        size: How much room it holds.
        lag_s: How far the client is behind the pace.
        receiving_s: How long the client was waited for until the last piece came.
    """

    def __init__(self, room: MemoryPool, source: str, claimed_bytes: int, limit_ms: int) -> None:
        self.source = source
        self.size = 0
        self.lag_s = 0.0
        self.receiving_s = 0.0
        self._room = room
        self._claimed_bytes = min(claimed_bytes, room.bytes_max) if claimed_bytes > SMALL_BYTES else 0
        self._limit_s = limit_ms / 1000

    def __enter__(self) -> Upload:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def missing_bytes(self) -> int:
        """How much room it may need yet."""
        return max(self._claimed_bytes - self.size, 0)

    async def receive(self, receive: Callable[[int], Awaitable[_Data]], kept: int, most: int) -> _Data:
        """Receive a piece, when there is room for it.

        Args:
            receive: Receives up to so many bytes.
            kept: How much of the request was received and is kept.
            most: The most to receive at a time, in bytes.

        Returns:
            The piece.

        Raises:
            SlowUploadError: The client is too far behind the pace, or behind it while others need the room.
        """
        wanted = min(kept + max(min(kept, most), SMALL_BYTES), self._claimed_bytes)
        if wanted < self.size:
            self._give_back(self.size - wanted)
        elif self.size - kept < SMALL_BYTES and wanted > self.size:
            await self._room.wait_piece(self, wanted - self.size)
        ahead = self.size - kept
        begun = trio.current_time()
        with trio.CancelScope(deadline=begun + self._limit_s - self.lag_s) as scope:
            if self.size:
                with self._room.waiting_for_upload(scope, self):
                    data = await receive(min(ahead, most) if ahead > 0 else most)
            else:
                data = await receive(most)
            waited_s = trio.current_time() - begun
            self.receiving_s += waited_s
            self.lag_s = max(self.lag_s + waited_s - len(data) / PACE_BYTES, 0.0)
            return data
        why = f"within {self._limit_s:.0f} s" if trio.current_time() >= scope.deadline else "while others need memory"
        raise SlowUploadError(f"expected 1 MiB in a second, and more {why}; {kept} bytes were received")

    def complete(self, size: int) -> None:
        """Keep room for what was received only: nothing is missing.

        Args:
            size: How much was received.
        """
        self._claimed_bytes = min(size, self.size)
        self._give_back(self.size - self._claimed_bytes)

    def close(self) -> None:
        """Give the room back."""
        self._claimed_bytes = 0
        self._give_back(self.size)

    def _give_back(self, size: int) -> None:
        if size > 0:
            self.size -= size
            self._room.note_begun(self)
            self._room.give_back(size)
