"""A SUB socket that is connected to one place alone: whatever comes by it is from whoever is there."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import trio
import zmq

from dafka.protocol import HandshakeRefused
from dafka.transport.caller import Caller
from dafka.transport.closed import split_place
from dafka.transport.security import Security
from dafka.transport.socket import Socket

HIGH_WATERMARK = 100_000
"""Messages queued, of whoever sends faster than they are taken; further ones wait with the sender."""

MESSAGE_BYTES_MAX = 4096
"""Enough for beacons, and for every command but RECORDs: those are not what is listened to."""


async def listen(
    context: zmq.Context[zmq.Socket[bytes]],
    security: Security | None,
    place: str,
    prefixes: Iterable[bytes],
    take: Callable[[list[list[bytes]]], None],
    made: Callable[[str], None],
    refused: Callable[[HandshakeRefused], None],
) -> None:
    """Gives `take` what comes from a place, an endpoint followed in a closed cluster by a space and a key.

    Until cancelled. `made` is told the endpoint whenever a connection is made, `refused` why one is not.

    Raises `TransportError` where that is no place to connect to.
    """
    endpoint, key = split_place(place)
    socket = Socket(context.socket(zmq.SocketType.SUB))
    caller = Caller(socket, security, made, refused)
    try:
        socket.set_options(rcvhwm=HIGH_WATERMARK, maxmsgsize=MESSAGE_BYTES_MAX)
        for prefix in prefixes:
            socket.subscribe(prefix)
        caller.connect(endpoint, key)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(caller.watch)
            while True:
                take(await socket.receive_many())
    finally:
        socket.close(0)
        caller.close()
