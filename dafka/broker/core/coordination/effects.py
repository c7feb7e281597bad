"""The effects that a coordinator returns to its owner.

Coordinators do no I/O. Their methods return a list of actions, which the owner executes in order. The owner needs no
locks if it follows two rules:

- Whatever an action writes is durable before a later action is executed. Consecutive `WriteState` can become one write,
  and the actions of several calls can share a write, as long as their order stays.
- A direct result of a method is sent to the client after the responses to earlier calls. So no client learns of a state
  that a crash can undo.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple, TypeAlias

import attrs

from dafka.broker.core.coordination.state_records import StateRecord
from dafka.broker.core.topic_partition import TopicPartition

Token: TypeAlias = Hashable
"""A value with which the owner recognizes a request. Coordinators only return it."""


@attrs.frozen
class WriteState:
    """Write these records to the compacted topics that they name."""

    records: tuple[StateRecord, ...]


@attrs.frozen
class Answer:
    """Respond to a request with a result of the type that its method documents."""

    token: Token
    result: object


@attrs.frozen
class WriteMarkers:
    """End a transaction: write a marker to each log, and call `GroupCoordinator.end_transaction` for the groups.

    Call `TransactionCoordinator.markers_written` when all of that is durable. After a crash the same transaction can be
    ended again, which changes nothing.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_commit: bool
    partitions: tuple[TopicPartition, ...]
    groups: tuple[str, ...]


class ReplacedState(NamedTuple):
    """A share partition whose state was replaced: the id of its present state, empty if it has none."""

    group_id: str
    topic_id: str
    number: int
    state_id: str


@attrs.frozen
class DropReplacedStates:
    """Make the leaders of logs drop former states of share partitions. An answer right after it waits for that.

    A leader that cannot be reached does not delay the answer for long. It cannot write a former state any more.
    """

    states: tuple[ReplacedState, ...]


Action: TypeAlias = WriteState | Answer | WriteMarkers | DropReplacedStates


def write_state(records: Sequence[StateRecord]) -> list[Action]:
    """Return the action that writes records; none if there are none."""
    return [WriteState(tuple(records))] if records else []
