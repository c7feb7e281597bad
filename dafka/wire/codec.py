"""Converts single messages to frames and back.

This is the readable reference that `dafka.wire.batch` must always agree with.

    rfc46      [id topic] [AA A5 id version fields] [content]
    libdafka   [id topic NUL version fields] [content]

Only commands with records, and messages between brokers, have a content frame, so the number of frames distinguishes
the dialects. The libdafka dialect ends the topic at the first NUL; a topic that contains one cannot be written in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from dafka.errors import EncodingError, WireError
from dafka.records import TEXT_BYTES_MAX, decode_text, encode_text
from dafka.wire.commands import SIGNATURE, VERSION, Dialect
from dafka.wire.fields import FieldType
from dafka.wire.messages import MESSAGES, Ack, Message, WithContent
from dafka.wire.primitives import NUMBER_4, NUMBER_8, FrameReader, write_string, write_strings

_VERSION_BYTE = bytes((VERSION,))
_BY_ID: dict[bytes, type[Message]] = {message.COMMAND.value: message for message in MESSAGES}
_WITH_CONTENT: tuple[type[WithContent], ...] = get_args(WithContent)


def encode(message: Message, dialect: Dialect) -> list[bytes]:
    """Return the frames of one message in a dialect (RFC 46, "Protocol Grammar").

    They are the topic frame and, depending on the dialect and the command, the header frame and the content frame.
    Raises `EncodingError` if the libdafka dialect cannot carry the topic, because it contains a NUL.
    """
    command = message.COMMAND.value
    topic = encode_text(getattr(message, message.TOPIC), message.TOPIC)
    fields = b"".join(_write_field(message, name, kind, dialect) for name, kind in message.FIELDS)
    if dialect is Dialect.RFC46:
        frames = [command + topic, SIGNATURE + command + _VERSION_BYTE + fields]
    else:
        check_libdafka_topic(topic, message.TOPIC)
        frames = [command + topic + b"\0" + _VERSION_BYTE + fields]
    if isinstance(message, _WITH_CONTENT):
        frames.append(message.content)
    return frames


def decode(frames: Sequence[bytes]) -> tuple[Message, Dialect]:
    """Return the message that frames carry, and the dialect it is written in (RFC 46, "Protocol Grammar").

    Raises `WireError` if they are not a Dafka message of version 1, and nothing else, whatever the frames are.
    """
    if not frames or not frames[0]:
        raise WireError("topic frame", "a command id", 0)
    command = frames[0][:1]
    message_type = _BY_ID.get(command)
    if message_type is None:
        known = " ".join(sorted(name.decode() for name in _BY_ID))
        raise WireError("command", f"one of {known}, not {command!r}", 0)
    content_count = 1 if message_type in _WITH_CONTENT else 0
    if len(frames) == 2 + content_count:
        return _decode_rfc46(message_type, frames), Dialect.RFC46
    if len(frames) == 1 + content_count:
        return _decode_libdafka(message_type, frames), Dialect.LIBDAFKA
    raise WireError("frames", f"{1 + content_count} or {2 + content_count}, not {len(frames)}")


def check_libdafka_topic(topic: bytes, field: str) -> None:
    """Raise `EncodingError` for a topic that the libdafka dialect would cut short."""
    if b"\0" in topic:
        raise EncodingError(field, "no NUL byte, which ends the topic in the libdafka dialect", topic.index(b"\0"))


def _decode_rfc46(message_type: type[Message], frames: Sequence[bytes]) -> Message:
    reader = FrameReader(frames[1])
    reader.expect_bytes(SIGNATURE, "signature")
    reader.expect_bytes(message_type.COMMAND.value, "command")
    return _decode_fields(message_type, frames[0][1:], reader, frames, Dialect.RFC46)


def _decode_libdafka(message_type: type[Message], frames: Sequence[bytes]) -> Message:
    topic, nul, _ = frames[0][1:].partition(b"\0")
    if not nul:
        raise WireError("topic frame", "a NUL byte after the topic", len(frames[0]))
    return _decode_fields(message_type, topic, FrameReader(frames[0], 2 + len(topic)), frames, Dialect.LIBDAFKA)


def _decode_fields(
    message_type: type[Message], topic: bytes, reader: FrameReader, frames: Sequence[bytes], dialect: Dialect
) -> Message:
    reader.expect_bytes(_VERSION_BYTE, "version")
    values: dict[str, Any] = {}
    for name, field_type in message_type.FIELDS:
        if _is_absent(message_type, name, dialect):
            values[name] = ""
        else:
            values[name] = frames[-1] if field_type is FieldType.FRAME else _READ[field_type](reader, name)
    reader.expect_end()
    if len(topic) > TEXT_BYTES_MAX:
        raise WireError(message_type.TOPIC, f"at most {TEXT_BYTES_MAX} bytes, not {len(topic)}")
    topic_text = decode_text(topic)
    if values.setdefault(message_type.TOPIC, topic_text) != topic_text:
        raise WireError(message_type.TOPIC, "the same text as in the topic frame")
    # Every value that can be read is valid: skip the validators of the message.
    message = object.__new__(message_type)
    for name, value in values.items():
        object.__setattr__(message, name, value)
    return message


def _is_absent(message_type: type[Message], name: str, dialect: Dialect) -> bool:
    """Return whether a dialect leaves a field out: libdafka's ACK does not name its store (erratum 7)."""
    return dialect is Dialect.LIBDAFKA and message_type is Ack and name == "address"


def _write_field(message: Message, name: str, field_type: FieldType, dialect: Dialect) -> bytes:
    if field_type is FieldType.FRAME or _is_absent(type(message), name, dialect):
        return b""
    value = getattr(message, name)
    if field_type is FieldType.STRING:
        return write_string(value, name)
    if field_type is FieldType.STRINGS:
        return write_strings(value, name)
    return (NUMBER_4 if field_type is FieldType.NUMBER_4 else NUMBER_8).pack(value)


_READ: dict[FieldType, Any] = {
    FieldType.STRING: FrameReader.read_string,
    FieldType.STRINGS: FrameReader.read_strings,
    FieldType.NUMBER_4: FrameReader.read_number_4,
    FieldType.NUMBER_8: FrameReader.read_number_8,
}
