"""Placement: on which brokers the replicas of a log are put."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import attrs

CANDIDATES = 3
"""How many brokers are drawn for each replica; the one with most free space gets it."""


@attrs.frozen
class BrokerSpace:
    """A broker, as placement sees it.

    Attributes:
        broker: Its address.
        free_bytes: The free space of its storage.
        rack: Its rack or zone; empty if it has none.
        takes_replicas: Whether it may get further replicas: it is neither full nor drained.
    """

    broker: str
    free_bytes: int
    rack: str = ""
    takes_replicas: bool = True


def choose_replicas(
    brokers: Sequence[BrokerSpace],
    count: int,
    draw_sample: Callable[[Sequence[BrokerSpace], int], Sequence[BrokerSpace]],
    kept: Collection[str] = (),
) -> tuple[str, ...]:
    """Choose the replicas of a log.

    Each further replica goes to the broker with most free space of three that are drawn at random, from racks that
    have the fewest of its replicas.

    Args:
        brokers: The living brokers.
        count: The number of replicas.
        draw_sample: Draws as many different brokers at random as it is asked for, such as `random.sample`.
        kept: The brokers that are replicas and remain so.

    Returns:
        The replicas, those that are kept first; fewer than `count` if there are not enough brokers.
    """
    racks = {each.broker: each.rack for each in brokers}
    chosen = list(kept)
    while len(chosen) < count:
        free = [each for each in brokers if each.takes_replicas and each.broker not in chosen]
        if not free:
            break
        used = [racks.get(each, "") for each in chosen]
        fewest = min(used.count(each.rack) for each in free)
        spread = [each for each in free if used.count(each.rack) == fewest]
        drawn = draw_sample(spread, min(CANDIDATES, len(spread)))
        chosen.append(max(drawn, key=lambda each: each.free_bytes).broker)
    return tuple(chosen)
