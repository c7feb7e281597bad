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
)
from dafka.protocol.groups.records import LEASE_MS_MAX, topic_of_group
from dafka.protocol.groups.topic_reader import GroupReaderMachine
from dafka.protocol.groups.view import GroupView

__all__ = [
    "GROUP_PREFIX",
    "LEASE_MS_MAX",
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
    "Revoke",
    "topic_of_group",
]
