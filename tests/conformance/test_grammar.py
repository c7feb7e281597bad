"""The grammar: its rules, the formats of messages, and the sentences that nodes may speak."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from dafka import wire
from dafka_conformance.grammar import (
    GRAMMAR_PATH,
    BeaconFormat,
    Formats,
    FrameError,
    Grammar,
    GrammarError,
    Message,
    NamedSentence,
    Terminal,
    Value,
)
from dafka_conformance.grammar.rules import (
    Bytes,
    Choice,
    Expression,
    Range,
    Reference,
    Repeat,
    Sequence,
    parse_rules,
    read_rules,
)
from dafka_conformance.grammar.sentences import all_sentences
from dafka_conformance.interpreters.sentence_parts import SentencePart, assign_parts
from dafka_conformance.model import Dialect, Role

A, B = Bytes(b"a"), Bytes(b"b")


def test_expression_is_read() -> None:
    cases: list[tuple[str, object]] = [
        ('"a"', A),
        ("%d'M'", Bytes(b"M")),
        ("%xAA.A5", Bytes(b"\xaa\xa5")),
        ("%d65", Bytes(b"A")),
        ("%x30-39", Range(0x30, 0x39)),
        ('"a" "b"', Sequence((A, B))),
        ('"a" / "b"', Choice((A, B))),
        ('[ "a" ]', Repeat(A, 0, 1)),
        ('*"a"', Repeat(A, 0, None)),
        ('1*"a"', Repeat(A, 1, None)),
        ('2*3"a"', Repeat(A, 2, 3)),
        ('4"a"', Repeat(A, 4, 4)),
        ('"a" / "b" "a"', Choice((A, Sequence((B, A))))),
        ('("a" / "b") "a"', Sequence((Choice((A, B)), A))),
        ("4OCTET", Repeat(Reference("OCTET"), 4, 4)),
        ("S:other", Reference("other", Role.STORE)),
        (
            "P:other *( C:other )",
            Sequence((Reference("other", Role.PRODUCER), Repeat(Reference("other", Role.CONSUMER), 0, None))),
        ),
    ]
    for right_side, expression in cases:
        assert parse_rules(f'rule = {right_side} ; a comment with S:"quotes"\nother = "b"\n')["rule"] == expression


def test_rules_keep_their_order_and_may_be_repeated() -> None:
    rules = parse_rules('one = two ; first\n\n; between\ntwo = "a"\n      "b" ; goes on\none = two\n')
    assert list(rules) == ["one", "two"]
    assert rules["two"] == Sequence((A, B))


def test_faulty_grammar_is_one_sentence() -> None:
    for text, message in [
        ('one = "a"\ntwo = ( "a"\nthree = "b"\n', "grammar is not ABNF: two = ("),
        ('one = "a"\none = "b"\n', "grammar has two different definitions of one"),
        ("one = two\n", "the rule one refers to two, which is not defined"),
        ("one = S:two\n", "the rule one refers to two, which is not defined"),
    ]:
        with pytest.raises(GrammarError, match=message.replace("(", r"\(")):
            parse_rules(text)


def test_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(GrammarError, match="cannot read the grammar"):
        read_rules(tmp_path / "none.abnf")


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


def sentences_of(right_side: str, *more: str) -> list[str]:
    messages = "".join(f"{name} = %d'{name}'\n" for name in "ABCD")
    rules = parse_rules(f"DAFKA = {right_side}\n" + "\n".join(more) + "\n" + messages)
    return [str(sentence) for sentence in all_sentences(rules)]


def test_expansion() -> None:
    cases: list[tuple[str, list[str]]] = [
        ("P:A S:B", ["P:A S:B"]),
        ("P:A [ S:B ]", ["P:A", "P:A S:B"]),
        ("P:A / S:B", ["P:A", "S:B"]),
        ("*( P:A )", ["P:A", "P:A P:A", "P:A P:A P:A P:A P:A"]),
        ("1*2( P:A )", ["P:A", "P:A P:A"]),
        ("3( P:A )", []),
        ("1*2( P:A / S:B )", ["P:A", "S:B", "P:A S:B", "S:B P:A", "P:A P:A", "S:B S:B"]),
        ("1*2( P:A / S:B / C:C )", ["P:A", "S:B", "C:C", "P:A S:B", "C:C P:A"]),
    ]
    for right_side, expected in cases:
        assert sentences_of(right_side) == expected


def pattern_of(expression: Expression) -> str:
    """Return a regular expression for the sentences of a traffic expression, each terminal followed by a space."""
    if isinstance(expression, Reference):
        is_message = expression.role is not None
        return re.escape(f"{expression}") if is_message else pattern_of(GRAMMAR.rules[expression.rule])
    if isinstance(expression, Repeat):
        most = "" if expression.most is None else expression.most
        return f"(?:{pattern_of(expression.part)}){{{expression.least},{most}}}"
    assert isinstance(expression, (Choice, Sequence))
    return f"(?:{('|' if isinstance(expression, Choice) else '').join(map(pattern_of, expression.parts))})"


def narrower(expression: Expression) -> Iterator[Expression]:
    """Yield the expression without one alternative at a time."""
    if isinstance(expression, Reference) and expression.role is None:
        yield from narrower(GRAMMAR.rules[expression.rule])
    elif isinstance(expression, (Choice, Sequence)):
        for place, part in enumerate(expression.parts):
            before, after = expression.parts[:place], expression.parts[place + 1 :]
            if isinstance(expression, Choice):
                yield Choice((*before, *after))
            yield from (type(expression)((*before, less, *after)) for less in narrower(part))
    elif isinstance(expression, Repeat):
        yield from (attrs.evolve(expression, part=less) for less in narrower(expression.part))


def traffic_rules() -> list[str]:
    return sorted({sentence.rule for sentence in GRAMMAR.sentences})


@pytest.mark.parametrize("name", traffic_rules())
def test_sentences_have_every_alternative_of_their_rule_and_nothing_else(name: str) -> None:
    rule = GRAMMAR.rules[name]
    spoken = ["".join(f"{Reference(t.message, t.role)}" for t in sentence.terminals) for sentence in GRAMMAR.sentences]
    own = [text for text, sentence in zip(spoken, GRAMMAR.sentences, strict=True) if sentence.rule == name]
    assert all(re.fullmatch(pattern_of(rule), text) for text in own)
    in_rule = [text for text in spoken if re.fullmatch(pattern_of(rule), text)]
    for less in narrower(rule):
        assert any(not re.fullmatch(pattern_of(less), text) for text in in_rule), f"{name}: all are in {less}"


def test_every_rule_of_the_start_rule_has_sentences_and_every_message_is_sent() -> None:
    start = GRAMMAR.rules["DAFKA"]
    assert isinstance(start, Choice)
    assert traffic_rules() == sorted(part.rule for part in start.parts if isinstance(part, Reference))
    sent = {terminal.message for sentence in GRAMMAR.sentences for terminal in sentence.terminals}
    assert sent == GRAMMAR.formats.by_name.keys()


def test_sentences_are_named_by_their_rule_and_unique() -> None:
    rules = parse_rules("DAFKA = one / two\none = [ P:A ]\ntwo = P:A / S:A\nA = %d'A'\n")
    assert [sentence.name for sentence in all_sentences(rules)] == ["one.01", "two.01"]


def test_wrong_traffic_rule_is_one_sentence() -> None:
    for grammar, text in [
        ("one = P:one\n", "no rule DAFKA"),
        ("DAFKA = one\none = [ DAFKA ]\n", "contains itself"),
        ('DAFKA = "a"\n', "messages with a role prefix"),
    ]:
        with pytest.raises(GrammarError, match=text):
            all_sentences(parse_rules(grammar))


def test_every_terminal_of_a_role_is_in_one_of_its_parts() -> None:
    for role in (Role.PRODUCER, Role.CONSUMER, Role.STORE):
        parts = [part for sentence in GRAMMAR.sentences for part in assign_parts(sentence, role)]
        sent = {step.message for part in parts for step in part.steps if step.is_target}
        mine = {t.message for sentence in GRAMMAR.sentences for t in sentence.terminals if t.role is role}
        assert sent == mine


def parts_of(text: str, role: Role) -> list[SentencePart]:
    terminals = tuple(Terminal(Role(word[0]), word[2:]) for word in text.split())
    return list(assign_parts(NamedSentence("rule", 1, terminals), role))


def script(part: SentencePart) -> list[str]:
    return [f"{'!' if step.is_target else step.sender} {step.message} {step.partition}" for step in part.steps]


def test_store_takes_the_fetching_part_and_the_answering_part() -> None:
    fetching, answering = parts_of("P:RECORD S:FETCH S:DIRECT-RECORD S:ACK", Role.STORE)
    assert script(fetching) == ["P1 RECORD 0", "! FETCH 0", "S2 DIRECT-RECORD 0", "! ACK 0"]
    assert script(answering) == ["P1 RECORD 0", "S2 FETCH 0", "! DIRECT-RECORD 0", "S2 ACK 0"]
    assert [step.is_for_target for step in answering.steps] == [False, True, False, False]
    assert [step.missing for step in answering.steps] == [1, 1, 1, 1]


def test_each_direct_head_has_its_own_partition() -> None:
    (part,) = parts_of("C:GET-HEADS S:DIRECT-HEAD P:DIRECT-HEAD", Role.PRODUCER)
    assert script(part) == ["C GET-HEADS 0", "S2 DIRECT-HEAD 0", "! DIRECT-HEAD 1"]
    assert part.partition_count == 2


def test_answers_are_counted_from_their_fetch() -> None:
    text = "P:HEAD C:FETCH P:DIRECT-RECORD S:DIRECT-RECORD"
    (part,) = parts_of(text, Role.CONSUMER)
    assert [(step.missing, step.answer_count) for step in part.steps] == [(2, 0), (2, 0), (2, 0), (2, 1)]
    assert not any(step.is_for_target for step in part.steps)


def test_role_that_sends_nothing_has_no_part() -> None:
    assert parts_of("P:RECORD", Role.STORE) == []


VALUES: dict[str, Value] = {"subject": b"hello", "sequence": 0, "count": 1, "content": b"", "subjects": (b"hello",)}
ADDRESSED = {
    "ACK": "P",
    "FETCH": "P",
    "DIRECT-RECORD": "C",
    "DIRECT-HEAD": "C",
    "STORE-HELLO": "C",
    "CONSUMER-HELLO": "S",
}
"""To whom messages are sent if the test does not say it; the others are sent to the topic."""
SENDERS = {"DIRECT-RECORD": "P", "DIRECT-HEAD": "P"}
"""Whose address is in a message if it is not that of its sender."""


def parse(sent: str) -> list[tuple[Role, Message]]:
    """Return messages of words such as `C:FETCH`, `C:FETCH>Q` (to Q) or `S:ACK>P=S` (from the address S)."""
    messages = []
    for word in sent.split():
        parts = re.fullmatch(r"(\w):([\w-]+)(?:>(\w+))?(?:=(\w+))?", word)
        assert parts is not None, word
        role, name, target, address = parts.groups()
        topic = (target or ADDRESSED.get(name, "hello")).encode()
        values = VALUES | {"address": (address or SENDERS.get(name, role)).encode()}
        fields = GRAMMAR.formats.by_name[name].field_names
        messages.append((Role(role), Message(name, topic, {field: values[field] for field in fields})))
    return messages


def test_accepts() -> None:
    for sent in [
        "P:RECORD S:ACK",
        "P:RECORD S:ACK S:ACK P:RECORD P:HEAD S:ACK",
        "P:RECORD S:FETCH P:DIRECT-RECORD>S S:ACK S:DIRECT-RECORD>S S:ACK",
        "P:HEAD C:FETCH S:DIRECT-RECORD S:DIRECT-RECORD C:FETCH P:DIRECT-RECORD",
        "C:GET-HEADS S:DIRECT-HEAD C:FETCH S:DIRECT-RECORD S:DIRECT-HEAD=Q",
        "C:GET-HEADS S:DIRECT-HEAD S:DIRECT-HEAD=Q C:FETCH>Q",
        "S:STORE-HELLO C:CONSUMER-HELLO S:DIRECT-HEAD C:FETCH",
        "P:RECORD P:RECORD=Q S:ACK S:ACK>Q",
        "P:RECORD C:FETCH C:FETCH=D P:DIRECT-RECORD>D P:DIRECT-RECORD>C",
    ]:
        recognizer = GRAMMAR.recognizer()
        assert all(recognizer.accept(*each) for each in parse(sent))


def test_rejects_the_last_message() -> None:
    for sent in [
        "S:ACK",
        "P:RECORD=Q S:ACK",
        "P:HEAD S:ACK",
        "C:FETCH",
        "P:RECORD=Q C:FETCH",
        "P:RECORD P:DIRECT-RECORD",
        "P:RECORD C:FETCH P:DIRECT-RECORD>D",
        "P:RECORD C:FETCH P:DIRECT-RECORD=Q",
        "C:CONSUMER-HELLO",
        "S:STORE-HELLO>D C:CONSUMER-HELLO",
        "C:RECORD=P",
        "P:RECORD P:ACK=S",
    ]:
        recognizer = GRAMMAR.recognizer()
        *first, last = parse(sent)
        assert all(recognizer.accept(*each) for each in first)
        assert not recognizer.accept(*last)


def test_rejected_message_allows_nothing() -> None:
    recognizer = GRAMMAR.recognizer()
    assert [recognizer.accept(*each) for each in parse("C:FETCH P:DIRECT-RECORD")] == [False, False]


def test_roles_of_a_message_are_its_prefixes() -> None:
    recognizer = GRAMMAR.recognizer()
    assert recognizer.roles_of("DIRECT-RECORD") == {Role.PRODUCER, Role.STORE}
    assert recognizer.roles_of("ACK") == {Role.STORE}
    assert recognizer.roles_of("PING") == set()


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[1] / "vectors").glob("*.json")), ids=lambda path: path.stem
)
def test_recorded_sessions_are_accepted(path: Path) -> None:
    recognizer = GRAMMAR.recognizer()
    sent = [event["frames"] for event in json.loads(path.read_text()) if event["kind"] == "message"]
    assert sent
    for frames in sent:
        message, _ = GRAMMAR.formats.decode([bytes.fromhex(frame) for frame in frames])
        accepted = [recognizer.accept(role, message) for role in recognizer.roles_of(message.name)]
        assert any(accepted), message
