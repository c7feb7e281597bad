"""Routes for queues: share groups whose records clients receive and acknowledge one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain, repeat
from typing import Annotated, Any, TypeAlias

import trio
from msgspec import Meta, field

from dafka.broker.core.acls import Operation, ResourceType
from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.commands import AlterGroupSettings
from dafka.broker.core.metadata.features import DEAD_LETTERS, SHARE_GROUPS
from dafka.broker.core.metadata.group_settings import DEAD_LETTER_TOPIC, GROUP_SETTINGS, find_problem
from dafka.http.api.registry import Answer, RequiredPermission, Route
from dafka.http.logs.log_access import find_logs
from dafka.http.logs.positions import FromGroup, FromTime, Position, find_offsets, parse_offsets, parse_position
from dafka.http.logs.records import Record
from dafka.http.queues.encoding import encode_locked
from dafka.http.queues.queue_access import (
    BYTES_MAX,
    RECEIVE_BYTES,
    RECORDS_MAX,
    AcknowledgedRecords,
    Kind,
    Queue,
    Receipt,
    ReceiveLimits,
    RefusedRecords,
    create_receipt,
    parse_acknowledgements,
)
from dafka.http.server.documents import Count, Document, doc
from dafka.http.server.errors import WebError
from dafka.http.server.messages import JSON, AnyResponse, Request, StreamedResponse
from dafka.http.websocket.shared_reads import RecordLine, join_lines
from dafka.http1.connection import Send
from dafka.storage.plugin_helpers import now_ms

WAIT_MS_MAX = 60_000

LockMs: TypeAlias = Annotated[
    Count, doc("How long a client has a record, from when it was locked, in milliseconds: the setting of the group.")
]


class QueueLog(Document):
    """A queue in one log. The counts are null if its leader does not answer."""

    log: Annotated[Count, doc("The number of the log.")]
    start_offset: Annotated[Count | None, doc("The offset of the first record that is not finished.")]
    available_count: Annotated[
        Count | None, doc("About how many records can be received now: those that compaction has removed count.")
    ]
    locked_count: Annotated[Count | None, doc("How many records clients have.")]


class DescribedQueue(Document):
    """A queue."""

    queue: Annotated[str, doc("The name of the share group.")]
    topic: Annotated[str, doc("The topic.")]
    logs: Annotated[list[QueueLog], doc("The queue in each log of the topic.")]
    available_count: Annotated[Count, doc("The sum of the logs' counts.")]
    locked_count: Annotated[Count, doc("The sum of the logs' counts.")]
    lock_ms: LockMs
    settings: Annotated[dict[str, str], doc("The group's own settings.")]


class NewQueue(Document):
    """A queue to create."""

    position: Annotated[
        Any,
        doc(
            'Where it begins in logs in which it has not begun: `"earliest"`, `"latest"`, `{"offset": 5}`, '
            '`{"offsets": {"0": 5}}`, `{"time": milliseconds}` or `{"group": "name"}`; if omitted, as the setting '
            "`share.auto.offset.reset` says."
        ),
    ] = field(name="from", default=None)
    settings: Annotated[
        dict[str, str | None],
        doc(
            "Settings of the group to change, null for the default: "
            f"{', '.join(f'`{each}`' for each in GROUP_SETTINGS)}."
        ),
    ] = {}


class Receive(Document):
    """How many records to receive."""

    records_max: Annotated[int, doc("How many records.", ge=1, le=RECORDS_MAX)] = 1
    bytes_max: Annotated[
        int, doc("How many bytes of keys, values and headers; the last record can exceed it.", ge=1, le=BYTES_MAX)
    ] = RECEIVE_BYTES
    wait_ms: Annotated[
        int, doc("How long to wait if no record is available, in milliseconds.", ge=0, le=WAIT_MS_MAX)
    ] = 0


class ReceivedRecord(Record, kw_only=True):
    """A record that is locked for the client."""

    delivery_count: Annotated[int, doc("How often it was delivered, now included.", ge=1)]
    locked_until: Annotated[Count, doc("When the lock expires, in milliseconds since 1970 by the broker's clock.")]


class ReceivedRecords(Document):
    """Records that are locked for the client."""

    receipt: Annotated[str, doc("What acknowledges them. No other request gets the same.")]
    lock_ms: LockMs
    records: Annotated[list[ReceivedRecord], doc("The records; none if there are none at the end of `wait_ms`.")]


class Acknowledge(Document):
    """What the client says of records."""

    receipt: Receipt
    acknowledgements: Annotated[
        list[AcknowledgedRecords], Meta(max_length=RECORDS_MAX), doc("What it says of these records.")
    ] = []
    others: Annotated[Kind | None, doc("What it says of all other records that the receipt locks.")] = None


class AcknowledgedQueue(Document):
    """The outcome of acknowledgements."""

    lock_ms: LockMs
    refused: Annotated[list[RefusedRecords], doc("The records that were not acknowledged. All others are, durably.")]


def _find(request: Request) -> tuple[Queue, list[Log]]:
    queue = Queue(request.arguments["queue"], request.arguments["topic"])
    return queue, find_logs(request.broker, queue.topic)


@Route(
    "PUT /topics/{topic}/queues/{queue}",
    RequiredPermission.QUEUE,
    name="createQueue",
    tag="Queues",
    errors=("offset_out_of_range", "conflict", "leader_unavailable", "controller_unavailable"),
)
async def create_queue(request: Request, document: NewQueue) -> DescribedQueue:
    """Create a queue, or change its settings.

    A queue is a share group and a topic. A share group of Kafka's clients is a queue for each topic already. A queue
    that has begun in a log stays where it is.
    """
    queue, logs = _find(request)
    level = request.broker.node.tables.state.members.feature_level
    needed = DEAD_LETTERS if document.settings.get(DEAD_LETTER_TOPIC) else SHARE_GROUPS
    if level < needed:
        problem = f"the cluster has the feature level {level}, and this needs {needed}: `dafka cluster upgrade`"
        raise WebError("conflict", problem)
    if request.is_forwarded:  # the forwarding broker has asked the leaders of the logs
        offsets = parse_offsets(document.position["offsets"])
        await request.groups.create_queue(queue, offsets)
        return DescribedQueue(queue.name, queue.topic, [], 0, 0, 0, {})
    await _change_settings(request, queue.name, document.settings)
    given = document.position
    position = _find_default(request, queue) if given is None else parse_position(given)
    if isinstance(position, FromGroup):
        request.principal.check_group(position.group)
    found = await find_offsets(request.logs, request.groups, logs, position)
    await request.groups.create_queue(queue, {log.number: offset for log, offset in found.items()})
    return await _describe(request, queue, logs)


def _find_default(request: Request, queue: Queue) -> Position:
    """Return where a queue begins by its settings."""
    settings = request.broker.shares.settings_of(queue.name)
    if settings.begins_after_ms is not None:
        return FromTime(max(now_ms() - settings.begins_after_ms, 0))
    return "earliest" if settings.is_earliest else "latest"


async def _change_settings(request: Request, group: str, changes: Mapping[str, str | None]) -> None:
    """Change settings of a group durably."""
    if not changes:
        return
    if not request.principal.permissions.allow(Operation.ALTER_CONFIGS, ResourceType.GROUP, group):
        raise WebError("forbidden", f"the user may not change settings of the group {group!r}")
    node = request.broker.node
    own = node.tables.state.group_settings.find(group)
    settings = {name: value for name, value in {**own, **changes}.items() if value is not None}
    unknown = {name: "" for name in changes if name not in GROUP_SETTINGS}
    problem = find_problem({**settings, **unknown}, request.broker.config)
    if problem:
        raise WebError("bad_request", f"settings: {problem}")
    if settings != own:
        await node.admin.change(AlterGroupSettings(group, settings), request.requester)


@Route(
    "GET /topics/{topic}/queues/{queue}",
    RequiredPermission.QUEUE,
    name="describeQueue",
    tag="Queues",
    errors=("group_not_found", "leader_unavailable"),
)
async def describe_queue(request: Request) -> DescribedQueue:
    """Describe a queue with its available and locked records."""
    return await _describe(request, *_find(request))


async def _describe(request: Request, queue: Queue, logs: Sequence[Log]) -> DescribedQueue:
    states = await request.queues.known_states(queue, logs)
    found = [
        QueueLog(log.number, state.start_offset, state.available_count, state.locked_count)
        if (state := states.get(log)) is not None
        else QueueLog(log.number, None, None, None)
        for log in logs
    ]
    return DescribedQueue(
        queue.name,
        queue.topic,
        found,
        sum(each.available_count for each in states.values()),
        sum(each.locked_count for each in states.values()),
        _lock_ms(request, queue),
        dict(request.broker.node.tables.state.group_settings.find(queue.name)),
    )


def _lock_ms(request: Request, queue: Queue) -> int:
    return request.broker.shares.settings_of(queue.name).limits.lock_ms


@Route(
    "POST /topics/{topic}/queues/{queue}/receive",
    RequiredPermission.QUEUE,
    name="receiveRecords",
    tag="Queues",
    answers={200: Answer("Records that are locked for the client.", ReceivedRecords)},
    errors=("group_not_found", "leader_unavailable"),
)
async def receive_records(request: Request, document: Receive) -> AnyResponse:
    """Receive records of a queue, which are locked for the client.

    Nobody else gets them until the lock expires. The client acknowledges them before, with the receipt; otherwise they
    are delivered again. The records of a log come in the order of their offsets, but other clients receive others.
    """
    queue, logs = _find(request)
    receipt, limits = create_receipt(), ReceiveLimits(document.records_max, document.bytes_max)
    found = await request.queues.lock(queue, logs, receipt, limits, request.source)
    deadline = trio.current_time() + document.wait_ms / 1000
    while not found and (wait_s := deadline - trio.current_time()) > 0:
        if not await request.wait_while_connected(partial(request.queues.wait_available, queue, logs), wait_s):
            break
        RequiredPermission.QUEUE.check(request.principal, request.arguments)  # permissions can have changed meanwhile
        found = await request.queues.lock(queue, logs, receipt, limits, request.source)
    lock_ms = _lock_ms(request, queue)
    lines: list[RecordLine] = []
    try:
        for each in found:
            lines += await encode_locked(each, lock_ms, request.web.answers, request.host)
    except BaseException:
        request.queues.release(queue, logs, receipt)
        raise
    request.buffered_bytes = sum(each.read.unpacked_bytes_max for each in found)
    request.web.counters.consumed[queue.topic] += len(lines)
    return StreamedResponse(partial(_send_records, receipt, lock_ms, lines), JSON)


async def _send_records(receipt: str, lock_ms: int, lines: Sequence[RecordLine], send: Send) -> None:
    """Send a `ReceivedRecords`."""
    await send(b'{"receipt":"%b","lock_ms":%d,"records":[' % (receipt.encode(), lock_ms))
    separators = chain([b""], repeat(b","))
    for piece in join_lines(lines, lambda _: next(separators), b""):
        await send(piece)
    await send(b"]}")


@Route(
    "POST /topics/{topic}/queues/{queue}/acknowledge",
    RequiredPermission.QUEUE,
    name="acknowledgeRecords",
    tag="Queues",
    errors=("log_not_found", "conflict", "leader_unavailable", "leader_changed"),
)
async def acknowledge_records(request: Request, document: Acknowledge) -> AcknowledgedQueue:
    """Accept, release, reject or renew records that a receipt locks.

    The answer comes when that is durable. A request without an answer can be repeated: what it has acknowledged before
    is refused with `lock_lost`, and stays as it is.
    """
    queue, logs = _find(request)
    settings = request.broker.shares.settings_of(queue.name)
    said = parse_acknowledgements(
        queue, len(logs), settings, document.receipt, document.acknowledgements, document.others
    )
    asked = [log for log in logs if log.number in said.ranges or said.others is not None]
    refused = await request.queues.acknowledge(queue, asked, said)
    return AcknowledgedQueue(_lock_ms(request, queue), refused)
