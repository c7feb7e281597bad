"""Frames written by hand from the grammar of RFC 46, one row for each command and dialect."""

import re
from typing import Any, NamedTuple

import attrs
import pytest

from dafka.errors import EncodingError, WireError
from dafka.wire import (
    MESSAGES,
    NUMBER_4_MAX,
    NUMBER_8_MAX,
    Ack,
    BrokerMessage,
    ConsumerHello,
    Dialect,
    DirectEarliest,
    DirectHead,
    DirectPosition,
    DirectRecord,
    DirectRecordBatchMessage,
    DirectTopics,
    Fetch,
    GetHeads,
    GetPosition,
    GetTopics,
    Head,
    Message,
    Record,
    RecordBatchMessage,
    StoreHello,
    decode,
    encode,
)

RFC46, LIBDAFKA = Dialect.RFC46, Dialect.LIBDAFKA


def parse_frame(text: str) -> bytes:
    """Return the bytes of `AA 'text' 258/8`: hexadecimal digits, text in quotes, and a number of eight bytes.

    Bars are ignored.
    """
    data = b""
    for part in re.findall(r"'[^']*'|\d+/\d|[0-9A-F]{2}|\S", text.replace("|", " ")):
        number, _, size = part.partition("/")
        if part[0] == "'":
            data += part[1:-1].encode()
        else:
            data += int(number).to_bytes(int(size), "big") if size else bytes.fromhex(part)
    return data


class Vector(NamedTuple):
    message: Message
    dialect: Dialect
    frames: list[str]
    """Each frame as text, with bars between the parts of the grammar."""

    @property
    def encoded(self) -> list[bytes]:
        return [parse_frame(frame) for frame in self.frames]


RFC46_ROWS: list[tuple[Message, *tuple[str, ...]]] = [
    (Record("P1", "hello", 258, b"258"), "'Mhello'", "AA A5|'M'|01|02 'P1'|05 'hello'|258/8", "'258'"),
    (DirectRecord("C9", "P1", "hello", 258, b"258"), "'DC9'", "AA A5|'D'|01|02 'P1'|05 'hello'|258/8", "'258'"),
    (Fetch("P1", "C9", "hello", 7, 100_000), "'FP1'", "AA A5|'F'|01|02 'C9'|05 'hello'|7/8|00 01 86 A0"),
    (Ack("P1", "hello", 7, "S5"), "'KP1'", "AA A5|'K'|01|02 'S5'|05 'hello'|00 00 00 00 00 00 00 07"),
    (Head("P1", "hello", 7), "'Hhello'", "AA A5|'H'|01|02 'P1'|05 'hello'|7/8"),
    (DirectHead("C9", "P1", "hello", 7), "'EC9'", "AA A5|'E'|01|02 'P1'|05 'hello'|7/8"),
    (DirectEarliest("C9", "S5", "P1", "hello", 258, 7), "'TC9'", "AA A5|'T'|01|02 'S5'|02 'P1'|05 'hello'|258/8|7/8"),
    (RecordBatchMessage("P1", "hello", b"batch"), "'Bhello'", "AA A5|'B'|01|02 'P1'|05 'hello'", "'batch'"),
    (DirectRecordBatchMessage("C9", "P1", "hello", b"batch"), "'CC9'", "AA A5|'C'|01|02 'P1'|05 'hello'", "'batch'"),
    (GetTopics("S5", "C9", "hello"), "'QS5'", "AA A5|'Q'|01|02 'C9'|05 'hello'"),
    (
        DirectTopics("C9", "S5", "hello", ("kiwi", "x"), 258, 7),
        "'PC9'",
        "AA A5|'P'|01|02 'S5'|05 'hello'|00 00 00 02 00 00 00 04 'kiwi' 00 00 00 01 'x'|258/4|7/4",
    ),
    (GetPosition("S5", "C9", "P1", "hello", 258), "'SS5'", "AA A5|'S'|01|02 'C9'|02 'P1'|05 'hello'|258/8"),
    (
        DirectPosition("C9", "S5", "P1", "hello", 258, 7, 9),
        "'RC9'",
        "AA A5|'R'|01|02 'S5'|02 'P1'|05 'hello'|258/8|7/8|9/8",
    ),
    (GetHeads("hello", "C9"), "'Ghello'", "AA A5|'G'|01|02 'C9'"),
    (ConsumerHello("S5", "C9", ("hello", "x")), "'WS5'", "AA A5|'W'|01|02 'C9'|2/4 00 00 00 05 'hello' 1/4 'x'"),
    (StoreHello("C9", "S5"), "'LC9'", "AA A5|'L'|01|02 'S5'"),
    (BrokerMessage("B5", "B9", b"frame"), "'NB5'", "AA A5|'N'|01|02 'B9'", "'frame'"),
]
RFC46_VECTORS = [Vector(message, RFC46, frames) for message, *frames in RFC46_ROWS]


