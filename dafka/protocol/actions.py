"""What a state machine asks of whoever drives it.

Machines never act: they take messages and the time, and return a list of these, to be carried out in order.
"""

from __future__ import annotations

from typing import TypeAlias

import attrs

from dafka import wire
from dafka.protocol.events import Event
from dafka.records import Partition, RecordBatch


@attrs.frozen
class Publish:
    """Send this (a command, or a run of records) on the publisher socket."""

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
    """Give these records to the program; they follow what was delivered of their partition before."""

    batch: RecordBatch


@attrs.frozen
class Append:
    """Make these records durable; they follow what was appended to their partition before."""

    batch: RecordBatch


@attrs.frozen
class ResetPosition:
    """Drop what is stored of this partition and continue it at `next_sequence`: the records between are lost."""

    partition: Partition
    next_sequence: int


@attrs.frozen
class Notify:
    """Let the embedding program know."""

    event: Event


Action: TypeAlias = Publish | Subscribe | Unsubscribe | Deliver | Append | ResetPosition | Notify
