"""When a broker listens to its clients."""

from __future__ import annotations

import socket

import pytest
import trio

from dafka.broker import AcceptedClient, ListenerSecurity, accept_clients, open_listening
from dafka.broker.crowd import Crowd
from dafka.config import Config
from dafka.errors import AddressInUseError

pytestmark = pytest.mark.trio

SECURITY = ListenerSecurity(Config().clients)


async def test_clients_are_refused_until_the_broker_can_answer() -> None:
    async def serve(client: AcceptedClient) -> None:
        await client.stream.send_all(b"ready")

    async with open_listening("127.0.0.1:0", SECURITY, "clients") as sockets:
        host, port = sockets[0].getsockname()
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((host, port))
        async with trio.open_nursery() as nursery:
            await nursery.start(accept_clients, sockets, Crowd(10, 10), serve)
            stream = await trio.open_tcp_stream(host, port)
            assert await stream.receive_some() == b"ready"
            await stream.aclose()
            with pytest.raises(AddressInUseError, match=f"cannot listen to clients at 127.0.0.1:{port}"):
                async with open_listening(f"127.0.0.1:{port}", SECURITY, "clients"):
                    pass
            nursery.cancel_scope.cancel()


async def test_of_two_that_keep_an_address_the_second_to_listen_is_refused() -> None:
    async def serve(_client: AcceptedClient) -> None:
        pass

    async with open_listening("127.0.0.1:0", SECURITY, "clients") as first:
        host, port = first[0].getsockname()
        async with open_listening(f"{host}:{port}", SECURITY, "clients") as second, trio.open_nursery() as nursery:
            await nursery.start(accept_clients, first, Crowd(10, 10), serve)
            with pytest.raises(AddressInUseError, match=f"cannot listen at 127.0.0.1:{port}"):
                await accept_clients(second, Crowd(10, 10), serve)
            nursery.cancel_scope.cancel()
