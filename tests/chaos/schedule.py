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


def plan(seed: int, length_s: float, pace: Pace, only: Sequence[str] = FAULTS) -> Lanes:
    """Return the faults of a run of this length."""
    random = Random(seed)
    processes = _lane(random, [kind for kind in PROCESS_FAULTS if kind in only], length_s, pace)
    losses: list[Fault] = []
    step_s = min(pace.losses_every_s, length_s / 3)
    at_s = step_s / 2
    while at_s <= length_s - step_s / 2:
        kinds = [kind for kind in LOSSES if kind in only and (kind != "delete-storage" or at_s <= pace.delete_until_s)]
        if kinds:
            losses.append(_fault(random, _from_bag(random, kinds, losses), at_s, pace))
        at_s += step_s
    network = _lane(random, [kind for kind in NETWORK_FAULTS if kind in only], length_s, pace)
    return processes, losses, network


def plan_each(seed: int, pace: Pace, only: Sequence[str] = FAULTS) -> Lanes:
    """Return every fault once, each right after the one before in its lane."""
    random = Random(seed)

    def lane(kinds: Sequence[str]) -> list[Fault]:
        chosen = [kind for kind in kinds if kind in only]
        random.shuffle(chosen)
        return [_fault(random, kind, pace.calm_s, pace) for kind in chosen]

    return lane(PROCESS_FAULTS), lane(LOSSES), lane(NETWORK_FAULTS)


def _lane(random: Random, kinds: list[str], length_s: float, pace: Pace) -> list[Fault]:
    """Return one lane, with each kind equally often, in a changing order."""
    faults: list[Fault] = []
    at_s = pace.calm_s
    while kinds and at_s < length_s - pace.calm_s:
        fault = _fault(random, _from_bag(random, kinds, faults), at_s, pace)
        faults.append(fault)
        at_s += fault.duration_s + random.uniform(*pace.gap_s)
    return faults


def _from_bag(random: Random, kinds: list[str], drawn: list[Fault]) -> str:
    counts = {kind: sum(fault.kind == kind for fault in drawn) for kind in kinds}
    fewest = min(counts.values())
    return random.choice([kind for kind in kinds if counts[kind] == fewest])


def _fault(random: Random, kind: str, at_s: float, pace: Pace) -> Fault:
    return Fault(kind, at_s, random.uniform(*pace.duration_s), random.randrange(2**31), random.random())
