"""The fields of messages: their meanings, their encodings, and the checks of their values."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Annotated, Any, ClassVar, TypeAlias

import attrs

from dafka.errors import EncodingError
from dafka.records import encode_text
from dafka.wire.commands import NUMBER_4_MAX, NUMBER_8_MAX, Command


class FieldType(enum.Enum):
    """The encoding of a field: a rule of the grammar, a separate frame, or the ZeroMQ topic."""

    STRING = "string"
    STRINGS = "strings"
    NUMBER_4 = "number-4"
    NUMBER_8 = "number-8"
    FRAME = "frame"
    TOPIC = "topic"


NodeAddress: TypeAlias = Annotated[str, FieldType.STRING]
"""The address of the node that sends the message."""

PartitionName: TypeAlias = Annotated[str, FieldType.STRING]
"""The name of a partition, which is the address of its producer."""

TopicName: TypeAlias = Annotated[str, FieldType.STRING]
"""A topic: that of the partition, unless the message says otherwise."""

TopicNames: TypeAlias = Annotated[tuple[str, ...], FieldType.STRINGS]
"""Several topics."""

SequenceNumber: TypeAlias = Annotated[int, FieldType.NUMBER_8]
"""The sequence of a record in its partition, from 0."""

Milliseconds: TypeAlias = Annotated[int, FieldType.NUMBER_8]
"""A time, in milliseconds since 1970 UTC."""

Count: TypeAlias = Annotated[int, FieldType.NUMBER_4]
"""How many there are of something."""

Content: TypeAlias = Annotated[bytes, FieldType.FRAME]
"""The content of a record, or a record batch of Kafka's format, version 2, whose base offset is the sequence of its
first record; or what a broker sends to another one."""

Recipient: TypeAlias = Annotated[str, FieldType.TOPIC]
"""The address of the node that the message is for."""

FetchedPartition: TypeAlias = Annotated[str, FieldType.TOPIC]
"""The name of the partition, to whose producer and stores the message goes."""

AskedTopic: TypeAlias = Annotated[str, FieldType.TOPIC]
"""The topic whose nodes are asked."""


def _check_text(_: Any, attribute: attrs.Attribute[str], value: str) -> None:
    encode_text(value, attribute.name)


def _check_number(maximum: int) -> Any:
    def check(_: Any, attribute: attrs.Attribute[int], value: int) -> None:
        if type(value) is not int or not 0 <= value <= maximum:
            raise EncodingError(attribute.name, f"a number from 0 to {maximum}, not {value!r}")

    return check


def _check_content(_: Any, attribute: attrs.Attribute[bytes], value: bytes) -> None:
    if not isinstance(value, bytes):
        raise EncodingError(attribute.name, f"bytes, not {type(value).__name__}")


def as_tuple(values: Iterable[str]) -> tuple[str, ...]:
    """Return several topics as a field has them. Raises `EncodingError` for a single text."""
    if isinstance(values, str):
        raise EncodingError("subjects", "several topics, not one text")
    return tuple(values)


def _check_texts(_: Any, attribute: attrs.Attribute[tuple[str, ...]], values: tuple[str, ...]) -> None:
    for value in values:
        encode_text(value, attribute.name)


_CHECKS: dict[FieldType, Callable[..., None]] = {
    FieldType.STRING: _check_text,
    FieldType.STRINGS: _check_texts,
    FieldType.NUMBER_4: _check_number(NUMBER_4_MAX),
    FieldType.NUMBER_8: _check_number(NUMBER_8_MAX),
    FieldType.FRAME: _check_content,
    FieldType.TOPIC: _check_text,
}


def _type_of(attribute: attrs.Attribute[Any]) -> FieldType:
    found: FieldType = attribute.type.__metadata__[0]  # type: ignore[union-attr]
    return found


def add_checks(_: type[Any], attributes: list[attrs.Attribute[Any]]) -> list[attrs.Attribute[Any]]:
    """Return the fields of a message with validators, as the `field_transformer` of its class."""
    return [each.evolve(validator=_CHECKS[_type_of(each)]) for each in attributes]


class DescribedMessage:
    """The base class of messages: a table from the declarations of their fields."""

    __slots__ = ()
    COMMAND: ClassVar[Command]
    TOPIC: ClassVar[str] = "subject"
    """The field that the ZeroMQ topic frame carries."""
    FIELDS: ClassVar[tuple[tuple[str, FieldType], ...]] = ()
    """The fields after the version, in the order in which they are written, with their encodings."""

    @classmethod
    def __attrs_init_subclass__(cls) -> None:
        types = {each.name: _type_of(each) for each in attrs.fields(cls)}  # type: ignore[arg-type]
        cls.TOPIC = next((name for name, kind in types.items() if kind is FieldType.TOPIC), "subject")
        cls.FIELDS = cls.FIELDS or tuple(item for item in types.items() if item[1] is not FieldType.TOPIC)
