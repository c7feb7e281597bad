from __future__ import annotations

import pytest

from dafka import wire
from dafka.protocol import KeyIdentity
from dafka.protocol.presence import claims as module
from dafka.records import Partition, RecordBatch

RUN = wire.RecordRun(RecordBatch(Partition("t", "A"), 0, [b"0", b"1", b"2"]))
OF_A: list[wire.BatchedMessage] = [
    RUN,
    wire.Head("A", "t", 1),
    wire.Ack("P", "t", 1, "A"),
    wire.Fetch("P", "A", "t", 0, 1),
    wire.GetHeads("t", "A"),
    wire.ConsumerHello("S", "A", ("t",)),
    wire.StoreHello("C", "A"),
    wire.DirectEarliest("C", "A", "P", "t", 0, 0),
]
OF_NOBODY: list[wire.BatchedMessage] = [
    wire.RecordRun(RUN.batch, "C"),
    wire.DirectHead("C", "A", "t", 1),
    wire.Ack("P", "t", 1),
]


def open_claims(*authorized: str) -> KeyIdentity:
    return KeyIdentity(authorized.__contains__)


@pytest.mark.parametrize("message", OF_A, ids=lambda message: type(message).__name__)
def test_what_names_its_sender_must_come_from_it(message: wire.BatchedMessage) -> None:
    claims = open_claims("a", "b")
    assert claims.join("A", "a")
    assert claims.join("B", "b")
    assert claims.check([message], "a") == [message]
    assert claims.discarded == {}
    assert claims.check([message], "b") == []
    assert claims.discarded == {"not the sender's": 3 if message is RUN else 1}


@pytest.mark.parametrize("message", OF_NOBODY, ids=lambda message: type(message).__name__)
def test_what_names_no_sender_may_come_from_any_member(message: wire.BatchedMessage) -> None:
    claims = open_claims("a", "b")
    assert claims.check([message], "b") == [message]


def test_who_was_never_announced_may_say_nothing() -> None:
    assert open_claims("a").check([RUN], "a") == []


def test_the_first_claim_holds_as_long_as_its_key_is_authorised() -> None:
    authorized = {"a", "b"}
    claims = KeyIdentity(authorized.__contains__)
    assert claims.join("A", "a")
    assert not claims.join("A", "b")
    assert not claims.leave("A", "b")
    assert claims.leave("A", "a")
    assert not claims.claim("A", "b"), "who has left may come back"
    authorized.remove("a")
    assert claims.claim("A", "b")
    assert claims.check([RUN], "b") == [RUN]
    assert claims.check([RUN], "a") == []


def test_a_key_may_have_many_addresses() -> None:
    claims = open_claims("a")
    assert claims.join("A", "a")
    assert claims.join("B", "a")
    assert claims.check(OF_A, "a") == OF_A


def test_who_was_announced_without_an_address_claims_the_first_it_uses() -> None:
    claims = open_claims("a", "b", "c")
    assert claims.join("", "a")
    assert claims.check([RUN], "b") == []
    assert claims.check([RUN], "a") == [RUN]
    assert claims.join("", "c")
    assert claims.check([RUN], "c") == []


def test_those_who_left_are_forgotten_the_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FORMER_MAX", 2)
    claims = open_claims("a", "b")
    assert claims.join("stays", "a")
    for name in ("one", "two", "three"):
        assert claims.join(name, "a")
        assert claims.leave(name, "a")
    assert claims.claim("four", "a")
    assert not claims.claim("stays", "b")
    assert not claims.claim("three", "b")
    assert claims.claim("one", "b")
