"""Makes the specification of the WebSocket protocol, with tables from the tables of messages."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from dafka.http.websocket import messages
from dafka.http.websocket.binary import DELIVERIES, PUBLISH, RECORDS
from dafka.http.websocket.messages import CLIENT_MESSAGES, SERVER_MESSAGES, TEXT_BYTES_MAX
from dafka.http.websocket.session import PING_INTERVAL_S, UNANSWERED_MAX

PREFACE = f"""\
# WebSocket

`docs/generate.py` makes the tables of this page from the code. The examples are tests. See
[Use WebSocket](../how-to/websocket.md) for clients in JavaScript and Python.

A broker with `--http` serves WebSocket (RFC 6455) at the path `/ws` of the same port. With it, a client publishes with
acknowledgement, subscribes to topics, commits offsets of groups, and watches resources of the [HTTP
API](../reference/http.md).

## Connection

The client offers one of two subprotocols. One that offers none gets that of JSON.

| subprotocol | messages |
| --- | --- |
| `{messages.JSON_PROTOCOL}` | all messages are JSON, for people and browsers |
| `{messages.BINARY_PROTOCOL}` | `records`, `deliveries`, and `publish` if the client wishes, are binary messages with record batches; the others are JSON |

A page must come from the broker's own origin or from one of `[http] origins`. Credentials are those of HTTP: a token or a
password in the header `Authorization`, or the cookie of a session. A client that cannot send headers sends `authenticate`
instead, within `[clients] login_ms`. After a wrong login, the broker ends the connection with the code 1008.

A broker that is stopped handles no further requests. It answers those before, and ends the connection with the code 1001: a
`publish` without an answer was not carried out, and goes to another broker.

The broker sends a ping after {PING_INTERVAL_S:.0f} s without a message. It ends the connection of a client that has neither answered nor read
anything for `[http] idle_ms`. A client that reads slowly stays connected.

Compression (`permessage-deflate`) is without context takeover in both directions. So an idle connection needs no memory
for it, and all subscribers of a log share what was compressed once.

## Messages

A message in JSON is an object with a `type`. A request has an `id`: a whole number from 0 to 2^53 - 1, which the client
chooses, and which the answer repeats. Requests are carried out in their order. A `publish` is answered when its records are
durable, so that other answers may come before; the `published` of one connection come in order. Numbers are whole numbers.
Unknown types and unknown fields are refused. Names have at most {TEXT_BYTES_MAX} characters.

The first message comes from the broker:

```
< {{"type": "welcome", "user": null, "needs_authentication": false, "message_bytes_max": 4194304, "subscriptions_max": 1000}}
```

### Records

A record is an object with these fields:

| field | content |
| --- | --- |
| `value` | text; null for a tombstone |
| `value_base64` | instead of `value`, if the value is no UTF-8 |
| `key`, `key_base64` | the key, likewise; absent if there is none |
| `headers` | pairs of a name and a value: text, null, or `{{"base64": "..."}}`; absent if there are none |
| `timestamp` | when the record was made, in milliseconds since 1970; the time of arrival if the producer does not say it |
| `offset` | where it is in its log; ignored in `publish` |

### Publishing

```
> {{"type": "publish", "id": 1, "topic": "orders", "records": [{{"key": "anne", "value": "2 apples", "timestamp": 1767225600000}}, {{"value_base64": "AP8=", "timestamp": 1767225600001}}]}}
< {{"type": "published", "id": 1, "offsets": [{{"log": 0, "offset": 0, "count": 2}}]}}
```

The records are durable when `published` comes. Records with the same key go to the same log, the one that Kafka's clients
choose. Records without a key go to one log, to another one with each message. The topic is created if there is none and
`[kafka] auto_create_topics` allows it. A message is published whole or, if it is refused, not at all.

A client that gets no answer, because the connection is lost, publishes again. So that the records are stored once, it asks
for a producer id first, numbers its records in each log from 0, and names the log. Sent again, the records have the same
numbers:

