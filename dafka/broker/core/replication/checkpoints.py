"""Checkpoints: how far a broker holds the branches of its logs, so that it need not read their indexes again.

A broker keeps them in its partition of `$checkpoints`, by the address of a branch's index, and shows them to nobody.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import NamedTuple

import attrs

from dafka.errors import StorageFormatError
from dafka.protocol.format_errors import format_errors
from dafka.records import Partition

CHECKPOINTS_TOPIC = "$checkpoints"
"""Where a broker keeps its checkpoints."""

CHECKPOINT_VERSION = 1
"""The version of checkpoints."""


class Restart(NamedTuple):
    """Where the index of a branch was written again, with all that was before.

    Attributes:
        sequence: The sequence of its first record that counts.
        offset: The offset up to which the log reached then.
    """

    sequence: int
    offset: int


@attrs.frozen
class Checkpoint:
    """How far a broker holds a branch.

    Attributes:
        index_end: The sequence after the last index record of which everything is held.
        end_offset: The offset after the last record that these name.
        start_offset: The offset before which the log's records were deleted then.
        restart: Where its index was last written again; None if it was not.
        needed: By the address of each partition that these index records name, the sequence after the last record.
    """

    index_end: int
    end_offset: int
    start_offset: int
    restart: Restart | None
    needed: Mapping[str, int]

    def is_met(self, topic: str, durable_end: Callable[[Partition], int]) -> bool:
        """Find out whether a storage has the records of a topic that a broker has held.

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
        value: What `encode_checkpoint` has returned.

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
            int(index_end),
            int(end_offset),
            int(start_offset),
            None if restart is None else Restart(*map(int, restart)),
            {str(address): int(end) for address, end in needed.items()},
        )
