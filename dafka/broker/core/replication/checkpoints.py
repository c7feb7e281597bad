"""Checkpoints of stored indexes, so that a broker need not read them again after a restart.

A broker stores checkpoints in its partition of `$checkpoints`, keyed by the address of an index. It sends them to
nobody.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import NamedTuple

import attrs

from dafka.broker.core.positions import Offset, RecordSequence
from dafka.errors import StorageFormatError
from dafka.protocol.format_errors import format_errors
from dafka.records import Partition

CHECKPOINTS_TOPIC = "$checkpoints"
"""The topic of a broker's checkpoints."""

CHECKPOINT_VERSION = 1
"""The version of checkpoints."""


class Restart(NamedTuple):
    """The position at which a leader wrote the index of its epoch again, with everything before it.

    Attributes:
        sequence: The sequence of the first index record that counts.
        offset: The end of the log at that time.
    """

    sequence: RecordSequence
    offset: Offset


@attrs.frozen
class Checkpoint:
    """How much of a leader epoch a broker stores.

    Attributes:
        index_end: The sequence after the last index record that is stored together with its records.
        end_offset: The offset after the last record that these index records name.
        start_offset: The log start offset at that time.
        restart: Where the index was last written again; None if it was not.
        needed: By partition address, the sequence after the last record that these index records name.
    """

    index_end: RecordSequence
    end_offset: Offset
    start_offset: Offset
    restart: Restart | None
    needed: Mapping[str, int]

    def is_met(self, topic: str, durable_end: Callable[[Partition], int]) -> bool:
        """Return whether a storage still has the records that the checkpoint covers.

        Args:
            topic: The topic of the log.
            durable_end: Returns the sequence after the last stored record of a partition.

        Returns:
            Whether it has all of them.
        """
        return all(durable_end(Partition(topic, address)) >= end for address, end in self.needed.items())


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Return the value of a checkpoint's record."""
    fields = attrs.astuple(checkpoint, recurse=False)
    return json.dumps({"version": CHECKPOINT_VERSION, "held": fields}, separators=(",", ":")).encode()


def decode_checkpoint(value: bytes) -> Checkpoint:
    """Return a checkpoint.

    Args:
        value: A value returned by `encode_checkpoint`.

    Returns:
        The checkpoint.

    Raises:
        StorageFormatError: The value is malformed, or another version of dafka has written it.
    """
    with format_errors("a checkpoint"):
        fields = json.loads(value)
        if fields["version"] != CHECKPOINT_VERSION:
            raise StorageFormatError("a checkpoint has another version")
        index_end, end_offset, start_offset, restart, needed = fields["held"]
        return Checkpoint(
            RecordSequence(int(index_end)),
            Offset(int(end_offset)),
            Offset(int(start_offset)),
            None if restart is None else Restart(RecordSequence(int(restart[0])), Offset(int(restart[1]))),
            {str(address): int(end) for address, end in needed.items()},
        )
