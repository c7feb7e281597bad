from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
import trio
import trio.lowlevel
import zmq

from dafka.config import NodeConfig
from dafka.endpoints import PeerEndpoint
from dafka.errors import AddressInUseError
from dafka.transport import Mesh, Socket, open_context, open_mesh
from dafka.transport.plain_subscriber import PlaintextSubscriber
from dafka.wire.batch import iter_frames

pytestmark = pytest.mark.usefixtures("either_loops")

CONFIG = NodeConfig(bind="tcp://127.0.0.1:*")


def held() -> tuple[list[str], list[str]]:
    """Return the open files of this process and the names of libzmq's threads in it."""
    gc.collect()
    threads = [task.joinpath("comm").read_text() for task in Path("/proc/self/task").iterdir()]
    return sorted(os.listdir("/proc/self/fd")), [name for name in threads if name.startswith("ZMQ")]


async def settle_threads() -> None:
    """Start trio's worker thread. It stays for later use and holds open files."""
    async with open_context(0):
        pass


async def test_mesh_carries_messages_between_two_nodes() -> None:
    with trio.fail_after(20):
        async with open_mesh(CONFIG, 1000) as one, open_mesh(CONFIG, 1000) as two:
            assert one.port != two.port
            assert one.endpoint == f"tcp://127.0.0.1:{one.port}"
            two.subscriber.subscribe(b"topic")
            two.subscriber.connect_peer(PeerEndpoint(one.endpoint))
            assert await one.publisher.receive_many() == [[b"\x01topic"]]
            one.publisher.send_many([[b"topic", b"0"]])
            assert await two.subscriber.receive() == ([[b"topic", b"0"]], PeerEndpoint(""))


async def test_every_subscription_is_reported_even_if_another_peer_has_the_same() -> None:
    with trio.fail_after(20):
        async with open_mesh(CONFIG, 1000) as one, open_mesh(CONFIG, 1000) as two, open_mesh(CONFIG, 1000) as three:
            for mesh in (two, three):
                mesh.subscriber.subscribe(b"topic")
                mesh.subscriber.connect_peer(PeerEndpoint(one.endpoint))
                assert await one.publisher.receive_many() == [[b"\x01topic"]]


async def test_subscriptions_come_with_the_number_of_their_connection() -> None:
    with trio.fail_after(20):
        async with open_mesh(CONFIG, 1000) as one, open_mesh(CONFIG, 1000) as two, open_mesh(CONFIG, 1000) as three:
            found: list[tuple[int, list[bytes]]] = []
            for mesh in (two, three):
                mesh.subscriber.subscribe(b"a")
                mesh.subscriber.subscribe(b"b")
                mesh.subscriber.connect_peer(PeerEndpoint(one.endpoint))
                while len(found) % 2 or len({number for number, _ in found}) < (1 if mesh is two else 2):
                    found += await one.publisher.receive_numbered()
            assert [frames for _, frames in found] == [[b"\1a"], [b"\1b"]] * 2
            numbers = [number for number, _ in found]
            assert numbers[0] == numbers[1] != numbers[2] == numbers[3]
            assert min(numbers) >= 0


async def receive_until(mesh: Mesh, last: bytes) -> list[list[bytes]]:
    """Return the messages up to the one with this topic frame."""
    found: list[list[bytes]] = []
    while not found or found[-1][0] != last:
        items, _ = await mesh.subscriber.receive()
        found += [list(frames) for frames in iter_frames(items)]
    return found


async def test_each_peer_gets_records_in_the_form_that_it_takes() -> None:
    with trio.fail_after(20):
        async with open_mesh(CONFIG, 1000) as one, open_mesh(CONFIG, 1000) as two, open_mesh(CONFIG, 1000) as three:
            for mesh, prefixes in ((two, (b"Bt", b"Mt", b"end")), (three, (b"Mt", b"end"))):
                for prefix in prefixes:
                    mesh.subscriber.subscribe(prefix)
                mesh.subscriber.connect_peer(PeerEndpoint(one.endpoint))
                missing = {b"\1" + prefix for prefix in prefixes}
                while missing:
                    missing -= {frames[0] for frames in await one.publisher.receive_many()}
            assert one.publisher.is_wanted(b"Mt")
            one.publisher.send_many([[b"Bt", b"batch"], [b"Mt", b"single"], [b"end"]])
            assert await receive_until(two, b"end") == [[b"Bt", b"batch"], [b"end"]]
            assert await receive_until(three, b"end") == [[b"Mt", b"single"], [b"end"]]
            three.subscriber.unsubscribe(b"Mt")
            three.subscriber.subscribe(b"last")
            while [b"\1last"] not in await one.publisher.receive_many():
                pass
            assert not one.publisher.is_wanted(b"Mt")
            assert one.publisher.is_wanted(b"Bt")


