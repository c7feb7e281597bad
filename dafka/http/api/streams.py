"""Routes that read records: a range as JSON Lines, a stream as server-sent events, and the upgrade to WebSocket."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Annotated

import trio

from dafka.broker.core.log.log import Log
from dafka.http.api.openapi import Error
from dafka.http.api.registry import Answer, Parameter, RequiredPermission, Route
from dafka.http.logs.log_access import READ_BYTES, find_logs
from dafka.http.logs.positions import (
    DivergenceTracker,
    FromGroup,
    FromOffsets,
    Position,
    find_offsets,
    parse_position_text,
)
from dafka.http.logs.records import Record
from dafka.http.server.documents import Count, doc, encode_document
from dafka.http.server.errors import WebError
from dafka.http.server.messages import EVENT_STREAM, JSON_LINES, AnyResponse, Request, StreamedResponse
from dafka.http.websocket.shared_reads import RecordLine, join_lines
from dafka.http1.connection import Send

LIMIT_MAX = 1_000_000
WAIT_MS_MAX = 60_000

EVENT_LOGS_MAX = 100
"""The maximum number of logs of an event stream: each event contains the positions of all."""

KEEP_ALIVE_S = 15.0
"""The interval of keep-alives in an idle event stream, so that web proxies keep the connection."""

RETRY_MS = 1000
"""How long a browser waits before it reconnects."""

_UNBUFFERED = (("X-Accel-Buffering", "no"),)
"""Makes nginx forward each event immediately."""

_FROM = (
    "Where to begin: `earliest`, `latest`, an offset (of one log), `offsets:0=5,1=7` (log and offset), `time:` with "
    "`2026-01-31T12:00:00Z` or milliseconds since 1970, or `group:NAME` for the offsets that a group has committed."
)


@Route(
    "GET /topics/{topic}/records",
    RequiredPermission.READ,
    name="readRecords",
    tag="Records",
    parameters=[
        Parameter("from", Annotated[str, doc(_FROM, max_length=3000)], "earliest", example="time:2026-01-31T12:00:00Z"),
        Parameter(
            "to",
            Annotated[
                str, doc("Where to end, in the same form as `from`; else at the end of each log.", max_length=3000)
            ],
        ),
        Parameter("log", Annotated[Count, doc("The log; else all logs.")], example=0),
        Parameter("limit", Annotated[int, doc("The number of records.", ge=1, le=LIMIT_MAX)], 1000),
        Parameter(
            "wait_ms",
            Annotated[
                int, doc("How long to wait for a record if there is none, in milliseconds.", ge=0, le=WAIT_MS_MAX)
            ],
            0,
        ),
    ],
    answers={
        200: Answer(
            "The records. Those of one log are in the order of their offsets.",
            None,
            {
                JSON_LINES: Record,
                EVENT_STREAM: Annotated[str, doc("An event for each record, whose data is the record as JSON.")],
            },
        )
    },
    errors=("log_not_found", "offset_out_of_range", "leader_unavailable"),
)
async def read_records(request: Request) -> AnyResponse:
    """Read records as JSON Lines, or as server-sent events.

    With `Accept: text/event-stream`, the response does not end, and includes records that are published later; `to`,
    `limit` and `wait_ms` are ignored. The id of each event is the position after it. A browser sends the last id in the
    header `Last-Event-ID` when it reconnects, so that no record is missed or repeated.
    """
    broker, query = request.broker, request.query
    topic, number = request.arguments["topic"], query["log"]
    logs = find_logs(broker, topic, None if number is None else [number])
    if request.prefers(EVENT_STREAM):
        return await _begin_events(request, topic, logs)
    access = request.logs
    offsets = await find_offsets(access, request.groups, logs, _parse_position(request, query["from"]))
    ends = {log: each.end_offset for log, each in (await access.bounds(logs)).items()}
    if query["wait_ms"] and not any(ends[log] > offset for log, offset in offsets.items()):
        await request.wait_while_connected(partial(access.wait_records, offsets), query["wait_ms"] / 1000)
        request.principal.check_read(topic)  # permissions can have changed meanwhile
        ends = {log: each.end_offset for log, each in (await access.bounds(logs)).items()}
    if query["to"] is not None:
        ends = await find_offsets(access, request.groups, logs, _parse_position(request, query["to"]))
    return StreamedResponse(partial(_send_lines, request, offsets, ends), JSON_LINES)


async def _begin_events(request: Request, topic: str, logs: Sequence[Log]) -> StreamedResponse:
    last = request.head.headers.get("last-event-id")
    position = _parse_position(request, request.query["from"] if last is None else f"offsets:{last}")
    if len(logs) > EVENT_LOGS_MAX:
        raise WebError("bad_request", f"the topic {topic!r} has {len(logs)} logs: name one with the parameter 'log'")
    offsets = await find_offsets(request.logs, request.groups, logs, position)
    return StreamedResponse(_Events(request, topic, offsets).produce, EVENT_STREAM, _UNBUFFERED, is_endless=True)


def _parse_position(request: Request, text: str) -> Position:
    """Parse a client's position, and check its permission for the group."""
    kind, _, rest = text.partition(":")
    if kind == "offsets":
        offsets: dict[int, int] = {}
        for each in rest.split(","):
            log, _, offset = each.partition("=")
            if not all(part.isascii() and part.isdigit() and len(part) < 20 for part in (log, offset)):
                raise WebError("bad_request", f"expected offsets such as offsets:0=5,1=7, not {text[:100]!r}")
            offsets[int(log)] = int(offset)
        return FromOffsets(offsets)
    position = parse_position_text(text)
    if isinstance(position, FromGroup):
        request.principal.check_group(position.group)
    return position


