"""The actions of a member of a group."""

from __future__ import annotations

from typing import TypeAlias

import attrs

from dafka.records import Partition


@attrs.frozen
class Append:
    """Append a record to the member's own partition of the group's topic."""

    value: bytes


@attrs.frozen
class Survey:
    """Ask the stores for all records of the group, read them, and then call `survey_done`."""


@attrs.frozen
class Assign:
    """Hand out the records of a partition from this sequence on."""

    partition: Partition
    sequence: int


@attrs.frozen
class Revoke:
    """Stop handing out records of a partition, and call `handed_out` with the end of what was handed out."""

    partition: Partition


@attrs.frozen
class Lose:
    """Stop handing out records of these partitions: other members can handle them now."""

    partitions: tuple[Partition, ...]


GroupAction: TypeAlias = Append | Survey | Assign | Revoke | Lose