async def test_files_and_threads_are_released_when_the_block_ends() -> None:
    await settle_threads()
    before = held()
    async with open_mesh(CONFIG, 1000) as one, open_mesh(CONFIG, 1000) as two:
        one.subscriber.connect_peer(PeerEndpoint(two.endpoint))
        assert len(held()[1]) > len(before[1])
    assert held() == before


async def test_files_and_threads_are_released_when_the_block_is_cancelled() -> None:
    await settle_threads()
    before = held()
    with trio.CancelScope() as scope:
        async with open_mesh(CONFIG, 1000) as one, open_mesh(CONFIG, 1000) as two, trio.open_nursery() as nursery:
            one.subscriber.connect_peer(PeerEndpoint(two.endpoint))
            nursery.start_soon(one.subscriber.receive)
            nursery.start_soon(two.publisher.receive_many)
            await trio.lowlevel.checkpoint()
            scope.cancel()
    assert held() == before


async def test_files_and_threads_are_released_when_the_endpoint_is_in_use() -> None:
    await settle_threads()
    async with open_mesh(CONFIG, 1000) as mesh:
        before = held()
        with pytest.raises(AddressInUseError, match=rf"^cannot listen at {mesh.endpoint}: address already in use$"):
            async with open_mesh(NodeConfig(bind=mesh.endpoint), 1000):
                pass
        assert held() == before


async def test_port_is_free_again_after_the_block() -> None:
    async with open_mesh(CONFIG, 1000) as mesh:
        endpoint = mesh.endpoint
    async with open_mesh(NodeConfig(bind=endpoint), 1000) as mesh:
        assert mesh.endpoint == endpoint


async def test_messages_sent_before_closing_still_arrive() -> None:
    messages = [[b"topic", (b"%d" % number).ljust(1000, b".")] for number in range(5000)]
    received: list[list[bytes]] = []
    async with open_context(0) as context:
        subscriber = Socket(context.socket(zmq.SocketType.SUB))
        try:
            async with trio.open_nursery() as nursery:

                async def receive() -> None:
                    while len(received) < len(messages):
                        received.extend(await subscriber.receive_many())

                async with open_mesh(NodeConfig(bind=CONFIG.bind, linger_ms=10_000), 10_000) as mesh:
                    subscriber.subscribe(b"topic")
                    subscriber.connect(mesh.endpoint)
                    await mesh.publisher.receive_many()
                    mesh.publisher.send_many(messages)
                    nursery.start_soon(receive)
                    nursery.cancel_scope.deadline = trio.current_time() + 10
        finally:
            subscriber.close(0)
    assert received == messages


async def test_closing_waits_no_longer_than_the_linger_time_for_a_peer_that_receives_nothing() -> None:
    config = NodeConfig(bind=CONFIG.bind, linger_ms=100)
    async with open_context(0) as context:
        stuck = Socket(context.socket(zmq.SocketType.SUB))
        try:
            stuck.set_options(rcvhwm=1, rcvbuf=4096)
            async with open_mesh(config, 0) as mesh:
                stuck.subscribe(b"topic")
                stuck.connect(mesh.endpoint)
                await mesh.publisher.receive_many()
                mesh.publisher.send_many([[b"topic", b"." * 10_000] for _ in range(5000)])
                before = trio.current_time()
            assert 0.1 <= trio.current_time() - before < 1.5
        finally:
            stuck.close(0)


async def test_tcp_and_not_zmtp_keeps_connections_alive() -> None:
    """libzmq aborts a process that has to send a heartbeat on a broken connection while its messages wait."""
    async with open_mesh(CONFIG, 1000) as mesh:
        assert isinstance(mesh.subscriber, PlaintextSubscriber)
        socket = mesh.subscriber._main.socket._socket
        assert (socket.getsockopt(zmq.HEARTBEAT_IVL), socket.getsockopt(zmq.TCP_KEEPALIVE)) == (0, 1)
