"""The assignments of groups whose coordinator assigns the logs, as the APIs of consumer and share groups have them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from dafka.broker.access.permissions import Permissions
from dafka.broker.core.acls import Operation, ResourceType
from dafka.broker.core.groups.consumer.members import Assignment, by_topic
from dafka.kafka.apis.shared.authorization import GROUP_REFUSED, TOPIC_REFUSED, add_refused, refuse, split_unauthorized
from dafka.kafka.apis.shared.registry import Authorization, Decision, RequestContext
from dafka.kafka.apis.shared.topic_ids import parse_id
from dafka.kafka.protocol.messages.consumer_groups import (
    DescribedAssignment,
    DescribedTopicPartitions,
    HeartbeatAssignment,
    HeartbeatTopicPartitions,
)


def answer_assignment(logs: Assignment | None) -> HeartbeatAssignment | None:
    """Return the logs of a member for the response to its heartbeat; None if it knows them already."""
    if logs is None:
        return None
    return HeartbeatAssignment(
        topic_partitions=[
            HeartbeatTopicPartitions(topic_id=parse_id(topic_id), partitions=numbers)
            for topic_id, numbers in by_topic(logs).items()
        ]
    )


def describe_assignment(logs: Assignment, names: Mapping[str, str]) -> DescribedAssignment:
    """Return logs with the names of their topics, by id. Logs of deleted topics have no name and are left out."""
    return DescribedAssignment(
        topic_partitions=[
            DescribedTopicPartitions(topic_id=parse_id(topic_id), topic_name=names[topic_id], partitions=numbers)
            for topic_id, numbers in by_topic(logs).items()
            if topic_id in names
        ]
    )


def authorize_description(assignments_of: Callable[[Any], Iterable[DescribedAssignment]]) -> Authorization:
    """Require the permission for the groups. Groups that read topics which the user may not see are refused, too.

    `assignments_of` returns the assignments of a member in the response.
    """

    def authorize(user: Permissions, _context: RequestContext, request: Any) -> Decision:
        refused = split_unauthorized(request, "group_ids", partial(user.allow, Operation.DESCRIBE, ResourceType.GROUP))
        add = add_refused(refused, "groups", GROUP_REFUSED)

        def may_see(group: Any) -> bool:
            logs = (each for member in group.members for each in assignments_of(member))
            return all(map(user.may_see, {topic.topic_name for each in logs for topic in each.topic_partitions}))

        def patch(response: Any) -> None:
            response.groups = [
                each if may_see(each) else refuse(type(each), each, TOPIC_REFUSED) for each in response.groups
            ]
            if add is not None:
                add(response)

        return patch

    return authorize
