"""Helpers for scenarios of several roles: silent peers, regular intervals, and sizes."""

from __future__ import annotations

from collections.abc import Sequence

from dafka_conformance.testbed.scripted_peer import ScriptedPeer
from dafka_conformance.testbed.testbed import Testbed

MIB = 1024 * 1024
SILENCE_MAX_S = 8.0
"""The time within which a node that drops silent peers drops one. Both known implementations take 4 to 5 s."""

JITTER_S = 1.0
"""The deviation of a regular interval that a busy machine may cause."""

SERIES_MAX = 3
"""The maximum number of measurements of an interval, because a busy machine may disturb one of them."""


def is_regular(gaps: Sequence[float]) -> bool:
    """Return whether these gaps in seconds are those of a regular interval."""
    return max(gaps) <= 3 * min(gaps) + JITTER_S


def silence_s(testbed: Testbed) -> float:
    """Return how long a peer must be silent. A patience below 1 does not shorten the target's own timeout."""
    return SILENCE_MAX_S * max(testbed.patience, 1.0)


async def until_dropped(testbed: Testbed, peer: ScriptedPeer) -> bool:
    """Stop announcing a peer, and return whether the target drops its connection in time."""
    testbed.discovery.withdraw(peer.address)
    testbed.trace.add_note(f"the tower stops announcing {peer.label}")
    before = dict(+peer.subscriptions)
    return await testbed.wait(
        lambda: all(peer.subscriptions[prefix] < count for prefix, count in before.items()),
        silence_s(testbed) / testbed.patience,
    )
