"""The messages of the WebSocket protocol. msgspec validates those of clients.

A message is a JSON object with `type`. Requests have an `id`, which the client chooses and the responses repeat.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta, Struct, field

from dafka.http.logs.publishing import Published
from dafka.http.logs.records import TIMESTAMP_MAX, is_integer
from dafka.http.queues.queue_access import (
    BYTES_MAX,
    RECEIVE_BYTES,
    RECORDS_MAX,
    AcknowledgedRecords,
    Kind,
    Receipt,
    RefusedRecords,
)
from dafka.http.server.documents import decode_document, describe_problem, doc
from dafka.http.server.errors import WebError

JSON_PROTOCOL = "dafka.json.v1"
BINARY_PROTOCOL = "dafka.binary.v1"
SUBPROTOCOLS = (BINARY_PROTOCOL, JSON_PROTOCOL)
"""The subprotocols. A client that offers none gets JSON."""


ID_MAX = TIMESTAMP_MAX
"""The largest id of a request: the largest number that every JSON parser reads exactly."""

TEXT_BYTES_MAX = 4096
"""The longest text in a message, except in records."""

WATCH_INTERVAL_MS_MIN = 500
"""The minimum interval at which a watched resource is checked."""

Number: TypeAlias = Annotated[int, Meta(ge=0, le=ID_MAX)]
Text: TypeAlias = Annotated[str, Meta(min_length=1, max_length=TEXT_BYTES_MAX)]
LogNumber: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
LogNumbers: TypeAlias = Annotated[list[LogNumber], Meta(min_length=1)]
Offsets: TypeAlias = Annotated[dict[str, Any], Meta(min_length=1)]
Epoch: TypeAlias = Annotated[int, Meta(ge=0, le=2**15 - 1)]
Sequence: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Credits: TypeAlias = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Interval: TypeAlias = Annotated[int, Meta(ge=WATCH_INTERVAL_MS_MIN, le=3_600_000)]


class ClientMessage(Struct, tag_field="type", forbid_unknown_fields=True):
    """A message of a client."""

    id: Annotated[Number, doc("chosen by the client; the answer repeats it")]


class ServerMessage(Struct, tag_field="type"):
    """A message of the broker."""


class Answer(ServerMessage):
    """The answer to a request."""

    id: Annotated[Number, doc("that of the request")]


class Authenticate(ClientMessage, tag="authenticate"):
    """Authenticates the client with a token, or with a user's name and password."""

    token: Annotated[Text | None, doc("a token that `dafka user token` has made")] = None
    user: Annotated[Text | None, doc("the name of a user")] = None
    password: Annotated[Text | None, doc("the password of the user")] = None


class Publish(ClientMessage, tag="publish"):
    """Publishes records. The answer is `published`, when they are durable."""

    topic: Annotated[Text, doc("the topic")]
    records: Annotated[list[Any], doc("the records, at least one")]
    log: Annotated[LogNumber | None, doc("the log; without it, the keys choose the logs")] = None
    producer_id: Annotated[Number | None, doc("the producer of records that are appended once; see `producer`")] = None
    producer_epoch: Annotated[Epoch | None, doc("the producer's epoch; needed with `producer_id`")] = None
    base_sequence: Annotated[
        Sequence | None, doc("the producer's own number of the first record in the log; needed with `producer_id`")
    ] = None


class InitProducer(ClientMessage, tag="init_producer"):
    """Requests a producer id, with which records are appended only once even if they are sent again."""


class Describe(ClientMessage, tag="describe"):
    """Requests the logs of a topic."""

    topic: Annotated[Text, doc("the topic")]
    create: Annotated[bool | None, doc("whether to create the topic; for clients that will publish")] = None


class Subscribe(ClientMessage, tag="subscribe"):
    """Subscribes to a topic. Its `id` names the subscription in `records`, `credit` and `unsubscribe`."""

    topic: Annotated[Text, doc("the topic")]
    position: Annotated[str | dict[str, Any], doc('where to begin, such as "earliest" or {"offset": 5}')] = field(
        name="from"
    )
    credit: Annotated[Number, doc("how many records the broker may send until there is more credit")]
    logs: Annotated[LogNumbers | None, doc("the logs, at least one; without it, all that the topic has")] = None


class Credit(ClientMessage, tag="credit"):
    """Allows the broker to send more records of a subscription. There is no answer."""

    records: Annotated[Credits, doc("how many more records it may send")]


class Unsubscribe(ClientMessage, tag="unsubscribe"):
    """Ends a subscription."""


class Commit(ClientMessage, tag="commit"):
    """Commits the offsets of a group that has no members."""

    group: Annotated[Text, doc("the group")]
    topic: Annotated[Text, doc("the topic")]
    offsets: Annotated[Offsets, doc('the offset of the next record to read in each log, such as {"0": 5}')]


class QueueMessage(ClientMessage):
    """A message about a queue."""

    topic: Annotated[Text, doc("the topic")]
    queue: Annotated[Text, doc("the queue, which is a share group")]


