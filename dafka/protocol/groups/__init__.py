"""Groups of consumers that share the partitions of topics without a broker. `member.py` contains the rules."""

from dafka.internal_topics import GROUP_PREFIX
from dafka.protocol.groups.member import (
    SIGNS_PER_LEASE,
    SILENCE_FACTOR,
    Append,
    Assign,
    GroupAction,
    GroupMember,
    GroupSettings,
    Lose,
    Revoke,
    Stage,
    Survey,
)
from dafka.protocol.groups.records import (
    LEASE_MS_MAX,
    READ_BACK_RECORDS,
    MemberRecord,
    Position,
    decode_member_record,
    encode_member_record,
    topic_of_group,
)
from dafka.protocol.groups.topic_reader import GroupReaderMachine
from dafka.protocol.groups.view import GroupView, Member

__all__ = [
    "GROUP_PREFIX",
    "LEASE_MS_MAX",
    "READ_BACK_RECORDS",
    "SIGNS_PER_LEASE",
    "SILENCE_FACTOR",
    "Append",
    "Assign",
    "GroupAction",
    "GroupMember",
    "GroupReaderMachine",
    "GroupSettings",
    "GroupView",
    "Lose",
    "Member",
    "MemberRecord",
    "Position",
    "Revoke",
    "Stage",
    "Survey",
    "decode_member_record",
    "encode_member_record",
    "topic_of_group",
]
