"""The sockets of a node: what they carry, their limits, and what is left when they are closed."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import pytest
import trio
import trio.lowlevel
import zmq

from dafka.config import NodeConfig
from dafka.endpoints import PeerEndpoint
from dafka.errors import AddressInUseError
from dafka.transport import KeyPair, Mesh, Security, Socket, open_context, open_mesh
from dafka.transport.keys import AuthorizedKeys
from dafka.transport.plain_subscriber import PlaintextSubscriber
from dafka.transport.socket import BaseSocket
from dafka.transport.subscribers import CurveSubscriber
from dafka.wire.batch import iter_frames
from tests.ports import free_endpoints
from tests.waiting import DEADLINE_S, wait_until

CONFIG = NodeConfig(bind="tcp://127.0.0.1:*")


def held() -> tuple[list[str], list[str]]:
    """Return the open files of this process, and its threads that are not Python's: those of libzmq.

    These give themselves names a moment after they begin, and are listed for a moment after they have ended.
    """
    gc.collect()
    own = {str(thread.native_id) for thread in threading.enumerate()}
    return os.listdir("/proc/self/fd"), [each for each in os.listdir("/proc/self/task") if each not in own]


def held_since(before: tuple[list[str], list[str]]) -> list[str]:
    """Return what is held now and was not before. What an earlier test has held may have ended since."""
    return [name for was, now in zip(before, held(), strict=True) for name in set(now) - set(was)]


async def settle_threads() -> None:
    """Start trio's worker thread and pyzmq's collector. They stay for later use and hold open files."""
    zmq.Frame(b"content", copy=False, copy_threshold=0)
    async with open_context(0):
        pass


async def receive_until(mesh: Mesh, last: bytes) -> list[list[bytes]]:
    """Return the messages up to the one with this topic frame."""
    found: list[list[bytes]] = []
    while not found or found[-1][0] != last:
        items, _ = await mesh.subscriber.receive()
        found += [list(frames) for frames in iter_frames(items)]
    return found


async def join(reader: Mesh, publisher: Mesh, *prefixes: bytes) -> set[int]:
    """Subscribe, connect, and return the numbers of the connections once all subscriptions have arrived."""
    for prefix in prefixes:
        reader.subscriber.subscribe(prefix)
    reader.subscriber.connect_peer(PeerEndpoint(publisher.endpoint))
    missing, numbers = {b"\1" + prefix for prefix in prefixes}, set[int]()
    while missing:
        found = await publisher.publisher.receive_numbered()
        missing -= {frames[0] for _, frames in found}
        numbers |= {number for number, _ in found}
    return numbers


@pytest.mark.usefixtures("either_loops")
@pytest.mark.parametrize("batches", ["on", "off"])
async def test_each_peer_gets_records_in_the_form_that_it_takes(batches: Literal["on", "off"]) -> None:
    """A node that sends no batches sends single records to everybody."""
    config = NodeConfig(bind=CONFIG.bind, record_batches=batches)
    with trio.fail_after(DEADLINE_S):
        async with open_mesh(config, 1000) as one, open_mesh(CONFIG, 1000) as two, open_mesh(CONFIG, 1000) as three:
            await join(two, one, b"Bt", b"Mt", b"end")
            assert one.publisher.is_wanted(b"Mt") is (batches == "off")
            await join(three, one, b"Mt", b"end")
            assert one.publisher.is_wanted(b"Mt")
            one.publisher.send_many([[b"Bt", b"batch"], [b"Mt", b"single"], [b"end"]])
            single = [[b"Mt", b"single"]] if batches == "off" else []
            assert await receive_until(two, b"end") == [[b"Bt", b"batch"], *single, [b"end"]]
            assert await receive_until(three, b"end") == [[b"Mt", b"single"], [b"end"]]
            three.subscriber.unsubscribe(b"Mt")
            three.subscriber.subscribe(b"last")
            while [b"\1last"] not in await one.publisher.receive_many():
                pass
            assert one.publisher.is_wanted(b"Mt") is (batches == "off")
            assert one.publisher.is_wanted(b"Bt")


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_files_and_threads_are_released_when_the_block_ends(is_cancelled: bool) -> None:
    await settle_threads()
    before = held()
    with trio.CancelScope() as scope:
        async with open_mesh(CONFIG, 1000) as one, open_mesh(CONFIG, 1000) as two, trio.open_nursery() as nursery:
            one.subscriber.connect_peer(PeerEndpoint(two.endpoint))
            nursery.start_soon(one.subscriber.receive)
            nursery.start_soon(two.publisher.receive_many)
            await trio.lowlevel.checkpoint()
            assert set(held()[1]) - set(before[1])
            (scope if is_cancelled else nursery.cancel_scope).cancel()
    await wait_until(lambda: held_since(before) == [])


async def test_an_endpoint_in_use_costs_no_files_or_threads_and_is_free_again_after_the_block() -> None:
    await settle_threads()
    (endpoint,) = free_endpoints(1)
    config = NodeConfig(bind=endpoint)
    async with open_mesh(config, 1000) as mesh:
        before = held()
        with pytest.raises(AddressInUseError, match=rf"^cannot listen at {mesh.endpoint}: address already in use$"):
            async with open_mesh(config, 1000):
                pass
        await wait_until(lambda: held_since(before) == [])
    async with open_mesh(config, 1000) as again:
        assert (again.endpoint, again.port) == (mesh.endpoint, mesh.port)
        assert again.endpoint == f"tcp://127.0.0.1:{again.port}"


async def test_closing_waits_no_longer_than_the_linger_time_for_a_peer_that_receives_nothing() -> None:
    config = NodeConfig(bind=CONFIG.bind, linger_ms=100)
    await settle_threads()
    async with open_context(0) as context:
        stuck = Socket(context.socket(zmq.SocketType.SUB))
        try:
            stuck.set_options(rcvhwm=1, rcvbuf=4096)
            threads = held()[1]
            async with open_mesh(config, 0) as mesh:
                stuck.subscribe(b"topic")
                stuck.connect(mesh.endpoint)
                await mesh.publisher.receive_many()
                mesh.publisher.send_many([[b"topic", b"." * 10_000] for _ in range(5000)])
                before = trio.current_time()
            assert trio.current_time() - before >= 0.09  # libzmq's clock is coarse
            await wait_until(lambda: set(held()[1]) <= set(threads))
        finally:
            stuck.close(0)


OPTIONS_OF_CONNECTIONS = {
    # libzmq aborts a process that has to send a heartbeat on a broken connection while its messages wait: TCP does it.
    "heartbeat_ivl": 0,
    "tcp_keepalive": 1,
    "tcp_keepalive_idle": 3,
    "tcp_keepalive_intvl": 1,
    "tcp_keepalive_cnt": 3,
    "tcp_maxrt": 6000,
    "connect_timeout": 2000,
    "reconnect_ivl_max": 2000,
    "handshake_ivl": 10_000,
    "maxmsgsize": 5000 + 1024,
}


@pytest.mark.parametrize(("high_watermark", "received"), [(0, 700), (1, 1), (699, 699), (700, 700), (701, 700)])
@pytest.mark.parametrize("is_closed", [True, False])
async def test_the_sockets_of_a_node_have_the_limits_that_are_configured(
    high_watermark: int, received: int, is_closed: bool, tmp_path: Path
) -> None:
    config = NodeConfig(bind=CONFIG.bind, receive_messages_max=700, message_bytes_max=5000)
    own, peer = KeyPair.generate(), KeyPair.generate()
    (tmp_path / "list").write_text(peer.public)
    security = Security(own, AuthorizedKeys(tmp_path / "list", own.public), ()) if is_closed else None
    async with open_mesh(config, high_watermark, security) as mesh:
        mesh.subscriber.connect_peer(PeerEndpoint("tcp://127.0.0.1:9", peer.public))
        if isinstance(mesh.subscriber, PlaintextSubscriber):
            restricted = mesh.subscriber._socket_of("", is_restricted=True)
            assert options_of(restricted, OPTIONS_OF_CONNECTIONS) == OPTIONS_OF_CONNECTIONS
            assert options_of(restricted, ["rcvhwm"]) == {"rcvhwm": 100}
            connected = mesh.subscriber._main.socket
        else:
            assert isinstance(mesh.subscriber, CurveSubscriber)
            connected = mesh.subscriber._sockets[peer.public].socket
        assert options_of(connected, OPTIONS_OF_CONNECTIONS) == OPTIONS_OF_CONNECTIONS
        assert options_of(connected, ["rcvhwm"]) == {"rcvhwm": received}
        expected = {"sndhwm": high_watermark, "maxmsgsize": 1024, "handshake_ivl": 10_000, "heartbeat_ivl": 0}
        assert options_of(mesh.publisher, expected) == expected
        # libzmq's threads block while the queue of a monitor is full.
        assert options_of(mesh.publisher.accepted._monitor, ["rcvhwm"]) == {"rcvhwm": 0}


def options_of(socket: BaseSocket, names: Iterable[str]) -> dict[str, object]:
    return {name: socket._socket.getsockopt(getattr(zmq, name.upper())) for name in names}


async def test_the_end_of_a_connection_ends_its_subscriptions_and_no_others() -> None:
    with trio.fail_after(DEADLINE_S):
        async with open_mesh(CONFIG, 1000) as one, open_mesh(CONFIG, 1000) as two, trio.open_nursery() as nursery:
            nursery.start_soon(one.publisher.watch)
            async with open_mesh(CONFIG, 1000) as three:
                await join(two, one, b"a", b"b", b"d")
                (number,) = await join(three, one, b"b", b"c", b"d")
                three.subscriber.unsubscribe(b"d")  # two still has it
                three.subscriber.subscribe(b"e")
                assert await one.publisher.receive_many() == [[b"\1e"]]
            # A reader is woken by the end alone, and two still has b.
            ended: list[tuple[int, list[bytes]]] = []
            while len(ended) < 2:
                ended += await one.publisher.receive_numbered()
            assert sorted(ended) == [(number, [b"\0c"]), (number, [b"\0e"])]
            two.subscriber.unsubscribe(b"b")
            assert await one.publisher.receive_many() == [[b"\0b"]]
            nursery.cancel_scope.cancel()


async def test_a_peer_with_too_many_subscriptions_is_disconnected_and_others_are_served() -> None:
    config = NodeConfig(bind=CONFIG.bind, subscriptions_max=500, subscription_bytes_max=20_000)
    received: list[bytes] = []
    with (
        trio.fail_after(DEADLINE_S),
        zmq.Context() as context,
        context.socket(zmq.SUB) as honest,
        context.socket(zmq.SUB) as greedy,
    ):
        async with open_mesh(config, 1000) as mesh, trio.open_nursery() as nursery:

            async def listen() -> None:
                while True:
                    received.extend(message[0] for message in await mesh.publisher.receive_many())

            nursery.start_soon(listen)
            honest.connect(mesh.endpoint)
            honest.subscribe(b"Mhonest")
            await wait_until(lambda: b"\1Mhonest" in received)
            greedy.linger = honest.linger = 0
            greedy.connect(mesh.endpoint)
            for number in range(2000):
                greedy.subscribe(b"M" + b"x" * 200 + b"%d" % number)
            await wait_until(lambda: bool(mesh.publisher.discarded["connection ended: too many subscriptions"]))
            mesh.publisher.send_many([[b"Mhonest", b"served"]])
            await wait_until(lambda: bool(honest.poll(0)))
            assert honest.recv_multipart() == [b"Mhonest", b"served"]
            nursery.cancel_scope.cancel()
    assert received.count(b"\1Mhonest") == 1
