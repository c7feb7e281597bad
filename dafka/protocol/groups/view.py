"""One node's view of a group, from the records that it has read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from dafka.errors import StorageFormatError
from dafka.protocol.groups.records import MemberRecord, Position, decode_member_record
from dafka.records import Partition

NO_POSITION = Position(0, 0)
"""The position of a partition that no member has handled."""


@attrs.define(eq=False)
class Member:
    """One member of a group, as its records (`MemberRecord`) describe it."""

    address: str
    """The address of the node that publishes its records: another one after each restart."""
    heard_at: float
    """When this node read its latest record."""
    lease_s: float = 0.0
    topics: frozenset[str] = frozenset()
    stores: int = 0
    claimed: set[Partition] = attrs.field(factory=set)
    positions: dict[Partition, Position] = attrs.field(factory=dict)
    is_over: bool = False
    over_since: float = float("-inf")
    """When this node learned from another member that it is over. Until a survey that began later, confirmed records of
    the member can still be unread."""
    is_known: bool = False
    """Whether a full record of it has been read. Until then it may claim any partition."""
    next_sequence: int = 0

    def may_claim(self, partition: Partition) -> bool:
        """Return whether it may claim a partition, as far as is known."""
        return not self.is_over and (partition in self.claimed or not self.is_known)


class GroupView:
    """The members of a group and its positions, as far as one node has read them."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.malformed = 0
        """How many records could not be read."""
        self.version = 0
        """A number that changes when members come, go, or change anything but positions."""
        self.expired: frozenset[str] = frozenset()
        """Members that are over because their lease has ended."""
        self.own_stores = 0
        """The largest number of stores that this node has been connected to. If this node is cut off and starts a new
        member, that member must not mistake the stores that it still sees for all stores."""
        self._positions: dict[Partition, tuple[Position, str]] = {}
        self._over: set[str] = set()

    def receive(self, address: str, first_sequence: int, values: Sequence[bytes | None], now: float) -> None:
        """Take consecutive records of one member.

        If records before the first one are missing, the member's state is unknown until the next full record.
        """
        member = self.members.get(address)
        if member is not None and member.next_sequence != first_sequence:
            member.is_known = False
        for value in values:
            try:
                record = decode_member_record(value or b"")
            except StorageFormatError:
                self.malformed += 1
            else:
                self._receive_record(address, record, now)
        if address in self.members:
            self.members[address].next_sequence = first_sequence + len(values)

    def living(self, topic: str | None = None) -> list[Member]:
        """Return the members that are not known to be over; if a topic is given, only those that consume it."""
        living = (each for each in self.members.values() if not each.is_over)
        return [each for each in living if topic is None or topic in each.topics]

    def position(self, partition: Partition) -> Position | None:
        """Return the position at which the group continues a partition; None if no member has saved one."""
        found = self._positions.get(partition)
        return None if found is None else found[0]

    def positions(self) -> dict[Partition, Position]:
        """Return the positions at which the group continues."""
        return {partition: position for partition, (position, _) in self._positions.items()}

    def is_over(self, address: str) -> bool:
        """Return whether a member is known to be over, even if no record of it has been read."""
        return address in self._over

    @property
    def stores(self) -> int:
        """The largest number of stores that a living member has been connected to."""
        return max((each.stores for each in self.living()), default=0)

    def mark_over(self, addresses: Iterable[str], since: float = float("-inf")) -> frozenset[str]:
        """Record that members are over; see `Member.over_since`. Return those for which this is new."""
        news = frozenset(addresses) - self._over
        self._over |= news
        for address in news & self.members.keys():
            member = self.members[address]
            member.is_over, member.over_since = True, since
            member.claimed.clear()
        if news:
            self.version += 1
            self.expired |= news
        return news

    def mark_silent(self, since: float, factor: float, own_address: str = "") -> frozenset[str]:
        """Record that members are over that have been silent for `factor` leases, except this node's, and return them.

        The last survey was at the time `since`: all records that the stores held then have been read.
        """
        silent = (
            each.address
            for each in self.members.values()
            if not each.is_over and since - each.heard_at >= each.lease_s * factor and each.address != own_address
        )
        return self.mark_over(list(silent), since)

    def _receive_record(self, address: str, record: MemberRecord, now: float) -> None:
        member = self.members.get(address)
        if member is None:
            member = self.members[address] = Member(address, now, is_over=address in self._over)
            self.version += 1
        topics = frozenset(record.topics)
        is_news = bool(record.is_full or record.claimed or record.released)
        self.version += is_news or (topics, record.stores) != (member.topics, member.stores)
        member.heard_at, member.lease_s, member.topics = now, record.lease_ms / 1000, topics
        member.stores = record.stores
        if record.is_full:
            member.is_known = True
            member.claimed.clear()
            member.positions.clear()
        member.claimed.update(record.claimed)
        member.claimed -= record.released
        member.positions.update(record.positions)
        for partition, position in record.positions.items():
            known, source = self._positions.get(partition, (NO_POSITION, address))
            # Two members save one epoch only if one of them has never begun to handle the partition.
            if position.epoch > known.epoch or (
                position.epoch == known.epoch and (source == address or position > known)
            ):
                self._positions[partition] = position, address
        self.mark_over(record.over, now)
        if record.is_leaving:
            self.mark_over([address])
            self.expired -= {address}
        if member.is_over:
            member.claimed.clear()
