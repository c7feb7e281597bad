"""The choice of the brokers that vote on metadata."""

from __future__ import annotations

from collections.abc import Collection

VOTERS = (1, 3, 5)
"""The possible numbers of brokers that vote on metadata."""


def choose_voters(
    present: tuple[str, ...], controller: str, usable: Collection[str], leaving: Collection[str]
) -> tuple[str, ...]:
    """Return the brokers that vote on metadata next, given the present ones, of which the controller is one.

    The `usable` brokers can become voters. The `leaving` ones are drained or forgotten, so they should not vote.

    There are never fewer voters. A leaving voter is replaced before others are added, and stays until then. The
    controller stays until another voter is the controller, so if it is the only voter, there are two of them meanwhile.
    """
    staying = sorted((each for each in present if each not in leaving), key=lambda each: each != controller)
    added = sorted(set(usable).difference(present, leaving))
    is_growing = len(staying) == len(present)
    limit = len(present) + (len(added) if is_growing else 0)
    count = max(each for each in VOTERS if each <= limit)
    chosen = (*staying, *added)[:count]
    if len(chosen) < count:
        kept = sorted((each for each in present if each in leaving), key=lambda each: each != controller)
        chosen = (*chosen, *kept)[:count]
    if controller in chosen:
        return chosen
    return present if any(each in present for each in chosen) else (controller, *chosen)
