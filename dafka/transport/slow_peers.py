"""The limit on the data that waits for peers that take record batches more slowly than they are sent.

libzmq limits the number of messages that wait for each peer (`high_watermark`), which suits single records, but not
batches. It does not report how many bytes wait for which peer. The transport counts the bytes of batches that libzmq
still queues for any peer. Near the limit, this module compares the unsent bytes of each peer in the system; above the
limit, it ends the connection of the slowest peer. libzmq then drops the messages that waited for this peer, which
reconnects and fetches the missed records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import trio

from dafka.transport.accepted import AcceptedConnections
from dafka.transport.connections import unsent_bytes
from dafka.wire import BATCH_COMMANDS
from dafka.wire.batch import EncodedRun

SLOW_PEER = "connection ended: peer too slow"

QUEUED_BYTES_MIN = 256 * 2**20
"""The lowest limit, in bytes."""

MESSAGES_MIN = 16
"""The limit is at least this many times the size of the largest message."""

COMPARE_S = 0.02
"""Seconds between two comparisons."""

RETURN_S = 0.5
"""Seconds that libzmq has to drop the messages that waited for an ended connection."""

_BATCH_IDS = frozenset(batch.value for batch in BATCH_COMMANDS.values())


class SlowPeers:
    """The limit of one publisher. `ended_count` counts the connections that were ended."""

    def __init__(self, connections: AcceptedConnections, message_bytes_max: int) -> None:
        self.ended_count = 0
        self._connections = connections
        self._bytes_max = max(QUEUED_BYTES_MIN, MESSAGES_MIN * message_bytes_max)
        self._unsent: dict[int, int] = {}
        self._next_at = 0.0

    def limit(
        self, messages: Iterable[Sequence[bytes] | EncodedRun], queued_bytes: int
    ) -> Iterable[Sequence[bytes] | EncodedRun]:
        """Return the messages to send while this many bytes of earlier batches wait.

        Far beyond the limit, batches are dropped for all peers, which fetch their records later. That happens only
        where the system does not report which peer is slow.
        """
        if queued_bytes <= self._bytes_max // 2:
            self._unsent = {}
            return messages
        now = trio.current_time()
        if now >= self._next_at:
            self._next_at = now + COMPARE_S
            self._compare()
            if queued_bytes > self._bytes_max and self._end_slowest():
                self._next_at = now + RETURN_S
        if queued_bytes <= 2 * self._bytes_max:
            return messages
        return [each for each in messages if isinstance(each, EncodedRun) or each[0][:1] not in _BATCH_IDS]

    def _compare(self) -> None:
        """Record the minimum of the unsent bytes of each peer. It is 0 for a peer that keeps up."""
        self._unsent = {
            each.number: min(unsent_bytes(each.descriptor), self._unsent.get(each.number, 2**31))
            for each in self._connections
        }

    def _end_slowest(self) -> bool:
        """End the connection of the slowest peer, and return whether there was one."""
        slowest = max(self._connections, key=lambda each: self._unsent[each.number], default=None)
        if slowest is None or not self._unsent[slowest.number]:
            return False
        self._unsent = {}
        if self._connections.end(slowest) is not None:
            self.ended_count += 1
        return True