```
> {{"type": "init_producer", "id": 2}}
< {{"type": "producer", "id": 2, "producer_id": 0, "producer_epoch": 0}}
> {{"type": "publish", "id": 3, "topic": "orders", "log": 0, "producer_id": 0, "producer_epoch": 0, "base_sequence": 0, "records": [{{"value": "1 pear", "timestamp": 1767225600002}}]}}
< {{"type": "published", "id": 3, "offsets": [{{"log": 0, "offset": 2, "count": 1}}]}}
> {{"type": "publish", "id": 4, "topic": "orders", "log": 0, "producer_id": 0, "producer_epoch": 0, "base_sequence": 0, "records": [{{"value": "1 pear", "timestamp": 1767225600002}}]}}
< {{"type": "published", "id": 4, "offsets": [{{"log": 0, "offset": 2, "count": 1}}]}}
```

The broker remembers the last five messages of each producer in each log, as Kafka does. A client has at most five messages
without an answer in each log. If one is refused, those behind it are answered with `conflict`; the client numbers them again
and sends them again. After the sequence 2^31 - 1 comes 0.

### Subscribing

```
> {{"type": "subscribe", "id": 5, "topic": "orders", "from": "earliest", "credit": 2}}
< {{"type": "subscribed", "id": 5, "topic": "orders", "logs": [{{"log": 0, "offset": 0, "start_offset": 0, "end_offset": 3}}]}}
< {{"type": "records", "id": 5, "log": 0, "offset": 0, "next_offset": 2, "records": [{{"offset": 0, "timestamp": 1767225600000, "key": "anne", "value": "2 apples"}}, {{"offset": 1, "timestamp": 1767225600001, "value_base64": "AP8="}}]}}
> {{"type": "credit", "id": 5, "records": 10}}
< {{"type": "records", "id": 5, "log": 0, "offset": 2, "next_offset": 3, "records": [{{"offset": 2, "timestamp": 1767225600002, "value": "1 pear"}}]}}
> {{"type": "unsubscribe", "id": 5}}
< {{"type": "unsubscribed", "id": 5}}
```

`from` says where to begin:

| `from` | begins |
| --- | --- |
| `"earliest"` | with the first record that the log has |
| `"latest"` | with the next record |
| `{{"offset": 5}}` | with an offset; for a single log |
| `{{"offsets": {{"0": 5, "1": 0}}}}` | with an offset in each log; with the first record in logs that are not named |
| `{{"time": 1767225600000}}`, `{{"time": "2026-01-01T00:00:00Z"}}` | with the first record that was made then or later |
| `{{"group": "billing", "otherwise": "earliest"}}` | with what a group has committed; `otherwise` (`earliest` or `latest`) where it has committed nothing |

Only committed records are sent, those of each log in their order. A subscription to all logs of a topic includes logs that
the topic gets later.

**Credit.** The broker sends a record only while there is credit, so that a client decides how much is on its way to it.
Records that wait for credit wait in the log, and take no memory. In binary messages a batch is never cut: the last one may
have more records than there was credit, and the difference counts against the next credit.

**Resuming.** After a lost connection, a client subscribes again with the `next_offset` of the last message of each log as
`offsets`. It gets every record once.

**Dropped records.** The `offset` of a message is the `next_offset` of the message before, unless the log has dropped records
meanwhile (by its retention); then it is larger.

A subscription ends by `unsubscribe`, or by an `error` with its id: the topic was deleted, or the user's permission was taken
away.

### Queues

A queue is a share group, whose records are acknowledged one by one: see [Use queues](../how-to/queues.md). It is created
over HTTP, or by a Kafka client that joins the group.

