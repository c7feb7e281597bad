"""The offsets of a log, as its leader knows them."""

from __future__ import annotations

import attrs


@attrs.frozen
class LogOffsets:
    """The offsets of a log.

    Attributes:
        start_offset: The first offset.
        end_offset: The offset behind the last record that readers of committed records get.
        high_watermark: The offset behind the last record that counts; records before it may belong to transactions.
        offset_max: The largest offset at which a reader may begin.
    """

    start_offset: int
    end_offset: int
    high_watermark: int
    offset_max: int
