"""The memory limit for all records that a node has received and not handed to its program."""

from __future__ import annotations

from dafka.protocol.ordering.reassembler import Reassembler

AHEAD_SHARE = 4
"""The maximum fraction of the limit for records after a gap, so that records that fill the gap have room."""


class ReceiveRoom:
    """The memory of records that have arrived and that the program has not taken yet, whether they are in order or not.

    It never exceeds the limit by more than one batch. Half of the limit is reserved for fetched records: otherwise, a
    stream of live records would fill the memory, and fetched records would be dropped each time they arrive.

    Args:
        bytes_max: The limit, in bytes.
        reassembler: Puts the records in order. It keeps fewer records after gaps if the limit is small.

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
        """Return whether a batch that has arrived can be kept."""
        return self.has_half if is_live else self.held_bytes < self._bytes_max

    def record_arriving(self, memory_bytes: int) -> None:
        """Add ordered records for which `record_buffered` will be called later."""
        self._arriving_bytes += memory_bytes

    def end_arrival(self) -> None:
        """Forget arriving records: `record_buffered` is now called for all of them."""
        self._arriving_bytes = 0

    def record_buffered(self, memory_bytes: int) -> None:
        """Record that records wait for the program."""
        self.buffered_bytes += memory_bytes

    def record_taken(self, memory_bytes: int) -> bool:
        """Record that records no longer wait. Return whether fetching is possible now and was not before."""
        had_half = self.has_half
        self.buffered_bytes -= memory_bytes
        return self.has_half and not had_half
