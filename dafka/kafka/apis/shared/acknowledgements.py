"""Acknowledges records for a member of a share group."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from dafka.broker.coordinator.led_share_partition import LedSharePartition
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.share.share_partition import Acknowledgement, AcknowledgeType
from dafka.broker.core.log.log import Log
from dafka.kafka.apis.shared.leaders import find_leader_error
from dafka.kafka.apis.shared.registry import RequestContext
from dafka.kafka.apis.shared.topic_ids import find_by_id, id_of
from dafka.kafka.protocol.messages.share_records import AcknowledgementBatch
from dafka.kafka.server.share_sessions import SharedLog, ShareMemberId


class FoundLog(NamedTuple):
    """A log that a member names, and the error of its request for the log. There is no log if it does not exist."""

    log: Log | None
    error: ErrorCode


def find_shared_log(context: RequestContext, named: SharedLog) -> FoundLog:
    """Find a log that a member names."""
    topic = find_by_id(context.broker.node.log_table, named.topic_id)
    if topic is None:
        return FoundLog(None, ErrorCode.UNKNOWN_TOPIC_ID)
    if not context.may_read(topic.name):
        return FoundLog(None, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    log = context.find_log(topic.name, named.topic_id, named.number)
    if log is None:
        return FoundLog(None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return FoundLog(log, find_leader_error(log))


async def acknowledge(
    context: RequestContext,
    member: ShareMemberId,
    named: Mapping[SharedLog, Sequence[AcknowledgementBatch]],
    *,
    is_renewal: bool,
) -> dict[SharedLog, ErrorCode]:
    """Acknowledge what a member says of the records of logs. Return the errors once the changes are committed.

    Only a request that `is_renewal` can renew locks, if the group permits that.
    """
    errors, changed = dict[SharedLog, ErrorCode](), dict[SharedLog, LedSharePartition]()
    shares = context.broker.shares
    may_renew = is_renewal and shares.settings_of(member.group_id).may_renew
    for each, batches in named.items():
        log, errors[each] = find_shared_log(context, each)
        if log is None or errors[each]:
            continue
        read = _read(batches, may_renew=may_renew)
        served = shares.served(member.group_id, id_of(each.topic_id), each.number)
        if read is None:
            errors[each] = ErrorCode.INVALID_REQUEST
        elif served is None:  # no records are acquired here
            errors[each] = ErrorCode.INVALID_RECORD_STATE
        else:
            errors[each] = shares.acknowledge(served, member.member_id, read)
            if not errors[each]:
                changed[each] = served
    uncertain = await shares.wait_written(changed.values())
    for each, served in changed.items():
        error = uncertain.get(served, ErrorCode.NONE)
        is_storage = error is ErrorCode.KAFKA_STORAGE_ERROR
        errors[each] = error if is_storage or not error else ErrorCode.NOT_LEADER_OR_FOLLOWER
    return errors


def _read(batches: Iterable[AcknowledgementBatch], *, may_renew: bool) -> list[Acknowledgement] | None:
    """Return what a member says, as ranges; None if it does not follow Kafka's format."""
    found = list[Acknowledgement]()
    known = max(AcknowledgeType) if may_renew else AcknowledgeType.REJECT
    for each in batches:
        first, end, types = each.first_offset, each.last_offset + 1, each.acknowledge_types
        if end <= first or len(types) not in {1, end - first} or not 0 <= min(types) <= max(types) <= known:
            return None
        if len(types) == 1:
            found.append(Acknowledgement(first, end, AcknowledgeType(types[0])))
            continue
        for kind, same in itertools.groupby(types):
            size = sum(1 for _ in same)
            found.append(Acknowledgement(first, first + size, AcknowledgeType(kind)))
            first += size
    return found
