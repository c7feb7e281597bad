"""Looks on, and fails if two members hand out one partition, or records are skipped, or handled twice without need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from dafka.protocol.groups.assignment import assign_partitions, rank_members
from dafka.records import Partition

if TYPE_CHECKING:
    from tests.groups.processes import Process


@attrs.define
class Progress:
    """How far a partition has come."""

    holder: Process | None = None
    saved: int = 0
    handled: int = 0
    saving: int = 0
    repeated: int = 0
    in_hand: Process | None = None
    revoked_at: float = float("-inf")


class Checker:
    """The onlooker."""

    def __init__(self) -> None:
        self.partitions: dict[Partition, Progress] = {}
        self.handovers = 0

    def of(self, partition: Partition) -> Progress:
        return self.partitions.setdefault(partition, Progress())

    def assigned(self, process: Process, partition: Partition, sequence: int) -> None:
        found = self.of(partition)
        before = found.holder
        assert not _may_hand_out(before, process, partition), (
            f"{partition}: {process.host} and {before and before.host}"
        )
        assert not self._is_handed_over_early(found, process), f"{partition}: {found.in_hand} still handles it"
        assert sequence >= found.saved, f"{partition} goes back to {sequence}, although {found.saved} was saved"
        assert sequence <= found.saving, f"{partition} skips to {sequence}, although only {found.saving} was saved"
        self.handovers += before is not None and before is not process
        found.holder = process

    def revoked(self, process: Process, partition: Partition) -> None:
        """Note that a member hands out no more of a partition."""
        self.of(partition).revoked_at = process.now

    def handed_out(self, process: Process, partition: Partition, first: int, end: int) -> None:
        found = self.of(partition)
        assert found.holder is process, f"{partition}: {process.host} hands out what {found.holder} has"
        found.repeated += max(min(found.handled, end) - first, 0)
        found.in_hand = process

    def handled(self, process: Process, partition: Partition, end: int) -> None:
        found = self.of(partition)
        found.handled = max(found.handled, end)
        if found.in_hand is process:
            found.in_hand = None

    def saving(self, process: Process, positions: Mapping[Partition, int]) -> None:
        for partition, sequence in positions.items():
            found = self.of(partition)
            assert sequence <= found.handled, f"{partition}: {sequence} saved, but only {found.handled} handled"
            found.saving = max(found.saving, sequence)

    def confirm(self, process: Process, saved: Iterable[Mapping[Partition, int]]) -> None:
        for positions in saved:
            for partition, sequence in positions.items():
                found = self.of(partition)
                if found.holder is process:
                    found.saved = max(found.saved, sequence)

    def _is_handed_over_early(self, found: Progress, process: Process) -> bool:
        """Return whether a member that runs and has its lease still handles records, in the time that it has for it."""
        before = found.in_hand
        if before is None or before is process or not before.is_alive or before.is_frozen:
            return False
        has_time = process.now - found.revoked_at < process.handover_s
        return has_time and before.member.has_lease(before.clock())

    def check_end(self, ends: Mapping[str, int], topic: str, living: Sequence[Process]) -> None:
        """Check after a while of peace that all is handled, and each partition by the member that it is assigned to."""
        members = [each.member.address for each in living]
        partitions = [Partition(topic, name) for name in ends]
        assigned = assign_partitions({each: rank_members(each, members) for each in partitions}) if members else {}
        for name, end in ends.items():
            partition = Partition(topic, name)
            holders = [each for each in living if each.member.may_hand_out(partition, each.clock())]
            assert len(holders) == 1, f"{partition} is held by {len(holders)}"
            assert holders[0].member.address == assigned[partition], f"{partition} is not held by the assigned member"
            found = self.of(partition)
            assert found.handled == end, f"{partition}: {found.handled} of {end} records handled"
            assert found.saved == end, f"{partition}: {found.saved} of {end} records saved"


def _may_hand_out(before: Process | None, now: Process, partition: Partition) -> bool:
    """Return whether a process would hand out a partition if it ran now."""
    if before is None or before is now or not before.is_alive:
        return False
    return before.member.may_hand_out(partition, before.clock())
