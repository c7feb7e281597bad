"""Message formats, compiled from the grammar's message rules: encode and decode a message's frames field by field.

    rfc46      [id topic] [signature id version fields] [content]
    libdafka   [id topic NUL version fields] [content]

The grammar describes the second frame of `rfc46` and the field that is a frame of its own. `libdafka` has the same
fields in the same order after the topic, without signature and id; its ACK has no address.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import attrs

from dafka_conformance.grammar.rules import (
    CORE_RULES,
    Bytes,
    Expression,
    GrammarError,
    Reference,
    Repeat,
)
from dafka_conformance.grammar.rules import Sequence as InOrder
from dafka_conformance.model import Dialect

Value: TypeAlias = int | bytes | tuple[bytes, ...]

_CONTENT_RULE = "frame"
_TOPIC_END = b"\0"
_DIALECTS = tuple(Dialect)
_VERSION_PLACE = 2
_ID = "id"
_LIBDAFKA_LACKS = {("ACK", "address")}


class FrameError(Exception):
    """Frames do not match the grammar.

    Attributes:
        message: The message's name in the grammar; empty if it is unknown.
        field: The wrong field.
        found: The bytes instead of the signature or the version, if they are another one.

    Args:
        message: The message's name in the grammar; empty if it is unknown.
        field: The wrong field.
        text: A description of the fault.
        found: The bytes instead of the signature or the version.
    """

    def __init__(self, message: str, field: str, text: str, found: bytes = b"") -> None:
        super().__init__(text)
        self.message = message
        self.field = field
        self.found = found


@attrs.frozen
class Message:
    """A message with the grammar's names. `topic` is the part of the topic frame after the id."""

    name: str
    topic: bytes
    values: Mapping[str, Value]

    def __getitem__(self, field: str) -> Value:
        return self.values[field]

    def get_bytes(self, field: str) -> bytes:
        """Return the value of a bytes field; empty if the message has no such field."""
        value = self.values.get(field, b"")
        assert isinstance(value, bytes)
        return value

    def get_number(self, field: str) -> int:
        """Return the value of a number field; 0 if the message has no such field."""
        value = self.values.get(field, 0)
        assert isinstance(value, int)
        return value


@attrs.frozen
class _Literal:
    value: bytes

    def read(self, frame: bytes, at: int) -> tuple[Value, int]:
        found = frame[at : at + len(self.value)]
        if found != self.value:
            raise ValueError(f"expected {_hex(self.value)}, found {_hex(found) or 'the end of the frame'}")
        return found, at + len(found)

    def write(self, _: Value) -> bytes:
        return self.value


@attrs.frozen
class _Number:
    size: int

    def read(self, frame: bytes, at: int) -> tuple[int, int]:
        end = at + self.size
        if end > len(frame):
            raise ValueError(f"expected a number of {self.size} bytes, found {len(frame) - at}")
        return int.from_bytes(frame[at:end], "big"), end

    def write(self, value: Value) -> bytes:
        assert isinstance(value, int)
        return value.to_bytes(self.size, "big")


@attrs.frozen
class _Counted:
    """A count, followed by that many bytes, or by that many elements."""

    count: _Number
    element: _Counted | None = None

    def read(self, frame: bytes, at: int) -> tuple[Value, int]:
        count, at = self.count.read(frame, at)
        if self.element is None:
            if at + count > len(frame):
                raise ValueError(f"expected {count} bytes, as its length says, found {len(frame) - at}")
            return frame[at : at + count], at + count
        values = []
        for _ in range(count):
            value, at = self.element.read(frame, at)
            assert isinstance(value, bytes)
            values.append(value)
        return tuple(values), at

    def write(self, value: Value) -> bytes:
        assert not isinstance(value, int)
        if self.element is None:
            assert isinstance(value, bytes)
            return self.count.write(len(value)) + value
        return self.count.write(len(value)) + b"".join(map(self.element.write, value))


@attrs.frozen
class _Content:
    """A field that is a ZeroMQ frame."""


_InFrame: TypeAlias = _Literal | _Number | _Counted
_Codec: TypeAlias = _InFrame | _Content
_Layout: TypeAlias = tuple[tuple[str, _InFrame], ...]


