"""The control records of replicated logs, which each broker publishes in its own partition of `$branches`.

A broker makes a control record durable before anybody else learns of it, and never takes one back.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import attrs

from dafka.broker.core.metadata.leader_and_isr import ReplicaSet
from dafka.errors import StorageFormatError
from dafka.protocol.format_errors import format_errors

BRANCHES_TOPIC = "$branches"
"""Where control records are kept, a partition for each broker."""

CONTROL_VERSION = 1
"""The version of control records."""

EPOCH_STEP = 1024
"""Epochs leave room for the numbers of brokers, so that no two brokers ever claim the same epoch."""


class LeaderAndEpoch(NamedTuple):
    """The stretch of a log that one leader has ordered.

    Attributes:
        epoch: Its leader epoch: larger than those of all branches that the leader knew.
        leader: The address of the leader.
    """

    epoch: int
    leader: str


NO_EPOCH = LeaderAndEpoch(-1, "")
"""The branch of a log that has no branch yet."""


class EpochEnd(NamedTuple):
    """How far a log reaches.

    Attributes:
        branch: The last branch.
        end_offset: The offset after its last record.
    """

    branch: LeaderAndEpoch
    end_offset: int


NO_EPOCH_END = EpochEnd(NO_EPOCH, 0)
"""The tip of an empty log."""


@attrs.frozen
class VoteRequest(ReplicaSet):
    """A broker asks the replicas of a log to follow it.

    Attributes:
        log: The log.
        branch: The branch that it wants to begin.
        replicas: The replicas that the log then has.
        learners: Those of them that copy the log, and of which nothing is asked until they hold it.
        is_transfer: Whether the leader lives, and is to be replaced by one that is preferred.
    """

    log: str
    branch: LeaderAndEpoch
    replicas: tuple[str, ...]
    learners: tuple[str, ...] = ()
    is_transfer: bool = False


@attrs.frozen
class Vote:
    """A replica acknowledges no records of earlier branches any more.

    Attributes:
        log: The log.
        branch: The branch that was claimed.
        tip: How far the log of this replica reaches.
        replica_sets: The replicas that count for majorities of the latest branch that it knows, and of all later ones
            that it promised to follow before: any of these branches may have begun.
        latest: The latest branch whose row it knows.
    """

    log: str
    branch: LeaderAndEpoch
    tip: EpochEnd
    replica_sets: tuple[tuple[str, ...], ...]
    latest: LeaderAndEpoch = NO_EPOCH


@attrs.frozen
class EpochStart(ReplicaSet):
    """A branch begins: a row of the branch table.

    Attributes:
        log: The log.
        branch: The branch, whose leader publishes this row.
        parent: The branch before it, and its end: the offset at which this branch begins.
        replicas: The replicas.
        learners: Those of them that copy the log, and of which nothing is asked until they hold it.
    """

    log: str
    branch: LeaderAndEpoch
    parent: EpochEnd
    replicas: tuple[str, ...]
    learners: tuple[str, ...] = ()


ControlRecord: TypeAlias = VoteRequest | Vote | EpochStart

_KEYS: dict[type[ControlRecord], str] = {VoteRequest: "claim", Vote: "promise", EpochStart: "branchrow"}
_KINDS: dict[str, type[ControlRecord]] = {"claim": VoteRequest, "promise": Vote, "row": EpochStart}


def next_epoch(latest: int, number: int) -> int:
    """Return an epoch that is larger than another one, and that no other broker chooses.

    Args:
        latest: The largest epoch that is known; -1 if there is none.
        number: The number of the broker, less than `EPOCH_STEP`.

    Returns:
        The epoch.
    """
    return (latest // EPOCH_STEP + 1) * EPOCH_STEP + number


def key_of(record: ControlRecord) -> str:
    """Return the key of a control record. A later record with the same key replaces it."""
    return f"{_KEYS[type(record)]}/{record.log}/{record.branch.epoch}"


def encode_control(record: ControlRecord) -> bytes:
    """Return the value of a control record."""
    kind = next(name for name, each in _KINDS.items() if isinstance(record, each))
    return json.dumps({"version": CONTROL_VERSION, kind: attrs.astuple(record)}, separators=(",", ":")).encode()


def decode_control(value: bytes) -> ControlRecord:
    """Return a control record.

    Args:
        value: What `encode_control` or an earlier version of it has returned.

    Returns:
        The control record.

    Raises:
        StorageFormatError: The value is malformed, or a newer version of dafka has written it.
    """
    with format_errors("a control record"):
        fields = json.loads(value)
        if fields.pop("version") > CONTROL_VERSION:
            raise StorageFormatError("a control record has a newer version: update dafka on this broker")
        [(kind, found)] = fields.items()
        if kind == "claim":
            log, branch, replicas, *further = found
            learners = _texts(further[0]) if further else ()
            return VoteRequest(str(log), _branch(branch), _texts(replicas), learners, is_transfer=True in further[1:])
        log, branch, (last, end), replicas, *further = found
        tip = EpochEnd(_branch(last), int(end))
        if kind == "promise":
            [latest] = further
            return Vote(str(log), _branch(branch), tip, tuple(map(_texts, replicas)), _branch(latest))
        if kind == "row":
            return EpochStart(str(log), _branch(branch), tip, _texts(replicas), *map(_texts, further))
        raise StorageFormatError(f"a control record has the unknown kind {kind!r}")


def _branch(found: Sequence[Any]) -> LeaderAndEpoch:
    epoch, leader = found
    return LeaderAndEpoch(int(epoch), str(leader))


def _texts(found: Sequence[Any]) -> tuple[str, ...]:
    return tuple(map(str, found))
