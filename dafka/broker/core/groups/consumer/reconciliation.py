"""Moves a member from its present logs to the logs of its assignment.

A log never has two readers: a member first gives up what it must, and gets only what no other member has any more.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import attrs

from dafka.broker.core.groups.consumer.members import NOTHING, Assignment, Member, MemberState
from dafka.broker.core.metadata.log_replicas import LogKey


def reconcile(
    member: Member, target_epoch: int, target: Assignment, owned: Assignment | None, is_held: Callable[[LogKey], bool]
) -> Member:
    """Return a member as it continues after a heartbeat.

    `target` is what the group's assignment gives it since `target_epoch`. `owned` are the logs that the client still
    reads; None if it has not said. `is_held` says whether other members may still read a log.
    """
    if member.state is MemberState.STABLE and member.epoch == target_epoch:
        return member
    if member.state is MemberState.REVOKING and (owned is None or owned & member.revoking):
        return member
    kept, revoked = member.assigned & target, member.assigned - target
    if revoked and (owned is None or owned & revoked):
        return attrs.evolve(member, state=MemberState.REVOKING, assigned=kept, revoking=revoked)
    added = target - kept
    free = frozenset(itertools.filterfalse(is_held, added))
    return attrs.evolve(
        member,
        epoch=target_epoch,
        previous_epoch=member.epoch if member.epoch != target_epoch else member.previous_epoch,
        state=MemberState.STABLE if free == added else MemberState.WAITING,
        assigned=kept | free,
        revoking=NOTHING,
    )
