from __future__ import annotations

import json
from pathlib import Path

import pytest

from dafka_conformance.grammar import Grammar, Message, Value
from dafka_conformance.model import Role

GRAMMAR = Grammar.load()
P, C, S = Role.PRODUCER, Role.CONSUMER, Role.STORE


def record(partition: bytes = b"P") -> Message:
    return Message("RECORD", b"hello", {"address": partition, "subject": b"hello", "sequence": 0, "content": b""})


def head(partition: bytes = b"P") -> Message:
    return Message("HEAD", b"hello", {"address": partition, "subject": b"hello", "sequence": 0})


def ack(partition: bytes = b"P") -> Message:
    return Message("ACK", partition, {"address": b"S", "subject": b"hello", "sequence": 0})


def fetch(requestor: bytes = b"C", partition: bytes = b"P") -> Message:
    return Message("FETCH", partition, {"address": requestor, "subject": b"hello", "sequence": 0, "count": 1})


def direct_record(requestor: bytes = b"C", partition: bytes = b"P") -> Message:
    values: dict[str, Value] = {"address": partition, "subject": b"hello", "sequence": 0, "content": b""}
    return Message("DIRECT-RECORD", requestor, values)


def direct_head(requestor: bytes = b"C", partition: bytes = b"P") -> Message:
    return Message("DIRECT-HEAD", requestor, {"address": partition, "subject": b"hello", "sequence": 0})


GET_HEADS = Message("GET-HEADS", b"hello", {"address": b"C"})
STORE_HELLO = Message("STORE-HELLO", b"C", {"address": b"S"})
CONSUMER_HELLO = Message("CONSUMER-HELLO", b"S", {"address": b"C", "subjects": (b"hello",)})


@pytest.mark.parametrize(
    "sent",
    [
        [(P, record()), (S, ack())],
        [(P, record()), (S, ack()), (S, ack()), (P, record()), (P, head()), (S, ack())],
        [(P, record()), (S, fetch(b"S")), (P, direct_record(b"S")), (S, ack()), (S, direct_record(b"S")), (S, ack())],
        [(P, head()), (C, fetch()), (S, direct_record()), (S, direct_record()), (C, fetch()), (P, direct_record())],
        [(C, GET_HEADS), (S, direct_head()), (C, fetch()), (S, direct_record()), (S, direct_head(partition=b"Q"))],
        [(C, GET_HEADS), (S, direct_head()), (S, direct_head(partition=b"Q")), (C, fetch(partition=b"Q"))],
        [(S, STORE_HELLO), (C, CONSUMER_HELLO), (S, direct_head()), (C, fetch())],
        [(P, record(b"P")), (P, record(b"Q")), (S, ack(b"P")), (S, ack(b"Q"))],
        [(P, record()), (C, fetch(b"C")), (C, fetch(b"D")), (P, direct_record(b"D")), (P, direct_record(b"C"))],
    ],
)
def test_accepts(sent: list[tuple[Role, Message]]) -> None:
    recognizer = GRAMMAR.recognizer()
    assert [recognizer.accept(role, message) for role, message in sent] == [True] * len(sent)


@pytest.mark.parametrize(
    ("sent", "last"),
    [
        ([], (S, ack())),
        ([(P, record(b"Q"))], (S, ack(b"P"))),
        ([(P, head())], (S, ack())),
        ([], (C, fetch())),
        ([(P, record(b"Q"))], (C, fetch(partition=b"P"))),
        ([(P, record())], (P, direct_record())),
        ([(P, record()), (C, fetch(b"C"))], (P, direct_record(b"D"))),
        ([(P, record()), (C, fetch(b"C"))], (P, direct_record(partition=b"Q"))),
        ([], (C, CONSUMER_HELLO)),
        ([(S, Message("STORE-HELLO", b"D", {"address": b"S"}))], (C, CONSUMER_HELLO)),
        ([], (C, record())),
        ([(P, record())], (P, ack())),
    ],
)
def test_rejects(sent: list[tuple[Role, Message]], last: tuple[Role, Message]) -> None:
    recognizer = GRAMMAR.recognizer()
    assert [recognizer.accept(role, message) for role, message in sent] == [True] * len(sent)
    assert not recognizer.accept(*last)


def test_rejected_message_allows_nothing() -> None:
    recognizer = GRAMMAR.recognizer()
    recognizer.accept(C, fetch())
    assert not recognizer.accept(P, direct_record())


def test_roles_of_a_message_are_its_prefixes() -> None:
    recognizer = GRAMMAR.recognizer()
    assert recognizer.roles_of("DIRECT-RECORD") == {P, S}
    assert recognizer.roles_of("ACK") == {S}
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
