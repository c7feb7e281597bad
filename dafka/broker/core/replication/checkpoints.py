"""Checkpoints of stored indexes, so that a broker need not read them again after a restart.

A broker stores checkpoints in its partition of `$checkpoints`, keyed by the address of an index. It sends them to
nobody.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
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
    """The first index record of a rewritten index, and the end of the log at that time."""

    sequence: RecordSequence
    offset: Offset


@attrs.frozen
class Checkpoint:
    """How much of a leader epoch a broker stores: index records, together with the records that they name.

    `needed` has the sequence after the last of these records, by partition address.
    """

    index_end: RecordSequence
    end_offset: Offset
    start_offset: Offset
    next_start: Offset
    restart: Restart | None  # None if the index was never rewritten
    needed: Mapping[str, int]

    def find_unmet(self, topic: str, durable_end: Callable[[Partition], int]) -> Iterator[tuple[Partition, int]]:
        """Yield the partitions that a storage no longer has up to where the checkpoint covers them, with these ends."""
        for address, end in self.needed.items():
            if durable_end(Partition(topic, address)) < end:
                yield Partition(topic, address), end


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Return the value of a checkpoint's record."""
    fields = attrs.astuple(checkpoint, recurse=False)
    return json.dumps({"version": CHECKPOINT_VERSION, "held": fields}, separators=(",", ":")).encode()


def decode_checkpoint(value: bytes) -> Checkpoint:
    """Return a checkpoint. Raise `StorageFormatError` if it is malformed, or another dafka has written it."""
    with format_errors("a checkpoint"):
        fields = json.loads(value)
        if fields["version"] != CHECKPOINT_VERSION:
            raise StorageFormatError("a checkpoint has another version")
        index_end, end_offset, start_offset, next_start, restart, needed = fields["held"]
        return Checkpoint(
            RecordSequence(int(index_end)),
            Offset(int(end_offset)),
            Offset(int(start_offset)),
            Offset(int(next_start)),
            None if restart is None else Restart(RecordSequence(int(restart[0])), Offset(int(restart[1]))),
            {str(address): int(end) for address, end in needed.items()},
        )
