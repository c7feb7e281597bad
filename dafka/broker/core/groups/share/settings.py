"""The settings of a share group."""

from __future__ import annotations

from collections.abc import Callable

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


def read_settings(read: Callable[[str], str]) -> ShareSettings:
    """Return the settings of a share group. `read` returns the value of one; see `GroupSettingsTable.read`."""
    limits = ShareLimits(
        lock_ms=int(read("share.record.lock.duration.ms")),
        delivery_count_max=int(read("share.delivery.count.limit")),
        in_flight_max=int(read("share.partition.max.record.locks")),
    )
    return ShareSettings(
        limits=limits,
        is_earliest=read("share.auto.offset.reset") == "earliest",
        is_committed=read("share.isolation.level") == "read_committed",
    )


DEFAULT_SETTINGS = ShareSettings()
"""Kafka's defaults."""
