"""A broker for tests of programs that use Kafka: in the current process, without a JVM or containers."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import trio

from dafka.config import Config
from dafka.errors import TransportError
from dafka.exceptions import unwrap_group
from dafka.testing.cluster import open_cluster

START_S = 30.0
"""The timeout for starting the broker, in seconds. It usually takes a fraction of a second."""


@attrs.frozen
class RunningKafka:
    """A running broker.

    Attributes:
        bootstrap_servers: The address for Kafka clients, `HOST:PORT`.
        config: The configuration for Dafka's own nodes in its cluster.
    """

    bootstrap_servers: str
    config: Config


@contextmanager
def kafka(storage: str | None = None, config: Config | None = None, *, port: int = 0) -> Iterator[RunningKafka]:
    """Run a broker, and a tower for it, in a thread while the block runs. The program needs no Trio.

    Args:
        storage: The URL of its storage. Default: a file log in a temporary folder.
        config: The configuration. Its endpoints and storage are replaced.
        port: The port on 127.0.0.1 at which it listens to clients; 0 for a free one.

    Yields:
        The broker.

    Raises:
        DafkaError: The broker cannot start, for example because the port is in use.
    """
    if storage is None:
        folders = tempfile.TemporaryDirectory(prefix="dafka-kafka-")
        with folders as folder, kafka(f"filelog:{folder}", config, port=port) as running:
            yield running
        return
    found: list[RunningKafka] = []
    errors: list[BaseException] = []
    started = threading.Event()
    stopping = trio.Event()
    tokens: list[trio.lowlevel.TrioToken] = []

    # Programs that only import this module, such as pytest with its plugin, start faster without the broker.
    from dafka.server import ServingBroker, serve_listeners  # noqa: PLC0415

    async def serve() -> None:
        tokens.append(trio.lowlevel.current_trio_token())
        async with open_cluster(config, storage=None) as cluster, trio.open_nursery() as nursery:
            listening = cluster.config.with_store(storage=storage).with_kafka(listen=f"127.0.0.1:{port}")
            broker: ServingBroker = await nursery.start(serve_listeners, listening)
            found.append(RunningKafka(broker.bootstrap_servers, cluster.config))
            started.set()
            await stopping.wait()
            nursery.cancel_scope.cancel()

    def run() -> None:
        try:
            with unwrap_group():
                trio.run(serve)
        except BaseException as error:
            errors.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=run, name="dafka-kafka", daemon=True)
    thread.start()
    try:
        if not started.wait(START_S):
            raise TransportError(f"the broker has not started within {START_S:.0f} s")
        if found:
            yield found[0]
    finally:
        if tokens and thread.is_alive():
            tokens[0].run_sync_soon(stopping.set)
        thread.join(START_S)
        if errors:
            raise errors[0]
