from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from dafka_conformance.grammar import Grammar, Message, Value
from dafka_conformance.model import Role

GRAMMAR = Grammar.load()
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
        role, name, target, address = re.fullmatch(r"(\w):([\w-]+)(?:>(\w+))?(?:=(\w+))?", word).groups()  # type: ignore[union-attr]
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
