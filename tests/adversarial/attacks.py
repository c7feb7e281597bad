"""Kinds of attacks, by name: endless streams of messages. A seed determines every message.

An attack sends malformed messages, or well-formed messages whose fields make no sense, or sensible messages in
excessive numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import attrs

from dafka import wire

HUGE = wire.NUMBER_8_MAX
COUNT_HUGE = wire.NUMBER_4_MAX


@attrs.frozen
class Target:
    """The role to attack, and the facts that an attacker knows about it.

    Attributes:
        address: Its node address.
        topic: A topic that it follows or publishes.
        partition: The address of an honest producer of that topic.
        role: `store`, `producer`, `consumer` or `tower`.
    """

    address: str
    topic: str
    partition: str
    role: str


Attack = Callable[[Random, Target], list[bytes]]


def _name(random: Random) -> str:
    return f"{random.getrandbits(128):032X}"


def _encode(message: wire.Message, random: Random) -> list[bytes]:
    return wire.encode(message, random.choice(list(wire.Dialect)))


def _prefix(random: Random, target: Target) -> bytes:
    """Return a prefix that the target subscribes to."""
    topic, address = target.topic.encode(), target.address.encode()
    prefixes = {
        "store": [b"M" + topic, b"H" + topic, b"F" + _name(random).encode(), b"G" + topic, b"W", b"D" + address],
        "consumer": [b"M" + topic, b"H" + topic, b"D" + address, b"E" + address, b"L" + address, b"T" + address],
        "producer": [b"K" + address, b"F" + address, b"G" + topic],
        "tower": [b"B"],
    }
    return random.choice(prefixes[target.role])


def _random(random: Random, target: Target) -> list[bytes]:
    frames = [random.randbytes(random.randrange(64)) for _ in range(random.randrange(5))]
    return [_prefix(random, target) + random.randbytes(random.randrange(32)), *frames]


def _truncated(random: Random, target: Target) -> list[bytes]:
    frames = _encode(_valid(random, target), random)
    place = random.randrange(len(frames))
    frames[place] = frames[place][: random.randrange(1, len(frames[place]) + 1)]
    return frames


def _flipped(random: Random, target: Target) -> list[bytes]:
    frames = _encode(_valid(random, target), random)
    place = len(frames) - 1 if len(frames) == 1 else random.randrange(1, len(frames))
    flipped = bytearray(frames[place] or b"\0")
    flipped[random.randrange(len(flipped))] ^= 1 << random.randrange(8)
    frames[place] = bytes(flipped)
    return frames


def _valid(random: Random, target: Target) -> wire.Message:
    return MESSAGES[random.choice(SENSIBLE)](random, target)


def _sequence(random: Random) -> int:
    return random.choice((0, 1, random.getrandbits(20), random.getrandbits(40), 2**62, 2**63, HUGE))


def _known(random: Random, target: Target) -> str:
    """Return the address of a partition that the target serves, or of an unknown one."""
    return target.address if target.role == "producer" else random.choice((target.partition, _name(random)))


def _record(random: Random, target: Target) -> wire.Message:
    address = random.choice((target.partition, _name(random)))
    sequence = _sequence(random) + (address == target.partition) * 2**20 & HUGE
    return wire.Record(address, target.topic, sequence, b"x" * 50)


def _hello(random: Random, target: Target) -> wire.Message:
    count = random.choice((1, 100, 2000))
    topics = [target.topic, *(f"{random.getrandbits(48):x}" for _ in range(count))]
    if target.role == "store":
        return wire.ConsumerHello(target.address, _name(random), topics)
    return wire.StoreHello(target.address, _name(random))


def _counts(random: Random, target: Target) -> list[bytes]:
    """Return a HELLO whose list claims four billion members, or whose text claims as many bytes."""
    body = b"\xaa\xa5W\x01" + bytes((32,)) + _name(random).encode() + COUNT_HUGE.to_bytes(4, "big")
    return [b"W" + target.address.encode(), body + random.randbytes(8)]


MESSAGES: dict[str, Callable[[Random, Target], wire.Message]] = {
    "records": _record,
    "heads": lambda random, it: wire.Head(random.choice((it.partition, _name(random))), it.topic, _sequence(random)),
    "fetches": lambda random, it: wire.Fetch(
        *(_known(random, it), _name(random), it.topic, random.choice((0, _sequence(random)))),
        random.choice((0, 1, 1000, COUNT_HUGE)),
    ),
    "acks": lambda random, it: wire.Ack(it.address, it.topic, random.choice((2**40, 2**62, HUGE)), _name(random)),
    "get-heads": lambda random, it: wire.GetHeads(it.topic, _name(random)),
    "direct-heads": lambda random, it: wire.DirectHead(it.address, _name(random), it.topic, _sequence(random)),
    "store-hellos": lambda random, it: wire.StoreHello(it.address, _name(random)),
    "fetch-all": lambda random, it: wire.Fetch(  # for a requestor that does not exist
        it.address if it.role == "producer" else it.partition, _name(random), it.topic, 0, COUNT_HUGE
    ),
    "direct-records": lambda random, it: wire.DirectRecord(
        it.address, _name(random), it.topic, _sequence(random), b"x" * 50
    ),
    "earliest": lambda random, it: wire.DirectEarliest(
        *(it.address, _name(random), random.choice((it.partition, _name(random))), it.topic),
        *(random.choice((HUGE, 2**50, 5)), 2**61),
    ),
    "hellos": _hello,
    "partitions": lambda random, it: wire.Record(_name(random), it.topic, 0, b"x" * 50),
    "topics": lambda random, it: wire.Record(_name(random), f"{it.topic}{random.getrandbits(64):x}", 0, b""),
    # With a gap before it.
    "ahead": lambda random, it: wire.Record(it.partition, it.topic, 2**30 + 2 * random.getrandbits(24), b"x" * 1000),
}
"""Well-formed messages; those in `SENSIBLE` may also be sent by honest nodes."""

SENSIBLE = ["records", "heads", "fetches", "acks", "get-heads", "direct-heads", "store-hellos"]


def _of(make: Callable[[Random, Target], wire.Message]) -> Attack:
    return lambda random, target: _encode(make(random, target), random)


NODE_ATTACKS: dict[str, Attack] = {
    "random": _random,
    "truncated": _truncated,
    "flipped": _flipped,
    "many-frames": lambda random, target: [_prefix(random, target), *[b""] * random.randrange(3, 200)],
    "counts": _counts,
    **{name: _of(make) for name, make in MESSAGES.items() if name != "store-hellos"},
}
"""Attacks on a connected node, by name."""


def _beacon(random: Random, address: str, host: bytes = b"127.0.0.1") -> list[bytes]:
    return [b"B", address.encode(), host, b"%d" % random.randrange(1, 65536)]


def _elsewhere(random: Random) -> bytes:
    return random.choice((b"192.0.2.%d" % random.randrange(256), b"host-%x.invalid" % random.getrandbits(32)))


TOWER_ATTACKS: dict[str, Attack] = {
    "beacon-rubbish": lambda random, _: [
        b"B",
        *(random.randbytes(random.randrange(40)) for _ in range(random.randrange(6))),
    ],
    "beacon-million": lambda random, _: _beacon(random, _name(random)),
    "beacon-elsewhere": lambda random, _: _beacon(random, _name(random), _elsewhere(random)),
    "beacon-of-another": lambda random, target: _beacon(random, target.partition),
}
"""Attacks on a tower, by name."""


def generate(attack: str, target: Target, seed: int) -> Iterator[list[bytes]]:
    """Yield the messages of an attack without end; `mixed` mixes all attacks on the role."""
    attacks = TOWER_ATTACKS if target.role == "tower" else NODE_ATTACKS
    random = Random(seed)
    if attack == "mixed":
        makers = list(attacks.values())
        while True:
            yield random.choice(makers)(random, target)
    make = attacks[attack]
    while True:
        yield make(random, target)
