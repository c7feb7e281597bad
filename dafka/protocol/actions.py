"""Actions: the requests that a state machine makes to its caller.

Machines do no I/O. They take messages and the time, and return a list of actions; the caller runs them in order.
"""

from __future__ import annotations

from typing import TypeAlias

import attrs

from dafka import wire
from dafka.protocol.events import Event
from dafka.records import Partition, RecordBatch


@attrs.frozen
class Publish:
    """Send a command, or a run of records, on the publisher socket."""

    message: wire.BatchedMessage


@attrs.frozen
class Subscribe:
    """Subscribe the subscriber socket to this prefix."""

    prefix: bytes


@attrs.frozen
class Unsubscribe:
    """Undo one `Subscribe`."""

    prefix: bytes


@attrs.frozen
class Deliver:
    """Deliver records to the program. They follow the records of their partition that were delivered before."""

    batch: RecordBatch


@attrs.frozen
class Append:
    """Make records durable. They follow the records that were appended to their partition before."""

    batch: RecordBatch


@attrs.frozen
class ResetPosition:
    """Drop the stored records of this partition and continue it at `next_sequence`: the records between are lost."""

    partition: Partition
    next_sequence: int


@attrs.frozen
class Notify:
    """Report an event to the program."""

    event: Event


class Effect:
    """The base class of actions that a particular role executes, after all other actions of the same input."""


Action: TypeAlias = Effect | Publish | Subscribe | Unsubscribe | Deliver | Append | ResetPosition | Notify


@attrs.frozen
class SendToTower:
    """Send a message to one tower."""

    tower: int
    frames: list[bytes]


@attrs.frozen
class SubscribeAtTower:
    """Receive messages of one tower that begin with a prefix."""

    tower: int
    prefix: bytes


@attrs.frozen
class UnsubscribeAtTower:
    """Undo one `SubscribeAtTower`."""

    tower: int
    prefix: bytes


TowerAction: TypeAlias = SendToTower | SubscribeAtTower | UnsubscribeAtTower
