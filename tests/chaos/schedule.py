"""The schedule of the faults, drawn from a seed before anything is started."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import attrs

PROCESS_FAULTS = (
    *("kill-store", "kill-stores", "kill-producer", "kill-consumer", "kill-tower"),
    *("stop-store", "stop-producer", "stop-consumer", "stop-tower", "disk-full"),
)
"""Faults of processes and their disks. One at a time."""

LOSSES = ("delete-storage", "older-copy")
"""Faults that take records away from a store. The next one waits until those records are back."""

NETWORK_FAULTS = ("delay", "throttle", "loss", "stall", "reset", "refuse", "cut")
"""Faults of the connections to one node. One at a time, at the same time as other faults."""

FAULTS = (*PROCESS_FAULTS, *LOSSES, *NETWORK_FAULTS)


@attrs.frozen
class Fault:
    """A fault, with its time in seconds after the start. It waits until the faults before it allow it.

    The remainder of `choice` chooses the node and other details. `severity` is between 0 and 1.
    """

    kind: str
    at_s: float
    duration_s: float
    choice: int
    severity: float


@attrs.frozen(kw_only=True)
class Pace:
    """How often faults come and how long they last: ranges in seconds.

    Storages are deleted only until `delete_until_s`, because a store fetches everything that it has lost.
    """

    calm_s: float = 8.0
    gap_s: tuple[float, float] = (6.0, 25.0)
    duration_s: tuple[float, float] = (0.5, 8.0)
    losses_every_s: float = 240.0
    delete_until_s: float = 600.0


Lanes = tuple[list[Fault], list[Fault], list[Fault]]
"""The faults of processes and disks, those that take records away, and those of the network.

Each lane has one fault at a time, independently of the others.
"""


def plan(seed: int, pace: Pace, length_s: float = 0.0, only: Sequence[str] = FAULTS) -> Lanes:
    """Return the faults of a run of this length: in each lane all kinds, and all again, each time in another order."""
    random = Random(seed)

    def lane(kinds: Sequence[str], gap_s: tuple[float, float]) -> list[Fault]:
        chosen, faults, at_s = [kind for kind in kinds if kind in only], list[Fault](), pace.calm_s
        while chosen and (not faults or at_s < length_s - pace.calm_s):
            for kind in random.sample(chosen, len(chosen)):
                duration_s = random.uniform(*pace.duration_s)
                faults.append(Fault(kind, at_s, duration_s, random.randrange(2**31), random.random()))
                at_s += duration_s + random.uniform(*gap_s)
            chosen = [kind for kind in chosen if kind != "delete-storage" or at_s <= pace.delete_until_s]
        return faults

    return lane(PROCESS_FAULTS, pace.gap_s), lane(LOSSES, (pace.losses_every_s,) * 2), lane(NETWORK_FAULTS, pace.gap_s)
