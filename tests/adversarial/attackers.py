"""Attackers: raw ZeroMQ sockets that pass for nodes, and send what they like as fast as they can.

An attacker whose connection is ended comes back as another node. `python -m tests.adversarial.attackers` runs one
as a process, whose work does not slow the one that measures.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from itertools import islice
from uuid import uuid4

import zmq

from tests.adversarial.families import FAMILIES, Aim, generate

POOL = 20_000
"""Messages made beforehand, and sent again and again: making one takes longer than sending it."""

REFRESH = 2000
"""Of those, so many are made anew each time around."""

BEACON_S = 0.5


class Attacker:
    """One connection at a time, to a tower and from whoever follows the beacon.

    Attributes:
        sent: messages that somebody's queue has taken.
        lives: how often it has come as another node.
    """

    def __init__(self, aim: Aim, family: str, seed: int, tower_sub: str) -> None:
        self.sent = 0
        self.lives = 0
        self._aim = aim
        self._tower_sub = tower_sub
        self._is_beacons = aim.role == "tower"
        self._messages = generate(family, aim, seed)
        self._pool: list[list[bytes]] = list(islice(self._messages, POOL if family != "hellos" else 200))
        self._context = zmq.Context()
        self._begin()

    def _begin(self) -> None:
        self.lives += 1
        self._address = uuid4().hex.upper().encode()
        self._beacons = self._context.socket(zmq.XPUB)
        self._beacons.linger = 0
        self._beacons.connect(self._tower_sub)
        self._publisher = self._context.socket(zmq.XPUB)
        self._publisher.linger = 0
        self._publisher.setsockopt(zmq.XPUB_NODROP, 1)
        self._publisher.setsockopt(zmq.SNDHWM, 2000)
        if self._is_beacons:
            self._publisher.connect(self._tower_sub)
            self._port = 1
        else:
            self._port = self._publisher.bind_to_random_port("tcp://127.0.0.1")
        self._beacon_at = 0.0
        self._subscriptions = 0
        self._had_subscriptions = False
        self._alone_since = time.monotonic()

    def _end(self) -> None:
        self._beacons.close()
        self._publisher.close()

    def _beat(self, now: float) -> None:
        if now >= self._beacon_at and not self._is_beacons:
            self._beacon_at = now + (BEACON_S if self._subscriptions else 0.05)
            self._beacons.send_multipart([b"B", self._address, b"127.0.0.1", b"%d" % self._port])
        while self._publisher.poll(0):
            self._subscriptions += 1 if self._publisher.recv()[:1] == b"\1" else -1
        if self._subscriptions > 0:
            self._alone_since = now
            self._had_subscriptions = True

    def run(self, frames: int, seconds: float) -> None:
        """Sends so many, or for so long."""
        until = time.monotonic() + seconds
        place = 0
        while self.sent < frames and (now := time.monotonic()) < until:
            self._beat(now)
            if self._subscriptions <= 0:
                if (now - self._alone_since > 0.3 and self._had_subscriptions) or now - self._alone_since > 3.0:
                    self._end()
                    self._begin()
                time.sleep(0.005)
                continue
            if place >= len(self._pool):
                place = 0
                fresh = list(islice(self._messages, min(REFRESH, len(self._pool))))
                self._pool = self._pool[len(fresh) :] + fresh
            place = self._send(place, min(place + 200, len(self._pool)))

    def _send(self, place: int, end: int) -> int:
        send, more = self._publisher.send, zmq.SNDMORE | zmq.NOBLOCK
        for message in self._pool[place:end]:
            try:
                for frame in message[:-1]:
                    send(frame, more)
                send(message[-1], zmq.NOBLOCK)
            except zmq.Again:
                time.sleep(0.001)
                return place
            self.sent += 1
            place += 1
        return place

    def close(self) -> None:
        """Is gone."""
        self._end()
        self._context.term()


def flood_subscriptions(endpoint: str, count: int, seed: int) -> int:
    """Subscribes to so many different things; gives how many."""
    context = zmq.Context()
    with context, context.socket(zmq.SUB) as subscriber:
        subscriber.linger = 0
        subscriber.connect(endpoint)
        for prefix in islice(_subscriptions(seed), count):
            subscriber.subscribe(prefix)
        time.sleep(3)
    return count


def _subscriptions(seed: int) -> Iterator[bytes]:
    commands = (b"M", b"H", b"K", b"F", b"G", b"W", b"D", b"E", b"L", b"T")
    number = seed << 32
    while True:
        number += 1
        yield commands[number % len(commands)] + b"%032X" % (number * 0x9E3779B97F4A7C15 % 2**128)


def main() -> None:
    """Attacks as a line of JSON says, and tells in another one what was sent."""
    order = json.loads(sys.stdin.readline())
    aim = Aim(**order["aim"])
    if order["family"] == "subscriptions":
        sent, lives = flood_subscriptions(order["endpoint"], order["frames"], order["seed"]), 1
    else:
        attacker = Attacker(aim, order["family"], order["seed"], order["tower_sub"])
        attacker.run(order["frames"], order["seconds"])
        sent, lives = attacker.sent, attacker.lives
        attacker.close()
    sys.stdout.write(json.dumps({"sent": sent, "lives": lives}) + "\n")


NODE_FAMILIES = (*FAMILIES, "subscriptions", "mixed")

if __name__ == "__main__":
    main()
