"""What every role's state machine has in common: how it is told what happens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Protocol

from dafka import wire
from dafka.protocol.actions import Action


class Machine(Protocol):
    """Takes what happens and the time, in seconds on any steady clock; gives what is to be done.

    Attributes:
        discarded: messages thrown away, by reason.
    """

    discarded: Counter[str]

    def start(self, now: float) -> list[Action]:
        """The node begins: what to subscribe to."""

    def receive(self, messages: Iterable[wire.BatchedMessage], now: float) -> list[Action]:
        """Messages came in on the subscriber socket."""

    def subscribed(self, subscriptions: Iterable[wire.Subscription], now: float) -> list[Action]:
        """Peers subscribed at the publisher socket, or unsubscribed."""

    def peer_joined(self, address: str, now: float) -> list[Action]:
        """Discovery found a node; its address is empty where discovery does not know it."""

    def peer_left(self, address: str, now: float) -> list[Action]:
        """Discovery lost a node."""

    def settled(self, now: float) -> list[Action]:
        """The nodes that were there before this one have been found."""

    def tick(self, now: float) -> list[Action]:
        """The time that `deadline` named has come."""

    def deadline(self) -> float:
        """When to call `tick`; infinity where there is nothing to wait for."""
