"""Values of records as objects: JSON, msgspec, Avro, Protobuf; and topics whose values have one type.

    orders = TypedTopic("orders", MsgspecSerializer(Order))

    producer.send_many(orders.records([Order("tea", 2)]))
    for order in orders.values(consumer.next_batch()): ...

They work with the API for Trio, `dafka.asyncio` and `dafka.blocking`.
"""

from dafka.serializers.formats import AvroSerializer, JsonSerializer, MsgspecSerializer, ProtobufSerializer, Serializer
from dafka.serializers.typed_topic import CONTENT_TYPE, TypedTopic

__all__ = [
    "CONTENT_TYPE",
    "AvroSerializer",
    "JsonSerializer",
    "MsgspecSerializer",
    "ProtobufSerializer",
    "Serializer",
    "TypedTopic",
]
