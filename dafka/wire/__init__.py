"""RFC 46 on the wire: messages, the two dialects, subscriptions and beacons. Bytes in, values out, no I/O."""

from dafka.wire.batch import BatchDecoder, BatchEncoder
from dafka.wire.beacon import BEACON, WELCOME, NodeBeacon, TowerBeacon
from dafka.wire.codec import decode, encode
from dafka.wire.constants import NUMBER_4_MAX, NUMBER_8_MAX, SIGNATURE, VERSION, Command, Dialect
from dafka.wire.messages import (
    MESSAGES,
    Ack,
    BatchedMessage,
    ConsumerHello,
    DirectEarliest,
    DirectHead,
    DirectRecord,
    DirectTopics,
    Fetch,
    FieldType,
    GetHeads,
    GetTopics,
    Head,
    Message,
    Record,
    RecordRun,
    StoreHello,
)
from dafka.wire.topics import Subscription, decode_subscription, subscription_prefix

__all__ = [
    "BEACON",
    "MESSAGES",
    "NUMBER_4_MAX",
    "NUMBER_8_MAX",
    "SIGNATURE",
    "VERSION",
    "WELCOME",
    "Ack",
    "BatchDecoder",
    "BatchEncoder",
    "BatchedMessage",
    "Command",
    "ConsumerHello",
    "Dialect",
    "DirectEarliest",
    "DirectHead",
    "DirectRecord",
    "DirectTopics",
    "Fetch",
    "FieldType",
    "GetHeads",
    "GetTopics",
    "Head",
    "Message",
    "NodeBeacon",
    "Record",
    "RecordRun",
    "StoreHello",
    "Subscription",
    "TowerBeacon",
    "decode",
    "decode_subscription",
    "encode",
    "subscription_prefix",
]
