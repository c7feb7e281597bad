"""The limits of one peer, in its own name and in the names of others: allowances, and addresses that have an owner."""

from __future__ import annotations

from typing import Any

import pytest

from dafka import wire
from dafka.config import NodeConfig
from dafka.endpoints import PeerEndpoint
from dafka.protocol.events import PeerJoined, PeerLeft
from dafka.protocol.presence import peer_limits
from dafka.protocol.presence.identity import WRONG_SENDER, EndpointIdentity, KeyIdentity
from dafka.protocol.presence.peer_limits import (
    MANY_OF_ONE_NODE,
    MANY_PARTITIONS,
    NODE_BURST,
    UNKNOWN_BURST,
    UNKNOWN_NODE,
    PeerLimits,
)
from dafka.protocol.trust import AddressConflict
from dafka.records import Partition, RecordBatch

HERE, THERE = PeerEndpoint("tcp://h:1"), PeerEndpoint("tcp://h:2")


def limits(*known: str, **settings: Any) -> PeerLimits:
    made = PeerLimits(NodeConfig(**settings))
    for address in known:
        made.peer_joined(address)
    return made


def partition(address: str, topic: str = "t") -> Partition:
    return Partition(topic, address)


def admit(made: PeerLimits, each: Partition, followed: int = 0, *, is_live: bool = True) -> str:
    return made.admit_partition(each, followed, is_live=is_live)


# Partitions


@pytest.mark.parametrize(("followed", "reason"), [(4, ""), (5, MANY_PARTITIONS), (6, MANY_PARTITIONS)])
@pytest.mark.parametrize("is_live", [True, False])
def test_a_node_follows_so_many_partitions_in_all(followed: int, reason: str, is_live: bool) -> None:
    assert admit(limits("A", partitions_max=5), partition("A"), followed, is_live=is_live) == reason


def test_one_node_begins_a_number_of_partitions() -> None:
    made = limits("A", "B", partitions_per_node_max=2)
    assert [admit(made, partition("A", topic)) for topic in "xyz"] == ["", "", MANY_OF_ONE_NODE]
    assert admit(made, partition("B", "z")) == "", "another node has its own"
    made.forget_partition(partition("A", "x"))
    assert [admit(made, partition("A", topic)) for topic in "zw"] == ["", MANY_OF_ONE_NODE]


def test_what_a_store_answers_is_not_begun_by_the_producer() -> None:
    made = limits("A", partitions_per_node_max=1)
    assert [admit(made, partition("A", topic), is_live=False) for topic in "xyz"] == ["", "", ""]
    assert admit(made, partition("A")) == ""


def test_unknown_names_share_one_allowance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_limits, "UNKNOWN_PARTITIONS_MAX", 2)
    made = limits("A")
    assert [admit(made, partition(name)) for name in "XYZ"] == ["", "", UNKNOWN_NODE]
    assert admit(made, partition("A")) == "", "a known node does not compete with them"
    made.forget_partition(partition("X"))
    assert [admit(made, partition(name)) for name in "ZW"] == ["", UNKNOWN_NODE]
    made.peer_joined("W")
    assert admit(made, partition("W")) == ""
    made.peer_left("W")
    assert admit(made, partition("W", "more")) == UNKNOWN_NODE


def test_beside_a_nameless_node_any_name_may_be_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_limits, "UNKNOWN_PARTITIONS_MAX", 0)
    assert admit(limits("A"), partition("X")) == UNKNOWN_NODE
    assert admit(limits("A", ""), partition("X")) == ""


# Requests


def count_allowed(made: PeerLimits, address: str, now: float, method: str = "allow_request") -> int:
    count = 0
    while getattr(made, method)(address, now):
        count += 1
    return count