def in_libdafka(vector: Vector) -> Vector:
    """Return a vector in the other dialect: a NUL ends the topic, and there is no signature (erratum 7 about ACKs)."""
    topic, header, *content = vector.frames
    _, _, *parts = header.split("|")
    message = vector.message
    if isinstance(message, Ack):
        message = attrs.evolve(message, address="")
        del parts[1]
    return Vector(message, LIBDAFKA, [f"{topic} 00 | {'|'.join(parts)}", *content])


VECTORS = [each for vector in RFC46_VECTORS for each in (vector, in_libdafka(vector))]

EXTREME_ROWS: list[tuple[Message, *tuple[str, ...]]] = [
    (GetTopics("S5", "C9", ""), "'QS5' 00|01|02 'C9'|00"),
    (DirectTopics("C9", "S5", "", (), 0, 0), "'PC9' 00|01|02 'S5'|00|0/4|0/4|0/4"),
    (
        DirectPosition("C9", "S5", "P1", "hello", 258, NUMBER_8_MAX, 0),
        "'RC9' 00|01|02 'S5'|02 'P1'|05 'hello'|258/8|FF FF FF FF FF FF FF FF|0/8",
    ),
    (Record("", "", 0, b""), "'M'", "AA A5|'M'|01|00|00|00 00 00 00 00 00 00 00", ""),
    (Record("", "", 0, b""), "'M' 00|01|00|00|00 00 00 00 00 00 00 00", ""),
    (Fetch("", "", "", NUMBER_8_MAX, NUMBER_4_MAX), "'F'", "AA A5|'F'|01|00|00|FF FF FF FF FF FF FF FF|FF FF FF FF"),
    (ConsumerHello("", "", ()), "'W' 00|01|00|00 00 00 00"),
    (ConsumerHello("", "", ("",)), "'W' 00|01|00|00 00 00 01 00 00 00 00"),
    (GetHeads("tøpic", "\udcffC"), "'G' 74 C3 B8 70 69 63 00|01|02 FF 'C'"),
    (GetHeads("a\0b", "\0"), "'Ga' 00 'b'", "AA A5|'G'|01|01 00"),
    (GetHeads("t" * 255, "a" * 255), f"'G{'t' * 255}'", f"AA A5|'G'|01|FF '{'a' * 255}'"),
]
EXTREMES = [
    Vector(message, RFC46 if "AA A5" in "".join(frames) else LIBDAFKA, frames) for message, *frames in EXTREME_ROWS
]


def wire_error(frames: list[bytes]) -> tuple[str, int | None]:
    with pytest.raises(WireError) as caught:
        decode(frames)
    return caught.value.field, caught.value.offset


def test_messages_and_frames_are_each_other_s_forms() -> None:
    for vector in VECTORS + EXTREMES:
        assert decode(vector.encoded) == (vector.message, vector.dialect)
        assert encode(vector.message, vector.dialect) == vector.encoded


