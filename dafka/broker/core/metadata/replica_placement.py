"""Where the replicas of a log are, why they change, and the choice of brokers for them.

`Balancer` uses the choice to place new logs and to replace replicas, so both follow one plan.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import Enum

import attrs

from dafka.protocol.rendezvous import weigh_node


class Reason(Enum):
    """The reason why the replicas of a log change."""

    ASKED = "an operator has named the brokers that keep it"
    DRAINED = "a broker that keeps it is drained"
    DEAD = "a broker that keeps it has been dead for too long"
    MISSING = "it has fewer replicas than it should"
    SHARE = "a broker that has come gets its share of the logs"
    SURPLUS = "it has more replicas than it should"


@attrs.frozen
class LogPlacement:
    """A log, as the balancer sees it."""

    name: str
    leader: str  # empty if it has none
    replicas: tuple[str, ...]
    wanted: int  # how many replicas it should have
    in_sync: Collection[str] = ()  # only needed at the leader
    is_fixed: bool = False  # an operator has chosen its replicas, so that they stay


@attrs.frozen
class Reassignment:
    """A change of a log's replicas."""

    log: str
    replicas: tuple[str, ...]
    reason: Reason


@attrs.frozen
class BrokerSpace:
    """A broker, as placement sees it. It takes replicas if it is neither full nor drained."""

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
    """Choose the replicas of a log, the kept ones first; fewer than `count` if there are not enough living brokers.

    Each added replica goes to a rack with the fewest replicas of the log, there to a broker with the fewest logs, and
    of these to the one with the most free space. The name of the log decides between equal brokers.
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
