"""The topics of the cluster, as the coordinators of groups see them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import attrs

from dafka.broker.core.groups.consumer.group import KnownTopic
from dafka.broker.core.log.log_table import LogTable
from dafka.internal_topics import is_internal_topic


@attrs.frozen
class GroupTopics:
    """The topics that groups can read. See `dafka.broker.core.groups.consumer.group.Topics`."""

    _log_table: LogTable

    @property
    def revision(self) -> int:
        """The number of the last change."""
        return self._log_table.revision

    def find(self, name: str) -> KnownTopic | None:
        """Return a topic that clients may use; None if there is none."""
        topic = self._log_table.find_client_topic(name)
        return None if topic is None else KnownTopic(topic.topic_id, topic.log_count)

    def names(self) -> Iterable[str]:
        """Return the names of all topics that clients may use."""
        return itertools.filterfalse(is_internal_topic, self._log_table.topics)