def test_the_vectors_cover_every_command_in_both_dialects() -> None:
    assert encode(Ack("P1", "hello", 7, "S5"), LIBDAFKA) == encode(Ack("P1", "hello", 7), LIBDAFKA)
    assert {(type(vector.message), vector.dialect) for vector in VECTORS} == {
        (message, dialect) for message in MESSAGES for dialect in Dialect
    }


def parts_of(vector: Vector) -> tuple[int, list[tuple[str, bytes]]]:
    """Return the index of the frame with the fields, and its parts with their names in the grammar."""
    head = ["signature", "command", "version"] if vector.dialect is RFC46 else ["topic frame", "version"]
    place = 1 if vector.dialect is RFC46 else 0
    parts = [parse_frame(part) for part in vector.frames[place].split("|")]
    fields = [field for field, _ in vector.message.FIELDS if field != "content"]
    if vector.dialect is LIBDAFKA and isinstance(vector.message, Ack):
        fields.remove("address")
    return place, list(zip(head + fields, parts, strict=True))


def test_a_truncated_frame_names_the_field_that_was_cut() -> None:
    for vector in VECTORS:
        place, parts = parts_of(vector)
        frames = vector.encoded
        start = 0
        for field, part in parts:
            for length in range(start, start + len(part)):
                found, offset = wire_error([*frames[:place], frames[place][:length], *frames[place + 1 :]])
                assert found == field
                assert offset is not None
                assert start <= offset <= length
            start += len(part)


def test_bytes_after_the_last_field_are_rejected() -> None:
    for vector in VECTORS:
        place, _ = parts_of(vector)
        frames = vector.encoded
        length = len(frames[place])
        frames[place] += b"\0"
        assert wire_error(frames) == ("frame", length)


def test_other_versions_are_rejected() -> None:
    for vector in VECTORS:
        place, parts = parts_of(vector)
        offset = sum(len(part) for field, part in parts[: [field for field, _ in parts].index("version")])
        frames = vector.encoded
        for version in (0, 2, 0x30):
            frames[place] = frames[place][:offset] + bytes([version]) + frames[place][offset + 1 :]
            assert wire_error(frames) == ("version", offset)


def test_a_wrong_number_of_frames_is_rejected() -> None:
    for vector in VECTORS:
        frames = vector.encoded
        has_content = "content" in dict(vector.message.FIELDS)
        expected = {2, 3} if has_content else {1, 2}
        for count in {1, 2, 3, 4, 5} - expected:
            assert wire_error([frames[0]] + [b""] * (count - 1)) == ("frames", None)


