"""The publisher of a node: an XPUB socket with limits on connections and subscriptions.

libzmq stores every subscription that peers send, without a limit. This module counts the subscriptions of each
connection. A connection that exceeds its limits is ended together with its subscriptions; other connections are not
affected. If the peer reconnects at once, its limit is halved each time. A correct node has a handful of subscriptions;
a consumer has two for each of its topics.

A second limit applies to the data that waits for slow peers (`SlowPeers`).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import attrs
import trio
import zmq

from dafka.config import NodeConfig
from dafka.protocol.token_bucket import TokenBucket
from dafka.transport.accepted import AcceptedConnection, AcceptedConnections
from dafka.transport.connections import MANY_CONNECTIONS, unsent_bytes
from dafka.transport.socket import RECEIVE_BYTES_MAX, BaseSocket
from dafka.transport.subscription_table import SubscriptionTable
from dafka.wire import BATCH_COMMANDS
from dafka.wire.batch import EncodedRun
from dafka.wire.commands import ADDRESSED_COMMANDS

DRAIN_COUNT_MAX = 500
"""The maximum number of subscriptions received at once, so that one batch takes a few milliseconds."""

COUNT_PER_S = 2000
"""Subscriptions of one connection that are accepted per second in the long run."""

TOTAL_FACTOR = 8
"""The limit on the bytes of all subscriptions, as a multiple of the limit for one connection."""

NAMES_MAX = 64
"""The maximum number of node addresses in the subscriptions of one connection. A correct node has one."""

PENALTY_S = 30.0
"""Seconds for which the limit of a host is halved after one of its connections was ended."""

PENALTY_MAX = 6
"""The maximum number of times that the limit of a host is halved."""

COUNT_MIN = 64
"""Subscriptions that a new connection can always send at once, even if the limit of its host was halved."""

HOSTS_MAX = 1024
"""The maximum number of remembered hosts with a penalty."""

QUEUED_BYTES_MIN = 256 * 2**20
"""The lowest limit on the bytes of batches that wait for any peer."""

MESSAGES_MIN = 16
"""That limit is at least this many times the size of the largest message."""

COMPARE_S = 0.02
"""Seconds between two comparisons of the bytes that wait for each peer."""

COMPARISONS = 10
"""How many comparisons count: a peer that had nothing to take long ago can be slow since."""

RETURN_S = 0.5
"""Seconds that libzmq has to drop the messages that waited for an ended connection."""

MANY_SUBSCRIPTIONS = "connection ended: too many subscriptions"
MANY_NAMES = "too many addresses of one connection"
NO_SUBSCRIPTION = "not a subscription"
SLOW_PEER = "connection ended: peer too slow"

_BATCH_IDS = frozenset(batch.value for batch in BATCH_COMMANDS.values())
_NAMING = frozenset(command.value for command in ADDRESSED_COMMANDS)

NumberedMessage: TypeAlias = tuple[int, list[bytes]]
"""The number of the connection on which a message arrived, or -1 if it has ended; and its frames."""


class PublisherSocket(BaseSocket):
    """An XPUB socket with limits. Only one task may receive at a time; any task may send.

    With `sends_batches`, peers that accept record batches get them instead of single records. `queued_bytes_max` is the
    limit on the bytes of batches that wait for any peer; by default, it depends on the size of the largest message.
    """

    def __init__(
        self, socket: zmq.Socket[bytes], config: NodeConfig, *, sends_batches: bool, queued_bytes_max: int | None = None
    ) -> None:
        super().__init__(socket)
        self.accepted = AcceptedConnections(self, config.connections_max)
        self._subscriptions = SubscriptionLimits(self.accepted, config.subscription_bytes_max, config.subscriptions_max)
        self.accepted.on_ended(self._forget_connection)
        self._table = SubscriptionTable(sends_batches=sends_batches)
        self._tally = self._loops.open_tally()
        self._slow_peers = SlowPeers(self.accepted, queued_bytes_max or find_queued_max(config.message_bytes_max))
        self._ended: list[NumberedMessage] = []
        self.set_options(xpub_manual=1)

    @property
    def discarded(self) -> Counter[str]:
        """Subscriptions discarded and connections ended, by reason."""
        ended = Counter({MANY_CONNECTIONS: self.accepted.ended_count, SLOW_PEER: self._slow_peers.ended_count})
        return self._subscriptions.discarded + ended

    @property
    def queued_bytes(self) -> int:
        """The bytes of the record batches that wait for any peer."""
        return self._tally.count_bytes()

    def send_many(self, messages: Iterable[Sequence[bytes] | EncodedRun]) -> int:
        """See `BaseSocket.send_many`. Peers that are too slow for record batches are disconnected."""
        kept = self._slow_peers.limit(messages, self.queued_bytes)
        count = self._loops.send(self._socket, kept, self._tally)
        self._wake()
        return count

    async def receive_many(self) -> list[list[bytes]]:
        """Wait for subscriptions, and return those within the limits. A checkpoint."""
        return [frames for _, frames in await self.receive_numbered()]

    async def receive_numbered(self) -> list[NumberedMessage]:
        """Wait for subscriptions, and return those within the limits with their connections. A checkpoint."""
        return await self._receive(self.receive_nowait)

    def receive_nowait(self) -> list[NumberedMessage]:
        """Return the waiting subscriptions that are within the limits, out of up to `DRAIN_COUNT_MAX`.

        The list is empty if no messages wait.
        """
        accepted, self._ended = self._ended, []
        count = 0
        # libzmq applies an option to the connection of the last message, so messages are received one at a time.
        while messages := self._loops.receive_sourced(self._socket, 1, RECEIVE_BYTES_MAX):
            ((descriptor, frames),) = messages
            self.accepted.update()
            connection = self.accepted.find(descriptor)
            if connection is not None and self._subscriptions.accept_message(
                connection, frames[0], trio.current_time()
            ):
                accepted += self._record_subscription(connection.number, frames[0])
            count += 1
            if count >= DRAIN_COUNT_MAX and accepted:
                break
        return accepted

    def is_wanted(self, topic_frame: bytes) -> bool:
        """Return whether a message with this topic frame reaches any subscriber."""
        return self._table.is_wanted(topic_frame)

    def _record_subscription(self, connection: int, frame: bytes) -> list[NumberedMessage]:
        """Apply a subscription in libzmq for the connection of the last message. Return the frames to pass on.

        The end of a subscription is passed on only if no other connection has the same subscription.
        """
        prefix = frame[1:]
        was_known = self._table.has(prefix)
        change = self._table.subscribe if frame[0] else self._table.unsubscribe
        for is_subscribed, changed in change(connection, prefix):
            self._socket.setsockopt(zmq.SUBSCRIBE if is_subscribed else zmq.UNSUBSCRIBE, changed)
        is_over = was_known and not self._table.has(prefix)
        return [(connection, [frame])] if frame[0] or is_over else []

    def _forget_connection(self, number: int) -> None:
        self._subscriptions.forget_connection(number)
        self._ended += [(number, [b"\0" + prefix]) for prefix in self._table.forget_connection(number)]
        self._wake()

    def _has_messages(self) -> bool:
        return bool(self._ended) or super()._has_messages()

    async def watch(self) -> None:
        """Enforce the limit on connections, until cancelled."""
        await self.accepted.watch()

    def close(self, linger_ms: int) -> None:
        """Close the socket and its monitor. See `BaseSocket.close`."""
        super().close(linger_ms)
        self.accepted.close()


@attrs.define
class _Account:
    """The subscriptions of one connection."""

    connection: AcceptedConnection
    bucket: TokenBucket
    bytes_used: int = 0
    names: set[bytes] = attrs.field(factory=set)
    is_ended: bool = False


class SubscriptionLimits:
    """Limits on the bytes of all subscriptions of one connection, and on how many it can send at once.

    `discarded` counts the subscriptions discarded and the connections ended, by reason.
    """

    def __init__(self, connections: AcceptedConnections, bytes_max: int, count_max: int) -> None:
        self.discarded: Counter[str] = Counter()
        self._connections = connections
        self._bytes_max = bytes_max
        self._count_max = count_max
        self._bytes = 0
        self._accounts: dict[int, _Account] = {}
        self._penalties: dict[str, tuple[float, int]] = {}

    def accept_message(self, connection: AcceptedConnection, message: bytes, now: float) -> bool:
        """Count a message, and return whether to accept it. End its connection if that exceeds a limit."""
        account = self._accounts.get(connection.number)
        if account is None:
            account = self._accounts[connection.number] = self._open_account(connection, now)
        if account.is_ended:
            return False
        is_too_often = account.bucket.spend(now) < 0
        is_subscription = message[:1] in (b"\0", b"\1")
        if is_subscription and message[0]:
            account.bytes_used += len(message)
            self._bytes += len(message)
        if not self._is_within_limits(account, now, is_too_often=is_too_often):
            return False
        if not is_subscription:
            self.discarded[NO_SUBSCRIPTION] += 1
            return False
        name = message[2:] if message[1:2] in _NAMING else b""
        if not name or name in account.names:
            return True
        if len(account.names) >= NAMES_MAX:
            self.discarded[MANY_NAMES] += 1
            return False
        account.names.add(name)
        return True

    def forget_connection(self, number: int) -> None:
        """Forget a connection that has ended, by its number."""
        account = self._accounts.pop(number, None)
        if account is not None:
            self._bytes -= account.bytes_used

    def _open_account(self, connection: AcceptedConnection, now: float) -> _Account:
        count_max = self._count_max
        if self._penalties and (ends := self._connections.identify(connection)) is not None:
            count_max = max(count_max >> self._penalty(ends.host, now), COUNT_MIN)
        return _Account(connection, TokenBucket(COUNT_PER_S, count_max, now))

    def _is_within_limits(self, account: _Account, now: float, *, is_too_often: bool) -> bool:
        """End connections that exceed a limit. Return whether this one is still open."""
        if is_too_often or account.bytes_used > self._bytes_max:
            self._end(account, now)
        while self._bytes > TOTAL_FACTOR * self._bytes_max:
            self._end(max(self._accounts.values(), key=lambda each: each.bytes_used), now)
        return not account.is_ended

    def _end(self, account: _Account, now: float) -> None:
        account.is_ended = True
        self._bytes -= account.bytes_used
        account.bytes_used = 0
        self.discarded[MANY_SUBSCRIPTIONS] += 1
        ends = self._connections.end(account.connection)
        if ends is not None and (ends.host in self._penalties or len(self._penalties) < HOSTS_MAX):
            self._penalties[ends.host] = now + PENALTY_S, min(self._penalty(ends.host, now) + 1, PENALTY_MAX)

    def _penalty(self, host: str, now: float) -> int:
        until, penalty = self._penalties.get(host, (now, 0))
        if until > now:
            return penalty
        self._penalties.pop(host, None)
        return 0


def find_queued_max(message_bytes_max: int) -> int:
    """Return the limit on the bytes of batches that wait for any peer, by the size of the largest message."""
    return max(QUEUED_BYTES_MIN, MESSAGES_MIN * message_bytes_max)


class SlowPeers:
    """The limit on the data that waits for peers that take record batches more slowly than they are sent.

    libzmq limits the number of messages that wait for each peer (`high_watermark`), which suits single records, but not
    batches. It does not report how many bytes wait for which peer. The transport counts the bytes of batches that
    libzmq still queues for any peer. Near the limit, this class compares the unsent bytes of each peer in the system;
    above the limit, it ends the connection of the slowest peer, and counts it in `ended_count`. libzmq then drops the
    messages that waited for this peer, which reconnects and fetches the missed records.
    """

    def __init__(
        self, connections: AcceptedConnections, bytes_max: int, measure: Callable[[int], int] = unsent_bytes
    ) -> None:
        """Limit the bytes that wait for the peers of these connections. `measure` is called with descriptors."""
        self.ended_count = 0
        self._connections = connections
        self._bytes_max = bytes_max
        self._measure = measure
        self._unsent: dict[int, deque[int]] = {}
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
        """Record the unsent bytes of each peer. A peer that keeps up has none now and then."""
        former = self._unsent
        self._unsent = {each.number: former.get(each.number, deque(maxlen=COMPARISONS)) for each in self._connections}
        for each in self._connections:
            self._unsent[each.number].append(self._measure(each.descriptor))

    def _end_slowest(self) -> bool:
        """End the connection of the slowest peer, and return whether there was one."""
        slowest = max(self._connections, key=lambda each: min(self._unsent[each.number]), default=None)
        if slowest is None or not min(self._unsent[slowest.number]):
            return False
        self._unsent = {}
        if self._connections.end(slowest) is not None:
            self.ended_count += 1
        return True
