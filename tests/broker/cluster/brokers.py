"""A cluster of broker processes with one tower, each with a configuration file and a folder of its own."""

from __future__ import annotations

import json
import signal
import struct
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any, TypeAlias
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import attrs
import trio
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from dafka.exceptions import unwrap_group
from tests.broker.cluster.network import Network, Place, open_network
from tests.chaos.processes import Node
from tests.chaos.timeline import Timeline
from tests.ports import free_ports

READY_S = 120.0
"""Seconds within which a broker must be ready, and all must know each other."""

WHOLE_S = 300.0
"""Seconds within which a cluster must be whole again: a broker that joins becomes a voter after a minute."""

POLL_S = 0.1

ASKED_S = 20.0
"""Seconds after which a broker that does not answer is given up."""

TOWER = "tower"

SHORT = "scratch-"
"""What the names of topics begin with that are deleted and made again all the while."""

CLOCK = Path(__file__).parent / "clock"
"""The folder with the module that sets the clocks of processes."""

Settings: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Settings by section."""

QUICK: Settings = {
    "broker": {"preferred_leader_after_ms": 3000, "replace_replicas_after_ms": 20_000, "copy_rate_bytes": 2**20},
    "beacon": {"interval_ms": 250, "timeout_ms": 1000},
    "fetch": {"retry_ms": 200, "retry_max_ms": 1000},
    "store": {"retry_ms": 300},
    "producer": {"head_interval_ms": 500, "head_interval_max_ms": 2000},
}
"""Settings with which a cluster is whole again sooner than by default."""


@attrs.frozen
class BrokerNode:
    """A broker.

    Attributes:
        folder: The folder of its storage.
        storage: The URL of its storage.
    """

    number: int
    node: Node
    servers: str
    url: str
    folder: Path
    storage: str

    @property
    def name(self) -> str:
        return self.node.name


class ProcessCluster:
    """A cluster, opened by `open_cluster`."""

    def __init__(
        self,
        network: Network,
        folder: Path,
        timeline: Timeline,
        nursery: trio.Nursery,
        settings: Settings,
        storage: str,
    ) -> None:
        self.network = network
        self.folder = folder
        self.timeline = timeline
        self.brokers: dict[str, BrokerNode] = {}
        self.initial_brokers = 1
        self._nursery = nursery
        self._settings = settings
        self._storage = storage
        self._tower_ports = (5556, 5557)
        self._tower_host = ""

    @property
    def servers(self) -> str:
        return ",".join(each.servers for each in self.brokers.values())

    async def start_tower(self) -> None:
        place = await self.network.add(TOWER)
        self._tower_host = place.host
        if not self.network.can_split:
            self._tower_ports = tuple(free_ports(2))  # type: ignore[assignment]
        sub, pub = (f"tcp://{place.host}:{port}" for port in self._tower_ports)
        command = (sys.executable, "-m", "dafka", "tower", "--sub", sub, "--pub", pub)
        self.tower = self.run(TOWER, place, command, " takes beacons ")
        self.tower.start()
        await self.wait_ready(self.tower)

    async def add(self, *, is_numbered: bool = True) -> BrokerNode:
        """Add a broker, which is not started, with the smallest number that no broker has had, or without one."""
        number = len(list(self.folder.glob("broker-*.toml")))
        name = f"broker-{number}"
        folder = self.folder / name
        folder.mkdir()
        storage = f"{self._storage}:{folder / 'dafka.db' if self._storage == 'sqlite' else folder / 'records'}"
        place = await self.network.add(name)
        kafka, http = (9092, 8080) if self.network.can_split else free_ports(2)
        own: Settings = {
            "node": {"bind": f"tcp://{place.host}:*", "tower_timeout_ms": 120_000},
            "beacon": {"tower": [":".join(map(str, (self._tower_host, *self._tower_ports)))], "advertise": place.host},
            "kafka": {"listen": f"{place.host}:{kafka}", "advertised_listener": f"{place.host}:{kafka}"},
            "http": {"listen": f"{place.host}:{http}"},
            "store": {"storage": storage},
            "broker": {"initial_brokers": self.initial_brokers, **({"number": number} if is_numbered else {})},
            "clients": {"allow_unauthenticated": "on"},
        }
        config = self.folder / f"{name}.toml"
        lines: list[str] = []
        for section in dict.fromkeys((*self._settings, *own)):
            values = {**self._settings.get(section, {}), **own.get(section, {})}
            lines += [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items()), ""]
        config.write_text("\n".join(lines))
        command = (sys.executable, "-m", "dafka", "broker", "-v", "--config", str(config))
        clock = self.folder / f"{name}.clock"
        set_clock(clock, 0.0)
        environment = {"PYTHONPATH": str(CLOCK), "CLUSTER_CLOCK": str(clock)}
        node = self.run(name, place, command, "clients of Kafka connect to ", **environment)
        servers = f"{place.host}:{kafka}"
        broker = BrokerNode(number, node, servers, f"http://{place.host}:{http}", folder, storage)
        if is_numbered:
            self.brokers[name] = broker
        return broker

    def set_clock(self, broker: BrokerNode, ahead_s: float) -> None:
        """Set the clock of a broker ahead, or back to the right time with 0. Durations are measured as before."""
        set_clock(self.folder / f"{broker.name}.clock", ahead_s)

    async def set_draining(self, broker: BrokerNode, *, is_draining: bool) -> None:
        await self.order(f"/brokers/{broker.number}/{'drain' if is_draining else 'undrain'}")

    async def forget(self, number: int) -> None:
        """Have the brokers forget one that is dead, once they take it for dead."""
        await self.order(f"/brokers/{number}/forget", {}, refusal="alive", done="broker_not_found")

    async def order(
        self, target: str, document: object = None, *, method: str = "POST", refusal: str = "", done: str = ""
    ) -> None:
        """Send an order to brokers until one has carried it out, also while they refuse it with a text.

        A refusal with the text `done` shows that an earlier attempt, whose answer was lost, has carried it out.

        Raises:
            OSError: It was refused for another reason.
        """

        def is_carried_out() -> bool:
            for each in self.running():
                try:
                    ask(each.url + target, document, method=method)
                except HTTPError as error:
                    text = error.read().decode()
                    if done and done in text:
                        return True
                    if error.code < 500 and (not refusal or refusal not in text):
                        raise OSError(f"{target}: {text}") from None
                except OSError:
                    pass
                else:
                    return True
            return False

        await self.wait_until(is_carried_out, f"{method} {target} is not carried out")

    async def prefer(self, topic: str, kept: dict[int, list[int]]) -> None:
        """Have brokers keep the logs of a topic, the first of which is to lead, and wait until it does."""
        for log, brokers in kept.items():
            await self.order(f"/topics/{topic}/logs/{log}/replicas", {"replicas": brokers}, method="PUT")
        leaders = {log: brokers[0] for log, brokers in kept.items()}
        await self.wait_until(lambda: find_leaders(self.servers, topic) == leaders, "the preferred brokers do not lead")

    async def wait_whole(self, *, with_short: bool = False) -> None:
        """Wait until each broker sees all brokers and voters, and all replicas.

        Logs of topics with a short life count only if they are asked for: some are always being made.
        """
        missing = dict.fromkeys(self.brokers, "")

        def is_whole() -> bool:
            for name, each in self.brokers.items():
                try:
                    missing[name] = find_missing(ask(f"{each.url}/cluster"), len(self.brokers), with_short=with_short)
                except OSError as error:
                    missing[name] = str(error)
            return not any(missing.values())

        try:
            await self.wait_until(is_whole, "the cluster is not whole", WHOLE_S)
        except TimeoutError as error:
            raise TimeoutError(f"{error}: {missing}") from None

    def run(self, name: str, place: Place, command: Sequence[str], ready_line: str, **environment: str) -> Node:
        node = Node(name, (*place.prefix, *command), environment, self.folder, self.timeline, ready_line)
        self._nursery.start_soon(node.run)
        return node

    async def start(self, *brokers: BrokerNode) -> None:
        for each in brokers:
            each.node.start()
        for each in brokers:
            await self.wait_ready(each.node)

    async def wait_ready(self, node: Node) -> None:
        with trio.move_on_after(READY_S) as scope:
            await node.wait_ready()
        if scope.cancelled_caught:
            self.timeline.problem(f"{node.name} is not ready within {READY_S:.0f} s")
            raise TimeoutError(f"{node.name} is not ready within {READY_S:.0f} s")

    async def wait_members(self, deadline_s: float = READY_S) -> None:
        wanted = {each.number for each in self.running()}
        await self.wait_until(
            lambda: all(set(list_brokers(each.servers)) == wanted for each in self.running()),
            f"not every broker knows the brokers {sorted(wanted)}",
            deadline_s,
        )

    async def wait_in_sync(self, topic: str, logs: int, replicas: int = 3, deadline_s: float = READY_S) -> None:

        def is_in_sync() -> bool:
            found = [find_in_sync(each.servers, topic) for each in self.running()]
            return all(
                each == found[0] and len(each) == logs and all(len(names) >= replicas for names in each.values())
                for each in found
            )

        await self.wait_until(is_in_sync, "not all replicas are in sync", deadline_s)

    async def wait_until(self, is_reached: Callable[[], bool], otherwise: str, deadline_s: float = READY_S) -> float:
        """Ask in a thread until something is reached, and return how long that took.

        Raises:
            TimeoutError: It was not reached in time.
        """
        begun = trio.current_time()
        while not await trio.to_thread.run_sync(is_reached):
            if trio.current_time() > begun + deadline_s:
                raise TimeoutError(f"{otherwise}, after {deadline_s:.0f} s")
            await trio.sleep(POLL_S)
        return trio.current_time() - begun

    def running(self) -> list[BrokerNode]:
        return [each for each in self.brokers.values() if each.node.is_running]

    async def create_topic(self, topic: str, logs: int, replicas: int = 3, availability: str = "") -> None:
        settings = {"availability": availability} if availability else {}
        new = NewTopic(topic, num_partitions=logs, replication_factor=replicas, config=settings)

        def create() -> None:
            admin = AdminClient({"bootstrap.servers": self.servers})
            admin.create_topics([new], operation_timeout=30)[topic].result(60)

        await trio.to_thread.run_sync(create)
        await self.wait_until(
            lambda: all(len(find_leaders(each.servers, topic)) == logs for each in self.running()),
            f"not every broker knows the leaders of all logs of {topic}",
        )

    def stop(self, broker: BrokerNode) -> None:
        broker.node.signal(signal.SIGSTOP)

    def go_on(self, broker: BrokerNode) -> None:
        broker.node.signal(signal.SIGCONT)


@asynccontextmanager
async def open_cluster(
    folder: Path, brokers: int = 3, *, is_split: bool = False, settings: Settings = QUICK, storage: str = "filelog"
) -> AsyncIterator[ProcessCluster]:
    """Run a cluster during the block; at its end, or on any failure, all processes are killed."""
    timeline = Timeline(folder / "timeline.txt")
    network = await open_network(is_split=is_split)
    try:
        with unwrap_group():
            async with trio.open_nursery() as nursery:
                cluster = ProcessCluster(network, folder, timeline, nursery, settings, storage)
                await cluster.start_tower()
                cluster.initial_brokers = brokers
                added = [await cluster.add() for _ in range(brokers)]
                await cluster.start(*added)
                await cluster.wait_members()
                yield cluster
                nursery.cancel_scope.cancel()
    finally:
        await network.close()
        timeline.close()


def ask(url: str, document: object = None, *, method: str = "GET", timeout_s: float = ASKED_S) -> Any:
    """Return the document in the answer to a request over HTTP. Raises `HTTPError` and other `OSError`s."""
    body = None if document is None else json.dumps(document).encode()
    request = Request(url, body, {"Content-Type": "application/json"}, method=method)
    try:
        with urlopen(request, timeout=timeout_s) as answer:
            return json.loads(answer.read() or b"null")
    except HTTPException as error:  # the broker has ended in the middle of its answer
        raise OSError(str(error)) from error


def find_missing(cluster: dict[str, Any], count: int, *, with_short: bool = False) -> str:
    """Return which brokers, voters or replicas a cluster of some brokers lacks; empty if it is whole."""
    voters = 5 if count >= 5 else 3 if count >= 3 else 1
    heard = [each["number"] for each in cluster["voters"] if each["is_heard"]]
    alive = [each["number"] for each in cluster["brokers"] if each["is_alive"]]
    listed = (*cluster["leaderless"], *cluster["under_replicated"], *cluster["moves"])
    logs = [each for each in listed if with_short or not each["topic"].startswith(SHORT)]
    if len(heard) == len(cluster["voters"]) == voters and len(alive) == count and not logs:
        return ""
    return f"the voters {heard} of {len(cluster['voters'])} and the brokers {alive} are heard, {logs} are not whole"


def set_clock(path: Path, ahead_s: float) -> None:
    with path.open("r+b" if path.exists() else "wb") as file:
        file.write(struct.pack("=d", ahead_s))


def list_topics(servers: str) -> dict[str, int]:
    """Return how many logs each topic of clients has, as one of these brokers says."""
    try:
        found = AdminClient({"bootstrap.servers": servers, **SILENT}).list_topics(timeout=5).topics
    except KafkaException:
        return {}
    return {name: len(topic.partitions) for name, topic in found.items() if not name.startswith("$")}


def list_brokers(servers: str) -> list[int]:
    try:
        return list(AdminClient({"bootstrap.servers": servers, **SILENT}).list_topics(timeout=5).brokers)
    except KafkaException:
        return []


def find_leaders(servers: str, topic: str) -> dict[int, int]:
    found = _describe_logs(servers, topic)
    return {log: each.leader for log, each in found.items() if each.leader >= 0 and each.error is None}


def find_in_sync(servers: str, topic: str) -> dict[int, set[int]]:
    return {log: set(each.isrs) for log, each in _describe_logs(servers, topic).items()}


def find_replicas(servers: str, topic: str) -> dict[int, list[int]]:
    return {log: list(each.replicas) for log, each in _describe_logs(servers, topic).items()}


def _describe_logs(servers: str, topic: str) -> dict[int, Any]:
    try:
        found = AdminClient({"bootstrap.servers": servers, **SILENT}).list_topics(topic, timeout=5)
    except KafkaException:
        return {}
    return dict(found.topics[topic].partitions)


SILENT = {"log_level": 2, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200}
"""Settings of clients that expect brokers to be away."""
