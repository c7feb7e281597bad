"""An assignor for consumer groups, as a plugin: the members take turns, in the order of their instance ids.

With three members, the first one reads the logs 0, 3, 6 and so on of each topic that all of them read.
"""

from __future__ import annotations

from collections.abc import Mapping

from dafka.assignors import Assignment, LogKey, Subscriber


class StripedAssignor:
    """Gives the logs of each topic to its readers in turn."""

    def assign(self, members: Mapping[str, Subscriber], log_counts: Mapping[str, int]) -> dict[str, Assignment]:
        """Return the logs of each member, by member id."""
        found: dict[str, set[LogKey]] = {member_id: set() for member_id in members}
        order = sorted(members, key=lambda each: (members[each].instance_id, each))
        for topic_id, count in log_counts.items():
            readers = [each for each in order if topic_id in members[each].topic_ids]
            for number in range(count) if readers else ():
                found[readers[number % len(readers)]].add(LogKey(topic_id, number))
        return {member_id: frozenset(logs) for member_id, logs in found.items()}