```
> {{"type": "consume", "id": 11, "topic": "orders", "queue": "packers", "credit": 2}}
< {{"type": "consuming", "id": 11, "topic": "orders", "queue": "packers", "receipt": "9yKDp0cXqmW2bJv1uZ4Atw", "lock_ms": 30000}}
< {{"type": "deliveries", "id": 11, "log": 0, "records": [{{"delivery_count": 1, "locked_until": 1767225630000, "log": 0, "offset": 0, "timestamp": 1767225600000, "key": "anne", "value": "2 apples"}}, {{"delivery_count": 1, "locked_until": 1767225630000, "log": 0, "offset": 1, "timestamp": 1767225600001, "value_base64": "AP8="}}]}}
> {{"type": "acknowledge", "id": 12, "topic": "orders", "queue": "packers", "receipt": "9yKDp0cXqmW2bJv1uZ4Atw", "acknowledgements": [{{"log": 0, "offset": 0, "type": "accept"}}, {{"log": 0, "offset": 2, "type": "accept"}}]}}
< {{"type": "acknowledged", "id": 12, "refused": [{{"log": 0, "offset": 2, "last": 2, "code": "lock_lost", "message": "the receipt does not lock them any more"}}]}}
> {{"type": "unsubscribe", "id": 11}}
< {{"type": "unsubscribed", "id": 11}}
> {{"type": "describe_queue", "id": 13, "topic": "orders", "queue": "packers"}}
< {{"type": "described_queue", "id": 13, "logs": [{{"log": 0, "start_offset": 1, "available_count": 2, "locked_count": 0}}]}}
> {{"type": "receive", "id": 14, "topic": "orders", "queue": "packers", "records_max": 1}}
< {{"type": "deliveries", "id": 14, "log": 0, "records": [{{"delivery_count": 2, "locked_until": 1767225630000, "log": 0, "offset": 1, "timestamp": 1767225600001, "value_base64": "AP8="}}]}}
< {{"type": "received", "id": 14, "receipt": "n0UuVYV8dWbq2kYQ7rM5xA", "lock_ms": 30000, "record_count": 1}}
```

`consume` gets records as they come, while there is credit; the broker never sends more than that. All records of a
subscription have its receipt. When it ends, by `unsubscribe`, an `error`, or because the connection ends, the records that
were not acknowledged are released. Records of `receive`, which does not wait, stay locked, and each answer has its own
receipt unless the client gives one. `acknowledge` also takes receipts of HTTP, and of other connections. These requests
can be answered after later ones.

### Groups, topics and resources

```
> {{"type": "commit", "id": 6, "group": "billing", "topic": "orders", "offsets": {{"0": 3}}}}
< {{"type": "committed", "id": 6}}
> {{"type": "describe", "id": 7, "topic": "orders"}}
< {{"type": "described", "id": 7, "topic": "orders", "logs": [{{"log": 0, "start_offset": 0, "end_offset": 3}}]}}
> {{"type": "watch", "id": 8, "path": "/topics/orders/offsets?time=2026-01-01T00:00:00.002Z", "interval_ms": 500}}
< {{"type": "view", "id": 8, "status": 200, "body": {{"offsets": [{{"log": 0, "start_offset": 0, "end_offset": 3, "offset": 2}}]}}}}
> {{"type": "unwatch", "id": 8}}
< {{"type": "unwatched", "id": 8}}
```

`commit` is for groups without members; a group of Kafka's consumers refuses it with `conflict`. `watch` sends what `GET`
answers at first, and again when it has changed.

### Errors

```
> {{"type": "subscribe", "id": 9, "topic": "none", "from": "earliest", "credit": 1}}
< {{"type": "error", "id": 9, "code": "topic_not_found", "message": "there is no topic 'none'"}}
> {{"type": "ping", "id": 10}}
< {{"type": "pong", "id": 10}}
```

