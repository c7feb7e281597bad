"""Placement: on which brokers the replicas of a log are put.

`Balancer` places new logs by it, and replaces replicas by it, so that both follow one plan.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import attrs

from dafka.protocol.rendezvous import weigh_node


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
    log: str,
    brokers: Sequence[BrokerSpace],
    count: int,
    loads: Mapping[str, int],
    kept: Collection[str] = (),
) -> tuple[str, ...]:
    """Choose the replicas of a log.

    Each further replica goes to one of the racks that have the fewest of its replicas, there to a broker that keeps the
    fewest logs, and of these to the one with most free space.

    Args:
        log: The name of the log, which decides between brokers that are equal in all this.
        brokers: The living brokers.
        count: The number of replicas.
        loads: How many replicas each broker has.
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
        best = min(
            free,
            key=lambda each: (
                used.count(each.rack),
                loads.get(each.broker, 0),
                -each.free_bytes,
                weigh_node(log, each.broker),
            ),
        )
        chosen.append(best.broker)
    return tuple(chosen)
