"""Merges the topic records of all brokers into one table of topics.

Each broker writes the topics that it creates, changes and deletes in its own partition. Other brokers learn of them in
any order, at a start or later, together or one by one. So the known records are a set that only grows, and the topics
are a function of this set:

- A deletion is final. No record brings the topic with that id back, whether it is learned before or after.
- The last change of a topic counts. The number of its logs only grows.
- Of several topics with one name that are not deleted, the one created first counts. The others stay known: they were
  created on different sides of a network partition, and have records.
"""

from __future__ import annotations

import attrs

from dafka.broker.core.metadata.topics import Deletion, Topic, encode_topic
from dafka.broker.core.partition_address import INDEX_TOPIC, parse_address
from dafka.records import Partition


@attrs.define
class _Versions:
    """The records of one topic that count: its last change, and the one with the most logs."""

    latest: Topic
    widest: Topic

    def merge(self, topic: Topic) -> None:
        """Process another record of the topic."""
        self.latest = max(self.latest, topic, key=_age)
        self.widest = max(self.widest, topic, key=_width)

    def topic(self) -> Topic:
        """Return the current topic."""
        latest, widest = self.latest, self.widest
        if widest.log_count <= latest.log_count:
            return latest
        placement = latest.placement + widest.placement[len(latest.placement) :]
        return attrs.evolve(latest, log_count=widest.log_count, placement=placement)


class TopicTable:
    """The topics of a cluster, as far as one broker knows.

    Attributes:
        deleted_ids: The ids of the topics that were deleted.
        producer_starts: By producer partition, the sequence of the first record that belongs to no deleted topic.
        last_epochs: By name of a deleted topic, the largest known leader epoch of its logs.
    """

    def __init__(self) -> None:
        self.deleted_ids: set[str] = set()
        self.producer_starts: dict[Partition, int] = {}
        self.last_epochs: dict[str, int] = {}
        self._living: dict[str, dict[str, _Versions]] = {}
        self._changed: dict[str, None] = {}
        self._deletions: list[Deletion] = []

    def learn(self, topic: Topic) -> None:
        """Process the creation or a change of a topic."""
        if topic.topic_id in self.deleted_ids:
            return
        living = self._living.setdefault(topic.name, {})
        known = living.get(topic.topic_id)
        if known is None:
            living[topic.topic_id] = _Versions(topic, topic)
        else:
            known.merge(topic)
        self._changed[topic.name] = None

    def learn_deletion(self, deletion: Deletion) -> None:
        """Process the deletion of a topic."""
        topic = deletion.topic
        is_new = topic.topic_id not in self.deleted_ids
        for address, end in deletion.producer_ends.items():
            partition = Partition(topic.name, address)
            is_new |= end > self.producer_starts.get(partition, 0)
            self.producer_starts[partition] = max(end, self.producer_starts.get(partition, 0))
        self.last_epochs[topic.name] = max(deletion.last_epoch, self.last_epochs.get(topic.name, 0))
        if not is_new:
            return
        self.deleted_ids.add(topic.topic_id)
        living = self._living.get(topic.name, {})
        living.pop(topic.topic_id, None)
        if not living:
            self._living.pop(topic.name, None)
        self._changed[topic.name] = None
        self._deletions.append(deletion)

    def find(self, name: str) -> Topic | None:
        """Return the topic with a name; None if there is none."""
        living = self.living(name)
        return living[0] if living else None

    def living(self, name: str) -> list[Topic]:
        """Return all topics with a name that are not deleted: the one that counts, then the hidden ones."""
        found = [each.topic() for each in self._living.get(name, {}).values()]
        return sorted(found, key=lambda topic: (topic.created_at, topic.topic_id))

    def is_deleted(self, address: str) -> bool:
        """Return whether a partition with this address belongs to a log of a deleted topic."""
        found = parse_address(address)
        return found is not None and found.topic_id in self.deleted_ids

    def is_orphan(self, partition: Partition) -> bool:
        """Return whether a partition belongs to a log of a topic that this table does not have.

        The topic can be unknown, or hidden by another one with its name. Only a recorded deletion is a reason to drop
        records, so such a partition is kept.
        """
        address = parse_address(partition.address)
        if address is None or partition.topic == INDEX_TOPIC or address.topic_id in self.deleted_ids:
            return False
        topic = self.find(partition.topic)
        return topic is None or topic.topic_id != address.topic_id

    def take_changed(self) -> list[str]:
        """Return the names of the topics that have changed since the last call."""
        changed, self._changed = self._changed, {}
        return list(changed)

    def take_deletions(self) -> list[Deletion]:
        """Return the deletions learned since the last call."""
        deletions, self._deletions = self._deletions, []
        return deletions


def _age(topic: Topic) -> tuple[int, bytes]:
    return topic.revision, encode_topic(topic)


def _width(topic: Topic) -> tuple[int, int, bytes]:
    return topic.log_count, topic.revision, encode_topic(topic)
