"""Kafka's protocol at the level of bytes: requests and responses of all versions, their frames and headers.

Each message is a class in `dafka.kafka.protocol.messages`; its table there says how each version is encoded.
"""

from dafka.kafka.protocol.apis import ADVERTISED, REQUESTS, RESPONSES, advertise
from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.frames import (
    FRAME_BYTES_MAX,
    FrameSplitter,
    RequestHeader,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    encode_token,
    encode_unsupported,
    read_correlation_id,
    read_request_header,
)
from dafka.kafka.protocol.reading import ITEMS_MAX
from dafka.kafka.protocol.tables import NIL, Message, Request, Response, Struct, Versions

__all__ = [
    "ADVERTISED",
    "FRAME_BYTES_MAX",
    "ITEMS_MAX",
    "NIL",
    "REQUESTS",
    "RESPONSES",
    "ApiKey",
    "FrameSplitter",
    "Message",
    "Request",
    "RequestHeader",
    "Response",
    "Struct",
    "Versions",
    "advertise",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
    "encode_token",
    "encode_unsupported",
    "read_correlation_id",
    "read_request_header",
]
