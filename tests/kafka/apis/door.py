"""A broker in this process, and clients that send it single requests, built from plain values."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import attrs
import trio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from dafka import Config
from dafka.broker.access.permissions import Permissions
from dafka.broker.access.users_file import User, write_users
from dafka.exceptions import unwrap_group
from dafka.kafka.protocol.apis import REQUESTS, RESPONSES
from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.frames import decode_response, encode_request
from dafka.kafka.protocol.tables import Struct, fields_of
from dafka.server import ServingBroker, serve_listeners
from dafka.testing.cluster import open_cluster
from tests.kafka.server.secured import PASSWORD, make_credentials

T = TypeVar("T")
S = TypeVar("S", bound=Struct)

DEADLINE_S = 50


def build(table: type[S], values: dict[str, Any]) -> S:
    """Return a message, or a part of one, from plain values: a struct is a dictionary."""
    tables = {each.name: each.struct for each in fields_of(table)}

    def convert(name: str, value: Any) -> Any:
        inner = tables.get(name)
        if inner is None or value is None:
            return value
        return build(inner, value) if isinstance(value, dict) else [build(inner, each) for each in value]

    return table(**{name: convert(name, value) for name, value in values.items()})


def plain(value: Any) -> Any:
    """Return a message as plain values; see `build`."""
    if isinstance(value, Struct):
        return {each.name: plain(getattr(value, each.name)) for each in fields_of(type(value))}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return bytes(value) if isinstance(value, memoryview) else value


class Client:
    """A connection to a broker that sends single requests.

    Args:
        servers: The broker's address.
    """

    def __init__(self, servers: str) -> None:
        host, _, port = servers.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), DEADLINE_S)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, api: ApiKey, version: int, **values: Any) -> None:
        """Send a request."""
        self.socket.sendall(encode_request(build(REQUESTS[api], values), version, 1))

    def receive(self) -> bytes | None:
        """Return the next frame; None at the end of the connection."""
        try:
            return self._read(int.from_bytes(self._read(4), "big"))
        except (EOFError, ConnectionError):
            return None

    def exchange(self, api: ApiKey, version: int, **values: Any) -> bytes:
        """Send a request, and return the frame of its response."""
        self.send(api, version, **values)
        frame = self.receive()
        assert frame is not None
        return frame

    def ask(self, api: ApiKey, version: int, **values: Any) -> Any:
        """Send a request, and return the response as plain values."""
        return plain(decode_response(self.exchange(api, version, **values), RESPONSES[api], version))

    def log_in(self, user: str, password: str = PASSWORD) -> Client:
        """Authenticate with a password."""
        assert self.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism="PLAIN")["error_code"] == 0
        token = f"\0{user}\0{password}".encode()
        assert self.ask(ApiKey.SASL_AUTHENTICATE, 1, auth_bytes=token)["error_code"] == 0
        return self

    def _read(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            part = self.socket.recv(size - len(found))
            if not part:
                raise EOFError
            found += part
        return found


class Door:
    """A broker whose thread runs what is needed, and whose users change at once."""

    def __init__(self, broker: ServingBroker, portal: BlockingPortal, users: Path | None) -> None:
        self.broker = broker
        self._portal = portal
        self._users = users
        self._entry: dict[str, Any] = {} if users is None else json.loads(users.read_text())["users"]["root"]

    @property
    def servers(self) -> str:
        """Where clients find the broker."""
        return self.broker.bootstrap_servers

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function, perhaps an asynchronous one, in the thread of the broker."""
        return self._portal.call(function, *arguments)

    def connect(self, user: str = "") -> Client:
        """Open a connection, perhaps of a user."""
        client = Client(self.servers)
        return client.log_in(user) if user else client

    def permit(self, **users: Permissions) -> None:
        """Replace the users and their permissions."""
        assert self._users is not None
        entries = {name: {**self._entry, "permissions": attrs.asdict(each)} for name, each in users.items()}
        self._users.write_text(json.dumps({"users": entries}))
        known = self.broker.broker.security.users
        assert known is not None
        self.call(known.refresh)


@contextmanager
def open_door(
    config: Config | None = None, *, users: Path | None = None, storage: str = "memory:", listen: str = "127.0.0.1:0"
) -> Iterator[Door]:
    """Run a broker during the block. If there is a path for its users, the first one is `root`, without permissions."""
    config = config or Config()
    if users is not None:
        write_users(users, {"root": User("root", make_credentials(), Permissions())})
        config = config.with_clients(users=str(users))
    config = config.with_kafka(listen=listen).with_store(storage=storage)
    with start_blocking_portal("trio") as portal, portal.wrap_async_context_manager(_serve(config)) as broker:
        yield Door(broker, portal, users)


@asynccontextmanager
async def _serve(config: Config) -> AsyncIterator[ServingBroker]:
    with unwrap_group():
        async with open_cluster(config, storage=None) as cluster, trio.open_nursery() as nursery:
            with trio.fail_after(DEADLINE_S):
                broker: ServingBroker = await nursery.start(serve_listeners, cluster.config)
            yield broker
            nursery.cancel_scope.cancel()
