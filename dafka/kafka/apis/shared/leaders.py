"""Checks whether this broker can answer for a log: it leads the log in the client's leader epoch."""

from __future__ import annotations

import trio

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.leader_and_isr import EPOCH_STEP
from dafka.kafka.apis.shared.registry import RequestContext

LEADER_ERRORS = frozenset((ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH))
"""The errors for clients that do not know the leader."""


def find_leader_error(log: Log, epoch: int = -1) -> ErrorCode:
    """Return the error for a request that only the leader of a log can serve.

    The epoch is the one that the client knows; -1 if it knows none.
    """
    current = log.leadership.epoch
    if epoch >= 0 and epoch != current:
        return ErrorCode.FENCED_LEADER_EPOCH if epoch < current else ErrorCode.UNKNOWN_LEADER_EPOCH
    return ErrorCode.NONE if log.leadership.is_led else ErrorCode.NOT_LEADER_OR_FOLLOWER


def find_reader_error(log: Log, epoch: int) -> ErrorCode:
    """Return the error for a read of a log; see `find_leader_error`."""
    error = find_leader_error(log, epoch)
    is_readable = error is ErrorCode.NOT_LEADER_OR_FOLLOWER and log.leadership.is_follower_readable
    return ErrorCode.NONE if is_readable else error


def find_read_error(context: RequestContext, log: Log, epoch: int) -> ErrorCode:
    """Return UNKNOWN_LEADER_EPOCH if this broker does not know where an epoch ends that a client has read; else NONE.

    The epoch is that of the last record that the client has read, or -1. It is an error only while the start of the
    epoch can still arrive: a broker that is dead for `[broker] replace_replicas_after_ms` is not waited for.
    """
    if log.knows_epoch(epoch):
        return ErrorCode.NONE
    brokers, patience_s = context.broker.node.brokers, context.broker.config.broker.replace_replicas_after_ms / 1000
    leader = brokers.find_number(epoch % EPOCH_STEP)
    is_told = leader is None or brokers.silent_s(leader.address, trio.current_time()) >= patience_s
    return ErrorCode.NONE if is_told else ErrorCode.UNKNOWN_LEADER_EPOCH


def find_epoch_end(log: Log, epoch: int) -> tuple[int, int] | None:
    """Return the largest epoch of a log up to this one, and its end; None if that is undefined.

    The last epoch ends at the log end offset, not at the high watermark. After a restart, a leader must learn the high
    watermark again, and clients would consider existing records lost.

    As in Kafka, it is undefined for an epoch after the last one. The client has read a log of this name that was
    deleted since, and must begin at another offset. An epoch before all others ends where the first one begins. Neither
    is the case where a log has branches: others can have such epochs.
    """
    found = log.end_of_epoch(epoch)
    if log.divergences is None:
        if epoch > log.epochs[-1][0]:
            return None
        if found is None and epoch >= 0:
            return epoch, log.epochs[0][1]
    if found is not None and found[0] == log.epochs[-1][0]:
        return found[0], max(found[1], log.index.end_offset)
    return found
