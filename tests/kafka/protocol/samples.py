"""Messages with random values, made from the tables."""

from __future__ import annotations

import uuid
from random import Random
from typing import Any, TypeVar

from dafka.kafka.protocol.apis import REQUESTS, RESPONSES
from dafka.kafka.protocol.tables import NIL, Field, Kind, Message, Struct, fields_of

M = TypeVar("M", bound=Struct)

MESSAGES: dict[str, type[Message]] = {each.__name__: each for each in [*REQUESTS.values(), *RESPONSES.values()]}
"""All messages by name."""

NUMBER_BITS = {Kind.INT8: 8, Kind.INT16: 16, Kind.INT32: 32, Kind.INT64: 64}
TEXTS = ["", "orders", "größe-日本", "x" * 126, "y" * 127, "z" * 300]
SIZES = [0, 1, 126, 127, 128, 20_000]


def random_message(table: type[M], version: int, random: Random, *, tame: bool = False) -> M:
    """Return a message with random values; fields that the version does not have get their defaults.

    The values of `tame` messages are ones that other libraries accept: no negative times, no unknown error codes.
    """
    message = object.__new__(table)
    for each in fields_of(table):
        value = _random_field(each, version, random, tame=tame) if each.versions.has(version) else each.default
        setattr(message, each.name, list(value) if isinstance(value, list) else value)
    return message


def _random_field(each: Field, version: int, random: Random, *, tame: bool) -> Any:
    if each.tag is not None and random.random() < 0.3:
        return each.default
    if each.nullable.has(version) and random.random() < 0.2:
        return None
    if each.is_array:
        return [_random_value(each, version, random, tame=tame) for _ in range(random.choice([0, 1, 1, 2, 3]))]
    return _random_value(each, version, random, tame=tame)


def _random_value(each: Field, version: int, random: Random, *, tame: bool) -> Any:
    if each.struct is not None:
        return random_message(each.struct, version, random, tame=tame)
    if each.kind is Kind.UINT16:
        return random.choice([0, 1, 9092, 2**15, 2**16 - 1])
    if each.kind in NUMBER_BITS:
        if tame and "error_code" in each.name:
            return random.randrange(100)
        bits = random.choice([1, NUMBER_BITS[each.kind] // 2 - 1, NUMBER_BITS[each.kind] - 1])
        if tame:
            return random.getrandbits(min(bits, 40))
        return random.getrandbits(bits) - random.choice([0, 1]) * (1 << bits)
    makers: dict[Kind, Any] = {
        Kind.BOOLEAN: lambda: random.random() < 0.5,
        Kind.FLOAT64: lambda: random.choice([0.0, -1.5, 1e300, random.random()]),
        Kind.STRING: lambda: random.choice(TEXTS),
        Kind.UUID: lambda: random.choice([NIL, uuid.UUID(int=random.getrandbits(128))]),
    }
    return makers.get(each.kind, lambda: random.randbytes(random.choice(SIZES)))()


def versions_of(message: type[Message]) -> range:
    return range(message.VERSIONS.first, message.VERSIONS.last + 1)
