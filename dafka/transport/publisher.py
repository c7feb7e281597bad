"""The socket that others connect to: an XPUB that holds no more for any of them than it should.

What a connection may subscribe to is the business of `Subscriptions`; how many there may be, and which of them go
where they are too many, is decided here.
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
"""Subscriptions taken at a time: a few milliseconds' work."""


class PublisherSocket(BaseSocket):
    """An XPUB. Only one task may receive at a time; any may send."""

    def __init__(self, socket: zmq.Socket[bytes], config: NodeConfig) -> None:
        super().__init__(socket)
        self._subscriptions = Subscriptions(config.subscription_bytes_max, config.subscriptions_max)
        self._connections_max = config.connections_max
        self._limiter = ConnectionLimiter("", config.connections_max)

    @property
    def discarded(self) -> Counter[str]:
        """Subscriptions not passed on, and connections ended, by reason."""
        return self._subscriptions.discarded

    def bind(self, endpoint: str) -> str:
        """See `BaseSocket.bind`."""
        bound = super().bind(endpoint)
        self._limiter = ConnectionLimiter(bound, self._connections_max)
        return bound

    async def receive_many(self) -> list[list[bytes]]:
        """Waits for subscriptions and gives those that may be. A checkpoint."""
        while True:
            await trio.lowlevel.checkpoint()
            subscriptions = self.receive_nowait()
            if subscriptions:
                return subscriptions
            await self._wait_events()

    def receive_nowait(self) -> list[list[bytes]]:
        """The subscriptions that are here and may be, of up to `DRAIN_COUNT_MAX`."""
        now = trio.current_time()
        begun: dict[int, bool] = {}
        found: list[list[bytes]] = []
        for frame in self._drain():
            source = source_descriptor(frame)
            octets = frame.bytes
            if source is not None:
                if source not in begun:
                    begun[source] = self._subscriptions.begin(source, now)
                if begun[source] and not self._subscriptions.may_have(source, octets, now):
                    continue
            found.append([octets])
        return found

    async def watch(self) -> None:
        """Counts the connections from time to time, and ends what is too many. Runs until cancelled."""
        while True:
            await trio.sleep(SWEEP_S)
            self.sweep(trio.current_time())

    def sweep(self, now: float) -> None:
        """Forgets who has gone, and ends what is too many."""
        self._subscriptions.forget_gone()
        ended = self._limiter.end_surplus(self._subscriptions.connections(), now)
        if ended:
            self.discarded[MANY_CONNECTIONS] += ended

    def _drain(self) -> Iterator[zmq.Frame]:
        """The first frame of each message that is here."""
        receive = self._socket.recv
        try:
            for _ in range(DRAIN_COUNT_MAX):
                first = frame = receive(zmq.NOBLOCK, copy=False)
                while frame.more:
                    frame = receive(zmq.NOBLOCK, copy=False)
                yield first
        except zmq.Again:
            return


COUNT_PER_S = 2000
"""Subscriptions a second that are no burst."""

TOTAL_FACTOR = 8
"""All connections together may have the subscriptions of so many that have as many as one may."""

NAMES_MAX = 64
"""Node addresses that one connection may subscribe with: a node has one."""

PENALTY_S = 30.0
"""A host whose connection was ended may subscribe to half as much at a time, for so long."""

PENALTY_MAX = 6
"""So often it is halved."""

COUNT_MIN = 64
"""However often a host's connections were ended, a new one may have so many."""

HOSTS_MAX = 1024
"""Hosts about which this is remembered."""

MANY_SUBSCRIPTIONS = "connection ended: too many subscriptions"
MANY_NAMES = "too many addresses of one connection"
NO_SUBSCRIPTION = "no subscription"

_NAMING = frozenset(
    command.value
    for command in (
        Command.ACK,
        Command.CONSUMER_HELLO,
        Command.DIRECT_EARLIEST,
        Command.DIRECT_HEAD,
        Command.DIRECT_RECORD,
        Command.STORE_HELLO,
    )
)
"""What a node subscribes to with its own address."""


@attrs.define
class _Account:
    """What one connection has."""

    connection: Connection
    since: float
    bucket: TokenBucket
    octets: int = 0
    names: set[bytes] = attrs.field(factory=set)
    is_ended: bool = False


class Subscriptions:
    """Attributes:
    discarded: subscriptions not passed on, and connections ended, by reason.
    """

    def __init__(self, octets_max: int, count_max: int) -> None:
        """A connection may subscribe to prefixes of `octets_max` octets together, `count_max` at once."""
        self.discarded: Counter[str] = Counter()
        self._octets_max = octets_max
        self._count_max = count_max
        self._octets = 0
        self._accounts: dict[int, _Account] = {}
        self._penalties: dict[str, tuple[float, int]] = {}

    def connections(self) -> dict[int, Connection]:
        """Those that have subscribed, by descriptor, the newest last."""
        return {source: account.connection for source, account in self._accounts.items()}

    def begin(self, source: int, now: float) -> bool:
        """Messages follow that came by this descriptor. False where that connection has gone since."""
        connection = find_connection(source)
        account = self._accounts.get(source)
        if account is None or account.connection != connection:
            self.forget(source)
            if connection is None:
                return False
            count_max = max(self._count_max >> self._penalty(connection.host, now), COUNT_MIN)
            self._accounts[source] = _Account(connection, now, TokenBucket(COUNT_PER_S, count_max, now))
        return True

    def may_have(self, source: int, octets: bytes, now: float) -> bool:
        """Is this message to be passed on? Ends the connection that has too much. `begin` comes before."""
        account = self._accounts[source]
        if account.is_ended:
            return False
        is_too_often = account.bucket.spend(now) < 0
        is_subscription = octets[:1] in (b"\0", b"\1")
        if is_subscription and octets[0]:
            account.octets += len(octets)
            self._octets += len(octets)
        if not self._is_within(source, account, now, is_too_often=is_too_often):
            return False
        if not is_subscription:
            self.discarded[NO_SUBSCRIPTION] += 1
            return False
        name = octets[2:] if octets[1:2] in _NAMING else b""
        if not name or name in account.names:
            return True
        if len(account.names) >= NAMES_MAX:
            self.discarded[MANY_NAMES] += 1
            return False
        account.names.add(name)
        return True

    def forget_gone(self) -> None:
        """Forgets the connections that are no more."""
        for source, connection in self.connections().items():
            if find_connection(source) != connection:
                self.forget(source)

    def forget(self, source: int) -> None:
        """This connection is no more."""
        account = self._accounts.pop(source, None)
        if account is not None:
            self._octets -= account.octets

    def _is_within(self, source: int, account: _Account, now: float, *, is_too_often: bool) -> bool:
        """False where the connection had to be ended."""
        if is_too_often or account.octets > self._octets_max:
            self._end(source, account, now)
        while self._octets > TOTAL_FACTOR * self._octets_max:
            largest = max(self._accounts, key=lambda each: self._accounts[each].octets)
            self._end(largest, self._accounts[largest], now)
        return not account.is_ended

    def _end(self, source: int, account: _Account, now: float) -> None:
        account.is_ended = True
        self._octets -= account.octets
        account.octets = 0
        end_connection(source, account.connection)
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
