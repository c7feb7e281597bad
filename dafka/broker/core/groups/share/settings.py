"""The settings of a share group."""

from __future__ import annotations

import attrs

from dafka.broker.core.groups.share.share_partition import DEFAULT_LIMITS, ShareLimits


@attrs.frozen(kw_only=True)
class ShareSettings:
    """The settings of a share group.

    Attributes:
        limits: The limits of its share partitions.
        is_earliest: Whether it begins at the first record of a log, instead of the next one to be written.
        is_committed: Whether it gets no records of open and aborted transactions.
    """

    limits: ShareLimits = DEFAULT_LIMITS
    is_earliest: bool = False
    is_committed: bool = False
