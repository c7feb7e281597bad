"""What scenarios of several roles have in common: a peer that falls silent, what is regular, and how much is much."""

from __future__ import annotations

from collections.abc import Sequence

from dafka_conformance.testbed.scripted_peer import ScriptedPeer
from dafka_conformance.testbed.testbed import Testbed

MIB = 1024 * 1024
SILENCE_MAX_S = 8.0
"""How long a node may take to drop a silent peer, if it ever does. Both known implementations take 4 to 5 s."""

JITTER_S = 1.0
"""By so much a busy machine may shift what is regular."""

SERIES_MAX = 3
"""So often is an interval measured where it is not regular: a machine that stood still for a moment does so once."""


def is_regular(gaps: Sequence[float]) -> bool:
    """Are these the seconds between what comes at an interval?"""
    return max(gaps) <= 3 * min(gaps) + JITTER_S


def silence_s(testbed: Testbed) -> float:
    """For how long a peer has to be silent: a target that is given little patience keeps its own time all the same."""
    return SILENCE_MAX_S * max(testbed.patience, 1.0)


async def until_dropped(testbed: Testbed, peer: ScriptedPeer) -> bool:
    """No tower tells of the peer any more; waits until the target drops its connection, or long enough for that.

    Gives whether it did.
    """
    testbed.discovery.withdraw(peer.address)
    testbed.trace.add_note(f"no tower tells of {peer.label} any more")
    before = dict(+peer.subscriptions)
    return await testbed.wait(
        lambda: all(peer.subscriptions[prefix] < count for prefix, count in before.items()),
        silence_s(testbed) / testbed.patience,
    )