@attrs.frozen
class MessageFormat:
    """A message rule.

    Attributes:
        name: The rule's name.
        id: The byte of the command id.
        fields: The name and codec of each part of the rule, in order.
        field_names: The names of the parts that have a value.
        has_content: Whether the message has a content frame.
    """

    name: str
    id: bytes
    fields: tuple[tuple[str, _Codec], ...]
    field_names: tuple[str, ...] = attrs.field(init=False)
    has_content: bool = attrs.field(init=False)
    _layouts: Mapping[Dialect, _Layout] = attrs.field(init=False, repr=False, eq=False)

    @field_names.default
    def _list_names(self) -> tuple[str, ...]:
        return tuple(name for name, codec in self.fields if not isinstance(codec, _Literal))

    @has_content.default
    def _find_content(self) -> bool:
        return any(isinstance(codec, _Content) for _, codec in self.fields)

    @_layouts.default
    def _lay_out(self) -> Mapping[Dialect, _Layout]:
        """Return the fields in the header frame for each dialect: all but the content."""
        fields = tuple((name, codec) for name, codec in self.fields if not isinstance(codec, _Content))
        behind_topic = fields[_VERSION_PLACE:]
        return {
            Dialect.RFC46: fields,
            Dialect.LIBDAFKA: tuple(field for field in behind_topic if (self.name, field[0]) not in _LIBDAFKA_LACKS),
        }

    def frame_count(self, dialect: Dialect) -> int:
        """Return the number of frames of the message."""
        return (2 if dialect is Dialect.RFC46 else 1) + self.has_content

    def _count_text(self, count: int) -> str:
        """Describe the fault of a message that has too few frames for RFC 46 and is not in libdafka's dialect."""
        names = "topic, fields and content" if self.has_content else "topic and fields"
        wanted = f"{self.frame_count(Dialect.RFC46)} in RFC 46 ({names})"
        found = "1 frame" if count == 1 else f"{count} frames"
        return f"{self.name} has {found}, expected {wanted}; in libdafka, {found} would need a NUL after the topic"

    def encode(self, message: Message, dialect: Dialect) -> list[bytes]:
        """Return the frames of a message."""
        values = message.values
        written = b"".join([codec.write(values.get(name, b"")) for name, codec in self._layouts[dialect]])
        if dialect is Dialect.RFC46:
            frames = [self.id + message.topic, written]
        else:
            frames = [self.id + message.topic + _TOPIC_END + written]
        if self.has_content:
            frames.append(message.get_bytes("content"))
        return frames

    def decode(self, frames: Sequence[bytes], dialect: Dialect) -> tuple[Message, list[FrameError]]:
        """Decode a message.

        Args:
            frames: The frames of the message.
            dialect: The dialect that they are in.

        Returns:
            The message, and the faults that do not prevent decoding it: another signature or version.

        Raises:
            FrameError: The frames do not match the rule.
        """
        if dialect is Dialect.RFC46:
            topic, frame, at = frames[0][1:], frames[1], 0
        else:
            topic, end, _ = frames[0][1:].partition(_TOPIC_END)
            if not end:
                raise FrameError(self.name, "frames", self._count_text(len(frames)))
            frame, at = frames[0], len(topic) + 2
        values: dict[str, Value] = {}
        others: list[FrameError] = []
        for name, codec in self._layouts[dialect]:
            try:
                value, after = codec.read(frame, at)
            except ValueError as error:
                text = f"{name}, at byte {at}: {error}"
                if isinstance(codec, _Literal) and name != _ID and at + len(codec.value) <= len(frame):
                    found = frame[at : at + len(codec.value)]
                    others.append(FrameError(self.name, name, text, found))
                    at += len(found)
                    continue
                if name == _ID and others:
                    raise others[0] from None  # without a signature, everything is at another place
                raise FrameError(self.name, name, text) from None
            if not isinstance(codec, _Literal):
                values[name] = value
            at = after
        if at != len(frame):
            text = f"{len(frame) - at} bytes are left over after {name}: {_hex(frame[at:])}"
            raise FrameError(self.name, name, text)
        if self.has_content:
            values["content"] = frames[-1]
        return Message(self.name, topic, values), others


