"""Positions: where in the logs of a topic a client begins to read, and resumes when a leader epoch has changed.

With the availability "branch", records that a client has read before a split of the cluster can be missing from the log
that is led afterwards. The client then resumes where the two epochs diverge: it can get records again, and misses none.

With "majority", every record that a client reads is in all later epochs, so the client never goes back. The epoch
starts known here can suggest otherwise: a leader that continues with other replicas serves records of its next epoch
before the start of that epoch has arrived here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Literal, TypeAlias

import attrs
import msgspec
from msgspec import Meta

from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.topic_settings import MAJORITY, availability_of
from dafka.broker.core.positions import OFFSET_MAX, Offset
from dafka.broker.core.replication.epoch_tree import EpochTree
from dafka.broker.core.replication.records import EpochEnd, LeaderAndEpoch
from dafka.broker.node import BrokerNode
from dafka.http.logs.group_access import GroupAccess
from dafka.http.logs.log_access import LogAccess, LogOffsets
from dafka.http.logs.records import TIMESTAMP_MAX, is_integer
from dafka.http.server.errors import WebError
from dafka.text import parse_time

LogNumber: TypeAlias = Annotated[int, Meta(ge=0, lt=10**9)]
OffsetNumber: TypeAlias = Annotated[int, Meta(ge=0, le=TIMESTAMP_MAX)]


@attrs.frozen
class FromOffsets:
    """An offset in each log, by its number."""

    offsets: Mapping[int, int]


@attrs.frozen
class FromOffset:
    """An offset in a single log."""

    offset: int


@attrs.frozen
class FromTime:
    """The first record with this timestamp, in milliseconds since 1970, or a later one."""

    timestamp_ms: int


@attrs.frozen
class FromGroup:
    """The offsets that a group has committed; otherwise the earliest or the latest offset of a log."""

    group: str
    otherwise: Literal["earliest", "latest"]


Position: TypeAlias = Literal["earliest", "latest"] | FromOffset | FromOffsets | FromTime | FromGroup

_FORMS = (
    '"earliest", "latest", {"offset": 5}, {"offsets": {"0": 5}}, {"time": milliseconds} or '
    '{"group": "name", "otherwise": "earliest"}'
)


def parse_position(value: object) -> Position:
    """Parse a position in JSON, such as `"earliest"` or `{"offset": 5}`; see `_FORMS`. Raises `WebError`."""
    if value == "earliest":
        return "earliest"
    if value == "latest":
        return "latest"
    if isinstance(value, dict):
        keys = value.keys()
        if keys == {"offset"} and is_integer(value["offset"]):
            return FromOffset(value["offset"])
        if keys == {"time"}:
            return FromTime(_parse_time(value["time"]))
        if keys == {"offsets"}:
            return FromOffsets(parse_offsets(value["offsets"]))
        group, otherwise = value.get("group"), value.get("otherwise", "earliest")
        if keys <= {"group", "otherwise"} and isinstance(group, str) and otherwise in ("earliest", "latest"):
            return FromGroup(group, otherwise)
    raise WebError("bad_request", f"from: expected {_FORMS}")


def parse_position_text(text: str, otherwise: str = "earliest") -> Position:
    """Parse a position in a query: `earliest`, `latest`, an offset, `time:...` or `group:...`. Raises `WebError`."""
    kind, _, rest = text.partition(":")
    if text.isascii() and text.isdigit() and len(text) < 20:
        return FromOffset(int(text))
    if kind == "time" and rest:
        return FromTime(_parse_time(int(rest) if rest.isascii() and rest.isdigit() and len(rest) < 17 else rest))
    if kind == "group" and rest and otherwise in ("earliest", "latest"):
        return FromGroup(rest, "latest" if otherwise == "latest" else "earliest")
    if text in {"earliest", "latest"}:
        return "latest" if text == "latest" else "earliest"
    raise WebError(
        "bad_request",
        f"from: expected earliest, latest, an offset, time:2026-01-31T12:00:00Z, time:MILLISECONDS or group:NAME, "
        f"not {text!r}",
    )


def parse_offsets(offsets: object) -> dict[int, int]:
    """Parse offsets by log in JSON: `{"0": 5}`. Raises `WebError`."""
    try:
        return msgspec.convert(offsets, dict[LogNumber, OffsetNumber], str_keys=True)
    except msgspec.ValidationError:
        raise WebError("bad_request", 'offsets: expected the offset in each log, such as {"0": 5}') from None


def _parse_time(value: object) -> int:
    if is_integer(value):
        assert isinstance(value, int)
        return value
    if isinstance(value, str):
        with suppress(ValueError):
            if 0 <= (milliseconds := parse_time(value)) <= TIMESTAMP_MAX:
                return milliseconds
    raise WebError("bad_request", "time: expected milliseconds since 1970, or a time such as 2026-01-31T12:00:00Z")


async def find_offsets(
    access: LogAccess, groups: GroupAccess, logs: Sequence[Log], position: Position
) -> dict[Log, int]:
    """Return the offset at which to begin in each log. Offsets of dropped records are moved to the first record.

    Raises `WebError` if an offset is beyond the end of its log or belongs to none of these logs, the storage fails, or
    the leader of a log cannot be reached.
    """
    if isinstance(position, FromTime):
        return {log: await access.find_offset_by_time(log, position.timestamp_ms) for log in logs}
    bounds = await access.bounds(logs)
    if position == "earliest":
        return {log: each.start_offset for log, each in bounds.items()}
    if position == "latest":
        return {log: each.end_offset for log, each in bounds.items()}
    if isinstance(position, (FromOffset, FromOffsets)):
        return _checked_offsets(bounds, position)
    return await _find_committed(groups, bounds, position)


async def _find_committed(groups: GroupAccess, bounds: Mapping[Log, LogOffsets], position: FromGroup) -> dict[Log, int]:
    found = {}
    committed = await groups.fetch_offsets(position.group, next(iter(bounds)).topic) if bounds else {}
    for log, each in bounds.items():
        offset = committed.get(log.number, -1)
        if offset >= 0:
            found[log] = min(max(offset, each.start_offset), each.offset_max)
        else:
            found[log] = each.end_offset if position.otherwise == "latest" else each.start_offset
    return found


def _checked_offsets(bounds: Mapping[Log, LogOffsets], position: FromOffset | FromOffsets) -> dict[Log, int]:
    if isinstance(position, FromOffset):
        if len(bounds) != 1:
            topic = next(iter(bounds)).topic
            raise WebError("bad_request", f"the topic {topic!r} has several logs: name one, or an offset for each")
        return {log: _checked_offset(log, each, position.offset) for log, each in bounds.items()}
    offsets = dict(position.offsets)
    found = {
        log: _checked_offset(log, each, offsets.pop(log.number, each.start_offset)) for log, each in bounds.items()
    }
    for number in offsets:
        topic = next(iter(bounds)).topic
        raise WebError("log_not_found", f"offsets: log {number} of the topic {topic!r} is not read")
    return found


def _checked_offset(log: Log, bounds: LogOffsets, offset: int) -> int:
    if offset > bounds.offset_max:
        raise WebError(
            "offset_out_of_range",
            f"log {log.number} of the topic {log.topic!r} ends at offset {bounds.offset_max}, before {offset}",
        )
    return max(offset, bounds.start_offset)


class DivergenceTracker:
    """The leader epochs that one client has read."""

    def __init__(self, broker: BrokerNode) -> None:
        self._broker = broker
        self._read: dict[Log, LeaderAndEpoch] = {}

    def check(self, log: Log, offset: int) -> int:
        """Return the offset at which a client resumes that has read up to an offset; less if the log has diverged."""
        topic = self._broker.log_table.topics.get(log.topic)
        if topic is None or availability_of(topic) == MAJORITY:
            return offset
        leadership = log.leadership
        epoch, former_epoch = LeaderAndEpoch(leadership.epoch, leadership.leader), self._read.get(log)
        if epoch == former_epoch or not leadership.leader:
            return offset
        if former_epoch is not None:
            divergence = self._find_divergence(log, EpochEnd(epoch, OFFSET_MAX), EpochEnd(former_epoch, Offset(offset)))
            if divergence is None:
                return offset  # the epoch starts have not arrived yet
            offset = min(offset, divergence)
        self._read[log] = epoch
        return offset

    def _find_divergence(self, log: Log, first: EpochEnd, second: EpochEnd) -> int | None:
        tables = self._broker.epoch_starts(log.topic)
        table = EpochTree(tables[log.number] if log.number < len(tables) else ())
        found = table.common_end(first, second)
        return None if found is None else found.end_offset
