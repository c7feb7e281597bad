"""A broker for tests of programs that use Kafka: in the current process, without a JVM or containers."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import attrs
import trio
from anyio.from_thread import start_blocking_portal

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
    serving = _serve(storage, config, port)
    with start_blocking_portal("trio") as portal, portal.wrap_async_context_manager(serving) as running:
        yield running


@asynccontextmanager
async def _serve(storage: str, config: Config | None, port: int) -> AsyncIterator[RunningKafka]:
    # Programs that only import this module, such as pytest with its plugin, start faster without the broker.
    from dafka.server import ServingBroker, serve_listeners  # noqa: PLC0415

    with unwrap_group():
        async with open_cluster(config, storage=None) as cluster, trio.open_nursery() as nursery:
            listening = cluster.config.with_store(storage=storage).with_kafka(listen=f"127.0.0.1:{port}")
            with trio.move_on_after(START_S) as starting:
                broker: ServingBroker = await nursery.start(serve_listeners, listening)
            if starting.cancelled_caught:
                raise TransportError(f"the broker has not started within {START_S:.0f} s")
            yield RunningKafka(broker.bootstrap_servers, cluster.config)
            nursery.cancel_scope.cancel()
