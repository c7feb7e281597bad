"""Assignors: which member of a consumer group reads which logs."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Protocol

import attrs

from dafka.broker.core.groups.consumer.members import NOTHING, Assignment
from dafka.broker.core.metadata.log_replicas import LogKey


@attrs.frozen
class Subscriber:
    """A member, as assignors see it.

    Attributes:
        topic_ids: The existing topics that it reads.
        current: What the assignment before gave it.
        instance_id: The id of its client if it is a static member; else empty.
        rack: Where it runs; empty if it does not say.
    """

    topic_ids: frozenset[str]
    current: Assignment = NOTHING
    instance_id: str = ""
    rack: str = ""


class Assignor(Protocol):
    """Decides which member reads which logs."""

    def assign(self, members: Mapping[str, Subscriber], log_counts: Mapping[str, int]) -> dict[str, Assignment]:
        """Return the logs of each member, by member id.

        Each log of a topic is given to one member that reads the topic, if there is one. `log_counts` has the number of
        logs of each topic, by id.
        """
        ...


class UniformAssignor:
    """Gives all members the same number of logs, as far as their topics allow, and moves as few logs as possible."""

    def assign(self, members: Mapping[str, Subscriber], log_counts: Mapping[str, int]) -> dict[str, Assignment]:
        """Return the logs of each member, by member id."""
        shares = _Shares(members, log_counts)
        if shares.is_uniform:
            shares.limit_kept()
            shares.give_rest()
        else:
            shares.give_rest()
            shares.balance()
        return {member_id: frozenset(logs) for member_id, logs in shares.logs.items()}


class RangeAssignor:
    """Gives each member a range of neighboring logs of each of its topics.

    Members get logs of the same numbers of topics that have the same number of logs and the same readers.
    """

    def assign(self, members: Mapping[str, Subscriber], log_counts: Mapping[str, int]) -> dict[str, Assignment]:
        """Return the logs of each member, by member id."""
        order = sorted(members, key=lambda each: (members[each].instance_id or each, each))
        found: dict[str, set[LogKey]] = {member_id: set() for member_id in order}
        for topic_id, log_count in log_counts.items():
            readers = [each for each in order if topic_id in members[each].topic_ids]
            first = 0
            for position, reader in enumerate(readers):
                size = log_count // len(readers) + (position < log_count % len(readers))
                found[reader].update(LogKey(topic_id, number) for number in range(first, first + size))
                first += size
        return {member_id: frozenset(logs) for member_id, logs in found.items()}


class _Shares:
    """What each member has while logs are given to members, one by one."""

    def __init__(self, members: Mapping[str, Subscriber], log_counts: Mapping[str, int]) -> None:
        self._order = sorted(members)
        self._readers = {
            topic_id: [each for each in self._order if topic_id in members[each].topic_ids] for topic_id in log_counts
        }
        self._all = {LogKey(topic_id, number) for topic_id, count in log_counts.items() for number in range(count)}
        self.logs: dict[str, list[LogKey]] = {}
        taken: set[LogKey] = set()
        for member_id in self._order:
            subscriber = members[member_id]
            kept = (subscriber.current & self._all) - taken
            self.logs[member_id] = sorted(log for log in kept if log.topic_id in subscriber.topic_ids)
            taken.update(self.logs[member_id])
        self._rest = self._all - taken

    @property
    def is_uniform(self) -> bool:
        """Whether all members read the same topics."""
        return bool(self._order) and all(len(readers) == len(self._order) for readers in self._readers.values())

    def limit_kept(self) -> None:
        """Take logs from members that have more than their share."""
        share, remainder = divmod(len(self._all), len(self._order))
        for member_id in sorted(self._order, key=lambda each: (-len(self.logs[each]), each)):
            logs = self.logs[member_id]
            size = share + (remainder > 0)
            if len(logs) >= size > share:
                remainder -= 1
            self._rest.update(logs[size:])
            del logs[size:]

    def give_rest(self) -> None:
        """Give each remaining log to the reader with the fewest logs, logs with few readers first."""
        by_readers: dict[tuple[str, ...], list[LogKey]] = {}
        for log in sorted(self._rest):
            by_readers.setdefault(tuple(self._readers[log.topic_id]), []).append(log)
        for readers, logs in sorted(by_readers.items(), key=lambda each: (len(each[0]), each[0])):
            heap = [(len(self.logs[each]), each) for each in readers]
            heapq.heapify(heap)
            for log in logs if heap else ():
                size, member_id = heap[0]
                self.logs[member_id].append(log)
                heapq.heapreplace(heap, (size + 1, member_id))

    def balance(self) -> None:
        """Move logs from members with many to readers with at least two fewer, until there is none."""
        is_balanced = False
        while not is_balanced:
            is_balanced = True
            for giver in sorted(self._order, key=lambda each: (-len(self.logs[each]), each)):
                for topic_id in sorted({log.topic_id for log in self.logs[giver]}):
                    is_balanced = not self._move(giver, topic_id) and is_balanced

    def _move(self, giver: str, topic_id: str) -> bool:
        """Move logs of a topic from a member to those with at least two fewer. Return whether there were any."""
        given = [log for log in self.logs[giver] if log.topic_id == topic_id]
        count = 0
        while count < len(given):
            taker = min(self._readers[topic_id], key=lambda each: (len(self.logs[each]), each))
            if len(self.logs[taker]) >= len(self.logs[giver]) - 1:
                break
            count += 1
            self.logs[taker].append(given[-count])
            self.logs[giver].remove(given[-count])
        return count > 0


DEFAULT_ASSIGNORS: Mapping[str, Assignor] = MappingProxyType({"uniform": UniformAssignor(), "range": RangeAssignor()})
"""The assignors of every broker, by name. Groups whose members prefer none use the first one."""


def choose_assignor(preferred: Iterable[str], assignors: Mapping[str, Assignor]) -> str:
    """Return the name of the assignor that most members prefer; of the first one if they prefer none that exists."""
    votes = Counter(name for name in preferred if name in assignors)
    names = list(assignors)
    return max(names, key=lambda each: (votes[each], -names.index(each)))


def find_assignment_problem(
    found: Mapping[str, Collection[LogKey]], members: Mapping[str, Subscriber], log_counts: Mapping[str, int]
) -> str:
    """Return how an assignment breaks the contract of `Assignor.assign`; empty if it does not."""
    strangers = found.keys() - members.keys()
    if strangers:
        return f"there is no member {min(strangers)!r}"
    owners: dict[LogKey, str] = {}
    for member_id, logs in found.items():
        for topic_id, number in logs:
            log = LogKey(topic_id, number)
            if not 0 <= number < log_counts.get(topic_id, 0):
                return f"the topic {topic_id!r} has no log {number}"
            if topic_id not in members[member_id].topic_ids:
                return f"{member_id!r} does not read the topic {topic_id!r}"
            if owners.setdefault(log, member_id) != member_id:
                return f"log {number} of the topic {topic_id!r} has two readers, {owners[log]!r} and {member_id!r}"
    read = frozenset[str]().union(*(each.topic_ids for each in members.values()))
    for topic_id in sorted(read & log_counts.keys()):
        for number in range(log_counts[topic_id]):
            if LogKey(topic_id, number) not in owners:
                return f"log {number} of the topic {topic_id!r} has no reader"
    return ""
