"""Hostile frames: requests and responses that were cut, changed, or claim lengths and counts that they do not have."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple

from dafka.errors import WireError
from dafka.kafka.protocol.apis import REQUESTS, RESPONSES
from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.frames import RequestHeader, decode_request, decode_response, encode_request, encode_response
from dafka.kafka.protocol.tables import Response
from tests.kafka.protocol.samples import random_message, versions_of

FRAME_BYTES_MAX = 2**16
_CLAIMS = [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\0\1\x86\xa0", b"\x7f\xff", b"\xff\xfe"]
_UVARINTS = [
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x7f",
    b"\x80\x80\x80\x80\x80\x80",
    b"\xa1\x8d\x06",
    b"\xff\xff\x03",
]


class HostileFrame(NamedTuple):
    """A frame, and who reads it: a broker if `response` is None, otherwise a client that waits for this."""

    data: bytes
    response: type[Response] | None
    version: int

    def decode(self) -> Any:
        """Return what the reader makes of it."""
        if self.response is None:
            return decode_request(self.data)
        return decode_response(self.data, self.response, self.version)


@functools.cache
def honest_frames() -> tuple[HostileFrame, ...]:
    """Return a frame of each version of each request and response."""
    frames, random = [], Random(17)
    for request in REQUESTS.values():
        for version in versions_of(request):
            message = random_message(request, version, random)
            frames.append(HostileFrame(encode_request(message, version, 1, "client")[4:], None, version))
    for key, response in RESPONSES.items():
        for version in versions_of(response):
            header = RequestHeader(ApiKey(key), version, 1, None)
            answer = random_message(response, version, random)
            frames.append(HostileFrame(encode_response(header, answer)[4:], response, version))
    return tuple(frame for frame in frames if len(frame.data) < 2000)


def _cut(data: bytes, random: Random) -> bytes:
    return data[: random.randrange(len(data))]


def _flip(data: bytes, random: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(random.choice([1, 1, 2, 5])):
        changed[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return bytes(changed)


def _claim(data: bytes, random: Random) -> bytes:
    place, claim = random.randrange(len(data)), random.choice(_CLAIMS + _UVARINTS)
    return data[:place] + claim + data[place + random.choice([0, 1, len(claim)]) :]


def _repeat(data: bytes, random: Random) -> bytes:
    start, end = sorted((random.randrange(len(data)), random.randrange(len(data))))
    return data[:end] + data[start:end] * random.choice([1, 2, 30])


def _fill(data: bytes, random: Random) -> bytes:
    """Return a frame that claims as many small items as it has bytes."""
    start, size = random.randrange(len(data)), random.choice([10, 1000, FRAME_BYTES_MAX])
    count = struct.pack(">i", size // random.choice([1, 2, 4, 8]))
    return data[:start] + random.choice([count, b"\xff\xff\x03"]) + random.choice([b"\0", b"\1", b"\2"]) * size


def _noise(data: bytes, random: Random) -> bytes:
    return data[: random.choice([0, 8, 12, 14])] + random.randbytes(random.randrange(200))


_MUTATIONS: list[Callable[[bytes, Random], bytes]] = [_cut, _cut, _flip, _flip, _flip, _claim, _claim, _repeat, _noise]


def hostile_frames(seed: int, count: int) -> Iterator[HostileFrame]:
    """Yield hostile frames, the same for the same seed."""
    random, honest = Random(seed), honest_frames()
    for number in range(count):
        frame = random.choice(honest)
        mutation = _fill if number % 500 == 0 else random.choice(_MUTATIONS)
        yield frame._replace(data=mutation(frame.data, random))


def outcome(frame: HostileFrame) -> str:
    """Return `well-formed`, or the last part of the name of the field that is wrong."""
    try:
        frame.decode()
    except WireError as error:
        return error.field.rpartition(".")[2]
    return "well-formed"
