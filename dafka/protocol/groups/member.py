"""One member of a group of consumers: which partitions it handles, and from which record on.

Members know each other only from the records of the group's topic. `docs/explanation/groups.md` explains why no two
members hand out the same partition. In short: a member durably claims a partition, then asks the stores which other
members claim it. It begins when all of these have released the partition or are over, and when its own position record
is durable. A member is over when it has been silent for longer than its lease. It also watches the lease itself, and
stops when its heartbeats are no longer confirmed. If two members claim a partition, the one that comes first in the
partition's order keeps it: first the member that `assign_partitions` chooses, then the others by rendezvous hashing.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum, auto
from typing import TypeAlias

import attrs

from dafka.protocol.groups.assignment import GroupAssignment
from dafka.protocol.groups.records import FULL_EVERY_RECORDS, MemberRecord, Position, encode_member_record
from dafka.protocol.groups.view import NO_POSITION, GroupView, Member
from dafka.records import Partition

SILENCE_FACTOR = 1.25
"""Other members treat a member as over after this many leases without a heartbeat. The margin allows for clocks that
run at different speeds, and for records that are still being handled."""

SIGNS_PER_LEASE = 4
"""The number of heartbeats during one lease."""

SURVEYS_PER_LEASE = 8
"""The number of surveys during one lease, while nothing happens."""

SURVEY_PAUSE_S = 0.05
"""The minimum seconds between two surveys, since every store answers each one."""


@attrs.frozen
class Append:
    """Append a record to the member's own partition of the group's topic."""

    value: bytes


@attrs.frozen
class Survey:
    """Ask the stores for all records of the group, read them, and then call `survey_done`."""


@attrs.frozen
class Assign:
    """Hand out the records of a partition from this sequence on."""

    partition: Partition
    sequence: int


@attrs.frozen
class Revoke:
    """Stop handing out records of a partition, and call `handed_out` with the end of what was handed out."""

    partition: Partition


@attrs.frozen
class Lose:
    """Stop handing out records of these partitions: other members can handle them now."""

    partitions: tuple[Partition, ...]


GroupAction: TypeAlias = Append | Survey | Assign | Revoke | Lose


class Stage(Enum):
    """The stages of taking a partition."""

    CLAIMED = auto()
    """The claim is being made durable, or the stores are being asked for other claims."""
    WAITING = auto()
    """Other members with a claim have not released the partition."""
    TAKING = auto()
    """The first position of this epoch is being made durable."""
    HELD = auto()
    """The program handles its records."""
    RELEASING = auto()
    """Another member claims it, and the program has not saved its position."""


@attrs.define(eq=False)
class _Holding:
    """A partition that this member claims, or handles."""

    claim_end: int
    """The sequence after the record with the claim, or, in the stage `TAKING`, after the record with the position."""
    stage: Stage = Stage.CLAIMED
    confirmed_at: float | None = None
    rivals: set[str] = attrs.field(factory=set)
    """Other members that claimed the partition when this member's claim became durable, and still claim it."""
    position: Position = NO_POSITION
    """The position, from `TAKING` on."""
    handed_out: int | None = None
    """The sequence after the last record that the program has received; known after a `Revoke`."""
    release_due: float = float("inf")
    """The time at which it is released even if the program has not saved its position."""


@attrs.frozen(kw_only=True)
class GroupSettings:
    """The settings of a member."""

    topics: tuple[str, ...]
    lease_s: float = 10.0
    """How long others wait for its heartbeat, in seconds."""
    handover_s: float = 5.0
    """How long the program may take to save its position when a partition is handed over, in seconds."""
    stores: int = 0
    """The number of stores that must confirm a record, and answer a survey; 0: more than half of those ever seen."""


