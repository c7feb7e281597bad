"""The message formats of the grammar, and their agreement with the project's own codec."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dafka import wire
from dafka_conformance.grammar import GRAMMAR_PATH, BeaconFormat, Formats, FrameError, Grammar, GrammarError, Message
from dafka_conformance.grammar.rules import parse_rules
from dafka_conformance.model import Dialect

GRAMMAR = Grammar.load()
FORMATS = GRAMMAR.formats
HEAD = bytes.fromhex("AAA5 48 01 0141 0568656C6C6F 0000000000000005")
NAMES: dict[str, wire.Message] = {
    "RECORD": wire.Record("A", "hello", 5, b"content"),
    "DIRECT-RECORD": wire.DirectRecord("C", "A", "hello", 5, b""),
    "FETCH": wire.Fetch("A", "C", "hello", 5, 2**32 - 1),
    "ACK": wire.Ack("A", "hello", 2**64 - 1, "S"),
    "HEAD": wire.Head("A", "hello", 0),
    "DIRECT-HEAD": wire.DirectHead("C", "A", "hello", 7),
    "GET-HEADS": wire.GetHeads("hello", "C"),
    "CONSUMER-HELLO": wire.ConsumerHello("S", "C", ("hello", "", "x" * 200)),
    "STORE-HELLO": wire.StoreHello("C", "S"),
}


def test_every_message_of_the_grammar_has_a_format() -> None:
    assert set(FORMATS.by_name) == set(NAMES)
    assert {form.id.decode() for form in FORMATS.by_name.values()} == set("MDFKHEGWL")


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize("name", NAMES)
def test_formats_agree_with_the_project_codec(name: str, dialect: Dialect) -> None:
    frames = wire.encode(NAMES[name], wire.Dialect(dialect.value))
    message, spoken = FORMATS.decode(frames)
    assert (message.name, spoken) == (name, dialect)
    assert FORMATS.encode(message, dialect) == frames
    for field in set(message.values) - {"subjects"}:
        value = getattr(NAMES[name], field)
        assert message[field] == (value.encode() if isinstance(value, str) else value)


def test_fault_names_its_field() -> None:
    cases: list[tuple[list[bytes], str, str, str]] = [
        ([], "", "id", "begins with nothing"),
        ([b""], "", "id", "begins with nothing"),
        ([b"Zhello", HEAD], "", "id", "begins with 5A"),
        ([b"Hhello", HEAD, b""], "HEAD", "frames", "HEAD has 3 frames, expected 2 (rfc46) or 1 (libdafka)"),
        ([b"Hhello", b"\xaa\xa0" + HEAD[2:]], "HEAD", "signature", "at byte 0: expected AA A5, found AA A0"),
        ([b"Hhello", HEAD[:2] + b"M" + HEAD[3:]], "HEAD", "id", "at byte 2: expected 48, found 4D"),
        ([b"Hhello", HEAD[:3] + b"\2" + HEAD[4:]], "HEAD", "version", "expected 01, found 02"),
        ([b"Hhello", HEAD[:3]], "HEAD", "version", "found the end of the frame"),
        ([b"Hhello", HEAD[:4] + b"\xff" + HEAD[5:]], "HEAD", "address", "expected 255 bytes, as its length says"),
        ([b"Hhello", HEAD[:-1]], "HEAD", "sequence", "expected a number of 8 bytes, found 7"),
        ([b"Hhello", HEAD + b"xy"], "HEAD", "sequence", "2 bytes are left over after sequence: 78 79"),
        ([b"Hhello"], "HEAD", "frames", "HEAD has 1 frame, expected 2 in RFC 46 (topic and fields)"),
        (
            [b"Mhello", HEAD],
            "RECORD",
            "frames",
            "RECORD has 2 frames, expected 3 in RFC 46 (topic, fields and content)",
        ),
    ]
    for frames, name, field, text in cases:
        with pytest.raises(FrameError, match=re.escape(text)) as raised:
            FORMATS.decode(frames)
        assert (raised.value.message, raised.value.field) == (name, field)


def test_formats_follow_the_grammar_file() -> None:
    rules = parse_rules("signature = %xAA %xA5\nversion = %x02\nX = signature %d'X' version short\nshort = 2OCTET\n")
    formats = Formats.compile(rules)
    message = Message("X", b"t", {"short": 258})
    assert formats.encode(message, Dialect.RFC46) == [b"Xt", b"\xaa\xa5X\2\1\2"]
    assert formats.decode([b"Xt\0\2\1\2"]) == (message, Dialect.LIBDAFKA)


def test_rule_without_a_format_is_one_sentence() -> None:
    for rule, text in [
        ("X = signature version", "expected it to begin with signature, a command id"),
        ("X = signature %d'X' version \"a\"", "expected the name of a field as part 4"),
        ("X = signature %d'X' version odd\nodd = *DIGIT", "the rule odd cannot be a field"),
        ("X = version", "the grammar has no message rule"),
    ]:
        with pytest.raises(GrammarError, match=text):
            Formats.compile(parse_rules(f"signature = %xAA\nversion = %x01\n{rule}\n"))


NODE = [b"B", b"0123456789ABCDEF" * 2, b"", b"5556"]


def test_node_beacon() -> None:
    cases: list[tuple[list[bytes], str]] = [
        (NODE, ""),
        ([*NODE[:2], b"host.example", b"1"], ""),
        (NODE[:3], "frames"),
        ([b"C", *NODE[1:]], "beacon"),
        ([b"B", b"xyz", *NODE[2:]], "uuid"),
        ([*NODE[:2], b"a host", b"1"], "host"),
        ([*NODE[:3], b"555666"], "port"),
        ([*NODE[:3], b""], "port"),
    ]
    for frames, field in cases:
        check_beacon(GRAMMAR.node_beacon, frames, field)


def test_tower_beacon() -> None:
    for endpoint, field in [
        (b"tcp://1.2.3.4:1", ""),
        (b"tcp://[::1]:65535", ""),
        (b"udp://x:1", "endpoint"),
        (b"tcp://x:", "endpoint"),
    ]:
        check_beacon(GRAMMAR.tower_beacon, [*NODE[:2], endpoint], field)


def check_beacon(form: BeaconFormat, frames: list[bytes], field: str) -> None:
    if not field:
        assert list(form.decode(frames).values()) == frames
        return
    with pytest.raises(FrameError) as raised:
        form.decode(frames)
    assert raised.value.field == field


def test_another_grammar_can_be_loaded(tmp_path: Path) -> None:
    path = tmp_path / "other.abnf"
    path.write_text(GRAMMAR_PATH.read_text("utf-8").replace("number-8        = 8OCTET", "number-8 = 4OCTET"))
    with pytest.raises(FrameError, match="4 bytes are left over after sequence"):
        Grammar.load(path).formats.decode([b"Hhello", HEAD])