async def _read_all(
    request: Request, offsets: Mapping[Log, int], ends: Mapping[Log, int]
) -> AsyncGenerator[list[RecordLine]]:
    """Yield the records in ranges of offsets, log by log."""
    for log, first in offsets.items():
        offset = first
        while offset < ends[log]:
            read = await request.web.reads.read(request.logs, log, offset, READ_BYTES)
            lines = await read.lines(request.host)
            request.buffered_bytes = read.size
            yield [line for line in lines if offset <= line.offset < ends[log]]
            if read.read.next_offset <= offset:
                break
            offset = read.read.next_offset


async def _send_lines(request: Request, offsets: Mapping[Log, int], ends: Mapping[Log, int], send: Send) -> None:
    """Send the records in ranges of offsets, as lines."""
    limit = left = request.query["limit"]
    async with aclosing(_read_all(request, offsets, ends)) as parts:
        async for lines in parts:
            for piece in join_lines(lines[:left], lambda _: b"", b"\n"):
                await send(piece)
            left -= min(len(lines), left)
            if not left:
                break
    request.web.counters.consumed[request.arguments["topic"]] += limit - left


class _Events:
    """A stream of events with all records of logs from offsets on."""

    def __init__(self, request: Request, topic: str, offsets: Mapping[Log, int]) -> None:
        self._request = request
        self._access = request.logs
        self._topic = topic
        self._offsets = dict(offsets)
        self._follower = DivergenceTracker(request.broker.node)

    async def produce(self, send: Send) -> None:
        """Send events until cancelled, or until the user may no longer read the topic."""
        await send(b"retry: %d\nid: %s\n\n" % (RETRY_MS, self._position()))
        try:
            while True:
                for log, offset in self._offsets.items():
                    self._offsets[log] = self._follower.check(log, offset)
                await self._send_new(send)
                with trio.move_on_after(KEEP_ALIVE_S) as scope:
                    await self._access.wait_records(self._offsets)
                if scope.cancelled_caught:
                    await send(b": nothing new\n\n")
        except WebError as error:
            await send(b"event: error\ndata: %s\n\n" % encode_document(error.describe()))

    def _position(self) -> bytes:
        return ",".join(f"{log.number}={offset}" for log, offset in self._offsets.items()).encode()

    async def _send_new(self, send: Send) -> None:
        """Send the available records, a part of each log in turn."""
        while any(self._access.has_records(*each) for each in self._offsets.items()):
            self._request.principal.check_read(self._topic)
            for log, offset in list(self._offsets.items()):
                if not self._access.has_records(log, offset):
                    continue
                read = await self._request.web.reads.read(self._access, log, offset)
                if len(self._offsets) == 1:
                    events = await read.events(self._request.host)
                    self._request.buffered_bytes = read.size
                    for piece in events:
                        await send(piece)
                    count = read.read.record_count
                else:
                    lines = await read.lines(self._request.host)
                    self._request.buffered_bytes = read.size
                    for piece in join_lines(lines, partial(self._begin_event, log), b"\n\n"):
                        await send(piece)
                    count = len(lines)
                self._offsets[log] = max(read.read.next_offset, offset)
                self._request.web.counters.consumed[self._topic] += count

    def _begin_event(self, log: Log, offset: int) -> bytes:
        """Return the beginning of an event, with the position in all logs."""
        self._offsets[log] = offset + 1
        return b"id: %b\ndata: " % self._position()


@Route(
    "GET /ws",
    RequiredPermission.NOTHING,
    name="connectWebSocket",
    tag="WebSocket",
    answers={
        101: Answer("The connection continues with WebSocket."),
        426: Answer("The request does not ask for WebSocket.", Error),
    },
    is_websocket=True,
)
async def connect(_request: Request) -> AnyResponse:
    """Upgrade to WebSocket.

    The subprotocols are `dafka.json.v1` and `dafka.binary.v1`. A client that sends no credentials here sends them in
    its first message.
    """
    raise WebError("bad_request", "expected an upgrade to WebSocket", status=426, headers=[("Upgrade", "websocket")])
