"""The replicas that the logs of a cluster should have, as commands have ordered them.

The state of the cluster permits a change, and the leader of the log makes it: see `next_replicas`. Elections and
commits never read this table. They read the epoch starts of the log, which say which replicas it has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from enum import StrEnum
from typing import NamedTuple

import attrs

from dafka.broker.core.metadata.leader_and_isr import ReplicaSet
from dafka.broker.core.metadata.topics import Topic

RECOVERY_STEP = 2**20
"""The distance of generations at a recovery. No log gets other replicas so often."""


def recovery_of(generation: int) -> int:
    """Return how often a log had been recovered, given the generation of its replicas.

    A recovery continues a log with one replica, without the votes of a quorum. Its generation is higher than each one
    that the former replicas can have, so that they never continue the log without the recovered replica.
    """
    return generation // RECOVERY_STEP


class Reason(StrEnum):
    """Why the replicas of a log were chosen."""

    CREATED = "created"
    ASKED = "asked"
    FORGOTTEN = "forgotten"
    DRAINED = "drained"
    DEAD = "dead"
    MISSING = "missing"
    RECOVERED = "recovered"
    DAMAGED = "damaged"

    @property
    def sentence(self) -> str:
        """The reason in words."""
        return _SENTENCES[self]


_SENTENCES = {
    Reason.CREATED: "its topic was created with them",
    Reason.ASKED: "an operator has named the brokers that keep it",
    Reason.FORGOTTEN: "a broker that kept it has been forgotten",
    Reason.DRAINED: "a broker that keeps it is drained",
    Reason.DEAD: "a broker that keeps it has been dead for too long",
    Reason.MISSING: "it has fewer replicas than it should",
    Reason.RECOVERED: "an operator has continued it with one replica, because a quorum is lost",
    Reason.DAMAGED: "a broker that keeps it has damaged records of it, and copies it anew",
}


@attrs.frozen
class LogReplicas:
    """The replicas that a log should have.

    Attributes:
        replicas: The stores, the preferred leader first.
        generation: How often other replicas were ordered.
        former: The replicas before the change that is under way; empty if none is.
        reason: Why they were ordered.
        assigned_count: How many an operator has assigned; 0 if the number is that of the topic.
    """

    replicas: tuple[str, ...]
    generation: int = 0
    former: tuple[str, ...] = ()
    reason: Reason = Reason.CREATED
    assigned_count: int = 0

    @property
    def is_changing(self) -> bool:
        """Whether a change is under way: the leader has not reported it as made."""
        return bool(self.former)

    @property
    def added(self) -> tuple[str, ...]:
        """The replicas that a change adds; empty if none is under way."""
        return tuple(each for each in self.replicas if each not in self.former) if self.former else ()

    @property
    def removed(self) -> tuple[str, ...]:
        """The replicas that a change removes; empty if none is under way."""
        return tuple(each for each in self.former if each not in self.replicas)

    def count(self, topic: Topic, default: int) -> int:
        """Return how many replicas the log should have. `default` is for topics that do not say it."""
        return self.assigned_count or topic.replica_count or default

    def order(self, replicas: tuple[str, ...], generation: int, reason: Reason, assigned_count: int = 0) -> LogReplicas:
        """Return the replicas after other ones are ordered. It is no change if only their order is different."""
        former = self.former or self.replicas
        if not self.is_changing and set(replicas) == set(former):
            return attrs.evolve(self, replicas=replicas, assigned_count=assigned_count)
        return LogReplicas(replicas, generation, former, reason, assigned_count)

    def recover(self, store_id: str) -> LogReplicas:
        """Return the replicas after an operator has ordered that one of them continues the log alone.

        It is a change under way until that replica has done so.
        """
        generation = (recovery_of(self.generation) + 1) * RECOVERY_STEP
        return LogReplicas((store_id,), generation, (store_id,), Reason.RECOVERED)

    def finish(self) -> LogReplicas:
        """Return the replicas when the leader has made the change."""
        return attrs.evolve(self, former=())


class LogKey(NamedTuple):
    """A log of a topic."""

    topic_id: str
    number: int


class ReplicaTable:
    """The replicas that all logs should have. `counts` has the number of logs that each store should keep."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.changing: dict[LogKey, LogReplicas] = {}
        """The logs whose replicas are changing."""
        self._ordered: dict[LogKey, LogReplicas] = {}
        self._touched: dict[LogKey, None] = {}

    def __iter__(self) -> Iterator[tuple[LogKey, LogReplicas]]:
        """Yield the logs for which replicas were ordered or assigned. All others keep their placement."""
        return iter(self._ordered.items())

    def of(self, topic: Topic, number: int) -> LogReplicas:
        """Return the replicas that a log should have."""
        found = self._ordered.get(LogKey(topic.topic_id, number))
        return LogReplicas(topic.placement[number]) if found is None else found

    def add(self, topic: Topic, first: int = 0) -> None:
        """Add the logs of a topic, from a number on."""
        for number in range(first, topic.log_count):
            self.counts.update(topic.placement[number])

    def put(self, topic: Topic, number: int, replicas: LogReplicas) -> None:
        """Change the replicas that a log should have."""
        self.counts.subtract(self.of(topic, number).replicas)
        self.counts.update(replicas.replicas)
        key = LogKey(topic.topic_id, number)
        self._ordered[key] = replicas
        self._touched[key] = None
        if replicas.is_changing:
            self.changing[key] = replicas
        else:
            self.changing.pop(key, None)

    def clear(self) -> None:
        """Forget all logs."""
        self.counts.clear()
        self.changing.clear()
        self._touched.update(dict.fromkeys(self._ordered))
        self._ordered.clear()

    def take_touched(self) -> list[LogKey]:
        """Return the logs that other replicas were ordered for since the last call."""
        touched, self._touched = self._touched, {}
        return list(touched)

    def remove(self, topic: Topic) -> list[LogKey]:
        """Remove the logs of a topic. Return the ones for which replicas were ordered or assigned."""
        removed = []
        for number in range(topic.log_count):
            key = LogKey(topic.topic_id, number)
            self.counts.subtract(self.of(topic, number).replicas)
            self.changing.pop(key, None)
            if self._ordered.pop(key, None) is not None:
                removed.append(key)
        return removed


def next_replicas(
    wanted: LogReplicas, present: ReplicaSet, generation: int, leader: str, in_sync: Collection[str]
) -> tuple[str, ...] | None:
    """Return the replicas of the next epoch, with which a leader continues a change; None if it has to wait.

    The log has the `present` replicas of a generation. Brokers are added first. They are learners, and count for no
    quorum. Learners that are not wanted any more leave then: the others become voters only when all are in sync. When
    the added ones are in sync, and more than half of the wanted replicas are, the others are removed. A leader that
    must leave waits until another replica leads.
    """
    target = set(wanted.replicas)
    if generation > wanted.generation or (generation == wanted.generation and set(present.replicas) == target):
        return None
    kept = tuple(each for each in present.replicas if each in target or each not in present.learners)
    following = (*kept, *(each for each in wanted.replicas if each not in kept))
    if following != present.replicas:
        return following
    are_copied = set(in_sync).issuperset(wanted.added) and 2 * len(target.intersection(in_sync)) > len(target)
    return wanted.replicas if leader in target and are_copied else None
