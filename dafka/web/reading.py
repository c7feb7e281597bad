"""Read the logs of a topic from a position on, for HTTP and WebSocket.

Clients get committed records only: those of transactions that are open or aborted are not among them, nor are the ends
of transactions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal, TypeAlias

import attrs
import trio

from dafka.batches import BatchHeader, RecordColumns, decode_batch, read_header
from dafka.broker import Service
from dafka.errors import BatchError, StorageError
from dafka.kafka.errors import ErrorCode
from dafka.kafka.topics import TopicPartition
from dafka.protocol.logs import LogState, find_name_problem
from dafka.web.errors import WebError, log_not_found, topic_not_found
from dafka.web.records import TIMESTAMP_MAX, JsonRecord, is_integer, record_objects

READ_BYTES = 2**16
"""The size of one read, unless a single batch is larger."""


# Positions


@attrs.frozen
class FromOffsets:
    """From an offset on in each log.

    Attributes:
        offsets: The offset in each log.
    """

    offsets: Mapping[int, int]


@attrs.frozen
class FromOffset:
    """From an offset on, in a single log.

    Attributes:
        offset: The offset.
    """

    offset: int


@attrs.frozen
class FromTime:
    """From the first record on that was made at a time or later.

    Attributes:
        timestamp_ms: The time, in milliseconds since 1970 UTC.
    """

    timestamp_ms: int


@attrs.frozen
class FromGroup:
    """From the offsets on that a group has committed.

    Attributes:
        group: The group.
        otherwise: Where to begin in a log for which the group has committed nothing.
    """

    group: str
    otherwise: Literal["earliest", "latest"]


Position: TypeAlias = Literal["earliest", "latest"] | FromOffset | FromOffsets | FromTime | FromGroup

_FORMS = (
    '"earliest", "latest", {"offset": 5}, {"offsets": {"0": 5}}, {"time": milliseconds} or '
    '{"group": "name", "otherwise": "earliest"}'
)


def parse_position(value: object) -> Position:
    """Return the position that a JSON value names.

    Args:
        value: `"earliest"`, `"latest"`, `{"offset": n}`, `{"offsets": {"0": n}}`, `{"time": ms or ISO 8601}` or
            `{"group": "name", "otherwise": "earliest"}`.

    Returns:
        The position.

    Raises:
        WebError: It names none.
    """
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
        if keys == {"offsets"} and isinstance(value["offsets"], dict):
            return FromOffsets(parse_offsets(value["offsets"]))
        group, otherwise = value.get("group"), value.get("otherwise", "earliest")
        if keys <= {"group", "otherwise"} and isinstance(group, str) and otherwise in ("earliest", "latest"):
            return FromGroup(group, otherwise)
    raise WebError("bad_request", f"from: expected {_FORMS}")


def parse_position_text(text: str, otherwise: str = "earliest") -> Position:
    """Return the position that the text of a query names: `earliest`, `latest`, an offset, `time:...`, `group:...`.

    Args:
        text: The text.
        otherwise: Where to begin in a log for which a group has committed nothing.

    Returns:
        The position.

    Raises:
        WebError: It names none.
    """
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


def parse_offsets(offsets: Mapping[str, object]) -> dict[int, int]:
    """Return offsets by log, as JSON has them: `{"0": 5}`. Raises `WebError`."""
    found: dict[int, int] = {}
    for number, offset in offsets.items():
        if not (number.isascii() and number.isdigit() and len(number) < 10) or not is_integer(offset):
            raise WebError("bad_request", 'offsets: expected the offset in each log, such as {"0": 5}')
        assert isinstance(offset, int)
        found[int(number)] = offset
    return found


def _parse_time(value: object) -> int:
    if is_integer(value):
        assert isinstance(value, int)
        return value
    if isinstance(value, str):
        try:
            time = datetime.fromisoformat(value)
            since = (time if time.tzinfo else time.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
            milliseconds = since // timedelta(milliseconds=1)
        except (ValueError, OverflowError):
            pass
        else:
            if 0 <= milliseconds <= TIMESTAMP_MAX:
                return milliseconds
    raise WebError("bad_request", "time: expected milliseconds since 1970, or a time such as 2026-01-31T12:00:00Z")


# Logs


def find_logs(service: Service, topic: str, numbers: Iterable[int] | None = None) -> list[LogState]:
    """Return logs of a topic.

    Args:
        service: The broker and its coordinators.
        topic: The topic.
        numbers: The numbers of the logs; None for all.

    Returns:
        The logs, in the order of their numbers, each once.

    Raises:
        WebError: There is no such topic or log.
    """
    logs = service.broker.order.logs(topic)
    if not logs and service.broker.inventory.record_count(topic):
        raise WebError("topic_not_found", f"the topic {topic!r} has no logs: {find_name_problem(topic)}")
    if not logs:
        raise topic_not_found(topic)
    if numbers is None:
        return list(logs)
    found = []
    for number in sorted(set(numbers)):
        if not 0 <= number < len(logs):
            raise log_not_found(topic, number, len(logs))
        found.append(logs[number])
    return found


def is_deleted(service: Service, log: LogState) -> bool:
    """Return whether the topic of a log was deleted."""
    return service.broker.order.find_log(log.topic, log.number) is not log


async def find_offsets(service: Service, logs: Sequence[LogState], position: Position) -> dict[LogState, int]:
    """Return the offset at which to begin in each log.

    Args:
        service: The broker and its coordinators.
        logs: The logs.
        position: Where to begin. Offsets of records that were dropped are moved to the first record that is there.

    Returns:
        The offset in each log.

    Raises:
        WebError: An offset lies behind the end of its log or names none of these logs, or the storage fails.
    """
    if position == "earliest":
        return {log: log.index.start_offset for log in logs}
    if position == "latest":
        return {log: service.last_stable_offset(log) for log in logs}
    if isinstance(position, (FromOffset, FromOffsets)):
        return _checked_offsets(logs, position)
    if isinstance(position, FromGroup):
        return await _find_committed(service, logs, position)
    assert isinstance(position, FromTime)
    return await _find_time(service, logs, position.timestamp_ms)


async def _find_time(service: Service, logs: Sequence[LogState], timestamp_ms: int) -> dict[LogState, int]:
    found = {}
    for log in logs:
        end = service.last_stable_offset(log)
        try:
            at = await service.broker.reader.find_offset_by_time(log, timestamp_ms)
        except StorageError as error:
            raise WebError("storage_failed", f"the storage fails: {error}") from None
        found[log] = end if at is None else min(at[0], end)
    return found


async def _find_committed(service: Service, logs: Sequence[LogState], position: FromGroup) -> dict[LogState, int]:
    asked = {TopicPartition(log.topic, log.number): log for log in logs}
    committed = await service.settle(service.groups.fetch_offsets(position.group, list(asked), require_stable=False))
    found = {}
    for place, log in asked.items():
        each = committed.get(place)
        if each is not None and each.error_code is not ErrorCode.NONE:
            raise WebError("conflict", f"the offsets of the group {position.group!r}: {each.error_code.name}")
        if each is not None and each.offset >= 0:
            found[log] = min(max(each.offset, log.index.start_offset), log.high_watermark)
        else:
            is_latest = position.otherwise == "latest"
            found[log] = service.last_stable_offset(log) if is_latest else log.index.start_offset
    return found


def _checked_offsets(logs: Sequence[LogState], position: FromOffset | FromOffsets) -> dict[LogState, int]:
    topic = logs[0].topic
    if isinstance(position, FromOffset):
        if len(logs) != 1:
            raise WebError("bad_request", f"the topic {topic!r} has several logs: name one, or an offset for each")
        return {logs[0]: _checked_offset(logs[0], position.offset)}
    offsets = dict(position.offsets)
    found = {log: _checked_offset(log, offsets.pop(log.number, log.index.start_offset)) for log in logs}
    for number in offsets:
        raise WebError("log_not_found", f"offsets: log {number} of the topic {topic!r} is not read")
    return found


def _checked_offset(log: LogState, offset: int) -> int:
    if offset > log.high_watermark:
        raise WebError(
            "offset_out_of_range",
            f"log {log.number} of the topic {log.topic!r} ends at offset {log.high_watermark}, before {offset}",
        )
    return max(offset, log.index.start_offset)


# Records


@attrs.frozen
class ReadRecords:
    """Committed records of one log.

    Attributes:
        offset: The offset from which on was read. It lies behind the one that was asked for if records were dropped.
        next_offset: The offset at which to go on.
        batches: The record batches, whose base offsets are those of the log.
    """

    offset: int
    next_offset: int
    batches: Sequence[tuple[BatchHeader, bytes]]

    @property
    def record_count(self) -> int:
        """The number of records."""
        return sum(header.count for header, _ in self.batches)

    def columns(self, bytes_max: int) -> Iterator[tuple[int, RecordColumns]]:
        """Yield the records, with the offset of the first one of each part.

        Args:
            bytes_max: The maximum size of the records of a batch, `[kafka] batch_bytes_max`.

        Yields:
            An offset, and the records from it on.
        """
        for header, data in self.batches:
            yield header.base_offset, decode_batch(data, bytes_max=bytes_max, header=header)

    def objects(self, bytes_max: int) -> list[JsonRecord]:
        """Return the records as JSON has them. See `columns`."""
        return [each for offset, part in self.columns(bytes_max) for each in record_objects(part, offset)]


async def read_committed(
    service: Service, log: LogState, offset: int, *, bytes_max: int = READ_BYTES, end_offset: int | None = None
) -> ReadRecords:
    """Return the committed records of a log from an offset on, as many as there are within a size.

    Args:
        service: The broker and its coordinators.
        log: The log.
        offset: The offset of the first record. If it was dropped, the records begin behind it.
        bytes_max: The approximate maximum size. One batch is returned even if it is larger.
        end_offset: The offset after the last record to return; None for as many as there are.

    Returns:
        The records. If there are none and `next_offset` is `offset`, there are no further records yet.

    Raises:
        WebError: The topic was deleted, or the storage fails.
    """
    offset = max(offset, log.index.start_offset)
    stable = service.last_stable_offset(log)
    end = stable if end_offset is None else min(stable, end_offset)
    if is_deleted(service, log):
        raise topic_not_found(log.topic)
    if offset >= end:
        return ReadRecords(offset, offset, ())
    aborted = sorted(service.aborted_between(log, offset, end), key=lambda each: each[1])
    try:
        batches = [(read_header(data), data) for data in await service.broker.reader.read(log, offset, end, bytes_max)]
    except (StorageError, BatchError) as error:
        if is_deleted(service, log):
            raise topic_not_found(log.topic) from None
        raise WebError("storage_failed", f"the storage fails: {error}") from None
    next_offset = batches[-1][0].end_offset if batches else end
    return ReadRecords(offset, next_offset, _committed(batches, aborted))


def _committed(
    batches: Sequence[tuple[BatchHeader, bytes]], aborted: Sequence[tuple[int, int]]
) -> Sequence[tuple[BatchHeader, bytes]]:
    """Return the batches without those of aborted transactions, and without the ends of transactions.

    Args:
        batches: The batches.
        aborted: The producers of aborted transactions, and the offsets of the first records, in their order.

    Returns:
        The batches of committed records.
    """
    found = []
    begun = 0
    aborting = set[int]()
    for header, data in batches:
        while begun < len(aborted) and aborted[begun][1] < header.end_offset:
            aborting.add(aborted[begun][0])
            begun += 1
        if header.is_control:
            aborting.discard(header.producer_id)
        elif not header.is_transactional or header.producer_id not in aborting:
            found.append((header, data))
    return found


def has_records(service: Service, log: LogState, offset: int) -> bool:
    """Return whether a log has committed records at an offset or later, or was deleted."""
    return service.last_stable_offset(log) > offset or is_deleted(service, log)


async def wait_records(service: Service, offsets: Mapping[LogState, int]) -> None:
    """Wait until one of these logs has records at its offset or later, or is deleted.

    Args:
        service: The broker and its coordinators.
        offsets: The offset in each log.
    """
    while not any(has_records(service, log, offset) for log, offset in offsets.items()):
        with service.broker.watching(offsets) as advanced:
            await advanced.wait()
    await trio.lowlevel.checkpoint()