class GroupMember:
    """The machine of one member, from its first record to its last. A node whose member is over starts a new one.

    The address is that of the node that publishes the member's records. Its view of the group outlives the member.
    `begin_of` returns the first sequence of a partition without a saved position.
    """

    def __init__(
        self, address: str, settings: GroupSettings, view: GroupView, begin_of: Callable[[Partition], int]
    ) -> None:
        self.address = address
        self.is_over = False
        """Whether the member has left, or its lease has ended."""
        self.confirmed_end = 0
        """All records before this sequence are confirmed by enough stores."""
        self._settings = settings
        self._sign_interval_s = settings.lease_s / SIGNS_PER_LEASE
        self._view = view
        self._begin_of = begin_of
        self._topics = frozenset(settings.topics)
        self._partitions: dict[Partition, float] = {}
        self._assignment = GroupAssignment(address, self._topics, view)
        self._holdings: dict[Partition, _Holding] = {}
        self._positions: dict[Partition, Position] = {}
        self.end_sequence = 0
        """The sequence after the last record that this member has published."""
        self._sent: deque[tuple[int, float]] = deque()
        self._last_sent_at = float("-inf")
        self._lease_end: float | None = None
        self._acknowledged: dict[str, int] = {}
        self._stores_seen = 0
        self._quorum_version = -1
        self._surveyed_at = float("-inf")
        self._survey_since: float | None = None
        self._last_survey_at = float("-inf")
        self._next_survey_at = float("-inf")
        self._unsettled: set[Partition] = set()
        self._seen_version = -1
        self._is_stale = True
        self._newly_claimed: set[Partition] = set()
        self._released: set[Partition] = set()
        self._changed: dict[Partition, Position] = {}
        self._told_over: frozenset[str] = frozenset()
        self._is_leaving = False

    @property
    def quorum(self) -> int:
        """The number of stores that must confirm a record, and answer a survey: two such sets always overlap."""
        if self._settings.stores:
            return self._settings.stores
        if self._quorum_version != self._view.version:
            self._quorum_version, self._stores_seen = self._view.version, self._view.stores
        return max(self._view.own_stores, self._stores_seen, 1) // 2 + 1

    def held(self) -> dict[Partition, int]:
        """Return the partitions whose records the program handles, each with its saved position."""
        stages = (Stage.HELD, Stage.RELEASING)
        return {each: holding.position.sequence for each, holding in self._holdings.items() if holding.stage in stages}

    def may_hand_out(self, partition: Partition, now: float) -> bool:
        """Return whether records of a partition can be handed out."""
        holding = self._holdings.get(partition)
        return holding is not None and holding.stage is Stage.HELD and self.has_lease(now)

    def has_lease(self, now: float) -> bool:
        """Return whether no other member can take over this one's partitions."""
        return not self.is_over and self._lease_end is not None and now < self._lease_end

    # What happens

    def start(self, now: float) -> list[GroupAction]:
        """Publish the first record."""
        return self._advance(now)

    def record_stores(self, count: int, now: float) -> list[GroupAction]:
        """Record how many stores are connected."""
        self._view.own_stores = max(self._view.own_stores, count)
        return self._advance(now)

    def partitions_known(self, partitions: Iterable[Partition], now: float) -> list[GroupAction]:
        """Record partitions of the group's topics."""
        for partition in partitions:
            if partition.topic in self._topics and partition not in self._partitions:
                self._partitions[partition] = now
                self._is_stale = True
        return self._advance(now)

    def acknowledged(self, ends: Mapping[str, int], now: float) -> list[GroupAction]:
        """Record, by store, the sequence before which it holds all records of this member."""
        self._acknowledged.update(ends)
        return self._advance(now)

    def view_changed(self, now: float) -> list[GroupAction]:
        """Record that the view has read more records."""
        return self._advance(now)

    def survey_done(self, stores: int, now: float) -> list[GroupAction]:
        """Record that all records have been read that a number of stores had when `Survey` was requested."""
        since, self._survey_since = self._survey_since, None
        if since is not None and not self._has_lost(now) and stores >= self.quorum:
            self._surveyed_at = since
            self._view.mark_silent(since, SILENCE_FACTOR, self.address)
            self._is_stale = True
        return self._advance(now)

    def handed_out(self, partition: Partition, sequence: int, now: float) -> list[GroupAction]:
        """Record how far a partition was handed out, after `Revoke`."""
        holding = self._holdings.get(partition)
        if holding is not None and holding.stage is Stage.RELEASING:
            holding.handed_out = sequence
        return self._advance(now)

    def commit(self, positions: Mapping[Partition, int], now: float) -> list[GroupAction]:
        """Save positions of handled partitions; others are ignored.

        They are saved when `confirmed_end` has reached the value of `end_sequence` after this call.
        """
        for partition, sequence in positions.items():
            holding = self._holdings.get(partition)
            if holding is None or holding.stage not in {Stage.HELD, Stage.RELEASING}:
                continue
            if holding.position.sequence != sequence:
                self._set_position(partition, holding, Position(holding.position.epoch, sequence))
        return self._advance(now)

    def leave(self, now: float) -> list[GroupAction]:
        """Release everything, and publish the last record. The program handles nothing any more."""
        self._is_leaving = True
        return self._advance(now)

    def tick(self, now: float) -> list[GroupAction]:
        """Do what is due."""
        return self._advance(now)

    def deadline(self) -> float:
        """Return when to call `tick`."""
        if self.is_over:
            return float("inf")
        due = [self._last_sent_at + self._sign_interval_s]
        if self._lease_end is not None:
            due.append(self._lease_end)
        if self._survey_since is None:
            due.append(self._next_survey_at)
        due += [each.release_due for each in self._holdings.values() if each.stage is Stage.RELEASING]
        return min(due)

    # What follows

    def _advance(self, now: float) -> list[GroupAction]:
        if self.is_over:
            return []
        if self._has_lost(now):
            return self._lose()
        self._confirm(now)
        actions: list[GroupAction] = []
        if self.has_lease(now) and not self._is_leaving:
            is_due = now >= self._last_sent_at + self._sign_interval_s
            is_changed = self._is_stale or is_due or self._view.version != self._seen_version
            self._is_stale, self._seen_version = False, self._view.version
            if is_changed:
                self._assignment.update(self._partitions.keys())
            for partition in list(self._holdings if is_changed else self._unsettled):
                actions += self._advance_holding(partition, self._holdings[partition], now)
            if is_changed:
                self._claim(now)
        actions += self._publish(now)
        if self._is_leaving:
            return [*actions, *self._lose()]
        return actions + self._survey(now)

    def _has_lost(self, now: float) -> bool:
        """Return whether the lease has ended, or others say so."""
        return (self._lease_end is not None and now >= self._lease_end) or self._view.is_over(self.address)

    def _lose(self) -> list[GroupAction]:
        lost = tuple(self.held())
        self.is_over = True
        self._holdings.clear()
        self._unsettled.clear()
        self._view.mark_over([self.address])
        return [Lose(lost)] if lost else []

    def _confirm(self, now: float) -> None:
        """Extend the lease: it begins when a record is published, once enough stores have confirmed it."""
        ends = self._acknowledged.values()
        if len(ends) < self.quorum:
            return
        self.confirmed_end = max(self.confirmed_end, heapq.nlargest(self.quorum, ends)[-1])
        while self._sent and self._sent[0][0] <= self.confirmed_end:
            _, sent_at = self._sent.popleft()
            lease_end = sent_at + self._settings.lease_s
            if lease_end > now:
                self._lease_end = lease_end

    def _advance_holding(self, partition: Partition, holding: _Holding, now: float) -> list[GroupAction]:
        if self._is_claimed_by_preferred(partition):
            return self._give_way(partition, holding, now)
        if holding.stage is Stage.CLAIMED:
            self._find_rivals(partition, holding, now)
        if holding.stage is Stage.WAITING:
            holding.rivals = {each for each in holding.rivals if self._is_rival(each, partition)}
            if not holding.rivals:
                self._take(partition, holding)
        if holding.stage is Stage.TAKING and self.confirmed_end >= holding.claim_end:
            holding.stage = Stage.HELD
            self._unsettled.discard(partition)
            return [Assign(partition, holding.position.sequence)]
        if holding.stage is Stage.RELEASING and self._is_released(holding, now):
            self._release(partition)  # the preferred member has left meanwhile; this one claims the partition again
        return []

    def _give_way(self, partition: Partition, holding: _Holding, now: float) -> list[GroupAction]:
        """Release a partition that a preferred member claims; if handled, after the program has saved its position."""
        if holding.stage is Stage.HELD:
            holding.stage, holding.release_due = Stage.RELEASING, now + self._settings.handover_s
            self._unsettled.add(partition)
            return [Revoke(partition)]
        if holding.stage is not Stage.RELEASING or self._is_released(holding, now):
            self._release(partition)
        return []

    def _find_rivals(self, partition: Partition, holding: _Holding, now: float) -> None:
        """Find other claims of a partition, once no later member can miss this member's claim."""
        if holding.confirmed_at is None and self.confirmed_end >= holding.claim_end:
            holding.confirmed_at = now
        if holding.confirmed_at is not None and self._surveyed_at >= holding.confirmed_at:
            holding.rivals = {each.address for each in self._others() if each.may_claim(partition)}
            holding.stage = Stage.WAITING

    def _is_rival(self, address: str, partition: Partition) -> bool:
        """Return whether another member still claims a partition, or may have confirmed records that are unread."""
        other = self._view.members[address]
        return self._surveyed_at < other.over_since if other.is_over else other.may_claim(partition)

    def _take(self, partition: Partition, holding: _Holding) -> None:
        known = self._view.position(partition)
        sequence = self._begin_of(partition) if known is None else known.sequence
        self._set_position(partition, holding, Position((known or NO_POSITION).epoch + 1, sequence))
        holding.stage, holding.claim_end = Stage.TAKING, self.end_sequence + 1

    def _is_released(self, holding: _Holding, now: float) -> bool:
        is_saved = holding.handed_out is not None and holding.position.sequence >= holding.handed_out
        return is_saved or now >= holding.release_due

    def _release(self, partition: Partition) -> None:
        del self._holdings[partition]
        self._unsettled.discard(partition)
        self._newly_claimed.discard(partition)
        self._released.add(partition)
        self._is_stale = True

    def _set_position(self, partition: Partition, holding: _Holding, position: Position) -> None:
        holding.position = self._positions[partition] = self._changed[partition] = position

    def _claim(self, now: float) -> None:
        """Claim what this member should handle.

        A member that is not the preferred one claims a partition only if nobody has for a while, since the preferred
        one may not know the partition.
        """
        if self._surveyed_at == float("-inf"):
            return
        others = list(self._others())
        for partition, since in self._partitions.items():
            if partition in self._holdings or partition in self._released:
                continue
            rank = self._assignment.rank(partition)
            if rank and any(each.may_claim(partition) for each in others):
                self._partitions[partition] = now
            elif now - since >= rank * self._settings.lease_s:
                self._holdings[partition] = _Holding(self.end_sequence + 1)
                self._unsettled.add(partition)
                self._newly_claimed.add(partition)

    def _others(self) -> Iterator[Member]:
        return (each for each in self._view.living() if each.address != self.address)

    def _is_claimed_by_preferred(self, partition: Partition) -> bool:
        for address in self._assignment.order(partition):
            if address == self.address:
                return False
            if self._view.members[address].may_claim(partition):
                return True
        return False

    # What is published

    def _publish(self, now: float) -> list[GroupAction]:
        over = self._view.expired
        is_due = now >= self._last_sent_at + self._sign_interval_s
        is_news = self._newly_claimed or self._released or self._changed or over is not self._told_over
        if not (is_due or is_news or self._is_leaving):
            return []
        is_full = self._is_leaving or self.end_sequence % FULL_EVERY_RECORDS == 0
        claimed = set() if self._is_leaving else self._holdings.keys() if is_full else self._newly_claimed
        record = MemberRecord(
            lease_ms=round(self._settings.lease_s * 1000),
            topics=self._settings.topics,
            stores=self._view.own_stores,
            is_full=is_full,
            is_leaving=self._is_leaving,
            claimed=frozenset(claimed),
            released=frozenset() if is_full else frozenset(self._released),
            positions=self._positions if is_full else self._changed,
            over=over if is_full else over - self._told_over,
        )
        self._newly_claimed, self._released, self._changed, self._told_over = set(), set(), {}, over
        self.end_sequence += 1
        self._last_sent_at = now
        self._sent.append((self.end_sequence, now))
        return [Append(encode_member_record(record))]

    def _survey(self, now: float) -> list[GroupAction]:
        """Survey the stores repeatedly, and soon if a claim waits for it."""
        if self._survey_since is not None:
            return []
        if any(self._waits_for_survey(self._holdings[each]) for each in self._unsettled):
            self._next_survey_at = min(self._next_survey_at, self._last_survey_at + SURVEY_PAUSE_S)
        if now < self._next_survey_at:
            return []
        self._survey_since = self._last_survey_at = now
        self._next_survey_at = now + self._settings.lease_s / SURVEYS_PER_LEASE
        return [Survey()]

    def _waits_for_survey(self, holding: _Holding) -> bool:
        if holding.stage is Stage.CLAIMED:
            return holding.confirmed_at is not None
        return holding.stage is Stage.WAITING and any(self._view.members[each].is_over for each in holding.rivals)
