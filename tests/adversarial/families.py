"""Families of hostile messages, by name. A seed decides every one of them.

Each family is what one attacker would do: rubbish, or well-formed messages whose fields make no sense, or make sense
and are too many.
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
class Aim:
    """Whom to attack, and what is known of it.

    Attributes:
        address: its node address.
        topic: one that it follows or publishes.
        partition: the address of an honest producer of that topic.
        role: `store`, `producer`, `consumer` or `tower`.
    """

    address: str
    topic: str
    partition: str
    role: str


Family = Callable[[Random, Aim], list[bytes]]


def _name(random: Random) -> str:
    return f"{random.getrandbits(128):032X}"


def _encode(message: wire.Message, random: Random) -> list[bytes]:
    return wire.encode(message, random.choice(list(wire.Dialect)))


def _prefix(random: Random, aim: Aim) -> bytes:
    """Something that the target subscribes to."""
    topic, address = aim.topic.encode(), aim.address.encode()
    prefixes = {
        "store": [b"M" + topic, b"H" + topic, b"F" + _name(random).encode(), b"G" + topic, b"W", b"D" + address],
        "consumer": [b"M" + topic, b"H" + topic, b"D" + address, b"E" + address, b"L" + address, b"T" + address],
        "producer": [b"K" + address, b"F" + address, b"G" + topic],
        "tower": [b"B"],
    }
    return random.choice(prefixes[aim.role])


def _random(random: Random, aim: Aim) -> list[bytes]:
    frames = [random.randbytes(random.randrange(64)) for _ in range(random.randrange(5))]
    return [_prefix(random, aim) + random.randbytes(random.randrange(32)), *frames]


def _truncated(random: Random, aim: Aim) -> list[bytes]:
    frames = _encode(_valid(random, aim), random)
    place = random.randrange(len(frames))
    frames[place] = frames[place][: random.randrange(1, len(frames[place]) + 1)]
    return frames


def _flipped(random: Random, aim: Aim) -> list[bytes]:
    frames = _encode(_valid(random, aim), random)
    place = len(frames) - 1 if len(frames) == 1 else random.randrange(1, len(frames))
    octets = bytearray(frames[place] or b"\0")
    octets[random.randrange(len(octets))] ^= 1 << random.randrange(8)
    frames[place] = bytes(octets)
    return frames


def _many_frames(random: Random, aim: Aim) -> list[bytes]:
    return [_prefix(random, aim), *[b""] * random.randrange(3, 200)]


def _valid(random: Random, aim: Aim) -> wire.Message:
    return random.choice((_record, _head, _fetch, _ack, _get_heads, _direct_head, _store_hello))(random, aim)


def _sequence(random: Random) -> int:
    return random.choice((0, 1, random.getrandbits(20), random.getrandbits(40), 2**62, 2**63, HUGE))


def _record(random: Random, aim: Aim) -> wire.Message:
    address = random.choice((aim.partition, _name(random)))
    return wire.Record(address, aim.topic, _sequence(random) + (address == aim.partition) * 2**20 & HUGE, b"x" * 50)


def _head(random: Random, aim: Aim) -> wire.Message:
    return wire.Head(random.choice((aim.partition, _name(random))), aim.topic, _sequence(random))


def _fetch(random: Random, aim: Aim) -> wire.Message:
    partition = aim.address if aim.role == "producer" else random.choice((aim.partition, _name(random)))
    count = random.choice((0, 1, 1000, COUNT_HUGE))
    return wire.Fetch(partition, _name(random), aim.topic, random.choice((0, _sequence(random))), count)


def _ack(random: Random, aim: Aim) -> wire.Message:
    return wire.Ack(aim.address, aim.topic, random.choice((2**40, 2**62, HUGE)), _name(random))


def _get_heads(random: Random, aim: Aim) -> wire.Message:
    return wire.GetHeads(aim.topic, _name(random))


def _direct_head(random: Random, aim: Aim) -> wire.Message:
    return wire.DirectHead(aim.address, _name(random), aim.topic, _sequence(random))


def _store_hello(random: Random, aim: Aim) -> wire.Message:
    return wire.StoreHello(aim.address, _name(random))


def _of(make: Callable[[Random, Aim], wire.Message]) -> Family:
    return lambda random, aim: _encode(make(random, aim), random)


def _partitions(random: Random, aim: Aim) -> list[bytes]:
    """A new partition each, with a first record that is as good as any."""
    return _encode(wire.Record(_name(random), aim.topic, 0, b"x" * 50), random)


def _topics(random: Random, aim: Aim) -> list[bytes]:
    return _encode(wire.Record(_name(random), f"{aim.topic}{random.getrandbits(64):x}", 0, b""), random)


def _ahead(random: Random, aim: Aim) -> list[bytes]:
    """Records of an honest partition beyond its head, each with a gap before it."""
    return _encode(wire.Record(aim.partition, aim.topic, 2**30 + 2 * random.getrandbits(24), b"x" * 1000), random)


def _hello(random: Random, aim: Aim) -> list[bytes]:
    count = random.choice((1, 100, 2000))
    topics = [aim.topic, *(f"{random.getrandbits(48):x}" for _ in range(count))]
    if aim.role == "store":
        return _encode(wire.ConsumerHello(aim.address, _name(random), topics), random)
    return _encode(_store_hello(random, aim), random)


def _earliest(random: Random, aim: Aim) -> list[bytes]:
    partition = random.choice((aim.partition, _name(random)))
    sequence = random.choice((HUGE, 2**50, 5))
    return _encode(wire.DirectEarliest(aim.address, _name(random), partition, aim.topic, sequence, 2**61), random)


def _counts(random: Random, aim: Aim) -> list[bytes]:
    """A list that says that it has four billion members, and a text that says that it has as many octets."""
    octets = b"\xaa\xa5W\x01" + bytes((32,)) + _name(random).encode() + COUNT_HUGE.to_bytes(4, "big")
    return [b"W" + aim.address.encode(), octets + random.randbytes(8)]


def _direct_records(random: Random, aim: Aim) -> list[bytes]:
    return _encode(wire.DirectRecord(aim.address, _name(random), aim.topic, _sequence(random), b"x" * 50), random)


def _fetch_all(random: Random, aim: Aim) -> list[bytes]:
    """Everything, for a requestor that does not exist."""
    partition = aim.address if aim.role == "producer" else aim.partition
    return _encode(wire.Fetch(partition, _name(random), aim.topic, 0, COUNT_HUGE), random)


FAMILIES: dict[str, Family] = {
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
"""What is sent to a node that has connected."""


def _beacon_rubbish(random: Random, _: Aim) -> list[bytes]:
    return [b"B", *(random.randbytes(random.randrange(40)) for _ in range(random.randrange(6)))]


def _beacon_million(random: Random, _: Aim) -> list[bytes]:
    return [b"B", _name(random).encode(), b"127.0.0.1", b"%d" % random.randrange(1, 65536)]


def _beacon_elsewhere(random: Random, _: Aim) -> list[bytes]:
    host = random.choice((b"192.0.2.%d" % random.randrange(256), b"host-%x.invalid" % random.getrandbits(32)))
    return [b"B", _name(random).encode(), host, b"%d" % random.randrange(1, 65536)]


def _beacon_of_another(random: Random, aim: Aim) -> list[bytes]:
    return [b"B", aim.partition.encode(), b"127.0.0.1", b"%d" % random.randrange(1, 65536)]


BEACON_FAMILIES: dict[str, Family] = {
    "beacon-rubbish": _beacon_rubbish,
    "beacon-million": _beacon_million,
    "beacon-elsewhere": _beacon_elsewhere,
    "beacon-of-another": _beacon_of_another,
}
"""What is sent to a tower."""


def generate(family: str, aim: Aim, seed: int) -> Iterator[list[bytes]]:
    """The family's messages, without end; those of `mixed` are of all families."""
    families = BEACON_FAMILIES if aim.role == "tower" else FAMILIES
    random = Random(seed)
    if family == "mixed":
        makers = list(families.values())
        while True:
            yield random.choice(makers)(random, aim)
    make = families[family]
    while True:
        yield make(random, aim)


def honest_run(aim: Aim, first: int, contents: list[bytes]) -> Iterator[list[bytes]]:
    """Frames of records as the honest producer would send them; who sends them is not that producer."""
    run = wire.RecordRun(RecordBatch(Partition(aim.topic, aim.partition), first, contents))
    yield from (list(frames) for frames in iter_frames(wire.BatchEncoder(wire.Dialect.RFC46).encode([run])))
