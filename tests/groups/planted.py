"""Mistakes in the rules of groups, each of which the simulation must find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from dafka.protocol.groups import GroupAction, GroupMember, GroupView
from dafka.protocol.groups import member as rules
from dafka.protocol.groups.records import Position
from dafka.records import Partition
from tests.groups.running import run_seed


class _KeepsItsLease(GroupMember):
    """Goes on although its signs of life are not confirmed."""

    def _confirm(self, now: float) -> None:
        super()._confirm(now)
        self._lease_end = None if self._lease_end is None else float("inf")


class _TakesOverWithoutAsking(GroupMember):
    """Takes silence for death without asking the stores."""

    def view_changed(self, now: float) -> list[GroupAction]:
        self._view.mark_silent(now, rules.SILENCE_FACTOR, self.address)
        return super().view_changed(now)


class _TakesOverEarly(GroupMember):
    """Waits for less than a lease."""

    def survey_done(self, stores: int, now: float) -> list[GroupAction]:
        if stores >= self.quorum and self._survey_since is not None:
            self._view.mark_silent(self._survey_since, 0.5, self.address)
        return super().survey_done(stores, now)


class _DoesNotLookForRivals(GroupMember):
    """Begins when its claim is durable, without asking who else claims the partition."""

    def _find_rivals(self, partition: Partition, holding: Any, now: float) -> None:
        if self.confirmed_end >= holding.claim_end:
            holding.stage = rules.Stage.WAITING


class _LooksForRivalsTooEarly(GroupMember):
    """Asks who else claims a partition before its own claim is durable."""

    def _find_rivals(self, partition: Partition, holding: Any, now: float) -> None:
        holding.confirmed_at = float("-inf")
        super()._find_rivals(partition, holding, now)


class _AsksOneStore(GroupMember):
    """Takes the word of one store for that of all."""

    @property
    def quorum(self) -> int:
        return 1


class _NeverGivesWay(GroupMember):
    """Keeps what another member should handle."""

    def _is_claimed_by_preferred(self, partition: Partition) -> bool:
        return False


class _BeginsAtTheStart(GroupMember):
    """Does not continue where another member stood."""

    def _take(self, partition: Partition, holding: Any) -> None:
        super()._take(partition, holding)
        self._set_position(partition, holding, Position(holding.position.epoch, self._begin_of(partition)))


class _ForgetsClaims(GroupView):
    """Forgets the claims of a member at its next record."""

    def receive(self, address: str, first_sequence: int, values: Any, now: float) -> None:
        if address in self.members:
            self.members[address].claimed.clear()
        super().receive(address, first_sequence, values, now)


@attrs.frozen
class Planted:
    """A mistake.

    Attributes:
        member: The machine that makes it.
        view: The view that makes it.
        seeds: Seeds of which one finds it, at least.
    """

    member: Callable[..., GroupMember] = GroupMember
    view: Callable[[], GroupView] = GroupView
    seeds: tuple[int, ...] = ()

    def is_found(self, seed: int) -> bool:
        """Return whether a seed finds it."""
        try:
            run_seed(seed, self.member, self.view)
        except AssertionError:
            return True
        return False


PLANTED = {
    "keeps its lease": Planted(_KeepsItsLease, seeds=(0,)),
    "takes over without asking": Planted(_TakesOverWithoutAsking, seeds=(30,)),
    "takes over early": Planted(_TakesOverEarly, seeds=(1,)),
    "does not look for rivals": Planted(_DoesNotLookForRivals, seeds=(0,)),
    "looks for rivals too early": Planted(_LooksForRivalsTooEarly, seeds=(7,)),
    "asks one store": Planted(_AsksOneStore, seeds=(9,)),
    "never gives way": Planted(_NeverGivesWay, seeds=(1,)),
    "begins at the start": Planted(_BeginsAtTheStart, seeds=(0,)),
    "forgets claims": Planted(view=_ForgetsClaims, seeds=(0,)),
}
