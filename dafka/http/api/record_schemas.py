"""The schemas of records in requests and responses."""

from __future__ import annotations

from dafka.http.api.schemas import AnyValue, Array, Integer, Nullable, Object, Text

_TIMESTAMP = Integer("When the record was made, in milliseconds since 1970.", 0, 2**53 - 1)
_LOG = Integer("The number of the log.")
_OFFSET = Integer("The offset of the record in the log.")

JSON_RECORD = Object(
    "Record",
    {
        "log": _LOG,
        "offset": _OFFSET,
        "timestamp": _TIMESTAMP,
        "key": Text("The key. A record without a key has no such field."),
        "key_base64": Text("The key in base64, if it is no UTF-8."),
        "value": Nullable(Text("The value; null for a tombstone.")),
        "value_base64": Text("The value in base64, if it is no UTF-8."),
        "headers": Array(
            Array(AnyValue('The name; then the value as text, null, or `{"base64": ...}` if it is no UTF-8.')),
            "Pairs of a name and a value.",
        ),
    },
    optional=("log", "offset", "timestamp", "key", "key_base64", "value", "value_base64", "headers"),
    description="A record. What is published needs a value only; its log and its offset are ignored.",
)

_PLACE = Object(
    "PublishedRecords",
    {
        "log": _LOG,
        "offset": Nullable(Integer("The offset of the first record.")),
        "count": Integer("The number of records, which have consecutive offsets."),
    },
)

PUBLISHED = Object("Published", {"offsets": Array(_PLACE)}, description="Where the records are.")

_REST_HEADER = Object(
    "KafkaRestHeader",
    {
        "name": Text("The name."),
        "key": Text("The name, too: some clients call it so."),
        "value": Nullable(Text("The value in base64.")),
    },
    optional=("name", "key", "value"),
)

_REST_RECORD = Object(
    "KafkaRestRecord",
    {
        "key": AnyValue("The key: any JSON value, or base64."),
        "value": AnyValue("The value: any JSON value, or base64."),
        "partition": Nullable(_LOG),
        "timestamp": Nullable(_TIMESTAMP),
        "headers": Nullable(Array(_REST_HEADER, "The headers.")),
    },
    optional=("key", "value", "partition", "timestamp", "headers"),
)

REST_RECORDS = Object("KafkaRestRecords", {"records": Array(_REST_RECORD)})

_REST_PLACE = Object(
    "KafkaRestOffset",
    {
        "partition": Nullable(_LOG),
        "offset": Nullable(_OFFSET),
        "error_code": Nullable(Integer("1 if the record was refused.")),
        "error": Nullable(Text("Why it was refused.")),
    },
)

REST_PUBLISHED = Object(
    "KafkaRestOffsets",
    {
        "offsets": Array(_REST_PLACE),
        "key_schema_id": Nullable(Integer("Always null.")),
        "value_schema_id": Nullable(Integer("Always null.")),
    },
)

DELETED = Object(
    "DeletedRecords", {"log": _LOG, "start_offset": Integer("The offset of the first record that is left.")}
)

_LOG_OFFSETS = Object(
    "LogOffsets",
    {
        "log": _LOG,
        "start_offset": Integer("The offset of its first record."),
        "end_offset": Integer("The offset behind its last record."),
        "offset": Integer("The offset of the first record that was made at the time or later, or else the end."),
    },
    optional=("offset",),
)

OFFSETS = Object("Offsets", {"offsets": Array(_LOG_OFFSETS)})