class Consume(QueueMessage, tag="consume"):
    """Subscribes to a queue. Its `id` names the subscription in `deliveries`, `credit` and `unsubscribe`."""

    credit: Annotated[Number, doc("how many records the broker may send until there is more credit")]
    logs: Annotated[LogNumbers | None, doc("the logs, at least one; without it, all that the topic has")] = None


class Receive(QueueMessage, tag="receive"):
    """Requests records of a queue that are available now. They come as `deliveries`, before the answer."""

    records_max: Annotated[int, Meta(ge=1, le=RECORDS_MAX), doc("how many records")]
    bytes_max: Annotated[
        int, Meta(ge=1, le=BYTES_MAX), doc("how many bytes of records; the last one can exceed it")
    ] = RECEIVE_BYTES
    logs: Annotated[LogNumbers | None, doc("the logs, at least one; without it, all that the topic has")] = None
    receipt: Annotated[Receipt | None, doc("the receipt for the records; without it, a new one")] = None


class Acknowledge(QueueMessage, tag="acknowledge"):
    """Acknowledges records of a queue."""

    receipt: Annotated[Receipt, doc("the receipt of the records")]
    acknowledgements: Annotated[
        list[AcknowledgedRecords],
        Meta(max_length=RECORDS_MAX),
        doc("records: `log`, `offset`, `last` if there are several, and `type`"),
    ] = []
    others: Annotated[Kind | None, doc("the `type` for all other records that the receipt locks")] = None
    logs: Annotated[LogNumbers | None, doc("the logs of `others`; without it, all that the topic has")] = None


class DescribeQueue(QueueMessage, tag="describe_queue"):
    """Requests the state of a queue."""

    logs: Annotated[LogNumbers | None, doc("the logs, at least one; without it, all that the topic has")] = None
    wait_ms: Annotated[
        int, Meta(ge=0, le=60_000), doc("how long to wait for available records if there are none, in milliseconds")
    ] = 0


class Watch(ClientMessage, tag="watch"):
    """Requests a resource of the HTTP API, now and whenever it has changed."""

    path: Annotated[Text, doc("the path of a GET of the HTTP API, with its query")]
    interval_ms: Annotated[Interval, doc("the interval at which the resource is checked, in milliseconds")]


class Unwatch(ClientMessage, tag="unwatch"):
    """Ends a watch."""


class Ping(ClientMessage, tag="ping"):
    """Requests a `pong`."""


class Welcome(ServerMessage, tag="welcome"):
    """The first message on a connection."""

    user: Annotated[str | None, doc("the user of the handshake; null if it has no credentials")]
    needs_authentication: Annotated[bool, doc("whether `authenticate` must come first")]
    message_bytes_max: Annotated[Number, doc("the size of the largest message that the broker accepts")]
    subscriptions_max: Annotated[Number, doc("how many subscriptions and watches a connection may have")]


class Authenticated(Answer, tag="authenticated"):
    """Answers `authenticate`."""

    user: Annotated[str | None, doc("the user; null if the broker has no users")]


class PublishedAnswer(Answer, tag="published"):
    """Answers `publish`: the records are durable."""

    offsets: Annotated[
        list[Published],
        doc(
            "where the records are: `log`, `offset` of the first one, `count`; `offset` is null for records that were "
            "appended before, if it is no longer known"
        ),
    ]


class Producer(Answer, tag="producer"):
    """Answers `init_producer`."""

    producer_id: Annotated[Number, doc("the producer")]
    producer_epoch: Annotated[Epoch, doc("its epoch")]


class Described(Answer, tag="described"):
    """Answers `describe`."""

    topic: Annotated[Text, doc("the topic")]
    logs: Annotated[list[dict[str, int]], doc("its logs: `log`, `start_offset`, `end_offset`")]


class Subscribed(Answer, tag="subscribed"):
    """Answers `subscribe`."""

    topic: Annotated[Text, doc("the topic")]
    logs: Annotated[
        list[dict[str, int]],
        doc("the logs: `log`, `offset` of the first record that will be sent, `start_offset`, `end_offset`"),
    ]


class Records(ServerMessage, tag="records"):
    """Records of a subscription, in their order in the log."""

    id: Annotated[Number, doc("that of the subscription")]
    log: Annotated[LogNumber, doc("the log")]
    offset: Annotated[
        Number,
        doc("the `next_offset` of the message before; more if records were dropped, and less if the log has diverged"),
    ]
    next_offset: Annotated[Number, doc("where the next message begins, and where to resume")]
    records: Annotated[list[Any], doc("the records")]


class Unsubscribed(ServerMessage, tag="unsubscribed"):
    """Answers `unsubscribe`. No `records` of the subscription follow."""

    id: Annotated[Number, doc("that of the subscription")]


class Committed(Answer, tag="committed"):
    """Answers `commit`: the offsets are durable."""


class Consuming(Answer, tag="consuming"):
    """Answers `consume`."""

    topic: Annotated[Text, doc("the topic")]
    queue: Annotated[Text, doc("the queue")]
    receipt: Annotated[str, doc("the receipt of all records of the subscription")]
    lock_ms: Annotated[Number, doc("how long the client has a record, from when it was locked, in milliseconds")]


