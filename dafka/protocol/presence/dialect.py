"""Chooses the dialect that a node sends if its setting is `auto`: RFC 46's, until there are nodes of libdafka.

A store of libdafka ends with a failed assertion when it receives a FETCH, GET-HEADS or CONSUMER-HELLO in the dialect of
RFC 46 (erratum 30). Publishers filter messages by their first bytes, which are the same in both dialects, so such a
message cannot be withheld from one peer. It reaches a peer only after the peer's subscription has arrived at this node.
So the node watches subscriptions: the reading half of a libdafka store subscribes to these commands, and not to
records. A node also adopts libdafka's dialect when it receives it. Nodes of this project understand both.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable
from typing import TypeVar

from dafka import wire
from dafka.config import NodeConfig
from dafka.wire import Command, Dialect

_Key = TypeVar("_Key")

_RECORD_COMMANDS = frozenset((Command.RECORD, Command.HEAD, Command.DIRECT_RECORD))
"""The commands with records and heads, to which every store that writes records subscribes."""


class DialectChoice:
    """The dialect that one node sends. No node of libdafka can join a closed cluster."""

    def __init__(self, config: NodeConfig, *, is_closed: bool = False) -> None:
        self.dialect = Dialect.LIBDAFKA if config.wire == Dialect.LIBDAFKA.value else Dialect.RFC46
        self.is_fixed = config.wire != "auto" or is_closed
        self._is_heard = False
        self._connections_max = config.connections_max
        self._peers_max = config.peers_max
        self._record_takers: OrderedDict[int, None] = OrderedDict()
        self._readers: OrderedDict[int, None] = OrderedDict()
        self._own_kind: OrderedDict[str, None] = OrderedDict()

    @property
    def may_change(self) -> bool:
        """Whether the next subscription may change the dialect from RFC 46's to libdafka's."""
        return not self.is_fixed and self.dialect is Dialect.RFC46

    @property
    def named_ack_takers(self) -> Container[str]:
        """The addresses of nodes of this project: they understand ACKs in RFC 46's dialect, which name their store."""
        return self._own_kind

    def record_subscriptions(self, subscriptions: Iterable[tuple[int, wire.Subscription]]) -> None:
        """Record subscriptions of peers, each with the number of its connection; -1 if that is unknown."""
        if self.is_fixed:
            return
        for connection, subscription in subscriptions:
            if subscription.active:
                self._record_subscription(connection, subscription)
        self.dialect = Dialect.LIBDAFKA if self._readers or self._is_heard else Dialect.RFC46

    def record_heard(self, dialects: Container[Dialect]) -> None:
        """Record the dialects in which peers have sent messages."""
        if not self.is_fixed and Dialect.LIBDAFKA in dialects:
            self._is_heard = True
            self.dialect = Dialect.LIBDAFKA

    def _record_subscription(self, connection: int, subscription: wire.Subscription) -> None:
        command, topic = subscription.command, subscription.topic
        if command is Command.DIRECT_EARLIEST and topic:
            _add(self._own_kind, topic, self._peers_max)
        elif connection < 0:
            return
        elif command in _RECORD_COMMANDS:
            self._readers.pop(connection, None)
            _add(self._record_takers, connection, self._connections_max)
        elif _is_of_reader(subscription) and connection not in self._record_takers:
            _add(self._readers, connection, self._connections_max)


def _is_of_reader(subscription: wire.Subscription) -> bool:
    """Return whether a store makes this subscription for the requests that it answers."""
    if subscription.command is Command.CONSUMER_HELLO:
        return True
    return subscription.command in (Command.FETCH, Command.GET_HEADS) and not subscription.topic


def _add(known: OrderedDict[_Key, None], key: _Key, count_max: int) -> None:
    """Add a key. Beyond the limit, the oldest one is dropped: a connection makes its subscriptions when it begins."""
    known[key] = None
    if len(known) > count_max:
        known.popitem(last=False)
