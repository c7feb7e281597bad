"""How much a node that hands records to a program keeps in memory: one limit for all that has arrived."""

from __future__ import annotations

from dafka.protocol.ordering.reassembler import Reassembler

AHEAD_SHARE = 4
"""Records ahead of a gap take this part of the limit at most, so that those that fill the gap have room."""


class ReceiveRoom:
    """The memory of records that have arrived and that the program has not taken yet, whether they are in order or not.

    It never exceeds the limit by more than one batch. Half of it is kept for fetched records: live ones that keep
    coming would otherwise take all room, and what was fetched would be dropped each time that it arrives.

    Args:
        bytes_max: The limit, in bytes.
        reassembler: What puts the records in order. It keeps fewer records ahead of gaps if the limit is small.

    Attributes:
        buffered_bytes: The memory of the records that wait for the program.
    """

    def __init__(self, bytes_max: int, reassembler: Reassembler) -> None:
        self.buffered_bytes = 0
        self._arriving_bytes = 0
        self._bytes_max = bytes_max
        self._reassembler = reassembler
        reassembler.limit_ahead(bytes_max // AHEAD_SHARE)

    @property
    def held_bytes(self) -> int:
        """The memory of all records that have arrived and that the program has not taken yet."""
        return self.buffered_bytes + self._arriving_bytes + self._reassembler.ahead_bytes

    @property
    def has_half(self) -> bool:
        """Whether there is room for live records, and to fetch others."""
        return 2 * self.held_bytes < self._bytes_max

    def has_room(self, *, is_live: bool) -> bool:
        """Return whether a batch may be kept that has arrived."""
        return self.has_half if is_live else self.held_bytes < self._bytes_max

    def note_arriving(self, memory_bytes: int) -> None:
        """Note records that are in order, and that `note_buffered` is called for later."""
        self._arriving_bytes += memory_bytes

    def end_arrival(self) -> None:
        """Note that `note_buffered` is called now for all that was arriving."""
        self._arriving_bytes = 0

    def note_buffered(self, memory_bytes: int) -> None:
        """Note that records wait for the program."""
        self.buffered_bytes += memory_bytes

    def note_taken(self, memory_bytes: int) -> bool:
        """Note that records wait no longer. Return whether others may be fetched that could not before."""
        had_half = self.has_half
        self.buffered_bytes -= memory_bytes
        return self.has_half and not had_half