@attrs.frozen
class Formats:
    """All messages of the grammar, by name."""

    by_name: Mapping[str, MessageFormat]
    by_id: Mapping[bytes, MessageFormat] = attrs.field(init=False)

    @by_id.default
    def _index(self) -> dict[bytes, MessageFormat]:
        return {form.id: form for form in self.by_name.values()}

    @classmethod
    def compile(cls, rules: Mapping[str, Expression]) -> Formats:
        """Compile all rules that begin with `signature` and a command id. Raise `GrammarError` if one is wrong."""
        formats = {}
        for name, expression in rules.items():
            parts = expression.parts if isinstance(expression, InOrder) else ()
            if parts[:1] == (Reference("signature"),):
                formats[name] = _compile_message(name, parts, rules)
        if not formats:
            raise GrammarError(
                "the grammar has no message rule: expected one that begins with signature and a command id"
            )
        return cls(formats)

    def id_of(self, name: str) -> bytes:
        """Return the command id of a message."""
        return self.by_name[name].id

    def encode(self, message: Message, dialect: Dialect) -> list[bytes]:
        """Return the frames of a message."""
        return self.by_name[message.name].encode(message, dialect)

    def decode(self, frames: Sequence[bytes]) -> tuple[Message, Dialect]:
        """Return the message in these frames and its dialect. Raise `FrameError` if they match no rule."""
        message, dialect, others = self.decode_any(frames)
        if others:
            raise others[0]
        return message, dialect

    def decode_any(self, frames: Sequence[bytes]) -> tuple[Message, Dialect, list[FrameError]]:
        """Return the message in these frames as `decode` does, even if its signature or version is another one.

        Args:
            frames: The frames.

        Returns:
            The message, its dialect, and a fault for its signature and its version if they are wrong.

        Raises:
            FrameError: They match no rule.
        """
        form = self.by_id.get(frames[0][:1]) if frames else None
        if form is None:
            known = " ".join(sorted(known.decode("latin-1") for known in self.by_id))
            first = _hex(frames[0][:1]) if frames else ""
            raise FrameError("", "id", f"the topic frame begins with {first or 'nothing'}: expected an id of {known}")
        for dialect in _DIALECTS:
            if len(frames) == form.frame_count(dialect):
                message, others = form.decode(frames, dialect)
                return message, dialect, others
        counts = " or ".join(f"{form.frame_count(dialect)} ({dialect.value})" for dialect in Dialect)
        raise FrameError(form.name, "frames", f"{form.name} has {len(frames)} frames, expected {counts}")


def _compile_message(name: str, parts: Sequence[Expression], rules: Mapping[str, Expression]) -> MessageFormat:
    command_id = parts[1] if len(parts) > 1 else None
    is_version = parts[_VERSION_PLACE : _VERSION_PLACE + 1] == (Reference("version"),)
    if not is_version or not isinstance(command_id, Bytes) or len(command_id.value) != 1:
        raise GrammarError(
            f"the rule {name}: expected it to begin with signature, a command id such as %d'M', and version"
        )
    fields: list[tuple[str, _Codec]] = []
    for index, part in enumerate(parts):
        field = _ID if index == 1 else part.rule if isinstance(part, Reference) else ""
        if not field:
            raise GrammarError(f"the rule {name}: expected the name of a field as part {index + 1}")
        fields.append((field, _compile(part, rules, field)))
    return MessageFormat(name, command_id.value, tuple(fields))


def _compile(expression: Expression, rules: Mapping[str, Expression], name: str) -> _Codec:
    """Return the codec of a field with this definition."""
    if isinstance(expression, Reference):
        if expression.rule == _CONTENT_RULE:
            return _Content()
        return _compile({**CORE_RULES, **rules}[expression.rule], rules, expression.rule)
    codec: _Codec | None = None
    if isinstance(expression, Bytes):
        codec = _Literal(expression.value)
    elif isinstance(expression, Repeat) and _is_byte(expression.part) and expression.least == expression.most:
        codec = _Number(expression.least)
    elif isinstance(expression, InOrder):
        codec = _compile_sequence(expression.parts, rules, name)
    if codec is None:
        raise GrammarError(f"the rule {name} cannot be a field: expected a number, counted bytes, or a frame")
    return codec


def _compile_sequence(parts: Sequence[Expression], rules: Mapping[str, Expression], name: str) -> _Codec | None:
    """Return the codec of literal bytes, or of a count and that many bytes or strings; None for anything else."""
    if all(isinstance(part, Bytes) for part in parts):
        return _Literal(b"".join(part.value for part in parts if isinstance(part, Bytes)))
    first, *rest = parts
    count = _compile(first, rules, name)
    if not isinstance(count, _Number) or len(rest) != 1 or not isinstance(rest[0], Repeat):
        return None
    if _is_byte(rest[0].part):
        return _Counted(count)
    element = _compile(rest[0].part, rules, name)
    return _Counted(count, element) if isinstance(element, _Counted) else None


def _is_byte(expression: Expression) -> bool:
    return expression in {Reference("OCTET"), Reference("VCHAR")}


def _hex(value: bytes) -> str:
    return value[:16].hex(" ").upper() + (" …" if len(value) > 16 else "")
