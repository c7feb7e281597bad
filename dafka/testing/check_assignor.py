"""Checks an assignor against the contract of `dafka.assignors.Assignor`. It does not need pytest."""

from __future__ import annotations

from random import Random

import attrs

from dafka.assignors import Assignor, Subscriber
from dafka.broker.core.groups.consumer.assignors import find_assignment_problem

_CHANGES = 5
"""How often the members of a group change."""


def check_assignor(assignor: Assignor, *, groups: int = 200) -> None:
    """Assign the logs of random groups, whose members come and go, and check that each log has one reader.

    Args:
        assignor: The assignor.
        groups: How many groups to try. They are the same in each call.

    Raises:
        AssertionError: The contract is broken; the message says how, and names the group.
    """
    for seed in range(groups):
        draw = Random(seed)
        counts = {f"topic-{number}": draw.randint(0, 8) for number in range(draw.randint(0, 4))}
        members: dict[str, Subscriber] = {}
        for number in range(_CHANGES):
            for added in range(draw.randint(0, 3)):
                members[f"member-{number}-{added}"] = _draw_member(draw, counts)
            for member_id in draw.sample(sorted(members), min(len(members), draw.randint(0, 2))):
                del members[member_id]
            found = assignor.assign(members, counts)
            problem = find_assignment_problem(found, members, counts)
            if problem:
                raise AssertionError(f"{problem}: topics {counts!r}, members {members!r}, assigned {found!r}")
            members = {each: attrs.evolve(members[each], current=frozenset(found.get(each, ()))) for each in members}


def _draw_member(draw: Random, counts: dict[str, int]) -> Subscriber:
    topics = frozenset(each for each in counts if draw.random() < 0.7)
    instance_id = f"instance-{draw.random()}" if draw.random() < 0.5 else ""
    return Subscriber(topics, instance_id=instance_id, rack=draw.choice(["", "east", "west"]))
