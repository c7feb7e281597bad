"""When a broker listens to its clients."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from dafka.broker.connections import tcp_server
from dafka.broker.connections.connection_quotas import ConnectionQuotas
from dafka.broker.connections.security import ServerSecurity
from dafka.broker.connections.tcp_server import AcceptedClient, Stopping, accept_clients, open_listening
from dafka.config import Config
from dafka.errors import AddressInUseError, ConfigError
from tests.waiting import wait_until

SECURITY = ServerSecurity(Config().clients)
DEADLINE_S = 60


async def test_clients_are_refused_until_the_broker_can_answer() -> None:
    async def serve(client: AcceptedClient) -> None:
        await client.stream.send_all(b"ready")

    async with open_listening("127.0.0.1:0", SECURITY, "clients") as sockets:
        host, port = sockets[0].getsockname()
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((host, port))
        async with trio.open_nursery() as nursery:
            await nursery.start(accept_clients, sockets, ConnectionQuotas(10, 10), Stopping(), serve)
            stream = await trio.open_tcp_stream(host, port)
            assert await stream.receive_some() == b"ready"
            await stream.aclose()
            with pytest.raises(AddressInUseError, match=f"cannot listen to clients at 127.0.0.1:{port}"):
                async with open_listening(f"127.0.0.1:{port}", SECURITY, "clients"):
                    pass
            nursery.cancel_scope.cancel()


async def test_only_an_address_that_is_not_to_be_had_is_called_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(tcp_server, "_bind", fail)
    refused = set[int]()
    for number in errno.errorcode:
        with pytest.raises((AddressInUseError, OSError)) as caught:
            async with open_listening("127.0.0.1:0", SECURITY, "clients"):
                pass
        if isinstance(caught.value, AddressInUseError):
            refused.add(number)
    assert refused == {errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES}


async def test_connection_that_has_ended_makes_room_for_another() -> None:
    async def serve(client: AcceptedClient) -> None:
        client.mark_served()
        await client.stream.send_all(b"ready")
        await client.stream.receive_some()

    quotas = ConnectionQuotas(1)
    async with open_listening("127.0.0.1:0", SECURITY, "clients") as sockets, trio.open_nursery() as nursery:
        await nursery.start(accept_clients, sockets, quotas, Stopping(), serve)
        for _ in range(3):
            stream = await trio.open_tcp_stream(*sockets[0].getsockname())
            assert await stream.receive_some() == b"ready"
            refused = await trio.open_tcp_stream(*sockets[0].getsockname())
            with suppress(trio.BrokenResourceError):
                assert await refused.receive_some() == b""
            await refused.aclose()
            await stream.aclose()
            await wait_until(lambda: len(quotas) == 0)
        assert (quotas.admitted, quotas.refused) == (3, 3)
        nursery.cancel_scope.cancel()


async def test_of_two_that_keep_an_address_the_second_to_listen_is_refused() -> None:
    async def serve(_client: AcceptedClient) -> None:
        pass

    async with open_listening("127.0.0.1:0", SECURITY, "clients") as first:
        host, port = first[0].getsockname()
        async with open_listening(f"{host}:{port}", SECURITY, "clients") as second, trio.open_nursery() as nursery:
            await nursery.start(accept_clients, first, ConnectionQuotas(10, 10), Stopping(), serve)
            with pytest.raises(AddressInUseError, match=f"cannot listen at 127.0.0.1:{port}"):
                await accept_clients(second, ConnectionQuotas(10, 10), Stopping(), serve)
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_stopped(
    serve: Callable[[AcceptedClient], Awaitable[None]], linger_s: float
) -> AsyncIterator[trio.SocketStream]:
    """Connect to a listener, which stops then, and serve the client during the block, until the listener has ended."""
    stopping, accepted, ended = Stopping(), trio.Event(), trio.Event()

    async def listen(task_status: trio.TaskStatus[None]) -> None:
        quotas = ConnectionQuotas(10, 10)
        await accept_clients(sockets, quotas, stopping, serve_then, linger_s=linger_s, task_status=task_status)
        ended.set()

    async def serve_then(client: AcceptedClient) -> None:
        accepted.set()
        await stopping.begun.wait()
        await serve(client)

    with trio.fail_after(DEADLINE_S):
        async with open_listening("127.0.0.1:0", SECURITY, "clients") as sockets, trio.open_nursery() as nursery:
            await nursery.start(listen)
            host, port = sockets[0].getsockname()
            stream = await trio.open_tcp_stream(host, port)
            await accepted.wait()
            stopping.begin()
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(OSError, match="refused"):
                socket.create_connection((host, port))
            async with stream:
                yield stream
                await ended.wait()


async def answer(client: AcceptedClient) -> None:
    await client.stream.send_all(b"answer")
    client.sent_at = trio.current_time()


async def test_last_answer_is_there_whatever_the_client_still_sends() -> None:
    async with open_stopped(answer, DEADLINE_S) as stream:
        assert await stream.receive_some() == b"answer"
        assert await stream.receive_some() == b""
        for _ in range(100):
            await stream.send_all(bytes(100_000))
        await stream.aclose()


async def test_client_that_does_not_close_its_side_is_not_waited_for() -> None:
    async with open_stopped(answer, 0.01) as stream:
        assert await stream.receive_some() == b"answer"


async def test_connection_without_answers_on_their_way_ends_at_once() -> None:
    async def serve(client: AcceptedClient) -> None:
        client.sent_at = trio.current_time() - 2 * DEADLINE_S

    async with open_stopped(serve, 2 * DEADLINE_S) as stream:
        assert await stream.receive_some() == b""


class Passes(trio.abc.Instrument):
    """Counts how often the event loop looks for input and output."""

    def __init__(self) -> None:
        self.count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


async def test_a_crowd_is_accepted_in_few_turns_of_the_event_loop() -> None:
    """A turn may take long when much is to be done, and a client waits behind all that came before it."""
    served: list[str] = []

    async def serve(client: AcceptedClient) -> None:
        served.append(client.host)
        await trio.sleep_forever()

    async with open_listening("127.0.0.1:0", SECURITY, "clients") as sockets:
        sockets[0].listen(1000)
        address = sockets[0].getsockname()
        with ExitStack() as stack:
            for _ in range(200):
                stack.enter_context(socket.create_connection(address))
            passes = Passes()
            async with trio.open_nursery() as nursery:
                await nursery.start(accept_clients, sockets, ConnectionQuotas(1000, 1000), Stopping(), serve)
                trio.lowlevel.add_instrument(passes)
                await trio.testing.wait_all_tasks_blocked()
                trio.lowlevel.remove_instrument(passes)
                assert len(served) == 200
                assert passes.count < 20
                nursery.cancel_scope.cancel()


class Failing(socket.socket):
    """A listener that fails to accept clients before it accepts one, with each of these errors."""

    errors: list[int]

    def accept(self) -> tuple[socket.socket, Any]:
        if self.errors:
            raise OSError(self.errors[0], os.strerror(self.errors.pop(0)))
        return super().accept()


async def test_clients_are_accepted_after_others_that_could_not_be(caplog: pytest.LogCaptureFixture) -> None:
    """A client that has gone already is no failure of the machine."""

    async def serve(client: AcceptedClient) -> None:
        await client.stream.send_all(b"ready")

    async with open_listening("127.0.0.1:0", SECURITY, "clients") as sockets, trio.open_nursery() as nursery:
        failing = Failing(fileno=sockets[0].detach())
        failing.errors = [errno.ECONNABORTED, errno.ENOTCONN, errno.EMFILE, errno.ENOBUFS]
        await nursery.start(accept_clients, [failing], ConnectionQuotas(10), Stopping(), serve)
        async with await trio.open_tcp_stream(*failing.getsockname()) as stream:
            assert await stream.receive_some() == b"ready"
        assert [each.getMessage() for each in caplog.records] == [
            f"cannot accept a client: {os.strerror(each)}" for each in (errno.EMFILE, errno.ENOBUFS)
        ]
        nursery.cancel_scope.cancel()
        failing.close()


async def test_listeners_of_both_kinds_of_addresses_do_not_disturb_each_other() -> None:
    hosts: list[tuple[str, bool, int]] = []

    async def serve(client: AcceptedClient) -> None:
        hosts.append((client.host, client.is_local, client.local_address[1]))

    security = ServerSecurity(Config().with_clients(allow_unauthenticated="on").clients)
    async with open_listening("0.0.0.0:0", security, "clients") as four, trio.open_nursery() as nursery:
        port = four[0].getsockname()[1]
        async with open_listening(f"[::]:{port}", security, "clients") as six:
            await nursery.start(accept_clients, [*four, *six], ConnectionQuotas(10), Stopping(), serve)
            for host in ("127.0.0.1", "::1"):
                async with await trio.open_tcp_stream(host, port) as stream:
                    assert await stream.receive_some() == b""
        nursery.cancel_scope.cancel()
    assert hosts == [("127.0.0.1", True, port), ("::1", True, port)]


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0"])
async def test_nobody_listens_where_anyone_could_connect(listen: str) -> None:
    with pytest.raises(ConfigError, match="could connect to"):
        async with open_listening(listen, SECURITY, "clients"):
            pass


async def test_waits_end_when_the_broker_stops_and_do_not_begin_afterwards() -> None:
    stopping, ended = Stopping(), list[str]()

    async def wait(name: str) -> None:
        with stopping.interrupting():
            await trio.sleep_forever()
        ended.append(name)

    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, "before")
            await trio.testing.wait_all_tasks_blocked()
            assert not stopping.has_begun
            assert ended == []
            stopping.begin()
        assert stopping.has_begun
        await wait("after")
    assert ended == ["before", "after"]


async def test_data_is_sent_without_a_wait_as_long_as_the_client_reads(autojump_clock: trio.testing.MockClock) -> None:
    own, other = socket.socketpair()
    with own, other:
        own.setblocking(False)
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(own))
        client = AcceptedClient(stream, "here", ("127.0.0.1", 1), lambda: None, own)
        sent, sent_at = 0, trio.current_time()
        while size := client.send_now(bytes(2**16)):
            sent += size
        autojump_clock.jump(1)
        assert client.send_now(b"x") == 0
        assert client.sent_at == pytest.approx(sent_at, abs=0.5), "nothing was sent since"
        while sent:
            sent -= len(other.recv(2**16))
        assert client.send_now(b"xyz") == 3
        assert client.sent_at == trio.current_time() > sent_at
        assert other.recv(9) == b"xyz"
        other.close()
        with pytest.raises(trio.BrokenResourceError):
            client.send_now(b"x")


def has_arrived(client: AcceptedClient, count: int) -> bool:
    return client.count_arrived() == count


async def test_many_bytes_are_waited_for_at_once_and_a_part_if_the_client_leaves() -> None:
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        other = await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])
        stream = await listener.accept()
        await listener.aclose()
        plain = socket.socket(fileno=os.dup(stream.socket.fileno()))
        client = AcceptedClient(stream, "here", ("127.0.0.1", 1), lambda: None, plain)
        with plain:
            for size in (1000, 1, 10):
                arrived = trio.Event()

                async def wait(size: int = size, arrived: trio.Event = arrived) -> None:
                    await client.wait_arrived(size)
                    arrived.set()

                nursery.start_soon(wait)
                await trio.testing.wait_all_tasks_blocked()
                if size > 1 and tcp_server._LOW_WATER:
                    await other.send_all(bytes(size - 1))
                    await wait_until(partial(has_arrived, client, size - 1))
                    await trio.testing.wait_all_tasks_blocked(0.005)
                    assert not arrived.is_set()
                    await other.send_all(b"x")
                else:
                    await other.send_all(bytes(size))
                await arrived.wait()
                await wait_until(partial(has_arrived, client, size))
                assert len(await stream.receive_some(size)) == size
            await other.aclose()
            with trio.fail_after(DEADLINE_S):
                await client.wait_arrived(10)
            assert client.has_closed
        await stream.aclose()