OUTSIDE: list[tuple[list[str], str, int | None]] = [
    ([], "topic frame", 0),
    ([""], "topic frame", 0),
    (["", "AA A5 'L' 01 00"], "topic frame", 0),
    (["'m' 00 01 00 00 00 00 00 00 00 00 00 00", ""], "command", 0),
    (["01 'Mhello'"], "command", 0),
    (["'LC'", "AA A0 'L' 01 00"], "signature", 0),
    (["'LC'", "A5 AA 'L' 01 00"], "signature", 0),
    (["'LC'", "AA A5 'W' 01 00"], "command", 2),
    (["'LC'", "AA A5 'l' 01 00"], "command", 2),
    (["'LC'"], "topic frame", 2),
    (["'M'", "AA A5 'M' 01 00 00 00 00 00 00 00 00 00 00"], "topic frame", 1),
    (["'LC' 00 01 02 'S5'", ""], "signature", 0),
    (["'La' 00 'b' 00 01 00"], "version", 3),
    (["'KP1' 00 01 02 'S5' 05 'hello' 00 00 00 00 00 00 00 07"], "frame", 16),
    (["'KP1'", "AA A5 'K' 01 05 'hello' 00 00 00 00 00 00 00 07"], "sequence", 11),
    (["'Mhello'", "AA A5 'M' 01 00 02 'hi' 00 00 00 00 00 00 00 00", "'0'"], "subject", None),
    (["'Mhello' 00 01 00 02 'hi' 00 00 00 00 00 00 00 00", "'0'"], "subject", None),
    (["'Hhel'", "AA A5 'H' 01 00 05 'hello' 00 00 00 00 00 00 00 00"], "subject", None),
    (["'Hhello2'", "AA A5 'H' 01 00 05 'hello' 00 00 00 00 00 00 00 00"], "subject", None),
    (["'Hhello2' 00 01 00 05 'hello' 00 00 00 00 00 00 00 00"], "subject", None),
    (["'W'", "AA A5 'W' 01 00 FF FF FF FF"], "subjects", 5),
    (["'W'", "AA A5 'W' 01 00 00 00 00 02 00 00 00 00"], "subjects", 5),
    (["'W'", "AA A5 'W' 01 00 00 00 00 01 FF FF FF FF"], "subjects", 9),
    (["'W'", f"AA A5 'W' 01 00 00 00 00 01 00 00 01 00 '{'t' * 256}'"], "subjects", 9),
    (["'W' 00 01 00 FF FF FF FF 00 00 00 00"], "subjects", 4),
    ([f"'G{'t' * 256}'", "AA A5 'G' 01 00"], "subject", None),
    ([f"'F{'p' * 256}' 00 01 00 00 00 00 00 00 00 00 00 00 00 00 00 00"], "partition", None),
]


def test_frames_outside_the_grammar_are_rejected() -> None:
    for frames, field, offset in OUTSIDE:
        assert (frames, wire_error([parse_frame(frame) for frame in frames])) == (frames, (field, offset))


def test_a_topic_with_a_nul_cannot_be_encoded_in_the_libdafka_dialect() -> None:
    for vector in VECTORS[::2]:
        original: Any = vector.message
        topic = original.TOPIC
        message = attrs.evolve(original, **{topic: "ab\0c"})
        with pytest.raises(EncodingError, match="NUL") as caught:
            encode(message, LIBDAFKA)
        assert (caught.value.field, caught.value.offset) == (topic, 2)
        assert decode(encode(message, RFC46)) == (message, RFC46)


MESSAGES_OF_VECTORS: list[Any] = [vector.message for vector in RFC46_VECTORS]
BAD_TEXTS = ["é" * 128, "t" * 256, "\ud800", "\udcc3\udca9", b"bytes", 1, None]
BAD_VALUES: dict[str, list[Any]] = {
    "sequence": [-1, NUMBER_8_MAX + 1, True, 1.0, "1", None],
    "unrecoverable_end": [-1, NUMBER_8_MAX + 1, True, 1.0, "1", None],
    "time": [-1, NUMBER_8_MAX + 1, True, 1.0, "1", None],
    "end": [-1, NUMBER_8_MAX + 1, True, 1.0, "1", None],
    "count": [-1, NUMBER_4_MAX + 1, False, 0.0, "0", None],
    "remaining": [-1, NUMBER_4_MAX + 1, False, 0.0, "0", None],
    "partitions": [-1, NUMBER_4_MAX + 1, False, 0.0, "0", None],
    "content": ["7", bytearray(b"7"), memoryview(b"7"), 7, None],
    "subjects": [[text] for text in BAD_TEXTS] + ["hello"],
}


def test_a_message_that_cannot_be_sent_cannot_be_made() -> None:
    for message in MESSAGES_OF_VECTORS:
        for attribute in attrs.fields(type(message)):
            for value in BAD_VALUES.get(attribute.name, BAD_TEXTS):
                with pytest.raises(EncodingError) as caught:
                    attrs.evolve(message, **{attribute.name: value})
                assert (caught.value.field, caught.value.offset) == (attribute.name, None)
