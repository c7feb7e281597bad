"""The limits of one peer, in its own name and in the names of others: allowances, and addresses that have an owner."""

from __future__ import annotations

from random import Random

import pytest

from dafka import wire
from dafka.config import NodeConfig
from dafka.endpoints import PeerEndpoint
from dafka.protocol.events import PeerJoined, PeerLeft
from dafka.protocol.presence.identity import WRONG_SENDER, EndpointIdentity, KeyIdentity
from dafka.protocol.presence.peer_limits import (
    FETCH_COST,
    HEADS_COST,
    MANY_OF_ONE_NODE,
    MANY_PARTITIONS,
    NODE_BURST,
    NODE_PER_S,
    UNKNOWN_BURST,
    UNKNOWN_FETCH_COST,
    UNKNOWN_HEADS_COST,
    UNKNOWN_NODE,
    UNKNOWN_PARTITIONS_MAX,
    UNKNOWN_PER_S,
    PeerLimits,
)
from dafka.protocol.presence.subscribers import SubscriberSet
from dafka.protocol.trust import AddressConflict
from dafka.records import Partition, RecordBatch
from dafka.wire import Command
from tests.seeds import each_seed

HERE, THERE = PeerEndpoint("tcp://h:1"), PeerEndpoint("tcp://h:2")


def partition(address: str, topic: str = "t") -> Partition:
    return Partition(topic, address)


class Begun:
    """The partitions that producers begin, and the rules for one more."""

    def __init__(self, per_node: int, total: int, unknown_max: int) -> None:
        self.per_node, self.total, self.unknown_max = per_node, total, unknown_max
        self.known: set[str] = set()
        self.followed: dict[Partition, bool] = {}
        """The followed partitions, and whether their producers began them."""
        self.unknown: set[Partition] = set()

    def reason(self, each: Partition, *, is_live: bool) -> str:
        if len(self.followed) >= self.total:
            return MANY_PARTITIONS
        if is_live and sum(other.address == each.address for other, live in self.followed.items() if live) >= (
            self.per_node
        ):
            return MANY_OF_ONE_NODE
        is_unknown = is_live and each.address not in self.known
        return UNKNOWN_NODE if is_unknown and len(self.unknown) >= self.unknown_max else ""

    def begin(self, each: Partition, *, is_live: bool) -> None:
        self.followed[each] = is_live
        if is_live and each.address not in self.known:
            self.unknown.add(each)

    def forget(self, each: Partition) -> None:
        del self.followed[each]
        self.unknown.discard(each)


@each_seed(30)
def test_nodes_begin_partitions_within_their_limits(seed: int) -> None:
    draw = Random(seed)
    model = Begun(draw.choice((1, 3)), draw.choice((5, 20)), 2)
    made = PeerLimits(NodeConfig(partitions_per_node_max=model.per_node, partitions_max=model.total))
    for number in range(UNKNOWN_PARTITIONS_MAX - model.unknown_max):
        assert made.admit_partition(partition(f"stranger {number}"), 0, is_live=True) == ""
    for _ in range(150):
        each, is_live, event = partition(draw.choice("ABCD"), draw.choice("tuvw")), draw.random() < 0.7, draw.random()
        if event < 0.1:
            model.known.add(each.address)
            made.peer_joined(each.address)
        elif event < 0.2:
            model.known.discard(each.address)
            made.peer_left(each.address)
        elif each not in model.followed:
            reason = model.reason(each, is_live=is_live)
            assert made.admit_partition(each, len(model.followed), is_live=is_live) == reason
            if not reason:
                model.begin(each, is_live=is_live)
        elif model.followed[each]:
            model.forget(each)
            made.forget_partition(each)


def test_beside_a_nameless_node_any_name_may_be_known() -> None:
    for names, reason in ((["A"], UNKNOWN_NODE), (["A", ""], "")):
        made = PeerLimits(NodeConfig())
        for name in names:
            made.peer_joined(name)
        for number in range(UNKNOWN_PARTITIONS_MAX):
            made.admit_partition(partition(f"{number}"), 0, is_live=True)
        assert made.admit_partition(partition("X"), 0, is_live=True) == reason


@each_seed(10)
def test_requests_are_served_at_the_rate_of_their_kind(seed: int) -> None:
    """Each known node has an allowance, which begins anew when it joins again; all other names share one."""
    draw, made, now = Random(seed), PeerLimits(NodeConfig()), 0.0
    levels: dict[str, tuple[float, float]] = {}
    known: set[str] = set()
    costs = {True: (1.0, FETCH_COST, HEADS_COST), False: (1.0, UNKNOWN_FETCH_COST, UNKNOWN_HEADS_COST)}
    for _ in range(300):
        address = draw.choice("ABCD")
        now += draw.choice((0.0, 0.0, 0.25))
        if draw.random() < 0.05:
            (made.peer_joined if address not in known else made.peer_left)(address)
            known ^= {address}
            levels.pop(address, None)
            continue
        is_known, kind = address in known, draw.randrange(3)
        name = address if is_known else "strangers"
        per_second, burst = (NODE_PER_S, NODE_BURST) if is_known else (UNKNOWN_PER_S, UNKNOWN_BURST)
        cost = costs[is_known][kind]
        allow = (made.allow_request, made.allow_fetch, made.allow_heads_request)[kind]
        for _ in range(draw.choice((1, 30, 200))):
            level, at = levels.get(name, (burst, now))
            level = min(level + per_second * (now - at), burst)
            is_allowed = allow(address, now)
            assert is_allowed == (level >= cost) or abs(level - cost) < 1e-6
            levels[name] = level - cost * is_allowed, now


@each_seed(10)
def test_a_set_of_subscribers_has_those_of_one_command_up_to_its_limit(seed: int) -> None:
    draw, subscribers, model = Random(seed), SubscriberSet(Command.DIRECT_HEAD, 3), list[str]()
    for _ in range(200):
        topic, command = draw.choice(["", *"ABCDE"]), draw.choice((Command.DIRECT_HEAD, Command.HEAD))
        is_active = draw.random() < 0.6
        subscribers.record_subscription(wire.Subscription(command, topic, is_active))
        if command is Command.DIRECT_HEAD and topic:
            if not is_active and topic in model:
                model.remove(topic)
            elif is_active and topic not in model and len(model) < 3:
                model.append(topic)
        assert (list(subscribers), len(subscribers)) == (model, len(model))
        assert all((name in subscribers) == (name in model) for name in "ABCDE")


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
