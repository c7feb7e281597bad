"""A broker in this process, and clients that send it single requests, built from plain values."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

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


_NAMED_BY_TOPIC = ("topics", "topic", "partitions", "partition")


class Shape(NamedTuple):
    """How an API names its lists of topics and of their partitions, and the fields that its requests need."""

    asked: tuple[str, str, str, str] = ("topics", "name", "partitions", "partition_index")
    answered: tuple[str, str, str, str] = ("topics", "name", "partitions", "partition_index")
    values: dict[str, Any] = {}
    part: dict[str, Any] = {}


SHAPES = {
    ApiKey.PRODUCE: Shape(
        ("topic_data", "name", "partition_data", "index"),
        ("responses", "name", "partition_responses", "index"),
        {"acks": -1, "timeout_ms": 60_000},
    ),
    ApiKey.FETCH: Shape(
        _NAMED_BY_TOPIC,
        ("responses", "topic", "partitions", "partition_index"),
        {"max_wait_ms": 0, "min_bytes": 1},
        {"fetch_offset": 0, "partition_max_bytes": 10**6},
    ),
    ApiKey.LIST_OFFSETS: Shape(values={"replica_id": -1}),
    ApiKey.DELETE_RECORDS: Shape(values={"timeout_ms": 60_000}),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Shape(_NAMED_BY_TOPIC, _NAMED_BY_TOPIC),
    ApiKey.OFFSET_COMMIT: Shape(),
    ApiKey.TXN_OFFSET_COMMIT: Shape(),
    ApiKey.OFFSET_DELETE: Shape(),
}

Log: TypeAlias = tuple[str, int]
"""The name of a topic, and the number of one of its logs."""


def of_logs(api: ApiKey, logs: Mapping[Log, dict[str, Any]], **others: Any) -> dict[str, Any]:
    """Return the fields of a request about logs, in this order, from the further fields of each log."""
    shape = SHAPES[api]
    topics, topic, parts, part = shape.asked
    asked = [{topic: name, parts: [{part: number, **shape.part, **each}]} for (name, number), each in logs.items()]
    return {**shape.values, topics: asked, **others}


def logs_in(api: ApiKey, answer: dict[str, Any]) -> dict[Log, Any]:
    """Return what a response says about each log."""
    topics, topic, parts, part = SHAPES[api].answered
    return {(each[topic], found[part]): found for each in answer[topics] for found in each[parts]}


class Client:
    """A connection to a broker that sends single requests."""

    def __init__(self, servers: str) -> None:
        host, _, port = servers.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), DEADLINE_S)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, api: ApiKey, version: int, **values: Any) -> None:
        self.socket.sendall(encode_request(build(REQUESTS[api], values), version, 1))

    def receive(self) -> bytes | None:
        try:
            return self._read(int.from_bytes(self._read(4), "big"))
        except (EOFError, ConnectionError):
            return None

    def exchange(self, api: ApiKey, version: int, **values: Any) -> bytes:
        self.send(api, version, **values)
        frame = self.receive()
        assert frame is not None
        return frame

    def receive_answer(self, api: ApiKey, version: int) -> Any:
        """Return the next response, to a request that was sent before."""
        frame = self.receive()
        assert frame is not None
        return plain(decode_response(frame, RESPONSES[api], version))

    def ask(self, api: ApiKey, version: int, **values: Any) -> Any:
        return plain(decode_response(self.exchange(api, version, **values), RESPONSES[api], version))

    def ask_logs(self, api: ApiKey, version: int, logs: Mapping[Log, dict[str, Any]], **values: Any) -> dict[Log, Any]:
        """Ask about logs, and return what the response says about each; see `of_logs`."""
        found = logs_in(api, self.ask(api, version, **of_logs(api, logs, **values)))
        assert sorted(found) == sorted(logs) if api is ApiKey.FETCH else list(found) == list(logs)
        return found

    def create_topics(self, *names: str, logs: int = 2, **settings: str) -> None:
        """Create topics, with settings whose names have underscores here."""
        configs = [{"name": name.replace("_", "."), "value": value} for name, value in settings.items()]
        rest = {"num_partitions": logs, "replication_factor": 1, "assignments": [], "configs": configs}
        answer = self.ask(ApiKey.CREATE_TOPICS, 4, topics=[{"name": each, **rest} for each in names])
        assert [each["error_code"] for each in answer["topics"]] == [0] * len(names)

    def append(self, topic: str, records: bytes, number: int = 0, **values: Any) -> int:
        (found,) = self.ask_logs(ApiKey.PRODUCE, 7, {(topic, number): {"records": records}}, **values).values()
        assert found["error_code"] == 0
        return int(found["base_offset"])

    def log_in(self, user: str, password: str = PASSWORD) -> Client:
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
        return self.broker.bootstrap_servers

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        return self._portal.call(function, *arguments)

    def call_async(self, function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        return self._portal.call(function, *arguments)

    def connect(self, user: str = "") -> Client:
        client = Client(self.servers)
        return client.log_in(user) if user else client

    def permit(self, **users: Permissions) -> None:
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
