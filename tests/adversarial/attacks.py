"""Kinds of attacks, by name: endless streams of messages. A seed determines every message.

An attack sends malformed messages, or well-formed messages whose fields make no sense, or sensible messages in
excessive numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import attrs

from dafka import wire
from dafka.records import Partition, RecordBatch
from dafka.wire.batch import iter_frames

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


def _many_frames(random: Random, target: Target) -> list[bytes]:
    return [_prefix(random, target), *[b""] * random.randrange(3, 200)]


def _valid(random: Random, target: Target) -> wire.Message:
    return random.choice((_record, _head, _fetch, _ack, _get_heads, _direct_head, _store_hello))(random, target)


def _sequence(random: Random) -> int:
    return random.choice((0, 1, random.getrandbits(20), random.getrandbits(40), 2**62, 2**63, HUGE))


def _record(random: Random, target: Target) -> wire.Message:
    address = random.choice((target.partition, _name(random)))
    return wire.Record(
        address, target.topic, _sequence(random) + (address == target.partition) * 2**20 & HUGE, b"x" * 50
    )


def _head(random: Random, target: Target) -> wire.Message:
    return wire.Head(random.choice((target.partition, _name(random))), target.topic, _sequence(random))


def _fetch(random: Random, target: Target) -> wire.Message:
    partition = target.address if target.role == "producer" else random.choice((target.partition, _name(random)))
    count = random.choice((0, 1, 1000, COUNT_HUGE))
    return wire.Fetch(partition, _name(random), target.topic, random.choice((0, _sequence(random))), count)


def _ack(random: Random, target: Target) -> wire.Message:
    return wire.Ack(target.address, target.topic, random.choice((2**40, 2**62, HUGE)), _name(random))


def _get_heads(random: Random, target: Target) -> wire.Message:
    return wire.GetHeads(target.topic, _name(random))


def _direct_head(random: Random, target: Target) -> wire.Message:
    return wire.DirectHead(target.address, _name(random), target.topic, _sequence(random))


def _store_hello(random: Random, target: Target) -> wire.Message:
    return wire.StoreHello(target.address, _name(random))


def _of(make: Callable[[Random, Target], wire.Message]) -> Attack:
    return lambda random, target: _encode(make(random, target), random)


def _partitions(random: Random, target: Target) -> list[bytes]:
    """Return the valid first record of a new partition."""
    return _encode(wire.Record(_name(random), target.topic, 0, b"x" * 50), random)


def _topics(random: Random, target: Target) -> list[bytes]:
    return _encode(wire.Record(_name(random), f"{target.topic}{random.getrandbits(64):x}", 0, b""), random)


def _ahead(random: Random, target: Target) -> list[bytes]:
    """Return a record far beyond the head of an honest partition, with a gap before it."""
    return _encode(wire.Record(target.partition, target.topic, 2**30 + 2 * random.getrandbits(24), b"x" * 1000), random)


def _hello(random: Random, target: Target) -> list[bytes]:
    count = random.choice((1, 100, 2000))
    topics = [target.topic, *(f"{random.getrandbits(48):x}" for _ in range(count))]
    if target.role == "store":
        return _encode(wire.ConsumerHello(target.address, _name(random), topics), random)
    return _encode(_store_hello(random, target), random)


def _earliest(random: Random, target: Target) -> list[bytes]:
    partition = random.choice((target.partition, _name(random)))
    sequence = random.choice((HUGE, 2**50, 5))
    return _encode(wire.DirectEarliest(target.address, _name(random), partition, target.topic, sequence, 2**61), random)


def _counts(random: Random, target: Target) -> list[bytes]:
    """Return a HELLO whose list claims four billion members, or whose text claims as many bytes."""
    body = b"\xaa\xa5W\x01" + bytes((32,)) + _name(random).encode() + COUNT_HUGE.to_bytes(4, "big")
    return [b"W" + target.address.encode(), body + random.randbytes(8)]


def _direct_records(random: Random, target: Target) -> list[bytes]:
    return _encode(wire.DirectRecord(target.address, _name(random), target.topic, _sequence(random), b"x" * 50), random)


def _fetch_all(random: Random, target: Target) -> list[bytes]:
    """Return a FETCH of everything, for a requestor that does not exist."""
    partition = target.address if target.role == "producer" else target.partition
    return _encode(wire.Fetch(partition, _name(random), target.topic, 0, COUNT_HUGE), random)


NODE_ATTACKS: dict[str, Attack] = {
    "random": _random,
    "truncated": _truncated,
    "flipped": _flipped,
    "many-frames": _many_frames,
    "records": _of(_record),
    "heads": _of(_head),
    "fetches": _of(_fetch),
    "fetch-all": _fetch_all,
    "acks": _of(_ack),
    "get-heads": _of(_get_heads),
    "direct-heads": _of(_direct_head),
    "direct-records": _direct_records,
    "earliest": _earliest,
    "hellos": _hello,
    "counts": _counts,
    "partitions": _partitions,
    "topics": _topics,
    "ahead": _ahead,
}
"""Attacks on a connected node, by name."""


def _beacon_rubbish(random: Random, _: Target) -> list[bytes]:
    return [b"B", *(random.randbytes(random.randrange(40)) for _ in range(random.randrange(6)))]


def _beacon_million(random: Random, _: Target) -> list[bytes]:
    return [b"B", _name(random).encode(), b"127.0.0.1", b"%d" % random.randrange(1, 65536)]


def _beacon_elsewhere(random: Random, _: Target) -> list[bytes]:
    host = random.choice((b"192.0.2.%d" % random.randrange(256), b"host-%x.invalid" % random.getrandbits(32)))
    return [b"B", _name(random).encode(), host, b"%d" % random.randrange(1, 65536)]


def _beacon_of_another(random: Random, target: Target) -> list[bytes]:
    return [b"B", target.partition.encode(), b"127.0.0.1", b"%d" % random.randrange(1, 65536)]


TOWER_ATTACKS: dict[str, Attack] = {
    "beacon-rubbish": _beacon_rubbish,
    "beacon-million": _beacon_million,
    "beacon-elsewhere": _beacon_elsewhere,
    "beacon-of-another": _beacon_of_another,
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


def honest_run(target: Target, first: int, contents: list[bytes]) -> Iterator[list[bytes]]:
    """Yield frames of records as the honest producer would send them, to be sent by another node."""
    run = wire.RecordRun(RecordBatch(Partition(target.topic, target.partition), first, contents))
    yield from (list(frames) for frames in iter_frames(wire.BatchEncoder(wire.Dialect.RFC46).encode([run])))
