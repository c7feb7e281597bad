"""Actions: the requests that a coordinator makes to its owner.

Coordinators do no I/O. Their methods return a list of actions, to be carried out in order. An owner keeps two rules,
and needs no locks then:

- What an action writes is durable before a later action is carried out. Consecutive `WriteState` may be one write, and
  the actions of several calls may share a write, as long as their order stays.
- What a method returns directly is sent to the client behind the answers of earlier calls. So no client learns of a
  state that a crash can undo.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeAlias

import attrs

from dafka.broker.core.coordination.state_records import StateRecord
from dafka.broker.core.topic_partition import TopicPartition

Token: TypeAlias = Hashable
"""Whatever the owner uses to recognize a request. Coordinators only return it."""


@attrs.frozen
class WriteState:
    """Write these records to the compacted topics that they name."""

    records: tuple[StateRecord, ...]


@attrs.frozen
class Answer:
    """Answer a request with a result of the kind that its method documents."""

    token: Token
    result: object


@attrs.frozen
class WriteMarkers:
    """End a transaction: write a control batch to each log, and call `GroupCoordinator.end_transaction` for the groups.

    Call `TransactionCoordinator.markers_written` when all of that is durable. The same transaction may be ended again
    after a crash; that changes nothing.

    Attributes:
        transactional_id: The name of the producer whose transaction ends.
        producer_id: The producer's id in the batches of the transaction.
        producer_epoch: The epoch for the control batches.
        is_commit: Whether the transaction is committed; otherwise it is aborted.
        partitions: The logs.
        groups: The groups for which the transaction has offsets.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_commit: bool
    partitions: tuple[TopicPartition, ...]
    groups: tuple[str, ...]


Action: TypeAlias = WriteState | Answer | WriteMarkers


def write_state(records: Sequence[StateRecord]) -> list[Action]:
    """Return the action that writes records; none if there are none."""
    return [WriteState(tuple(records))] if records else []
