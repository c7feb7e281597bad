"""The effects that a replica returns to its broker."""

from __future__ import annotations

from typing import TypeAlias

import attrs

from dafka.broker.core.positions import Offset
from dafka.broker.core.replication.records import ControlRecord, EpochStart, LeaderAndEpoch


@attrs.frozen
class WriteControl:
    """Make a control record durable, call `written`, and publish it."""

    record: ControlRecord


@attrs.frozen
class Acknowledge:
    """Acknowledge to the leader of an epoch that this replica stores the log up to an offset."""

    leader_epoch: LeaderAndEpoch
    end_offset: Offset


@attrs.frozen
class Lead:
    """Lead: store an empty first index record of the epoch unless there is one, then append."""

    start: EpochStart


@attrs.frozen
class StepDown:
    """Stop leading: append nothing more to this epoch."""

    leader_epoch: LeaderAndEpoch


@attrs.frozen
class AdvanceHighWatermark:
    """Readers can read up to an offset."""

    offset: Offset


ReplicaAction: TypeAlias = WriteControl | Acknowledge | Lead | StepDown | AdvanceHighWatermark
