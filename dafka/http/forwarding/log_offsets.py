"""The offsets of a log as its leader reports them."""

from __future__ import annotations

import attrs


@attrs.frozen
class LogOffsets:
    """The offsets of a log.

    Attributes:
        start_offset: The first offset.
        end_offset: The last stable offset: readers of committed records get the records before it.
        high_watermark: The high watermark. Records before it can belong to open or aborted transactions.
        offset_max: The largest offset at which a reader can begin.
    """

    start_offset: int
    end_offset: int
    high_watermark: int
    offset_max: int
