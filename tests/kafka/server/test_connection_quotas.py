"""Thousands of idle connections and hostile frames over live sockets, beside honest clients."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import ExitStack, suppress

import psutil
import pytest

from dafka.kafka.protocol.frames import encode_request
from dafka.kafka.protocol.messages.connections import ApiVersionsRequest
from dafka.transport import raise_descriptors_max
from tests.cli.harness import FREE, Dafka
from tests.kafka.protocol.hostile import hostile_frames
from tests.kafka.server.clients import Confluent, Message

KIB, MIB = 2**10, 2**20
CONNECTION_BYTES_MAX = 64 * KIB
"""The memory that an idle connection may take in the broker."""

RECEIVING_BYTES_MAX = 64 * MIB
GROWTH_BYTES_MAX = 256 * MIB
"""How far the broker's memory may grow under hostile frames."""

CORRELATION = b"\x5a\xa5\x5a\xa5"
QUESTION = encode_request(ApiVersionsRequest(), 0, int.from_bytes(CORRELATION, "big"))
ANSWER_S = 60.0
HOSTILE_S = 0.2
"""How long a hostile client waits for an answer; the broker gives none while it waits for the rest of a frame."""


def connect(servers: str) -> socket.socket:
    host, _, port = servers.rpartition(":")
    found = socket.create_connection((host, int(port)), 30)
    # Closed without waiting: otherwise the ports of thousands of connections stay in use.
    found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return found


def is_answered(connection: socket.socket, answer_s: float = ANSWER_S) -> bool:
    """Return whether the broker answers a question in time, and neither waits nor disconnects."""
    connection.settimeout(answer_s)
    received = b""
    try:
        connection.sendall(QUESTION)
        while CORRELATION not in received:
            data = connection.recv(MIB)
            if not data:
                return False
            received = (received + data)[-4096:]
    except OSError:
        return False
    return True


def send_hostile_frames(servers: str, seed: int, count: int) -> None:
    """Send hostile frames, on a new connection whenever the broker has ended the one before."""
    connection = connect(servers)
    for frame in hostile_frames(seed, count):
        with suppress(OSError):
            connection.sendall(len(frame.data).to_bytes(4, "big") + frame.data)
        if not is_answered(connection, HOSTILE_S):
            connection.close()
            connection = connect(servers)
    connection.close()


@pytest.mark.parametrize(
    ("idle", "frames"), [(100, 150), pytest.param(5000, 40_000, marks=[pytest.mark.long, pytest.mark.timeout(1800)])]
)
def test_honest_clients_are_served_beside_idle_connections_and_hostile_frames(
    dafka: Dafka, idle: int, frames: int
) -> None:
    raise_descriptors_max()
    environment = {"DAFKA_KAFKA_RECEIVING_BYTES_MAX": str(RECEIVING_BYTES_MAX)}
    arguments = ("up", "--sub", FREE, "--pub", FREE, "--kafka", "0", "--storage", f"filelog:{dafka.folder}/log")
    up = dafka.start(*arguments, environment=environment)
    servers, process = up.wait_output(3)[2].split()[-1], psutil.Process(up.process.pid)
    with ExitStack() as stack:
        Confluent().write(servers, "warm", [Message(b"x")], "none")
        before = process.memory_info().rss
        connections = [stack.enter_context(connect(servers)) for _ in range(idle)]
        assert all(is_answered(each) for each in connections)
        grown = process.memory_info().rss - before
        print(f"{idle} idle connections take {grown / idle / KIB:.1f} KiB each")
        assert grown < idle * CONNECTION_BYTES_MAX + 16 * MIB

        attackers = [threading.Thread(target=send_hostile_frames, args=(servers, n, frames // 2)) for n in range(2)]
        # These announce large requests and never send the rest.
        for _ in range(20):
            stack.enter_context(connect(servers)).sendall((90 * MIB).to_bytes(4, "big") + bytes(32 * KIB))
        before = process.memory_info().rss
        for each in attackers:
            each.start()
        rounds = 0
        while rounds < 2 or any(each.is_alive() for each in attackers):
            values = [Message(b"honest %d" % n) for n in range(100)]
            Confluent().write(servers, f"honest-{rounds}", values, "none")
            found = Confluent().read(servers, f"honest-{rounds}", 100, f"group-{rounds}")
            assert [each.value for each in found] == [each.value for each in values]
            rounds += 1
        for each in attackers:
            each.join()
        grown = process.memory_info().rss - before
        print(f"{frames} hostile frames let the memory grow by {grown / MIB:.1f} MiB; honest clients: {rounds} rounds")
        assert grown < GROWTH_BYTES_MAX
        assert all(is_answered(each) for each in connections)
    assert up.process.poll() is None, up.errors