class Deliveries(ServerMessage, tag="deliveries"):
    """Records of a queue that are locked for the client."""

    id: Annotated[Number, doc("that of the subscription, or of `receive`")]
    log: Annotated[LogNumber, doc("the log")]
    records: Annotated[
        list[Any],
        doc(
            "the records, each with `delivery_count` (1 the first time) and `locked_until`, in milliseconds since 1970 "
            "by the broker's clock"
        ),
    ]


class Received(Answer, tag="received"):
    """Answers `receive`, after the `deliveries`."""

    receipt: Annotated[str, doc("the receipt of the records")]
    lock_ms: Annotated[Number, doc("how long the client has a record, from when it was locked, in milliseconds")]
    record_count: Annotated[Number, doc("how many records were delivered")]


class Acknowledged(Answer, tag="acknowledged"):
    """Answers `acknowledge`: all records are acknowledged durably, except the refused ones."""

    refused: Annotated[
        list[RefusedRecords],
        doc("the others: `log`, `offset`, `last`, `code` (`lock_lost` if the lock has expired) and `message`"),
    ]


class DescribedQueue(Answer, tag="described_queue"):
    """Answers `describe_queue`."""

    logs: Annotated[
        list[dict[str, int]],
        doc(
            "the logs whose leaders answer: `log`, `start_offset` of the first record that is not finished, "
            "`available_count` and `locked_count`"
        ),
    ]


class View(ServerMessage, tag="view"):
    """A watched resource, initially and whenever it has changed."""

    id: Annotated[Number, doc("that of the watch")]
    status: Annotated[Number, doc("the status that GET answers with")]
    body: Annotated[Any, doc("the body of the answer")]


class Unwatched(ServerMessage, tag="unwatched"):
    """Answers `unwatch`."""

    id: Annotated[Number, doc("that of the watch")]


class Pong(Answer, tag="pong"):
    """Answers `ping`."""


class Error(ServerMessage, tag="error"):
    """A request is refused, or a subscription or a watch has ended."""

    id: Annotated[int | None, doc("that of the request, of the subscription or of the watch; null if it has none")]
    code: Annotated[Text, doc("what is wrong, for programs")]
    message: Annotated[Text, doc("what is wrong, for people")]


CLIENT_MESSAGES: dict[str, type[ClientMessage]] = {
    str(each.__struct_config__.tag): each
    for parent in (ClientMessage, QueueMessage)
    for each in parent.__subclasses__()
    if each is not QueueMessage
}
"""The messages of clients, by type."""

_SERVER_MESSAGES: list[type[ServerMessage]] = [
    Welcome,
    *Answer.__subclasses__(),
    Records,
    Deliveries,
    Unsubscribed,
    View,
    Unwatched,
    Error,
]
SERVER_MESSAGES = {str(each.__struct_config__.tag): each for each in _SERVER_MESSAGES}
"""The messages of brokers, by type."""


class RefusedMessageError(Exception):
    """A message of a client is refused. The id is that of the request; None if the message has none."""

    def __init__(self, id: int | None, error: WebError) -> None:  # noqa: A002 (as in messages)
        super().__init__(str(error))
        self.id = id
        self.error = error


def decode_message(text: str | bytes) -> ClientMessage:
    """Decode a message that a client has sent as text. Raises `RefusedMessageError`."""
    try:
        fields = decode_document(text)
    except WebError as error:
        raise RefusedMessageError(None, error) from None
    if not isinstance(fields, dict):
        raise RefusedMessageError(None, WebError("bad_request", "expected a JSON object with `type` and `id`"))
    name, identifier = fields.get("type"), fields.get("id")
    if not is_integer(identifier, ID_MAX):
        identifier = None
    message = CLIENT_MESSAGES.get(name) if isinstance(name, str) else None
    if message is None:
        expected = ", ".join(CLIENT_MESSAGES)
        raise RefusedMessageError(identifier, WebError("bad_request", f"type: expected one of {expected}"))
    try:
        return msgspec.convert(fields, message)
    except msgspec.ValidationError as error:
        raise RefusedMessageError(identifier, WebError("bad_request", describe_problem(str(name), error))) from None


def encode_message(message: ServerMessage) -> bytes:
    """Encode a message of the broker as JSON text."""
    return msgspec.json.encode(message)


def encode_view(identifier: int, status: int, body: bytes) -> bytes:
    """Encode a `view` whose body is already JSON text."""
    return b'{"type":"view","id":%d,"status":%d,"body":%b}' % (identifier, status, body or b"null")


def deliveries_head(identifier: int, log: int) -> bytes:
    """Encode the beginning of `deliveries`, up to its records."""
    return b'{"type":"deliveries","id":%d,"log":%d' % (identifier, log)


def records_head(identifier: int) -> bytes:
    """Encode the beginning of `records`. `encode_records_rest` returns the rest, which subscriptions share."""
    return b'{"type":"records","id":%d' % identifier


def encode_records_rest(log: int, offset: int, next_offset: int, records: bytes) -> bytes:
    """Encode the rest of `records`, which are a JSON list. See `records_head`."""
    return b',"log":%d,"offset":%d,"next_offset":%d,"records":%b}' % (log, offset, next_offset, records)
