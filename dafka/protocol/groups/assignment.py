"""Assigns partitions to the members of a group: in equal shares, with few moves when members come or go.

Each partition ranks the members that consume its topic by rendezvous hashing. If each partition went to its first
member, a member that comes or goes would move only its own partitions, but the shares would be unequal. So each member
has a quota in each topic. The quotas of a topic differ by one at most, and so do the sums over all topics among members
that consume the same topics. A partition goes to the first member in its ranking whose quota is not filled by
partitions of higher weight.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence, Set

from dafka.protocol.groups.view import GroupView
from dafka.protocol.rendezvous import rank_nodes, weigh_node
from dafka.records import Partition

Ranking = Sequence[tuple[bytes, str]]
"""Members with their weights for a partition, the heaviest first."""


class GroupAssignment:
    """The order of the members for each partition: the one that is assigned, then the others by rendezvous hashing."""

    def __init__(self, address: str, topics: frozenset[str], view: GroupView) -> None:
        self._address = address
        self._topics = topics
        self._view = view
        self._rankings: dict[Partition, Ranking] = {}
        self._members: dict[str, frozenset[str]] = {}
        self._assigned: dict[Partition, str] = {}

    def update(self, known: Set[Partition]) -> None:
        """Assign partitions again if the members, or the partitions that any of them knows, have changed.

        All members must compute the same assignment, so it covers all topics of the group: the partitions that this
        member knows, and those that only others claim. Each partition that a member knows is eventually claimed by one
        of them.
        """
        living = self._view.living()
        topics = self._topics.union(*(each.topics for each in living))
        members = {topic: frozenset(each.address for each in self._view.living(topic)) for topic in topics}
        for topic in self._topics:
            members[topic] |= {self._address}
        partitions = known | {partition for each in living for partition in each.claimed if partition.topic in topics}
        if members != self._members:
            self._members = members
            self._rankings.clear()
        elif partitions == self._assigned.keys():
            return
        self._assigned = assign_partitions({each: self._ranking(each) for each in partitions})

    def rank(self, partition: Partition) -> int:
        """Return how many members come before this one in a partition's order."""
        return list(self.order(partition)).index(self._address)

    def order(self, partition: Partition) -> Iterator[str]:
        """Yield the members in a partition's order."""
        first = self._assigned[partition]
        yield first
        yield from (address for _, address in self._ranking(partition) if address != first)

    def _ranking(self, partition: Partition) -> Ranking:
        found = self._rankings.get(partition)
        if found is None:
            found = self._rankings[partition] = rank_members(partition, self._members[partition.topic])
        return found


def rank_members(partition: Partition, members: Collection[str]) -> Ranking:
    """Rank members for a partition. The order of two members does not depend on the other members."""
    name = str(partition)
    return sorted(((weigh_node(name, member), member) for member in members), reverse=True)


def assign_partitions(rankings: Mapping[Partition, Ranking]) -> dict[Partition, str]:
    """Return the member that should handle each partition. The result does not depend on the order of the argument.

    The ranking of a partition is the result of `rank_members` for the members that consume its topic, at least one.
    """
    topics: dict[str, list[Partition]] = {}
    for partition in rankings:
        topics.setdefault(partition.topic, []).append(partition)
    members = {topic: sorted(member for _, member in rankings[found[0]]) for topic, found in topics.items()}
    quotas = find_quotas({topic: len(found) for topic, found in topics.items()}, members)
    assigned: dict[Partition, str] = {}
    for topic, partitions in topics.items():
        assigned.update(_fill_quotas(partitions, rankings, quotas[topic]))
    return assigned


def find_quotas(counts: Mapping[str, int], members: Mapping[str, Collection[str]]) -> dict[str, dict[str, int]]:
    """Return, by topic and member, the number of partitions that the member should handle.

    `counts` has the number of partitions of each topic. At least one member consumes each topic.
    """
    quotas: dict[str, dict[str, int]] = {}
    loads: Counter[str] = Counter()
    for topic in sorted(counts):
        share, rest = divmod(counts[topic], len(members[topic]))
        ranked = rank_nodes(topic, members[topic])
        quotas[topic] = {member: share + (index < rest) for index, member in enumerate(ranked)}
        loads.update(quotas[topic])
    while (move := _find_move(quotas, loads)) is not None:
        topic, giver, taker = move
        for member, change in ((giver, -1), (taker, 1)):
            quotas[topic][member] += change
            loads[member] += change
    return quotas


def _find_move(quotas: Mapping[str, Mapping[str, int]], loads: Mapping[str, int]) -> tuple[str, str, str] | None:
    """Return a topic, the member to take a partition from, and the one to give it to; None if all shares are equal."""
    givers = sorted(loads, key=lambda member: (-loads[member], member))
    takers = sorted(loads, key=lambda member: (loads[member], member))
    for giver in givers:
        for taker in takers:
            if loads[giver] - loads[taker] < 2:
                break
            topics = [
                topic
                for topic, quota in quotas.items()
                if giver in quota and taker in quota and quota[giver] > quota[taker]
            ]
            if topics:
                return max(topics, key=lambda topic: (weigh_node(topic, taker), topic)), giver, taker
    return None


def _fill_quotas(
    partitions: Sequence[Partition], rankings: Mapping[Partition, Ranking], quota: Mapping[str, int]
) -> dict[Partition, str]:
    """Assign the partitions of one topic. The sum of the quotas is their number."""
    kept: dict[str, list[tuple[bytes, Partition]]] = {member: [] for member in quota}
    asked = dict.fromkeys(partitions, 0)
    for each in partitions:
        looking: Partition | None = each
        while looking is not None:
            weight, member = rankings[looking][asked[looking]]
            asked[looking] += 1
            heapq.heappush(kept[member], (weight, looking))
            looking = heapq.heappop(kept[member])[1] if len(kept[member]) > quota[member] else None
    return {partition: member for member, found in kept.items() for _, partition in found}
