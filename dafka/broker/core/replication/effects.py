"""What a replica asks its broker for."""

from __future__ import annotations

from typing import TypeAlias

import attrs

from dafka.broker.core.replication.records import ControlRecord, EpochStart, LeaderAndEpoch


@attrs.frozen
class WriteControl:
    """Make a control record durable, call `written`, and publish it."""

    record: ControlRecord


@attrs.frozen
class Acknowledge:
    """Tell the leader of a branch that this replica has the log up to an offset."""

    branch: LeaderAndEpoch
    end_offset: int


@attrs.frozen
class Lead:
    """This replica leads: store the first index record of the branch, which is empty, if there is none, then append."""

    row: EpochStart


@attrs.frozen
class StepDown:
    """This replica leads no more: append nothing to this branch."""

    branch: LeaderAndEpoch


@attrs.frozen
class AdvanceHighWatermark:
    """Readers may read up to an offset."""

    offset: int


ReplicaAction: TypeAlias = WriteControl | Acknowledge | Lead | StepDown | AdvanceHighWatermark
