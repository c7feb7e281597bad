"""Room: the memory that the clients of all listeners share, for requests, for responses and for unpacked records.

The addresses of clients take turns, so that one with many connections does not push the others aside. A client that
does not take what is sent to it loses its connection when others need the memory.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import attrs
import trio

SMALL_BYTES = 16 * 1024
"""Requests up to this size need no room: they are received in one piece."""

PATIENCE_S = 0.5
"""How long a client may take nothing of what is sent to it, and how long others wait for room, until it loses its
connection to make room for them."""

_AGAIN_S = 0.05
"""How long the ended connections may take to give back what they hold, until further ones end."""


@attrs.define(eq=False)
class _Waiter:
    size: int
    admitted: trio.Event = attrs.field(factory=trio.Event)


@attrs.frozen(eq=False)
class _Holder:
    room: Room
    size: int
    since: float


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
        self._rooms: deque[Room] = deque()
        self._holders: OrderedDict[trio.CancelScope, _Holder] = OrderedDict()

    @property
    def waiting(self) -> int:
        """How many requests and responses wait for room."""
        return sum(room.waiting for room in self._rooms)

    def room(self, bytes_max: int) -> Room:
        """Return a part of the memory.

        Args:
            bytes_max: The most that it may take. It never takes more than half of the memory.

        Returns:
            The part.
        """
        room = Room(min(bytes_max, max(self.bytes_max // 2, 1)), self)
        self._rooms.append(room)
        return room

    def add_holder(self, scope: trio.CancelScope, room: Room, size: int) -> None:
        """Note that a client is waited for while it holds room."""
        self._holders[scope] = _Holder(room, size, trio.current_time())

    def remove_holder(self, scope: trio.CancelScope) -> None:
        """Note that a client has taken what was sent to it."""
        self._holders.pop(scope, None)

    def make_room(self, room: Room, size: int) -> None:
        """End the connections of the clients that have taken nothing for the longest time."""
        latest = trio.current_time() - PATIENCE_S
        is_short = self.bytes_max - self.used_bytes < size
        for scope, holder in list(self._holders.items()):
            if size <= 0 or holder.since > latest:
                return
            if is_short or holder.room is room:
                del self._holders[scope]
                scope.cancel()
                self.ended_holders += 1
                size -= holder.size

    def admit(self) -> None:
        """Admit what waits for room. The rooms take turns."""
        for _ in range(len(self._rooms)):
            self._rooms[0].admit_waiting()
            self._rooms.rotate(-1)


class Room:
    """A part of the memory, for one purpose: requests, responses, or records that were unpacked for them.

    Args:
        bytes_max: Its size. What is larger has it for itself.
        memory: The memory that it is a part of; None for one of its own.
    """

    def __init__(self, bytes_max: int, memory: Memory | None = None) -> None:
        self._bytes_max = bytes_max
        self._memory = Memory(bytes_max) if memory is None else memory
        self._taken = 0
        self._waiting: OrderedDict[str, deque[_Waiter]] = OrderedDict()
        if memory is None:
            self._memory._rooms.append(self)

    @property
    def taken_bytes(self) -> int:
        """How much is taken."""
        return self._taken

    @property
    def left_bytes(self) -> int:
        """How much is left; negative if too much is taken."""
        return min(self._bytes_max - self._taken, self._memory.bytes_max - self._memory.used_bytes)

    @property
    def waiting(self) -> int:
        """How many wait for room."""
        return sum(map(len, self._waiting.values()))

    @asynccontextmanager
    async def take(self, host: str, size: int) -> AsyncIterator[None]:
        """Wait for room, and keep it for the duration of a block.

        Args:
            host: The address of the client.
            size: How much.

        Yields:
            Nothing.
        """
        taken = await self.wait(host, size)
        try:
            yield
        finally:
            self.give_back(taken)

    async def wait(self, host: str, size: int) -> int:
        """Wait for room.

        Args:
            host: The address of the client.
            size: How much.

        Returns:
            How much was taken, which is to be given back.
        """
        waiter = _Waiter(min(size, self._bytes_max))
        self._waiting.setdefault(host, deque()).append(waiter)
        self.admit_waiting()
        patience_s = PATIENCE_S
        try:
            while not waiter.admitted.is_set():
                with trio.move_on_after(patience_s):
                    await waiter.admitted.wait()
                if not waiter.admitted.is_set():
                    self._memory.make_room(self, waiter.size)
                    patience_s = _AGAIN_S
        except BaseException:
            if waiter.admitted.is_set():
                self.give_back(waiter.size)
            else:
                self._waiting[host].remove(waiter)
                if not self._waiting[host]:
                    del self._waiting[host]
                self._memory.admit()
            raise
        return waiter.size

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
        self._memory.add_holder(scope, self, size)
        try:
            yield
        finally:
            self._memory.remove_holder(scope)

    def admit_waiting(self) -> None:
        """Admit those that wait and that there is room for."""
        while self._waiting:
            host, waiters = next(iter(self._waiting.items()))
            if waiters[0].size > self.left_bytes:
                return  # the others wait, too, so that a large request is not passed by smaller ones forever
            waiter = waiters.popleft()
            self.take_now(waiter.size)
            waiter.admitted.set()
            if waiters:
                self._waiting.move_to_end(host)
            else:
                del self._waiting[host]
