"""Rendezvous hashing: an order of brokers for each log, which everybody computes alike."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b


def rank_brokers(log: str, brokers: Iterable[str]) -> list[str]:
    """Return brokers in the order in which they are preferred for a log.

    A broker's coming or going does not change the order of the others.

    Args:
        log: The name of the log.
        brokers: The addresses of the brokers.

    Returns:
        The addresses, the preferred one first.
    """
    return sorted(brokers, key=lambda broker: (weigh_broker(log, broker), broker), reverse=True)


def weigh_broker(log: str, broker: str) -> bytes:
    """Return how much a broker is preferred for a log; the larger, the more."""
    return blake2b(f"{log}\0{broker}".encode(), digest_size=8).digest()
