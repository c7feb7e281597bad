"""Announces the ends of a broker's partitions repeatedly, for nodes that have missed records."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import trio

from dafka import wire
from dafka.records import Partition
from dafka.roles.sockets import NodeSockets

HEAD_WAITS_S = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds between the HEADs that follow published records."""


class HeadAnnouncer:
    """Sends HEADs after records were published, at increasing intervals.

    Args:
        sockets: The sockets of the broker.
        durable_end: Returns the sequence after the last durable record of a partition.
    """

    def __init__(self, sockets: NodeSockets, durable_end: Callable[[Partition], int]) -> None:
        self._sockets = sockets
        self._durable_end = durable_end
        self._due: dict[Partition, tuple[float, int]] = {}
        self._added = trio.Event()

    def add(self, partitions: Iterable[Partition]) -> None:
        """Start to announce partitions of which records were published."""
        due = trio.current_time() + HEAD_WAITS_S[0]
        self._due.update((partition, (due, 0)) for partition in partitions)
        self._added.set()

    def forget(self, partition: Partition) -> None:
        """Stop announcing a partition."""
        self._due.pop(partition, None)

    async def run(self) -> None:
        """Send HEADs until cancelled."""
        while True:
            while not self._due:
                self._added = trio.Event()
                await self._added.wait()
            await trio.sleep_until(min(due for due, _ in self._due.values()))
            now = trio.current_time()
            heads = []
            for partition, (due, attempt) in list(self._due.items()):
                if due > now:
                    continue
                end = self._durable_end(partition)
                if not end:  # it was deleted after its last records were published
                    del self._due[partition]
                    continue
                heads.append(wire.Head(partition.address, partition.topic, end - 1))
                if attempt + 1 < len(HEAD_WAITS_S):
                    self._due[partition] = now + HEAD_WAITS_S[attempt + 1], attempt + 1
                else:
                    del self._due[partition]
            self._sockets.publish(heads)
            await trio.lowlevel.checkpoint()
