"""The limits of groups. Names and defaults are as in Kafka's broker settings, with underscores for dots."""

from __future__ import annotations

from collections.abc import Callable

import attrs


def _have_none(_group_id: str, _kind: str) -> None:
    """Groups have no session timeouts of their own."""


@attrs.frozen(kw_only=True)
class GroupSettings:
    """The limits of groups, named like Kafka's broker settings.

    `own_timeout_of` returns the session timeout that is a setting of a group, in milliseconds, for its members of a
    kind: `consumer` or `share`; None if the broker's counts.
    """

    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_consumer_session_timeout_ms: int = 45_000
    group_share_session_timeout_ms: int = 45_000
    group_share_max_size: int = 200
    group_initial_rebalance_delay_ms: int = 3_000
    group_max_size: int = 10_000
    groups_max: int = 100_000  # Kafka has no such limit
    new_member_join_timeout_ms: int = 300_000  # its client can be gone, and it sends no heartbeats yet
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 3_600_000  # since the group became empty, or stopped reading their topic
    offsets_retention_check_interval_ms: int = 600_000
    own_timeout_of: Callable[[str, str], int | None] = _have_none
