"""A tower and a broker in a thread of their own, for clients that know nothing of trio."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import trio

from dafka import Config
from dafka.listener import KafkaBroker, serve_kafka
from dafka.testing.cluster import open_cluster


@attrs.define
class RunningBroker:
    """A broker in a thread.

    Attributes:
        bootstrap_servers: Where it listens to clients.
        config: The configuration of nodes of its cluster.
    """

    bootstrap_servers: str
    config: Config


@contextmanager
def run_broker(storage: str, config: Config | None = None, listen: str = "127.0.0.1:0") -> Iterator[RunningBroker]:
    """Run a tower and a broker during the block."""
    started = threading.Event()
    found: list[RunningBroker] = []
    errors: list[BaseException] = []
    scope = trio.CancelScope()
    tokens: list[trio.lowlevel.TrioToken] = []

    async def main() -> None:
        tokens.append(trio.lowlevel.current_trio_token())
        with scope:
            async with open_cluster(config, storage=None) as cluster, trio.open_nursery() as nursery:
                broker_config = cluster.config.with_store(storage=storage).with_kafka(listen=listen)
                broker: KafkaBroker = await nursery.start(serve_kafka, broker_config)
                found.append(RunningBroker(broker.bootstrap_servers, cluster.config))
                started.set()
                await trio.sleep_forever()

    def run() -> None:
        try:
            trio.run(main)
        except BaseException as error:
            errors.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=run, name="broker")
    thread.start()
    try:
        assert started.wait(30)
        if found:
            yield found[0]
    finally:
        if tokens and thread.is_alive():
            tokens[0].run_sync_soon(scope.cancel)
        thread.join(30)
    if errors:
        raise errors[0]
