"""Messages to frames and back, one at a time: the readable reference that `batch` must always agree with.

    rfc46      [id topic] [AA A5 id version fields] [content]
    libdafka   [id topic NUL version fields] [content]

The content frame is there for RECORD and DIRECT-RECORD alone, so the number of frames tells the dialects apart.
The libdafka dialect ends the topic at the first NUL; a topic that holds one cannot be written in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dafka.errors import WireError
from dafka.records import TEXT_BYTES_MAX, decode_text, encode_text
from dafka.wire.constants import SIGNATURE, VERSION, Dialect
from dafka.wire.messages import MESSAGES, Ack, DirectRecord, FieldType, Message, Record
from dafka.wire.primitives import (
    FrameReader,
    write_number_4,
    write_number_8,
    write_string,
    write_strings,
)

_VERSION_OCTET = bytes((VERSION,))
_BY_ID: dict[bytes, type[Message]] = {message.COMMAND.value: message for message in MESSAGES}
_WITH_CONTENT = (Record, DirectRecord)


def encode(message: Message, dialect: Dialect) -> list[bytes]:
    """The frames of one message.

    Raises `WireError` where the libdafka dialect cannot carry the topic (it holds a NUL).
    """
    command = message.COMMAND.value
    topic = encode_text(getattr(message, message.TOPIC), message.TOPIC)
    fields = b"".join(_write_field(message, name, kind, dialect) for name, kind in message.FIELDS)
    if dialect is Dialect.RFC46:
        frames = [command + topic, SIGNATURE + command + _VERSION_OCTET + fields]
    else:
        check_libdafka_topic(topic, message.TOPIC)
        frames = [command + topic + b"\0" + _VERSION_OCTET + fields]
    if isinstance(message, _WITH_CONTENT):
        frames.append(message.content)
    return frames


def decode(frames: Sequence[bytes]) -> tuple[Message, Dialect]:
    """The message that these frames carry, and the dialect it is written in.

    Raises `WireError`, and nothing else, for frames that are not a Dafka message of version 1.
    """
    if not frames or not frames[0]:
        raise WireError("topic frame", "a command id", 0)
    command = frames[0][:1]
    kind = _BY_ID.get(command)
    if kind is None:
        known = " ".join(sorted(name.decode() for name in _BY_ID))
        raise WireError("command", f"one of {known}, not {command!r}", 0)
    content_count = 1 if kind in _WITH_CONTENT else 0
    if len(frames) == 2 + content_count:
        return _decode_rfc46(kind, frames), Dialect.RFC46
    if len(frames) == 1 + content_count:
        return _decode_libdafka(kind, frames), Dialect.LIBDAFKA
    raise WireError("frames", f"{1 + content_count} or {2 + content_count}, not {len(frames)}")


def check_libdafka_topic(topic: bytes, field: str) -> None:
    """Raises `WireError` for a topic that the libdafka dialect would cut short."""
    if b"\0" in topic:
        raise WireError(field, "no NUL octet, which ends the topic in the libdafka dialect", topic.index(b"\0"))


def _decode_rfc46(kind: type[Message], frames: Sequence[bytes]) -> Message:
    reader = FrameReader(frames[1])
    reader.literal(SIGNATURE, "signature")
    reader.literal(kind.COMMAND.value, "command")
    return _decode_fields(kind, frames[0][1:], reader, frames, Dialect.RFC46)


def _decode_libdafka(kind: type[Message], frames: Sequence[bytes]) -> Message:
    topic, nul, _ = frames[0][1:].partition(b"\0")
    if not nul:
        raise WireError("topic frame", "a NUL octet after the topic", len(frames[0]))
    return _decode_fields(kind, topic, FrameReader(frames[0], 2 + len(topic)), frames, Dialect.LIBDAFKA)


def _decode_fields(
    kind: type[Message], topic: bytes, reader: FrameReader, frames: Sequence[bytes], dialect: Dialect
) -> Message:
    reader.literal(_VERSION_OCTET, "version")
    values: dict[str, Any] = {}
    for name, field_kind in kind.FIELDS:
        if _is_absent(kind, name, dialect):
            values[name] = ""
        else:
            values[name] = frames[-1] if field_kind is FieldType.FRAME else _READ[field_kind](reader, name)
    reader.end()
    if len(topic) > TEXT_BYTES_MAX:
        raise WireError(kind.TOPIC, f"at most {TEXT_BYTES_MAX} octets, not {len(topic)}")
    topic_text = decode_text(topic)
    if values.setdefault(kind.TOPIC, topic_text) != topic_text:
        raise WireError(kind.TOPIC, "the same text as in the topic frame")
    # What was read is what a message may hold: it need not be checked once more.
    message = object.__new__(kind)
    for name, value in values.items():
        object.__setattr__(message, name, value)
    return message


def _is_absent(kind: type[Message], name: str, dialect: Dialect) -> bool:
    """libdafka's ACK does not say which store it is from (erratum 7)."""
    return dialect is Dialect.LIBDAFKA and kind is Ack and name == "address"


def _write_field(message: Message, name: str, kind: FieldType, dialect: Dialect) -> bytes:
    if kind is FieldType.FRAME or _is_absent(type(message), name, dialect):
        return b""
    value = getattr(message, name)
    if kind is FieldType.STRING:
        return write_string(value, name)
    if kind is FieldType.STRINGS:
        return write_strings(value, name)
    return write_number_4(value) if kind is FieldType.NUMBER_4 else write_number_8(value)


_READ: dict[FieldType, Any] = {
    FieldType.STRING: FrameReader.string,
    FieldType.STRINGS: FrameReader.strings,
    FieldType.NUMBER_4: FrameReader.number_4,
    FieldType.NUMBER_8: FrameReader.number_8,
}
