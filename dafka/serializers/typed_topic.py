"""A topic whose values have one type."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from dafka.errors import RecordError
from dafka.records import Header, ProducerRecord, Record, RecordBatch
from dafka.serializers.formats import Serializer

_T = TypeVar("_T")

CONTENT_TYPE = "content-type"
"""The record header with the media type of the value."""


class TypedTopic(Generic[_T]):
    """A topic whose values have one type, which is checked when records are made and when they are read.

    Args:
        name: The topic.
        serializer: Turns the values into bytes and back.
    """

    def __init__(self, name: str, serializer: Serializer[_T]) -> None:
        self.name = name
        self.serializer = serializer
        self._header: Header = (CONTENT_TYPE, serializer.content_type.encode())

    def record(
        self,
        value: _T | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        timestamp: int | None = None,
    ) -> ProducerRecord:
        """Return a record to publish, with the header `content-type`.

        Args:
            value: The value; None for a tombstone.
            key: The key; None for none.
            headers: Additional headers.
            timestamp: When the record was made, in milliseconds since 1970 UTC; None for the time at which it is sent.

        Returns:
            The record.

        Raises:
            RecordError: The value is not of the topic's type.
        """
        if value is None:
            return ProducerRecord(None, key, headers, timestamp)
        return ProducerRecord(self.serializer.dump(value), key, (self._header, *headers), timestamp)

    def records(
        self, values: Iterable[_T | None], key: Callable[[_T], bytes | None] | None = None
    ) -> list[ProducerRecord]:
        """Return records to publish with `send_many`.

        Args:
            values: The values; None for a tombstone.
            key: Returns the key of a value. None: records have no keys.

        Returns:
            The records.

        Raises:
            RecordError: A value is not of the topic's type.
        """
        return [self.record(value, key=None if key is None or value is None else key(value)) for value in values]

    def value(self, record: Record) -> _T | None:
        """Return the value of a record of the topic.

        Args:
            record: The record. If it has a header `content-type`, that is the serializer's.

        Returns:
            The value; None for a tombstone.

        Raises:
            RecordError: The record belongs to another topic, has another content type, or a value of another type. The
                message names the record.
        """
        if record.topic != self.name:
            raise RecordError(f"{record.partition}: expected a record of the topic {self.name!r}")
        if record.value is None:
            return None
        found = next((content_type for name, content_type in record.headers if name == CONTENT_TYPE), None)
        where = f"record {record.sequence} of {record.partition}"
        if found is not None and found != self._header[1]:
            given = found.decode(errors="backslashreplace")
            raise RecordError(f"{where}: expected {self.serializer.content_type}, not {given}")
        try:
            return self.serializer.load(record.value)
        except RecordError as error:
            raise RecordError(f"{where}: {error}") from None

    def values(self, batch: RecordBatch) -> list[_T | None]:
        """Return the values of the records of a batch.

        Args:
            batch: The batch.

        Returns:
            The values, in order; None for each tombstone.

        Raises:
            RecordError: As `value` raises it, for the first record that is wrong.
        """
        return [self.value(record) for record in batch]
