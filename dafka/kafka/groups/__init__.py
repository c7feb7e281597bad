"""The coordinator of groups: members, assignments and committed offsets."""

from dafka.kafka.groups.coordinator import (
    CommitRequest,
    DeleteOffsetsResult,
    FetchedOffset,
    GroupCoordinator,
    OffsetToCommit,
)
from dafka.kafka.groups.group import GroupState
from dafka.kafka.groups.results import (
    DescribedGroup,
    DescribedMember,
    JoinedMember,
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    LeftMember,
    SyncRequest,
    SyncResult,
)
from dafka.kafka.groups.settings import GroupSettings

__all__ = [
    "CommitRequest",
    "DeleteOffsetsResult",
    "DescribedGroup",
    "DescribedMember",
    "FetchedOffset",
    "GroupCoordinator",
    "GroupSettings",
    "GroupState",
    "JoinRequest",
    "JoinResult",
    "JoinedMember",
    "LeaveResult",
    "LeavingMember",
    "LeftMember",
    "OffsetToCommit",
    "SyncRequest",
    "SyncResult",
]
