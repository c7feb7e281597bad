"""The control records of replicated logs. Each broker publishes its own in its partition of `$branches`.

A broker makes a control record durable before it sends it, and never takes one back.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import attrs

from dafka.broker.core.metadata.leader_and_isr import ReplicaSet, share_replicas
from dafka.broker.core.positions import FIRST_OFFSET, Offset
from dafka.errors import StorageFormatError
from dafka.protocol.format_errors import format_errors

BRANCHES_TOPIC = "$branches"
"""The topic of control records. It has a partition for each broker."""

CONTROL_VERSION = 1
"""The version of control records."""

RECOVERY_EPOCHS = 2**24
"""The distance of epochs at a recovery: it is later than each epoch that other brokers can have begun meanwhile."""


class LeaderAndEpoch(NamedTuple):
    """A leader epoch of a log, with its leader. Its number is larger than all that the leader knew."""

    epoch: int
    leader: str


NO_EPOCH = LeaderAndEpoch(-1, "")
"""The leader epoch of a log that has none yet."""


class EpochEnd(NamedTuple):
    """The end of a log, or of one of its leader epochs: the epoch, and the offset after its last record."""

    leader_epoch: LeaderAndEpoch
    end_offset: Offset


NO_EPOCH_END = EpochEnd(NO_EPOCH, FIRST_OFFSET)
"""The end of an empty log."""


@attrs.frozen
class VoteRequest(ReplicaSet):
    """A broker asks the replicas of a log to elect it."""

    log: str
    leader_epoch: LeaderAndEpoch
    replicas: tuple[str, ...]
    learners: tuple[str, ...] = ()  # copy the log, and do not vote until they have caught up
    generation: int = 0  # of the replicas: how often other ones were ordered
    is_transfer: bool = False  # a preferred replica asks to replace a living leader


@attrs.frozen
class Vote:
    """The vote of a replica. It no longer acknowledges records of earlier epochs.

    Any epoch in `replica_sets` can have begun: they are the voters of the latest epoch that the replica knows, and of
    all later ones that it voted for before.
    """

    log: str
    leader_epoch: LeaderAndEpoch
    log_end: EpochEnd  # of this replica's log
    replica_sets: tuple[tuple[str, ...], ...]
    latest: LeaderAndEpoch = NO_EPOCH  # the latest leader epoch whose start it knows
    log_start: Offset = FIRST_OFFSET  # the latest start of the log that a leader has decided, as far as it is stored


@attrs.frozen
class EpochStart(ReplicaSet):
    """A leader epoch begins at the end of its parent, the epoch before it. Its leader publishes this record.

    The log starts at `log_start`: a former leader has decided that, and a replica can have deleted records before it.
    """

    log: str
    leader_epoch: LeaderAndEpoch
    parent: EpochEnd
    replicas: tuple[str, ...]
    learners: tuple[str, ...] = ()  # see `VoteRequest`, also for the generation
    generation: int = 0
    log_start: Offset = FIRST_OFFSET


ControlRecord: TypeAlias = VoteRequest | Vote | EpochStart

_KEYS: dict[type[ControlRecord], str] = {VoteRequest: "claim", Vote: "promise", EpochStart: "branchrow"}
_NAMES: dict[type[ControlRecord], str] = {VoteRequest: "claim", Vote: "promise", EpochStart: "row"}


def key_of(record: ControlRecord) -> str:
    """Return the key of a control record. A later record with the same key replaces it."""
    return f"{_KEYS[type(record)]}/{record.log}/{record.leader_epoch.epoch}"


def encode_control(record: ControlRecord) -> bytes:
    """Return the value of a control record."""
    fields = attrs.astuple(record, recurse=False)  # they are what JSON knows, and thousands are written at once
    return json.dumps({"version": CONTROL_VERSION, _NAMES[type(record)]: fields}, separators=(",", ":")).encode()


def decode_control(value: bytes) -> ControlRecord:
    """Return a control record. Raise `StorageFormatError` if it is malformed, or a newer dafka has written it."""
    with format_errors("a control record"):
        fields = json.loads(value)
        if fields.pop("version") > CONTROL_VERSION:
            raise StorageFormatError("a control record has a newer version: update dafka on this broker")
        [(kind, found)] = fields.items()
        if kind == "claim":
            log, leader_epoch, replicas, learners, generation, is_transfer = found
            return VoteRequest(
                str(log),
                _leader_epoch(leader_epoch),
                _texts(replicas),
                _texts(learners),
                int(generation),
                is_transfer=bool(is_transfer),
            )
        log, leader_epoch, (last, end), replicas, *rest = found
        log_end = EpochEnd(_leader_epoch(last), Offset(int(end)))
        if kind == "promise":
            latest, log_start = rest
            replica_sets, start = tuple(map(_texts, replicas)), Offset(int(log_start))
            return Vote(str(log), _leader_epoch(leader_epoch), log_end, replica_sets, _leader_epoch(latest), start)
        if kind == "row":
            learners, generation, log_start = rest
            return EpochStart(
                str(log),
                _leader_epoch(leader_epoch),
                log_end,
                _texts(replicas),
                _texts(learners),
                int(generation),
                Offset(int(log_start)),
            )
        raise StorageFormatError(f"a control record has the unknown kind {kind!r}")


def _leader_epoch(found: Sequence[Any]) -> LeaderAndEpoch:
    epoch, leader = found
    return LeaderAndEpoch(int(epoch), sys.intern(str(leader)))


def _texts(found: Sequence[Any]) -> tuple[str, ...]:
    return share_replicas(map(str, found))
