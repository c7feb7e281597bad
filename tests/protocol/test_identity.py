from __future__ import annotations

import pytest

from dafka import wire
from dafka.endpoints import PeerEndpoint
from dafka.protocol import KeyIdentity
from dafka.protocol.presence import identity as module
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


def make_identity(*authorized: str) -> KeyIdentity:
    return KeyIdentity(authorized.__contains__)


@pytest.mark.parametrize("message", OF_A, ids=lambda message: type(message).__name__)
def test_a_message_that_names_its_sender_must_come_from_it(message: wire.BatchedMessage) -> None:
    identity = make_identity("a", "b")
    assert identity.add_node("A", "a")
    assert identity.add_node("B", "b")
    assert identity.verify_messages([message], PeerEndpoint("", "a")) == [message]
    assert identity.discarded == {}
    assert identity.verify_messages([message], PeerEndpoint("", "b")) == []
    assert identity.discarded == {"wrong sender": 3 if message is RUN else 1}


@pytest.mark.parametrize("message", OF_NOBODY, ids=lambda message: type(message).__name__)
def test_a_message_that_names_no_sender_may_come_from_any_member(message: wire.BatchedMessage) -> None:
    identity = make_identity("a", "b")
    assert identity.verify_messages([message], PeerEndpoint("", "b")) == [message]


def test_an_address_belongs_to_its_first_key_while_that_is_authorized() -> None:
    authorized = {"a", "b"}
    identity = KeyIdentity(authorized.__contains__)
    assert identity.add_node("A", "a")
    assert not identity.add_node("A", "b")
    assert not identity.remove_node("A", "b")
    assert identity.remove_node("A", "a")
    assert not identity.claim_address("A", "b"), "a node that left may come back"
    authorized.remove("a")
    assert identity.claim_address("A", "b")
    assert identity.verify_messages([RUN], PeerEndpoint("", "b")) == [RUN]
    assert identity.verify_messages([RUN], PeerEndpoint("", "a")) == []


def test_a_node_announced_without_an_address_owns_the_first_that_it_uses() -> None:
    identity = make_identity("a", "b", "c")
    assert identity.add_node("", "a")
    assert identity.verify_messages([RUN], PeerEndpoint("", "b")) == []
    assert identity.verify_messages([RUN], PeerEndpoint("", "a")) == [RUN]
    assert identity.add_node("", "c")
    assert identity.verify_messages([RUN], PeerEndpoint("", "c")) == []


def test_former_nodes_are_forgotten_the_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FORMER_NODES_MAX", 2)
    identity = make_identity("a", "b")
    assert identity.add_node("stays", "a")
    for name in ("one", "two", "three"):
        assert identity.add_node(name, "a")
        assert identity.remove_node(name, "a")
    assert identity.claim_address("four", "a")
    assert not identity.claim_address("stays", "b")
    assert not identity.claim_address("three", "b")
    assert identity.claim_address("one", "b")


def test_further_partitions_of_a_node_belong_to_its_key() -> None:
    identity = make_identity("a", "b")
    assert identity.add_node("A", "a")
    assert identity.add_node("B", "b")
    run = wire.RecordRun(RecordBatch(Partition("t", "A/1D/0"), 0, [b"0"]))
    head = wire.Head("A/1D/0", "t", 0)
    assert identity.verify_messages([run, head], PeerEndpoint("", "a")) == [run, head]
    assert identity.verify_messages([run, head], PeerEndpoint("", "b")) == []
    assert identity.discarded == {"wrong sender": 2}
