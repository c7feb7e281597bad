"""Feature levels: which commands, messages and state the brokers of a cluster may write.

A cluster has one level, and each version of dafka supports a range of them. Brokers of different versions run together
at a level that all of them support. An operator raises it when all brokers have been upgraded; it is never lowered.
A later version writes what belongs to a later level only when the cluster has that level: until then, it leaves out
new fields, whose values are their defaults.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import attrs

FEATURE = "metadata.version"
"""The name of the level for clients of Kafka. Kafka's own levels of this name have other numbers."""

LEVEL_MAX = 2**15 - 1
"""The largest number of a level, because Kafka's protocol has 16 bits for it."""


class FeatureLevels(NamedTuple):
    """The range of feature levels that a broker supports."""

    lowest: int = 1
    highest: int = 1

    def has(self, level: int) -> bool:
        """Return whether a level is in the range."""
        return self.lowest <= level <= self.highest

    def explain(self, level: int) -> str:
        """Return why a broker with this range cannot belong to a cluster with a level; empty if it can.

        Any broker can before the cluster has a level, which is 0 then.
        """
        if not level or self.has(level):
            return ""
        advice = "update dafka on this broker"
        if level < self.lowest:
            advice = "raise it with `dafka cluster upgrade` before this broker is updated"
        return f"the cluster has the feature level {level}, and this broker supports {self}: {advice}"

    def __str__(self) -> str:
        return str(self.lowest) if self.lowest == self.highest else f"{self.lowest} to {self.highest}"


FIRST_LEVEL = FeatureLevels()
"""What the first release supports."""

CONSUMER_GROUPS = 2
"""The first level with groups whose coordinator assigns the partitions (KIP-848)."""

CLIENT_ACCESS = 3
"""The first level with ACLs, users and quotas that clients change."""

TRANSACTIONS = 3
"""The first level with transactions that have an epoch each, and that logs and groups join implicitly (KIP-890)."""

SHARE_GROUPS = 3
"""The first level with share groups, whose members share the records of logs (KIP-932)."""

DEAD_LETTERS = 4
"""The first level at which share groups write dead letters (KIP-1191)."""

MERGED_ENDS = 4
"""The first level at which indexes of logs name the ends of what was merged of divergent leader epochs."""


def common_levels(ranges: Iterable[FeatureLevels]) -> FeatureLevels:
    """Return the levels that are in all ranges. There are none if `lowest` is larger than `highest`."""
    found = list(ranges)
    lowest = max((each.lowest for each in found), default=1)
    return FeatureLevels(lowest, min((each.highest for each in found), default=LEVEL_MAX))


@attrs.frozen
class FeatureSupport:
    """What a version of dafka supports.

    Attributes:
        levels: The feature levels.
        command_levels: By kind of command, the first level that has it. Commands that are missing here belong to the
            first level.
    """

    levels: FeatureLevels = FIRST_LEVEL
    command_levels: Mapping[str, int] = attrs.field(factory=dict)

    def level_of(self, kind: str) -> int:
        """Return the first level that has a kind of command."""
        return self.command_levels.get(kind, 1)


_CLIENT_ACCESS_COMMANDS = (
    "create-acls",
    "delete-acls",
    "set-scram-credential",
    "delete-scram-credential",
    "alter-client-quota",
)

SUPPORTED = FeatureSupport(
    FeatureLevels(1, DEAD_LETTERS),
    {**dict.fromkeys(_CLIENT_ACCESS_COMMANDS, CLIENT_ACCESS), "alter-group-settings": SHARE_GROUPS},
)
"""What this version of dafka supports."""
