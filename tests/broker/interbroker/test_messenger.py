"""Messages between brokers: in order, at most once, of brokers that know the secret, and none that is malformed."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterator
from enum import IntEnum
from itertools import pairwise, permutations
from typing import Any, NamedTuple

import attrs
import pytest

from dafka.broker.interbroker.link import Refusal
from dafka.broker.interbroker.link_frames import LINK_VERSION, Frame, Hello, LinkIdentity, decode, encode
from dafka.broker.interbroker.messenger import WAIT_TICKS, WAITING_MAX, BrokerMessenger, Message
from tests.spoiled import spoil_fields

SECRET = "s" * 32


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
    text: str
    color: Color
    pair: Pair
    inner: tuple[Inner, ...]


class Network:
    """Brokers, whose bytes reach each other in order. `seen` are all bytes that were ever on the way."""

    def __init__(self, *addresses: str, secret: str = SECRET) -> None:
        self.waiting: defaultdict[tuple[str, str], list[bytes]] = defaultdict(list)
        self.seen: list[tuple[tuple[str, str], bytes]] = []
        self.received: list[tuple[str, str, Say]] = []
        self.messengers: dict[str, BrokerMessenger] = {}
        for each in addresses:
            self.start(each, secret)

    def start(self, address: str, secret: str = SECRET, cluster_id: str = "c") -> BrokerMessenger:
        def send_bytes(receiver: str, data: bytes) -> None:
            self.waiting[address, receiver].append(data)
            self.seen.append(((address, receiver), data))

        messenger = self.messengers[address] = BrokerMessenger(address, send_bytes, secret)
        messenger.identify(LinkIdentity(address, cluster_id, 1, f"{random.random()}"))
        messenger.on(Say, lambda sender, message: self.received.append((address, sender, message)))
        return messenger

    def deliver(self, sender: str, receiver: str) -> None:
        found = self.waiting[sender, receiver]
        if found and receiver in self.messengers:
            self.messengers[receiver].receive(sender, found.pop(0))

    def disturb(self, draw: random.Random, sender: str, receiver: str, *, restarts: bool, loses: bool) -> set[str]:
        """Return the brokers that may miss messages, or messages of theirs."""
        if restarts and draw.random() < 0.4:
            self.start(sender)
            return {sender}
        if loses and self.waiting[sender, receiver] and draw.random() < 0.5:
            self.waiting[sender, receiver].pop(0)
            return {sender, receiver}
        self.messengers[sender].tick()
        return set()

    def settle(self, ticks: int = 0) -> None:
        for _ in range(ticks + 1):
            while any(found and to in self.messengers for (_, to), found in self.waiting.items()):
                for link in list(self.waiting):
                    self.deliver(*link)
            for each in self.messengers.values():
                each.tick()

    def send(self, sender: str, receiver: str, number: int) -> None:
        self.messengers[sender].send(receiver, Say(number, "", Color.RED, Pair("x", 1), (Inner(is_there=True),)))

    def arrived(self, sender: str, receiver: str) -> list[int]:
        return [each.number for to, by, each in self.received if (by, to) == (sender, receiver)]


class Attacker:
    """A node that sees all bytes, sends any of them again or changed, and opens connections without the secret."""

    def __init__(self, draw: random.Random, network: Network) -> None:
        self._draw = draw
        self._network = network

    def attack(self) -> None:
        draw, network = self._draw, self._network
        sender, receiver = draw.sample(sorted(network.messengers), 2)
        if network.seen and draw.random() < 0.8:
            (sender, receiver), data = draw.choice(network.seen)
            if draw.random() < 0.3:
                sender, receiver = receiver, sender
            if draw.random() < 0.5:
                place = draw.randrange(len(data))
                data = bytes((*data[:place], data[place] ^ 1 << draw.randrange(8), *data[place + 1 :]))
        else:
            nonce, echo = draw.randbytes(16), draw.randbytes(16)
            hellos = [found for _, each in network.seen if isinstance(found := decode(each), Hello)]
            if hellos and draw.random() < 0.7:
                echo = draw.choice(hellos).nonce
            data = encode(Hello(LinkIdentity(sender, "c", 1, "x"), receiver, nonce, echo, draw.randbytes(32)))
        network.messengers[receiver].receive(sender, data)


@pytest.mark.parametrize("is_attacked", [False, True])
def test_messages_arrive_in_order_and_at_most_once(is_attacked: bool) -> None:
    """All arrive in the end, and all earlier ones if no bytes were lost and nobody has started again."""
    for seed in range(150):
        draw, names = random.Random(seed), ["a", "b", "c"]
        network = Network(*names)
        attacker = Attacker(draw, network)
        sent: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        disturbed: set[str] = set()
        for number in range(draw.randint(1, 60)):
            sender, receiver = draw.sample(names, 2)
            if draw.random() < 0.3:
                sent[sender, receiver].append(number)
                network.send(sender, receiver, number)
            elif draw.random() < 0.7:
                network.deliver(sender, receiver)
            else:
                disturbed |= network.disturb(draw, sender, receiver, restarts=seed % 2 > 0, loses=seed % 3 == 0)
            if is_attacked:
                attacker.attack()
        network.settle(4)
        for _ in range(3):  # the first message finds out that the connection is lost
            for sender, receiver in permutations(names, 2):
                sent[sender, receiver].append(1000 + len(sent[sender, receiver]))
                network.send(sender, receiver, sent[sender, receiver][-1])
            network.settle(4)
        for link, numbers in sent.items():
            arrived = network.arrived(*link)
            assert all(one < other for one, other in pairwise(arrived)), (seed, link)
            assert set(arrived) <= set(numbers)
            assert arrived[-1] == numbers[-1], (seed, link)
            assert is_attacked or disturbed.intersection(link) or arrived == numbers, (seed, link)


def test_an_attacker_disturbs_no_connection_that_is_open() -> None:
    for seed in range(100):
        draw, network = random.Random(seed), Network("a", "b")
        attacker = Attacker(draw, network)
        for number in range(20):
            network.send("a", "b", number)
            network.settle()
            attacker.attack()
        network.settle()
        assert network.arrived("a", "b") == [*range(20)]


REFUSED = [
    ("t" * 32, "c", Refusal.OTHER_SECRET, "the broker 1 (b) is refused: it does not know the secret of this broker"),
    ("", "c", Refusal.OTHER_SECRET, "need the same [broker] secret_file"),
    (SECRET, "d", Refusal.OTHER_CLUSTER, "it belongs to the cluster d, and this broker to c"),
]


@pytest.mark.parametrize(("secret", "cluster_id", "reason", "sentence"), REFUSED)
def test_brokers_with_another_secret_or_of_another_cluster_are_refused(
    secret: str, cluster_id: str, reason: Refusal, sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    network = Network("a")
    network.start("b", secret, cluster_id)
    for number in range(3):
        network.send("a", "b", number)
        network.send("b", "a", number)
        network.settle()
    assert network.received == []
    assert all(each.refused[reason] > 0 for each in network.messengers.values())
    assert [sentence in each for each in caplog.messages].count(True) in {1, 2}
    assert len(caplog.messages) == 2, "each broker reports the other one once"
    assert network.messengers["a"].has_other_secret("b") is (True if reason is Refusal.OTHER_SECRET else None)
    network.start("b")
    network.messengers["a"].connect("b")
    network.settle()
    assert network.messengers["a"].has_other_secret("b") is False


def test_brokers_without_secrets_connect_and_a_broker_joins_a_cluster_later() -> None:
    network = Network("a", secret="")
    network.start("b", "", "")
    network.send("a", "b", 1)
    network.settle()
    network.messengers["b"].identify(LinkIdentity("b", "c", 2, "start"))
    network.settle()
    network.send("a", "b", 2)
    network.settle()
    assert network.arrived("a", "b") == [1, 2]
    network.messengers["b"].identify(LinkIdentity("b", "d", 2, "start"))
    network.settle()
    for sender, receiver in ("ab", "ba"):
        network.send(sender, receiver, 3)
    network.settle(3)
    assert [*network.arrived("a", "b"), *network.arrived("b", "a")] == [1, 2]


def test_few_messages_wait_and_not_for_long() -> None:
    network = Network("a")
    for number in range(WAITING_MAX + 2):
        network.send("a", "b", number)
    network.start("b")
    network.settle()
    assert network.arrived("a", "b") == [*range(WAITING_MAX)]
    del network.messengers["b"]
    network.start("a")
    network.send("a", "b", 1)
    network.settle(WAIT_TICKS)
    network.start("b")
    network.send("a", "b", 2)
    network.settle(2)
    assert network.arrived("a", "b")[-1] == 2
    assert 1 not in network.arrived("a", "b")[WAITING_MAX:]


def test_many_strangers_use_no_memory_and_no_connection_of_a_broker() -> None:
    network = Network("a", "b")
    network.send("a", "b", 1)
    network.settle()
    for number in range(2000):
        network.messengers["a"].receive(f"x{number}", encode(Hello(LinkIdentity(f"x{number}"), "a", bytes(16))))
    network.waiting.clear()
    network.send("a", "b", 2)
    network.settle()
    assert network.arrived("a", "b") == [1, 2]
    assert len(network.messengers["a"]._peers) <= 1000


def hostile_bytes(draw: random.Random) -> Iterator[bytes]:
    identity = LinkIdentity("\udcffb", "c" * 255, -1, "é")
    hello = encode(Hello(identity, "a", draw.randbytes(16), draw.randbytes(16), draw.randbytes(32)))
    frame = encode(Frame(draw.randbytes(8), 2**64 - 1, draw.randbytes(32), b"{}"))
    for whole in (hello, frame):
        decoded = decode(whole)
        assert decoded is not None
        assert encode(decoded) == whole
        yield from (whole[:end] for end in range(len(whole)))
        yield from (whole[:place] + draw.randbytes(1) + whole[place + 1 :] for place in range(len(whole)))
        yield whole + b"x"
    yield from (b"H" + bytes((LINK_VERSION,)) + draw.randbytes(draw.randrange(90)) for _ in range(500))
    yield hello.replace(b"\x02-1", b"\x03-01")


def test_hostile_bytes_are_refused_and_what_is_decoded_has_one_form() -> None:
    network = Network("a")
    for data in hostile_bytes(random.Random(1)):
        network.messengers["a"].receive("b", data)
        found = decode(data)
        assert found is None or encode(found) == data
    assert network.received == []


def test_a_message_with_a_wrong_or_missing_field_is_refused_and_one_with_all_fields_is_not() -> None:
    network = Network("a")
    messenger = network.messengers["a"]
    fields = {"number": 1, "text": "t", "color": 1, "pair": ["x", 2], "inner": [{"is_there": True}]}
    sample = {"kind": "say", "fields": fields}
    changes: list[dict[str, Any]] = [{"color": 2}, {"number": 2**63}, {"number": -(2**63) - 1}, {"number": True}]
    changes += [{"pair": {"name": "x", "number": 1}}, {"pair": ["x", 1, 2]}, {"pair": [1, "x"]}]
    spoiled = [{"kind": "say", "fields": fields | each} for each in changes]
    newer = ("y",)  # an unknown kind is of a newer version
    spoiled += [each for each in spoil_fields(sample) if each.get("kind") not in newer]
    values = [json.dumps(each).encode() for each in spoiled]
    for count, value in enumerate((b"", b"\xff", b"[]", b"[" * 100_000, *values), 1):
        messenger.process("b", value)
        assert (messenger.refused[Refusal.MALFORMED], network.received) == (count, []), value
    messenger.process("b", json.dumps({"kind": "new", "fields": {}}).encode())
    messenger.process("b", json.dumps(sample).encode())
    assert network.received == [("a", "b", Say(1, "t", Color.RED, Pair("x", 2), (Inner(is_there=True),)))]
    assert messenger.refused.total() == count


def test_mistakes_of_a_handler_are_not_taken_for_malformed_messages() -> None:
    network = Network("a", "b")
    network.messengers["b"].on(Say, lambda _sender, message: {1: None}[message.number])
    network.send("a", "b", 0)
    with pytest.raises(KeyError):
        network.settle()
    assert network.messengers["b"].refused.total() == 0
