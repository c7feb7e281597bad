"""The messages of the WebSocket protocol, as tables of their fields.

A message is a JSON object with `type`. Requests have an `id`, which the client chooses and the responses repeat.
"""

from __future__ import annotations

from typing import Any

import attrs

from dafka.http.websocket.tables import (
    ANY,
    COUNT,
    EPOCH,
    FLAG,
    IDENTIFIER,
    INTERVAL,
    LOG,
    LOGS,
    OFFSETS,
    POSITION,
    POSITIVE,
    RECORDS,
    SEQUENCE,
    TEXT,
    ClientMessage,
    client,
    optional,
    required,
    server,
)

JSON_PROTOCOL = "dafka.json.v1"
BINARY_PROTOCOL = "dafka.binary.v1"
SUBPROTOCOLS = (BINARY_PROTOCOL, JSON_PROTOCOL)
"""The subprotocols. A client that offers none gets JSON."""


@client("authenticate")
@attrs.frozen
class Authenticate(ClientMessage):
    """Authenticates the client with a token, or with a user's name and password."""

    token: str | None = optional(TEXT, "a token that `dafka user token` has made")
    user: str | None = optional(TEXT, "the name of a user")
    password: str | None = optional(TEXT, "the password of the user")


@client("publish")
@attrs.frozen
class Publish(ClientMessage):
    """Publishes records. The answer is `published`, when they are durable."""

    topic: str = required(TEXT, "the topic")
    log: int | None = optional(LOG, "the log; without it, the keys choose the logs")
    records: list[Any] = required(RECORDS, "the records, at least one")
    producer_id: int | None = optional(IDENTIFIER, "the producer of records that are appended once; see `producer`")
    producer_epoch: int | None = optional(EPOCH, "the producer's epoch; needed with `producer_id`")
    base_sequence: int | None = optional(
        SEQUENCE, "the producer's own number of the first record in the log; needed with `producer_id`"
    )


@client("init_producer")
@attrs.frozen
class InitProducer(ClientMessage):
    """Requests a producer id, with which records are appended only once even if they are sent again."""


@client("describe")
@attrs.frozen
class Describe(ClientMessage):
    """Requests the logs of a topic."""

    topic: str = required(TEXT, "the topic")
    create: bool | None = optional(FLAG, "whether to create the topic if it can be; for clients that will publish")


@client("subscribe")
@attrs.frozen
class Subscribe(ClientMessage):
    """Subscribes to a topic. Its `id` names the subscription in `records`, `credit` and `unsubscribe`."""

    topic: str = required(TEXT, "the topic")
    logs: list[int] | None = optional(LOGS, "the logs; without it, all that the topic has")
    position: Any = required(POSITION, "where to begin", name="from")
    credit: int = required(COUNT, "how many records the broker may send until there is further credit")


@client("credit")
@attrs.frozen
class Credit(ClientMessage):
    """Allows the broker to send more records of a subscription. There is no answer."""

    records: int = required(POSITIVE, "how many more records it may send")


@client("unsubscribe")
@attrs.frozen
class Unsubscribe(ClientMessage):
    """Ends a subscription."""


@client("commit")
@attrs.frozen
class Commit(ClientMessage):
    """Commits the offsets of a group that has no members."""

    group: str = required(TEXT, "the group")
    topic: str = required(TEXT, "the topic")
    offsets: dict[str, Any] = required(OFFSETS, "the offset of the next record to read in each log")


@client("watch")
@attrs.frozen
class Watch(ClientMessage):
    """Requests a resource of the HTTP API, now and whenever it has changed."""

    path: str = required(TEXT, "the path of a GET of the HTTP API, with its query")
    interval_ms: int = required(INTERVAL, "how often the resource is looked at")


@client("unwatch")
@attrs.frozen
class Unwatch(ClientMessage):
    """Ends a watch."""


@client("ping")
@attrs.frozen
class Ping(ClientMessage):
    """Requests a `pong`."""


@server("welcome")
@attrs.frozen
class Welcome:
    """The first message on a connection."""

    user: str | None = required(ANY, "the user that the handshake has proved; null if it has proved none")
    needs_authentication: bool = required(ANY, "whether `authenticate` must come first")
    message_bytes_max: int = required(COUNT, "the size of the largest message that the broker accepts")
    subscriptions_max: int = required(COUNT, "how many subscriptions and watches a connection may have")


@server("authenticated")
@attrs.frozen
class Authenticated:
    """Answers `authenticate`."""

    id: int = required(IDENTIFIER, "that of the request")
    user: str | None = required(ANY, "the user; null if the broker has no users")


@server("published")
@attrs.frozen
class PublishedAnswer:
    """Answers `publish`: the records are durable."""

    id: int = required(IDENTIFIER, "that of the request")
    offsets: list[dict[str, Any]] = required(
        ANY,
        "where the records are: `log`, `offset` of the first one, `count`; `offset` is null if the records are known "
        "to have been appended before, and nobody knows where",
    )


@server("producer")
@attrs.frozen
class Producer:
    """Answers `init_producer`."""

    id: int = required(IDENTIFIER, "that of the request")
    producer_id: int = required(IDENTIFIER, "the producer")
    producer_epoch: int = required(EPOCH, "its epoch")


@server("described")
@attrs.frozen
class Described:
    """Answers `describe`."""

    id: int = required(IDENTIFIER, "that of the request")
    topic: str = required(TEXT, "the topic")
    logs: list[dict[str, int]] = required(ANY, "its logs: `log`, `start_offset`, `end_offset`")


@server("subscribed")
@attrs.frozen
class Subscribed:
    """Answers `subscribe`."""

    id: int = required(IDENTIFIER, "that of the request")
    topic: str = required(TEXT, "the topic")
    logs: list[dict[str, int]] = required(
        ANY, "the logs: `log`, `offset` of the first record that will be sent, `start_offset`, `end_offset`"
    )


@server("records")
@attrs.frozen
class Records:
    """Records of a subscription, in their order in the log."""

    id: int = required(IDENTIFIER, "that of the subscription")
    log: int = required(LOG, "the log")
    offset: int = required(
        COUNT,
        "where this message begins: the `next_offset` of the message before; more if records were dropped, and less if "
        "the log has gone on in another branch after a split of the cluster",
    )
    next_offset: int = required(COUNT, "where the next message begins, and where to resume")
    records: list[dict[str, Any]] = required(RECORDS, "the records")


@server("unsubscribed")
@attrs.frozen
class Unsubscribed:
    """Answers `unsubscribe`. No `records` of the subscription follow."""

    id: int = required(IDENTIFIER, "that of the subscription")


@server("committed")
@attrs.frozen
class Committed:
    """Answers `commit`: the offsets are durable."""

    id: int = required(IDENTIFIER, "that of the request")


@server("view")
@attrs.frozen
class View:
    """A watched resource, initially and whenever it has changed."""

    id: int = required(IDENTIFIER, "that of the watch")
    status: int = required(COUNT, "the status that GET answers with")
    body: Any = required(ANY, "the body of the answer")


@server("unwatched")
@attrs.frozen
class Unwatched:
    """Answers `unwatch`."""

    id: int = required(IDENTIFIER, "that of the watch")


@server("pong")
@attrs.frozen
class Pong:
    """Answers `ping`."""

    id: int = required(IDENTIFIER, "that of the request")


@server("error")
@attrs.frozen
class Error:
    """A request is refused, or a subscription or a watch has ended."""

    id: int | None = required(ANY, "that of the request, of the subscription or of the watch; null if it has none")
    code: str = required(TEXT, "what is wrong, for programs")
    message: str = required(TEXT, "what is wrong, for people")
