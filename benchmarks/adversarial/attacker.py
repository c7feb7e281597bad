"""An attacker: raw ZeroMQ sockets that pose as a node, and send anything as fast as they can.

If its connection is ended, an attacker comes back as another node. `python -m benchmarks.adversarial.attacker` runs one
in a process of its own, so that it does not slow the process that measures.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from itertools import islice
from uuid import uuid4

import zmq

from tests.adversarial.attacks import NODE_ATTACKS, Target, generate

POOL = 20_000
"""Messages that are made in advance and sent repeatedly. Making a message takes longer than sending it."""

REFRESH = 2000
"""Messages of the pool that are replaced after each round."""

BEACON_S = 0.5


class Attacker:
    """An attacker with one identity at a time, which beacons to a tower and publishes to the nodes that connect.

    Attributes:
        sent: Messages that a send queue has accepted.
        connections: Identities used so far.
    """

    def __init__(self, target: Target, attack: str, seed: int, tower_sub: str) -> None:
        self.sent = 0
        self.connections = 0
        self._aim = target
        self._tower_sub = tower_sub
        self._is_beacons = target.role == "tower"
        self._messages = generate(attack, target, seed)
        self._pool: list[list[bytes]] = list(islice(self._messages, POOL if attack != "hellos" else 200))
        self._context = zmq.Context()

    def begin(self) -> None:
        """Become a new node."""
        self.connections += 1
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
        """Send messages until a number is reached or a time has passed."""
        until = time.monotonic() + seconds
        place = 0
        while self.sent < frames and (now := time.monotonic()) < until:
            self._beat(now)
            if self._subscriptions <= 0:
                if (now - self._alone_since > 0.3 and self._had_subscriptions) or now - self._alone_since > 3.0:
                    self._end()
                    self.begin()
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
        """Close the sockets."""
        self._end()
        self._context.term()


def flood_subscriptions(endpoint: str, count: int, seed: int) -> int:
    """Subscribe to a number of different prefixes, and return that number."""
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
    """Prepare the attack that a line of JSON on standard input describes, and print a line.

    Attack when another line comes, and print the numbers of sent messages as another line. Making messages takes
    processor time that a real attacker would spend on its own machine.
    """
    order = json.loads(sys.stdin.readline())
    target = Target(**order["target"])
    attacker = None
    if order["attack"] != "subscriptions":
        attacker = Attacker(target, order["attack"], order["seed"], order["tower_sub"])
    say_line(is_ready=True)
    sys.stdin.readline()
    if attacker is None:
        sent, connections = flood_subscriptions(order["endpoint"], order["frames"], order["seed"]), 1
    else:
        attacker.begin()
        attacker.run(order["frames"], order["seconds"])
        sent, connections = attacker.sent, attacker.connections
        attacker.close()
    say_line(sent=sent, connections=connections)


def say_line(**values: int) -> None:
    """Print a line of JSON."""
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


ALL_ATTACKS = (*NODE_ATTACKS, "subscriptions", "mixed")

if __name__ == "__main__":
    main()
