"""The settings of a share group."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from dafka.broker.core.groups.share.share_partition import DEFAULT_LIMITS, ShareLimits
from dafka.broker.core.metadata.group_settings import BY_DURATION, DEAD_LETTER_TOPIC, parse_duration_ms


@attrs.frozen(kw_only=True)
class ShareSettings:
    """The settings of a share group.

    Attributes:
        limits: The limits of its share partitions.
        is_earliest: Whether it begins at the first record of a log, instead of the next one to be written.
        begins_after_ms: The age of the record at which it begins, in milliseconds; None if its age does not matter.
        is_committed: Whether it gets no records of open and aborted transactions.
        may_renew: Whether members can renew the locks of records.
        dead_letter_topic: The topic for dead letters; empty if there is none.
        copies_record: Whether a dead letter has what its record has.
    """

    limits: ShareLimits = DEFAULT_LIMITS
    is_earliest: bool = False
    begins_after_ms: int | None = None
    is_committed: bool = False
    may_renew: bool = True
    dead_letter_topic: str = ""
    copies_record: bool = False


def read_settings(read: Callable[[str], str], *, has_dead_letters: bool = True) -> ShareSettings:
    """Return the settings of a share group. `read` returns the value of one; see `read_setting`.

    `has_dead_letters` says whether the feature level of the cluster has dead letters.
    """
    topic, reset = read(DEAD_LETTER_TOPIC) if has_dead_letters else "", read("share.auto.offset.reset")
    limits = ShareLimits(
        lock_ms=int(read("share.record.lock.duration.ms")),
        delivery_count_max=int(read("share.delivery.count.limit")),
        in_flight_max=int(read("share.partition.max.record.locks")),
        has_dead_letters=topic != "",
    )
    return ShareSettings(
        limits=limits,
        is_earliest=reset == "earliest",
        begins_after_ms=parse_duration_ms(reset.removeprefix(BY_DURATION)),
        is_committed=read("share.isolation.level") == "read_committed",
        may_renew=read("share.renew.acknowledge.enable") == "true",
        dead_letter_topic=topic,
        copies_record=read("errors.deadletterqueue.copy.record.enable") == "true",
    )


DEFAULT_SETTINGS = ShareSettings()
"""Kafka's defaults."""
