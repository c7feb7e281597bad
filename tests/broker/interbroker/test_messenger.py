"""Messages between brokers: in order, once, to one incarnation of one broker, and none that is malformed."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from enum import IntEnum
from itertools import permutations
from typing import Any, NamedTuple

import attrs
import pytest

from dafka.broker.interbroker.messenger import MESSAGE_VERSION, WAITING_MAX, BrokerMessenger, Message
from tests.spoiled import spoil_fields


class Color(IntEnum):
    RED = 1


class Pair(NamedTuple):
    name: str
    number: int


@attrs.frozen
class Inner:
    is_there: bool


@attrs.frozen
class Say(Message):
    """A message with a field of each kind."""

    KIND = "say"
    number: int
    text: str = ""
    color: Color = Color.RED
    pair: Pair = attrs.field(factory=lambda: Pair("x", 1))
    inner: tuple[Inner, ...] = (Inner(is_there=True),)


class Network:
    """Brokers, whose records reach all others in the order in which each broker published them."""

    def __init__(self, *addresses: str) -> None:
        self.waiting: defaultdict[tuple[str, str], list[bytes]] = defaultdict(list)
        self.received: list[tuple[str, str, Say]] = []
        self.posts: dict[str, BrokerMessenger] = {}
        self.records = 0
        for each in addresses:
            self.start(each)

    def start(self, address: str) -> None:
        messenger = self.posts[address] = BrokerMessenger(address, lambda value: self.publish(address, value))
        messenger.on(Say, lambda sender, message: self.received.append((address, sender, message)))

    def publish(self, sender: str, value: bytes) -> None:
        self.records += 1
        for each in self.posts:
            if each != sender:
                self.waiting[sender, each].append(value)

    def deliver(self, sender: str, receiver: str) -> bool:
        found = self.waiting[sender, receiver]
        if found:
            self.posts[receiver].receive(sender, found.pop(0))
        return bool(found)

    def settle(self) -> None:
        while any(self.waiting.values()):
            for link in list(self.waiting):
                self.deliver(*link)


def test_messages_arrive_in_order_and_once_whatever_restarts_meanwhile() -> None:
    """Messages to a former process of a broker may be lost. All arrive without restarts, or after the last one."""
    for seed in range(150):
        draw, network, names = random.Random(seed), Network("a", "b", "c"), ["a", "b", "c"]
        sent: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        restarted: set[str] = set()
        for number in range(draw.randint(1, 40)):
            sender, receiver = draw.sample(names, 2)
            match draw.choice(["send", "send", "deliver", "deliver", "restart"]):
                case "send":
                    sent[sender, receiver].append(number)
                    network.posts[sender].send(receiver, Say(number))
                case "deliver":
                    network.deliver(sender, receiver)
                case "restart" if seed % 2:
                    network.start(sender)
                    network.posts[sender].introduce()
                    restarted.add(sender)
        network.settle()
        for sender, receiver in permutations(names, 2):
            sent[sender, receiver].append(100)
            network.posts[sender].send(receiver, Say(100))
        network.settle()
        for link, numbers in sent.items():
            arrived = [each.number for to, by, each in network.received if (by, to) == link]
            assert arrived == sorted(set(arrived)), (seed, link)
            assert set(arrived) <= set(numbers)
            assert arrived[-1] == 100, (seed, link)
            assert restarted.intersection(link) or arrived == numbers, (seed, link)


def test_a_broker_that_has_introduced_itself_gets_what_waited_for_it() -> None:
    network = Network("a", "b")
    network.posts["a"].send("b", Say(1))
    network.waiting.clear()  # the request is lost
    network.posts["a"].send("b", Say(2))
    assert not any(network.waiting.values()), "it is requested once"
    network.posts["b"].introduce()
    network.settle()
    assert [each.number for _, _, each in network.received] == [1, 2]
    before = network.records
    network.posts["a"].send("b", Say(3))
    assert network.records == before + 1, "its incarnation is known"


def test_a_limited_number_of_messages_waits() -> None:
    network = Network("a", "b")
    for number in range(WAITING_MAX + 2):
        network.posts["a"].send("b", Say(number))
    network.settle()
    assert [each.number for _, _, each in network.received] == [*range(WAITING_MAX)]


def envelope(messenger: BrokerMessenger, **changes: Any) -> dict[str, Any]:
    fields = {"number": 1, "text": "t", "color": 1, "pair": ["x", 2], "inner": [{"is_there": True}]}
    sample = {"version": MESSAGE_VERSION, "to": "a", "incarnation": messenger._incarnation, "kind": "say"}
    return sample | {"fields": fields | changes.pop("fields", {})} | changes


def test_a_message_with_a_wrong_or_missing_field_is_discarded_and_one_with_all_fields_is_not() -> None:
    network = Network("a")
    messenger = network.posts["a"]
    sample = envelope(messenger)
    changes: list[dict[str, Any]] = [{"color": 2}, {"number": 2**63}, {"number": -(2**63) - 1}, {"number": True}]
    changes += [{"pair": {"name": "x", "number": 1}}, {"pair": ["x", 1, 2]}, {"pair": [1, "x"]}]
    spoiled = [envelope(messenger, fields=each) for each in changes]
    for each in spoil_fields(sample):
        is_other = isinstance(each.get("kind"), str) and each["kind"] != "say"
        if not is_other:  # an unknown kind is of a newer version
            spoiled.append(each)
    values = [json.dumps(each).encode() for each in spoiled]
    for count, value in enumerate((None, b"", b"\xff", b"[]", b"[" * 100_000, *values), 1):
        messenger.receive("b", value)
        assert (messenger.discarded, network.received) == (count, []), value
    messenger.receive("b", json.dumps(sample).encode())
    assert network.received == [("a", "b", Say(1, "t", Color.RED, Pair("x", 2), (Inner(is_there=True),)))]


def test_messages_for_others_and_of_newer_versions_are_ignored() -> None:
    network = Network("a")
    messenger = network.posts["a"]
    incarnation = messenger._incarnation
    for changes in ({"version": MESSAGE_VERSION + 1}, {"to": "c"}, {"kind": "new"}, {"incarnation": incarnation + 1}):
        messenger.receive("b", json.dumps(envelope(messenger, **changes)).encode())
    assert (messenger.discarded, network.received) == (0, [])
    messenger.receive("b", json.dumps(envelope(messenger, to="")).encode())
    assert len(network.received) == 1, "to all brokers"


def test_mistakes_of_a_handler_are_not_taken_for_malformed_messages() -> None:
    network = Network("a", "b")
    network.posts["b"].on(Say, lambda _sender, message: {1: None}[message.number])
    network.posts["a"].send("b", Say(0))
    with pytest.raises(KeyError):
        network.settle()
    assert network.posts["b"].discarded == 0
