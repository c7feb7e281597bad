"""A tower and several brokers in a thread of their own, for clients that know nothing of trio."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import trio

from dafka import Config
from dafka.server import ServingBroker, serve_listeners
from dafka.testing.cluster import open_cluster

DEADLINE_S = 60.0

QUICK = {"heartbeat_ms": 100, "leader_timeout_ms": 2000, "preferred_leader_after_ms": 2000}
"""Settings of `[broker]` with which other brokers take over sooner than by default."""


@attrs.define(eq=False)
class _Place:
    """A broker that may run or not.

    Attributes:
        config: Its configuration.
        broker: The running broker; None if it does not run.
        scope: Cancels it.
        stopped: Set when it has stopped.
    """

    config: Config
    broker: ServingBroker | None = None
    scope: trio.CancelScope | None = None
    stopped: trio.Event | None = None


class RunningCluster:
    """Brokers in another thread, opened by `run_cluster`."""

    def __init__(self, config: Config, folder: Path, nursery: trio.Nursery) -> None:
        self._config = config
        self._folder = folder
        self._nursery = nursery
        self._token = trio.lowlevel.current_trio_token()
        self._places: dict[int, _Place] = {}

    @property
    def servers(self) -> str:
        """Where clients find the brokers that run."""
        return ",".join(each.bootstrap_servers for each in self.running())

    def running(self) -> list[ServingBroker]:
        """Return the brokers that run."""
        return [each.broker for each in self._places.values() if each.broker is not None]

    def broker(self, number: int) -> ServingBroker:
        """Return a broker that runs."""
        found = self._places[number].broker
        assert found is not None
        return found

    def start(self, number: int, **settings: Any) -> None:
        """Start a broker. Its settings of `[broker]` count for the first time only."""
        trio.from_thread.run(self.open, number, settings, trio_token=self._token)

    def stop(self, number: int) -> None:
        """Stop a broker."""
        trio.from_thread.run(self.close, number, trio_token=self._token)

    def wait_members(self) -> None:
        """Wait until all brokers that run know each other, and where clients reach each."""
        trio.from_thread.run(self._wait_members, trio_token=self._token)

    def ask(self, call: Callable[[], Any]) -> Any:
        """Call a function in the thread of the brokers."""
        return trio.from_thread.run_sync(call, trio_token=self._token)

    def wait_until(self, is_reached: Callable[[], bool]) -> None:
        """Wait until something is true of the brokers."""
        trio.from_thread.run(_wait, is_reached, trio_token=self._token)

    async def open(self, number: int, settings: Mapping[str, Any]) -> None:
        """Start a broker; see `start`."""
        if number not in self._places:
            storage = f"filelog:{self._folder}/broker-{number}"
            config = self._config.with_store(storage=storage).with_kafka(listen="127.0.0.1:0")
            self._places[number] = _Place(config.with_broker(**{**QUICK, "number": number, **settings}))
        await self._nursery.start(self._run, self._places[number])

    async def close(self, number: int) -> None:
        """Stop a broker; see `stop`."""
        place = self._places[number]
        assert place.scope is not None
        assert place.stopped is not None
        place.scope.cancel()
        await place.stopped.wait()

    async def _run(self, place: _Place, *, task_status: trio.TaskStatus[None]) -> None:
        place.stopped = trio.Event()
        try:
            async with trio.open_nursery() as nursery:
                place.scope = nursery.cancel_scope
                place.broker = await nursery.start(serve_listeners, place.config)
                task_status.started()
        finally:
            place.broker = None
            place.stopped.set()

    async def _wait_members(self) -> None:
        running = [each.node for each in self.running()]
        wanted = {each.address for each in running}

        def is_reached() -> bool:
            found = [{each.address for each in node.brokers.living() if each.kafka_listener} for node in running]
            return all(each == wanted for each in found)

        await _wait(is_reached)


async def _wait(is_reached: Callable[[], bool]) -> None:
    with trio.fail_after(DEADLINE_S):
        while not is_reached():  # noqa: ASYNC110
            await trio.sleep(0.02)


@contextmanager
def run_cluster(folder: Path, *racks: str, http: bool = False) -> Iterator[RunningCluster]:
    """Run a broker for each rack during the block, perhaps with HTTP. Their numbers are those of the racks."""
    found: list[RunningCluster] = []
    errors: list[BaseException] = []
    started = threading.Event()
    stopping: list[Callable[[], None]] = []

    async def serve() -> None:
        token, stop = trio.lowlevel.current_trio_token(), trio.Event()
        async with open_cluster(storage=None) as cluster, trio.open_nursery() as nursery:
            config = cluster.config.with_http(listen="127.0.0.1:0") if http else cluster.config
            running = RunningCluster(config, folder, nursery)
            for number, rack in enumerate(racks):
                await running.open(number, {"rack": rack})
            found.append(running)
            stopping.append(lambda: token.run_sync_soon(stop.set))
            started.set()
            await stop.wait()
            nursery.cancel_scope.cancel()

    def run() -> None:
        try:
            trio.run(serve)
        except BaseException as error:
            errors.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        assert started.wait(DEADLINE_S)
        if found:
            found[0].wait_members()
            yield found[0]
    finally:
        for stop in stopping:
            with suppress(trio.RunFinishedError):  # it has failed
                stop()
        thread.join(DEADLINE_S)
        if errors:
            raise errors[0]