The codes are [those of HTTP](../reference/http.md#errors). An error ends nothing but its request, subscription or watch.
Only what is no WebSocket ends the connection, with a code of RFC 6455: 1002 for malformed frames, 1007 for text that is no
UTF-8, 1009 for a message that is larger than `message_bytes_max`.

## Limits

| limit | what happens beyond it |
| --- | --- |
| `[http] message_bytes_max`, uncompressed | the connection ends with the code 1009 |
| `[http] receive_ms`, and a second for each MiB that was sent, to send a message above 16 KiB | the connection ends |
| `[http] receiving_bytes_max` for messages above 16 KiB of all clients, as they come | reading waits; users and addresses take turns; clients below 1 MiB in a second are disconnected |
| `[http] subscriptions_max` subscriptions and watches | `too_many_requests` |
| {UNANSWERED_MAX} messages of a connection that are not durable yet, and as many requests for queues without an answer | reading waits |
| `max.message.bytes` of the topic, for the records of one message in one log, and `max.decompressed.message.bytes` for what their batches contain | `too_large` |
| 4096 fragments of a message | the connection ends with the code 1009 |

## Binary messages

Numbers are big-endian. The batches are Kafka's record batches, version 2 ([record
batches](../reference/record-batches.md)), one after the other. Their base offsets are those of the log; in `publish` they do
not matter. A batch of an idempotent producer has its producer id, epoch and sequence in its header, and comes alone.

`publish`, from the client:

| bytes | content |
| --- | --- |
| 1 | {PUBLISH} |
| 1 | 0 |
| 2 | the size of the topic |
| 4 | the log |
| 8 | the id |
| | the topic, in UTF-8 |
| | record batches |

`records`, from the broker:

| bytes | content |
| --- | --- |
| 1 | {RECORDS} |
| 3 | 0 |
| 4 | the log |
| 8 | the id of the subscription |
| 8 | `offset` |
| 8 | `next_offset` |
| | record batches; none if all records were of aborted transactions |

`deliveries`, from the broker:

| bytes | content |
| --- | --- |
| 1 | {DELIVERIES} |
| 3 | 0 |
| 4 | the log |
| 8 | the id of the subscription, or of `receive` |
| 4 | the number of ranges |
| 20 for each | the offsets of the first and the last record of a range (8 each), and their delivery count (4) |
| | the record batches with these records; they can have others, too, which are not for the client |
"""


def websocket_page() -> str:
    """Return the page."""
    return "\n".join(
        [
            PREFACE,
            "## Messages of clients\n",
            *_tables(CLIENT_MESSAGES),
            "## Messages of brokers\n",
            *_tables(SERVER_MESSAGES),
        ]
    )


def _tables(found: Mapping[str, type[msgspec.Struct]]) -> Iterator[str]:
    for name, message in found.items():
        yield f"### `{name}`\n"
        yield f"{inspect.cleandoc(message.__doc__ or '')}\n"
        yield "| field | type | content |"
        yield "| --- | --- | --- |"
        schema = msgspec.json.schema(message)["$defs"][message.__name__]
        for field, each in schema["properties"].items():
            if field != "type":
                optional = "" if field in schema["required"] else ", optional"
                kind = _type_of(each).removesuffix(" or null" if optional else "")
                yield f"| `{field}` | {kind}{optional} | {each['description']} |"
        yield ""


_TYPES = {"integer": "whole number", "string": "text", "array": "list", "boolean": "true or false"}


def _type_of(schema: dict[str, Any]) -> str:
    """Return the type of a value, with its limits."""
    if "anyOf" in schema:
        return " or ".join(map(_type_of, schema["anyOf"]))
    found = _TYPES.get(schema.get("type", "any"), schema.get("type", "any"))
    if "maximum" in schema:
        largest = schema["maximum"]
        power = (largest + 1).bit_length() - 1
        shown = f"2^{power} - 1" if largest + 1 == 2**power and power > 15 else largest
        return f"{found} from {schema['minimum']} to {shown}"
    return f"{found} of {schema['minLength']} to {schema['maxLength']} characters" if "maxLength" in schema else found
