"""Checks of a program's arguments. An invalid one raises a local error that says what was expected."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from types import NoneType
from typing import TypeAlias, cast

from dafka.batches import pack_headers, records_codec
from dafka.config import Config
from dafka.errors import ConfigError, EncodingError, RecordError
from dafka.packed_bytes import Repeated, count_bytes
from dafka.records import SEQUENCE_MAX, Partition, ProducerRecord, Record, RecordBatch, encode_text, record_bytes
from dafka.storage.plugin_helpers import now_ms
from dafka.wire import NUMBER_8_MAX, Dialect

Time: TypeAlias = datetime | timedelta | int
"""A time: a `datetime` with a time zone, milliseconds since 1970 UTC, or a `timedelta` for how long ago."""

_EPOCH = datetime.fromtimestamp(0, UTC)
HEADER_OVERHEAD_BYTES = 10
"""The size that a header counts in addition to its name and value, for its lengths."""

_ADDRESS = re.compile("[0-9A-F]{32}")


def check_topic(topic: str, config: Config) -> str:
    """Return a topic. Raise `ConfigError` if it is not a text of 1 to 255 bytes, or the dialect cannot send it."""
    if not isinstance(topic, str):
        raise ConfigError(f"topic: expected a text, not {topic!r}")
    try:
        encoded = encode_text(topic, "topic")
    except EncodingError as error:
        raise ConfigError(str(error)) from None
    if not encoded:
        raise ConfigError("topic: expected at least one character")
    if config.node.wire == Dialect.LIBDAFKA.value and b"\0" in encoded:
        raise ConfigError(f"topic {topic!r}: the libdafka dialect has no topics with a NUL character")
    return topic


def check_topics(topics: Iterable[str], config: Config) -> list[str]:
    """Return several topics. Raise `ConfigError` if they are one text, or `check_topic` refuses one of them."""
    if isinstance(topics, str):
        raise ConfigError(f"topics: expected several, as in [{topics!r}], not one text")
    return [check_topic(topic, config) for topic in topics]


def to_time_ms(time: Time) -> int:
    """Return a time in milliseconds since 1970 UTC; 0 for earlier times. Raise `ConfigError` if it is no `Time`."""
    if isinstance(time, timedelta):
        time_ms = now_ms() - time // timedelta(milliseconds=1)
    elif isinstance(time, datetime) and time.tzinfo is not None:
        time_ms = (time - _EPOCH) // timedelta(milliseconds=1)
    elif isinstance(time, datetime):
        raise ConfigError(f"time: expected a time zone, as in datetime.now(UTC), not {time!r}")
    elif type(time) is int:
        time_ms = time
    else:
        raise ConfigError(f"time: expected a datetime, a timedelta, or milliseconds since 1970, not {time!r}")
    if time_ms > NUMBER_8_MAX:
        raise ConfigError(f"time: expected milliseconds since 1970, not {time!r}")
    return max(time_ms, 0)


def check_positions(positions: Mapping[Partition, int]) -> None:
    """Raise `ConfigError` if a key is not a `Partition`, or a value is not a sequence."""
    for partition, sequence in positions.items():
        if not isinstance(partition, Partition):
            raise ConfigError(f"positions: expected a Partition as key, not {partition!r}")
        if type(sequence) is not int or sequence < 0:
            raise ConfigError(f"positions: expected a sequence from 0 on for {partition}, not {sequence!r}")


def ephemeral(config: Config) -> Config:
    """Return the configuration for another node of the same program, which listens at any free port."""
    host, separator, _ = config.node.bind.rpartition(":")
    return config.with_node(bind=f"{host}{separator}*")


def check_identity(address: str | None, next_sequence: int, config: Config) -> None:
    """Check the address and the next sequence of the partition that a producer continues.

    Raise `ConfigError` if one of them is invalid, or they exclude each other.
    """
    if address is not None and not _ADDRESS.fullmatch(address):
        raise ConfigError(f"address: expected 32 upper-case hexadecimal digits, not {address!r}")
    if type(next_sequence) is not int or not 0 <= next_sequence < SEQUENCE_MAX:
        raise ConfigError(f"next_sequence: expected a whole number from 0 to 2^62 - 1, not {next_sequence!r}")
    if next_sequence and address is None:
        raise ConfigError("next_sequence: expected an address with it, that of the partition to continue")
    if address is not None and config.producer.spool:
        raise ConfigError("address: expected none with a spool, which has its own; give one or the other")


def check_values(values: Sequence[bytes | None], bytes_max: int) -> None:
    """Raise `RecordError` if one of the values is neither bytes nor None, or has more than `bytes_max` bytes."""
    kinds = {*map(type, values)}
    for kind in kinds - {bytes, NoneType}:
        hint = "; encode it first" if kind is str else ""
        raise RecordError(f"value: expected bytes or None, not {kind.__name__}{hint}")
    longest = max((len(value or b"") for value in values) if NoneType in kinds else map(len, values), default=0)  # type: ignore[arg-type]
    if longest > bytes_max:
        raise RecordError(f"value: expected at most {bytes_max} bytes ([node] message_bytes_max), not {longest}")


def check_record(record: ProducerRecord | Record, bytes_max: int) -> None:
    """Check a record to publish, except for its value.

    Raise `RecordError` if a part has the wrong type, or all parts together have more than `bytes_max` bytes.
    """
    if record.key is not None and type(record.key) is not bytes:
        raise RecordError(f"key: expected bytes or None, not {type(record.key).__name__}")
    headers: Sequence[object] = record.headers
    for header in headers:
        if not (isinstance(header, tuple) and len(header) == 2):
            raise RecordError(f"header: expected a pair of a name and a value, not {header!r}")
        name, value = header
        if not (isinstance(name, str) and (value is None or type(value) is bytes)):
            raise RecordError(f"header: expected a name as text and a value as bytes or None, not {header!r}")
        try:
            name.encode()
        except UnicodeEncodeError:
            raise RecordError(f"header: expected a name that can be encoded as UTF-8, not {name!r}") from None
    timestamp = record.timestamp
    if timestamp is not None and not (type(timestamp) is int and 0 <= timestamp < 2**63):
        raise RecordError(f"timestamp: expected milliseconds since 1970 as a whole number, not {timestamp!r}")
    _check_size(record, bytes_max)


def check_sizes(batch: RecordBatch, bytes_max: int) -> None:
    """Raise `RecordError` if a record that a client has sent is larger than peers accept, as `check_record` does."""
    size = count_bytes(batch.values) + (0 if batch.keys is None else count_bytes(batch.keys))
    if batch.headers is not None:
        size += HEADER_OVERHEAD_BYTES * count_bytes(pack_headers(batch.headers).blocks)
    if size > bytes_max:
        for record in batch:
            _check_size(record, bytes_max)


def _check_size(record: ProducerRecord | Record, bytes_max: int) -> None:
    if (size := record_bytes(record) + HEADER_OVERHEAD_BYTES * len(record.headers)) > bytes_max:
        raise RecordError(f"record: expected at most {bytes_max} bytes ([node] message_bytes_max), not {size}")


def make_batch(
    partition: Partition,
    records: Sequence[bytes | None] | Sequence[ProducerRecord | Record],
    now_ms: int,
    bytes_max: int,
) -> RecordBatch:
    """Return a batch of values or whole records to publish, which begins at sequence 0. `now_ms` is their timestamp.

    Raise `RecordError` if a part of a record has the wrong type, or a record is too large.
    """
    if not any(isinstance(each, (ProducerRecord, Record)) for each in records[:1]):
        values = _pack_values(cast(Sequence[bytes | None], records), bytes_max)
        return RecordBatch(partition, 0, values, timestamps=Repeated(now_ms, len(values)))
    for each in records:
        if not isinstance(each, (ProducerRecord, Record)):
            raise RecordError(f"record: expected values only or whole records only, not {type(each).__name__}")
    whole = cast(Sequence[ProducerRecord | Record], records)
    check_values([each.value for each in whole], bytes_max)
    for record in whole:
        check_record(record, bytes_max)
    return RecordBatch.from_records(partition, 0, whole, now_ms)


def _pack_values(values: Sequence[bytes | None], bytes_max: int) -> Sequence[bytes | None]:
    """Pack values, so that later steps need not handle each one; raise `RecordError` if one is invalid."""
    if len(values) > 1:
        with suppress(TypeError):
            packed = records_codec().pack(cast(Sequence[bytes], values))
            if len(packed.data) <= bytes_max or packed.longest() <= bytes_max:
                return packed
    check_values(values, bytes_max)
    return values
