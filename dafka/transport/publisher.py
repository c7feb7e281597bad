"""The publisher of a node: an XPUB socket with limits on connections and subscriptions.

libzmq stores every subscription that peers send, without a limit. This module counts the subscriptions of each
connection. A connection that exceeds its limits is ended together with its subscriptions; other connections are not
affected. If the peer reconnects at once, its limit is halved each time. A correct node has a handful of subscriptions;
a consumer has two for each of its topics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import attrs
import trio
import zmq

from dafka.config import NodeConfig
from dafka.protocol.token_bucket import TokenBucket
from dafka.transport.connections import (
    MANY_CONNECTIONS,
    SWEEP_S,
    Connection,
    ConnectionLimiter,
    end_connection,
    find_connection,
    source_descriptor,
)
from dafka.transport.socket import BaseSocket
from dafka.wire import Command

DRAIN_COUNT_MAX = 1000
"""Subscriptions received at once, so that one batch takes a few milliseconds."""

COUNT_PER_S = 2000
"""Subscriptions of one connection that are accepted per second in the long run."""

TOTAL_FACTOR = 8
"""The limit on the bytes of all subscriptions, as a multiple of the limit for one connection."""

NAMES_MAX = 64
"""Node addresses that one connection may subscribe with. A correct node has one."""

PENALTY_S = 30.0
"""Seconds for which the limit of a host is halved after one of its connections was ended."""

PENALTY_MAX = 6
"""The most times that the limit of a host is halved."""

COUNT_MIN = 64
"""Subscriptions that a new connection may always send at once, even if the limit of its host was halved."""

HOSTS_MAX = 1024
"""Hosts with a penalty that are remembered."""

MANY_SUBSCRIPTIONS = "connection ended: too many subscriptions"
MANY_NAMES = "too many addresses of one connection"
NO_SUBSCRIPTION = "not a subscription"

_NAMING = frozenset(
    command.value
    for command in (
        Command.ACK,
        Command.CONSUMER_HELLO,
        Command.DIRECT_EARLIEST,
        Command.DIRECT_HEAD,
        Command.DIRECT_RECORD,
        Command.DIRECT_TOPICS,
        Command.GET_TOPICS,
        Command.STORE_HELLO,
    )
)
"""The commands that a node subscribes to with its own address."""


class PublisherSocket(BaseSocket):
    """An XPUB socket with limits. Only one task may receive at a time; any task may send."""

    def __init__(self, socket: zmq.Socket[bytes], config: NodeConfig) -> None:
        """Wrap an XPUB socket. The limits are those of `[node]`."""
        super().__init__(socket)
        self._subscriptions = SubscriptionLimits(config.subscription_bytes_max, config.subscriptions_max)
        self._connections_max = config.connections_max
        self._limiter = ConnectionLimiter("", config.connections_max)

    @property
    def discarded(self) -> Counter[str]:
        """Subscriptions discarded and connections ended, by reason."""
        return self._subscriptions.discarded

    def bind(self, endpoint: str) -> str:
        """See `BaseSocket.bind`."""
        bound = super().bind(endpoint)
        self._limiter = ConnectionLimiter(bound, self._connections_max)
        return bound

    async def receive_many(self) -> list[list[bytes]]:
        """Wait for subscriptions, and return those within the limits. A checkpoint."""
        while True:
            await trio.lowlevel.checkpoint()
            subscriptions = self.receive_nowait()
            if subscriptions:
                return subscriptions
            await self._wait_events()

    def receive_nowait(self) -> list[list[bytes]]:
        """Return the waiting subscriptions that are within the limits, out of up to `DRAIN_COUNT_MAX`."""
        now = trio.current_time()
        begun: dict[int, bool] = {}
        accepted: list[list[bytes]] = []
        for frame in self._drain():
            source = source_descriptor(frame)
            subscription = frame.bytes
            if source is not None:
                if source not in begun:
                    begun[source] = self._subscriptions.begin_messages(source, now)
                if begun[source] and not self._subscriptions.accept_message(source, subscription, now):
                    continue
            accepted.append([subscription])
        return accepted

    async def watch(self) -> None:
        """Enforce the limit on connections from time to time, until cancelled."""
        while True:
            await trio.sleep(SWEEP_S)
            self.enforce_limits(trio.current_time())

    def enforce_limits(self, now: float) -> None:
        """Forget connections that have ended, and end surplus ones."""
        self._subscriptions.forget_ended()
        ended = self._limiter.end_surplus(self._subscriptions.connections(), now)
        if ended:
            self.discarded[MANY_CONNECTIONS] += ended

    def _drain(self) -> Iterator[zmq.Frame]:
        """Yield the first frame of each waiting message."""
        receive = self._socket.recv
        try:
            for _ in range(DRAIN_COUNT_MAX):
                first = frame = receive(zmq.NOBLOCK, copy=False)
                while frame.more:
                    frame = receive(zmq.NOBLOCK, copy=False)
                yield first
        except zmq.Again:
            return


@attrs.define
class _Account:
    """The subscriptions of one connection."""

    connection: Connection
    bucket: TokenBucket
    bytes_used: int = 0
    names: set[bytes] = attrs.field(factory=set)
    is_ended: bool = False


class SubscriptionLimits:
    """Limits on the subscriptions of each connection.

    Attributes:
        discarded: Subscriptions discarded and connections ended, by reason.
    """

    def __init__(self, bytes_max: int, count_max: int) -> None:
        """Create the limits.

        Args:
            bytes_max: Bytes of all subscriptions of one connection.
            count_max: Subscriptions that one connection may send at once.
        """
        self.discarded: Counter[str] = Counter()
        self._bytes_max = bytes_max
        self._count_max = count_max
        self._bytes = 0
        self._accounts: dict[int, _Account] = {}
        self._penalties: dict[str, tuple[float, int]] = {}

    def connections(self) -> dict[int, Connection]:
        """Return the connections that have subscribed, by descriptor, the newest last."""
        return {descriptor: account.connection for descriptor, account in self._accounts.items()}

    def begin_messages(self, descriptor: int, now: float) -> bool:
        """Prepare for messages that arrived on a descriptor. Return False if its connection has ended since."""
        connection = find_connection(descriptor)
        account = self._accounts.get(descriptor)
        if account is None or account.connection != connection:
            self.forget_connection(descriptor)
            if connection is None:
                return False
            count_max = max(self._count_max >> self._penalty(connection.host, now), COUNT_MIN)
            self._accounts[descriptor] = _Account(connection, TokenBucket(COUNT_PER_S, count_max, now))
        return True

    def accept_message(self, descriptor: int, message: bytes, now: float) -> bool:
        """Count a message, and return whether to accept it. End its connection if that exceeds a limit.

        Call `begin_messages` first.
        """
        account = self._accounts[descriptor]
        if account.is_ended:
            return False
        is_too_often = account.bucket.spend(now) < 0
        is_subscription = message[:1] in (b"\0", b"\1")
        if is_subscription and message[0]:
            account.bytes_used += len(message)
            self._bytes += len(message)
        if not self._is_within_limits(descriptor, account, now, is_too_often=is_too_often):
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

    def forget_ended(self) -> None:
        """Forget the connections that have ended."""
        for descriptor, connection in self.connections().items():
            if find_connection(descriptor) != connection:
                self.forget_connection(descriptor)

    def forget_connection(self, descriptor: int) -> None:
        """Forget one connection."""
        account = self._accounts.pop(descriptor, None)
        if account is not None:
            self._bytes -= account.bytes_used

    def _is_within_limits(self, descriptor: int, account: _Account, now: float, *, is_too_often: bool) -> bool:
        """End connections that exceed a limit. Return whether this one is still open."""
        if is_too_often or account.bytes_used > self._bytes_max:
            self._end(descriptor, account, now)
        while self._bytes > TOTAL_FACTOR * self._bytes_max:
            largest = max(self._accounts, key=lambda each: self._accounts[each].bytes_used)
            self._end(largest, self._accounts[largest], now)
        return not account.is_ended

    def _end(self, descriptor: int, account: _Account, now: float) -> None:
        account.is_ended = True
        self._bytes -= account.bytes_used
        account.bytes_used = 0
        end_connection(descriptor, account.connection)
        self.discarded[MANY_SUBSCRIPTIONS] += 1
        host = account.connection.host
        if host in self._penalties or len(self._penalties) < HOSTS_MAX:
            self._penalties[host] = now + PENALTY_S, min(self._penalty(host, now) + 1, PENALTY_MAX)

    def _penalty(self, host: str, now: float) -> int:
        until, penalty = self._penalties.get(host, (now, 0))
        if until > now:
            return penalty
        self._penalties.pop(host, None)
        return 0