@pytest.mark.parametrize(
    ("method", "known", "unknown"),
    [("allow_request", 100, 1000), ("allow_fetch", 5000, 5000), ("allow_heads_request", 10_000, 20_000)],
)
def test_requests_have_a_burst_and_then_a_rate(method: str, known: int, unknown: int) -> None:
    assert (NODE_BURST, UNKNOWN_BURST) == (100, 1000)
    for address, burst, second in (("A", known, known // 5), ("X", unknown, unknown // 10)):
        made = limits("A")
        assert count_allowed(made, address, 0.0, method) == pytest.approx(burst, abs=1)
        assert count_allowed(made, address, 1.0, method) == pytest.approx(second, abs=1)


def test_known_nodes_have_an_allowance_each_and_unknown_names_share_one() -> None:
    made = limits("A", "B")
    assert count_allowed(made, "A", 0.0) == NODE_BURST
    assert count_allowed(made, "B", 0.0) == NODE_BURST
    assert count_allowed(made, "X", 0.0) == UNKNOWN_BURST
    assert count_allowed(made, "Y", 0.0) == 0


def test_a_node_that_has_left_is_unknown_and_begins_anew_when_it_returns() -> None:
    made = limits("A")
    count_allowed(made, "A", 0.0)
    made.peer_left("A")
    assert count_allowed(made, "A", 0.0) == UNKNOWN_BURST
    made.peer_joined("A")
    assert count_allowed(made, "A", 0.0) == NODE_BURST


# Addresses in a plain cluster


def heads(*addresses: str) -> list[wire.BatchedMessage]:
    return [wire.Head(address, "t", 1) for address in addresses]


def test_in_a_plain_cluster_a_sender_must_be_where_discovery_found_it() -> None:
    identity = EndpointIdentity()
    assert identity.accept_change(PeerJoined("A", HERE))
    assert identity.accept_change(PeerJoined("", THERE))
    assert identity.verify_messages(heads("A", "X", "A"), HERE) == heads("A", "X", "A")
    assert identity.verify_messages(heads("A", "X", "A"), THERE) == heads("X")
    assert identity.discarded == {WRONG_SENDER: 2}
    run = wire.RecordRun(RecordBatch(partition("A"), 0, [b"", b"", b""]))
    assert identity.verify_messages([run], THERE) == []
    assert identity.discarded == {WRONG_SENDER: 5}, "each record counts"
    unknown = PeerEndpoint("")
    assert identity.verify_messages(heads("A"), unknown) == heads("A"), "it is not known where this came from"


def test_an_address_is_free_again_when_its_node_leaves_from_there() -> None:
    identity = EndpointIdentity()
    identity.accept_change(PeerJoined("A", HERE))
    assert identity.accept_change(PeerLeft("A", THERE))
    assert identity.verify_messages(heads("A"), THERE) == [], "another endpoint has left"
    identity.accept_change(PeerJoined("A", THERE))
    assert identity.verify_messages(heads("A"), THERE) == heads("A"), "it has moved"
    identity.accept_change(PeerLeft("A", THERE))
    assert identity.verify_messages(heads("A"), HERE) == heads("A")


# Addresses in a closed cluster


def keyed(key: str) -> PeerEndpoint:
    return PeerEndpoint("tcp://h:1", key)


def test_a_node_with_the_address_of_another_is_reported_and_not_accepted() -> None:
    reported: list[AddressConflict] = []
    identity = KeyIdentity({"a", "b"}.__contains__, reported.append)
    assert identity.accept_change(PeerJoined("A", keyed("a")))
    assert reported == []
    assert not identity.accept_change(PeerJoined("A", keyed("b")))
    assert reported == [AddressConflict("A", "tcp://h:1")]
    assert not identity.accept_change(PeerLeft("A", keyed("b"))), "a node that was not accepted cannot leave"
    assert identity.accept_change(PeerLeft("A", keyed("a")))


def test_messages_of_another_key_are_counted_by_record() -> None:
    identity = KeyIdentity({"a", "b"}.__contains__)
    identity.accept_change(PeerJoined("A", keyed("a")))
    run = wire.RecordRun(RecordBatch(partition("A"), 0, [b"", b""]))
    assert identity.verify_messages([*heads("A", "X"), run], keyed("b")) == []
    assert identity.discarded == {WRONG_SENDER: 4}
    assert identity.verify_messages([*heads("A"), run], keyed("a")) == [*heads("A"), run]
    assert identity.discarded == {WRONG_SENDER: 4}


def test_a_present_node_is_remembered_as_long_as_it_is_there_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dafka.protocol.presence.identity.FORMER_NODES_MAX", 1)
    identity = KeyIdentity(lambda key: True)
    for _ in range(2):
        identity.add_node("A", "a")
    identity.remove_node("A", "a")
    for address in ("X", "Y"):
        identity.claim_address(address, "x")
    assert not identity.claim_address("A", "b"), "it joined twice and left once"
    assert identity.claim_address("X", "b"), "the oldest of the former nodes was forgotten"
    identity.remove_node("A", "a")
    for address in ("X", "Y", "Z"):
        identity.claim_address(address, "z")
    assert identity.claim_address("A", "b")
