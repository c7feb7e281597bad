"""Makes a classic group a consumer group when its first client is upgraded, and back after the last one has left."""

from __future__ import annotations

from dafka.broker.core.groups.consumer.classic_members import find_logs, read_first
from dafka.broker.core.groups.consumer.group import ConsumerGroup, name_logs
from dafka.broker.core.groups.consumer.members import ClassicProtocol, Member, Subscription
from dafka.broker.core.groups.group import Group, GroupState
from dafka.broker.core.groups.group import Member as ClassicMember
from dafka.broker.core.groups.subscriptions import CONSUMER_PROTOCOL, encode_assignment, read_assignment
from dafka.broker.core.log.log_table import LogTable


def make_consumer_group(group: Group, log_table: LogTable, now_ms: int) -> ConsumerGroup | None:
    """Return the consumer group with the members of a classic group; None if they do not follow Kafka's formats."""
    found = ConsumerGroup(group.group_id, now_ms)
    found.epoch = found.target_epoch = max(group.generation_id, 1)
    for each in group.members.values():
        subscription, assignment = read_first(each.protocols), read_assignment(each.assignment)
        if group.protocol_type != CONSUMER_PROTOCOL or subscription is None or assignment is None:
            return None
        member = Member(
            member_id=each.member_id,
            instance_id=each.group_instance_id or "",
            client_id=each.client_id,
            client_host=each.client_host,
            rebalance_timeout_ms=each.rebalance_timeout_ms,
            subscription=Subscription(subscription.topics),
            epoch=found.epoch,
            assigned=find_logs(assignment, log_table),
            classic=ClassicProtocol(each.session_timeout_ms, each.protocols),
        )
        found.put(member)
        found.targets[each.member_id] = member.assigned
    found.topics = found.find_topics(log_table)
    found.expected = dict.fromkeys(sorted(group.pending))
    return found


def is_classic(group: ConsumerGroup) -> bool:
    """Return whether a group has members, all of which speak the classic protocol."""
    return group.has_members and all(each.classic is not None for each in group.members.values())


def make_classic_group(group: ConsumerGroup, now_ms: int) -> Group | None:
    """Return the classic group with the members of a group that `is_classic`; None if they have no assignor in common.

    Its members have what they have, and its next generation must begin.
    """
    found = Group(group.group_id, now_ms)
    names = group.topic_names
    for each in group.members.values():
        assert each.classic is not None
        member = ClassicMember(
            each.member_id,
            each.instance_id or None,
            each.client_id,
            each.client_host,
            each.classic.session_timeout_ms,
            each.rebalance_timeout_ms,
            each.classic.protocols,
            encode_assignment(name_logs(each.assigned, names)),
        )
        if not found.supports(CONSUMER_PROTOCOL, member.protocols):
            return None
        found.add(member, CONSUMER_PROTOCOL)
    found.newcomers.clear()
    found.generation_id = max(each.epoch for each in group.members.values())
    found.protocol_name, found.leader = found.select_protocol(), next(iter(found.members))
    found.enter(GroupState.STABLE, now_ms)
    return found
