"""The limits of groups. Names and defaults are as in Kafka's broker settings, with underscores for dots."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class GroupSettings:
    """The limits of groups.

    Attributes:
        group_min_session_timeout_ms: The shortest session timeout of a member.
        group_max_session_timeout_ms: The longest session timeout of a member.
        group_initial_rebalance_delay_ms: How long an empty group waits for more members after the first one.
        group_max_size: The maximum number of members of a group.
        groups_max: The maximum number of groups. Requests that would create another one fail. Kafka has no such limit.
        new_member_join_timeout_ms: How long a new member waits for its first generation. Its client can be gone, and it
            sends no heartbeats yet.
        offset_metadata_max_bytes: The longest metadata of a committed offset.
        offsets_retention_ms: How long offsets are retained after the group became empty, or stopped reading their
            topic.
        offsets_retention_check_interval_ms: How often expired offsets are removed.
    """

    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 3_000
    group_max_size: int = 10_000
    groups_max: int = 100_000
    new_member_join_timeout_ms: int = 300_000
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    offsets_retention_check_interval_ms: int = 600_000
