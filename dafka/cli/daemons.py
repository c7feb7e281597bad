"""`dafka up`, `dafka tower`, `dafka store`, `dafka broker`: the commands that an operator keeps running."""

from __future__ import annotations

import gc
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import click
import trio

from dafka.cli.options import Decorator, add_options, node_options, setting_option, tower_options, up_options
from dafka.cli.runner import Supervisor, run
from dafka.cli.terminal import log_silent_towers
from dafka.config import DEFAULT_KAFKA_LISTEN, BeaconConfig, Config
from dafka.errors import AddressInUseError, OutdatedStoreError, StorageError, StorageLostError, TransportError
from dafka.exceptions import unwrap_group
from dafka.operations import Monitor
from dafka.roles import Store, Tower, serve_store, serve_tower
from dafka.roles.events import NodeLog
from dafka.roles.logging_events import StorageReopening
from dafka.transport import open_security

if TYPE_CHECKING:
    from dafka.server import ServingBroker

_BROKER_LOGGER = logging.getLogger("dafka.broker")
_STORE_LOG = NodeLog(logging.getLogger("dafka.store"))

_tower_endpoints = add_options(
    setting_option("tower", "sub", "The endpoint at which the tower receives beacons.", "ENDPOINT"),
    setting_option("tower", "pub", "The endpoint at which the tower announces nodes to each other.", "ENDPOINT"),
)

_store_options = add_options(
    setting_option("store", "storage", "The storage of the records: sqlite:PATH, filelog:FOLDER or memory:.", "URL"),
    setting_option(
        "store", "retention_ms", "How long to keep records after they were stored, such as 7d.", default="without limit"
    ),
    setting_option(
        "store", "retention_bytes", "How much of each partition to keep, such as 10GiB.", default="without limit"
    ),
    setting_option(
        "store", "retention_records", "How many records of each partition to keep.", default="without limit"
    ),
    setting_option(
        "cold",
        "storage",
        "Move older records to an object store: s3://BUCKET/PREFIX, gs://..., az://... or file:///FOLDER.",
        "URL",
        default="no cold tier",
        flag="--cold",
    ),
    setting_option(
        "cold",
        "local_retention_ms",
        "How long records stay in the storage before they move to the cold tier, such as 12h.",
        default="24h",
    ),
    setting_option(
        "cold",
        "local_retention_bytes",
        "How much of each partition stays in the storage, such as 1GiB.",
        default="without limit",
    ),
    setting_option(
        "store",
        "forget_empty_after_ms",
        "Forget a partition without records when nothing was heard of it for this long, such as 7d.",
        default="30d",
    ),
)


def _broker_options(kafka_default: str) -> Decorator:
    """Add the options of a broker to a command."""
    return add_options(
        setting_option(
            "kafka",
            "listen",
            "Listen to clients of Kafka here; a port alone is one of 127.0.0.1.",
            "[ADDRESS:]PORT",
            flag="--kafka",
            default=kafka_default,
        ),
        setting_option(
            "kafka",
            "advertised_listener",
            "The address at which clients of Kafka reach the broker.",
            "HOST:PORT",
            default="the one to which they have connected",
        ),
        setting_option("kafka", "log_count", "How many logs (Kafka's partitions) a new topic has."),
        setting_option(
            "http",
            "listen",
            "Serve WebSocket, HTTP and the console here; a port alone is one of 127.0.0.1.",
            "[ADDRESS:]PORT",
            flag="--http",
            default="none",
        ),
        setting_option("broker", "number", "The broker's number, by which clients know it.", default="chosen"),
        setting_option("broker", "initial_brokers", "How many brokers form a cluster, if there is none."),
        setting_option("broker", "cluster", "The id of the cluster to join.", "ID", default="the one that is found"),
        setting_option("broker", "rack", "The rack or zone; replicas are spread over them.", "NAME", default="none"),
        setting_option(
            "broker", "secret_file", "The secret that all brokers of the cluster share.", "FILE", default="none"
        ),
        setting_option(
            "clients", "users", "The users of the broker, made by `dafka user add`.", "FILE", default="none"
        ),
        setting_option(
            "clients",
            "tls_certificate",
            "The broker's certificate; clients then connect with TLS.",
            "FILE",
            default="none",
        ),
        setting_option(
            "clients", "tls_key", "The certificate's key.", "FILE", default="in the file of the certificate"
        ),
        setting_option(
            "clients", "tls_client_ca", "The authority of the certificates of clients.", "FILE", default="none"
        ),
        setting_option(
            "clients",
            "allow_unauthenticated",
            "Whether to listen beyond loopback although clients need not authenticate.",
        ),
    )


@click.command()
@_tower_endpoints
@tower_options
def tower(config: Config) -> None:
    """Run a tower, which introduces nodes to each other."""

    async def start(nursery: trio.Nursery, supervisor: Supervisor) -> None:
        _announce_tower(await _start_tower(config, nursery, supervisor))
        _announce_metrics(supervisor)

    _serve(config, start, "tower")


@click.command()
@_store_options
@node_options
def store(config: Config) -> None:
    """Run a store, which keeps every record and acknowledges it."""
    _serve(config, partial(_run_store, config), "store")


@click.command()
@_broker_options(DEFAULT_KAFKA_LISTEN)
@_store_options
@node_options
def broker(config: Config) -> None:
    """Run a broker, which is a store and serves clients of Kafka, WebSocket and HTTP.

    Each topic has one or more logs, which Kafka calls partitions. They contain what all clients and producers of Dafka
    publish, in one order, with offsets.
    """
    config = config.with_kafka(listen=config.kafka.listen or DEFAULT_KAFKA_LISTEN)
    _serve(config, partial(_run_broker, config), "store")


@click.command()
@_tower_endpoints
@_broker_options("none")
@_store_options
@up_options
def up(config: Config) -> None:
    """Run a tower and a store, or with --kafka or --http a broker, in one process.

    This is all that a small cluster needs. The store uses this tower, and also the towers that --tower-sub and
    --tower-pub name.
    """
    run_role = _run_broker if config.kafka.listen or config.http.listen else _run_store

    async def start(nursery: trio.Nursery, supervisor: Supervisor) -> None:
        tower = await _start_tower(config, nursery, supervisor)
        await run_role(_use_tower(config, tower), nursery, supervisor, partial(_announce_tower, tower))

    _serve(config, start, "tower", "store")


def _serve(config: Config, start: Callable[[trio.Nursery, Supervisor], Awaitable[None]], *roles: str) -> NoReturn:
    """Run nodes with metrics until a signal stops the process, whose exit status is then 0."""
    supervisor = Supervisor(config, *roles)

    async def program() -> int:
        async with supervisor.open(), trio.open_nursery() as nursery:
            await start(nursery, supervisor)
        return 0

    run(program, interrupted=lambda: 0, shutdown=supervisor.shutdown(is_graceful=False))


def _use_tower(config: Config, tower: Tower) -> Config:
    """Return the store's configuration: with this tower in place of the default one, or before those that are named."""
    default = BeaconConfig()
    beacon = config.beacon
    other_sub = beacon.tower_sub if beacon.tower_sub != default.tower_sub else ()
    other_pub = beacon.tower_pub if beacon.tower_pub != default.tower_pub else ()
    return config.with_beacon(
        tower_sub=dict.fromkeys((_to_loopback(tower.sub_endpoint), *other_sub)),
        tower_pub=dict.fromkeys((_to_loopback(tower.pub_endpoint), *other_pub)),
    ).with_security(tower_keys=_tower_keys(config, len(other_sub)))


def _tower_keys(config: Config, other_towers: int) -> tuple[str, ...]:
    """Return a key for each tower: this process's own, then those of the others. One key may be that of all others."""
    security = open_security(config)
    if security is None:
        return ()
    keys = config.security.tower_keys
    return (security.pair.public, *(keys * other_towers if len(keys) == 1 else keys))


def _to_loopback(endpoint: str) -> str:
    """Return the endpoint that nodes on this machine connect to."""
    return endpoint.replace("0.0.0.0", "127.0.0.1").replace("[::]", "127.0.0.1")


async def _start_tower(config: Config, nursery: trio.Nursery, supervisor: Supervisor) -> Tower:
    try:
        tower: Tower = await nursery.start(serve_tower, config)
    except AddressInUseError as error:
        advice = "another tower may be running; choose other ports with --sub and --pub"
        raise AddressInUseError(f"{error}; {advice}") from None
    supervisor.monitor.add(tower)
    return tower


async def _run_store(
    config: Config, nursery: trio.Nursery, supervisor: Supervisor, announce_others: Callable[[], None] = lambda: None
) -> None:
    """Run a store. Nothing is announced before it has started, because its settings may be refused."""
    is_announced = False

    @contextmanager
    def watch(store: Store) -> Iterator[None]:
        nonlocal is_announced
        if not is_announced:
            is_announced = True
            announce_others()
        with supervisor.monitor.watching(store):
            click.echo(f"store {store.address} at {store.endpoint} keeps {config.store.storage}")
            yield

    log_silent_towers()
    await nursery.start(serve_store_with_restarts, config, watch)
    _announce_metrics(supervisor)
    await trio.sleep_forever()


async def _run_broker(
    config: Config, _nursery: trio.Nursery, supervisor: Supervisor, announce_others: Callable[[], None] = lambda: None
) -> None:
    """Run a broker that listens to clients. It starts again with another store id if its storage is an older copy."""
    metric_sources, others = list(supervisor.monitor.metric_sources), [announce_others]

    def announce_once() -> None:
        while others:
            others.pop()()

    while True:
        try:
            with unwrap_group():
                async with trio.open_nursery() as broker_nursery:
                    await _run_broker_once(config, broker_nursery, supervisor, announce_once)
        except OutdatedStoreError as error:
            _BROKER_LOGGER.warning("%s; this broker starts again with another store id, and keeps the records", error)
            supervisor.monitor.metric_sources[:] = metric_sources


async def _run_broker_once(
    config: Config, nursery: trio.Nursery, supervisor: Supervisor, announce_others: Callable[[], None]
) -> None:
    # Other commands start faster without these modules.
    from dafka.broker.broker import StartupProgress  # noqa: PLC0415
    from dafka.server import serve_listeners  # noqa: PLC0415

    log_silent_towers()
    progress = supervisor.monitor.starting = StartupProgress()
    with _collection_paused():
        found: ServingBroker = await nursery.start(serve_listeners, config, progress)
    if supervisor.metrics_url is not None:
        _add_metrics(supervisor.monitor, found)
    announce_others()
    with supervisor.monitor.watching(found.node.store):
        click.echo(f"broker {found.node.address} at {found.node.store.endpoint} keeps {config.store.storage}")
        if found.kafka is not None:
            click.echo(f"clients of Kafka connect to {found.bootstrap_servers}")
        if found.web is not None:
            click.echo(f"HTTP, WebSocket and the console at {found.url}")
        _announce_metrics(supervisor)
        await trio.sleep_forever()


def _add_metrics(monitor: Monitor, found: ServingBroker) -> None:
    # These modules need the extra of metrics.
    from dafka.broker.metrics import BrokerMetrics  # noqa: PLC0415
    from dafka.kafka.server.metrics import KafkaMetrics  # noqa: PLC0415

    monitor.metric_sources.append(BrokerMetrics(found.node, found.broker.memory).read)
    if found.kafka is not None:
        monitor.metric_sources.append(KafkaMetrics(found.kafka).read)
    if found.web is not None:
        from dafka.http.server.metrics import HttpMetrics  # noqa: PLC0415

        monitor.metric_sources.append(HttpMetrics(found.web).read)


@contextmanager
def _collection_paused() -> Iterator[None]:
    """Collect no garbage during the block, and never search the objects that exist at its end.

    A broker that starts makes lasting objects for all its logs, which would be searched again and again.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


async def serve_store_with_restarts(
    config: Config, watch: Callable[[Store], AbstractContextManager[None]], *, task_status: trio.TaskStatus[Store]
) -> None:
    """Run a store until cancelled, and restart it if its storage is removed while it runs.

    The new store opens the same URL: it creates a new storage, or uses one that the operator has put there. A new
    storage has a new address, so that producers do not count the ACKs of the old store for the new one. The store then
    fetches the records that producers and other stores hold. Recovery is automatic; the operator is notified. If the
    storage cannot be opened again, the store retries every `retry_ms`.

    The context manager that `watch` returns is open while a store runs. An error while the first store starts is
    raised.
    """
    is_started = False
    last_logged = None
    while True:
        try:
            with unwrap_group():
                async with trio.open_nursery() as nursery:
                    store: Store = await nursery.start(serve_store, config)
                    with watch(store):
                        last_logged = None
                        if not is_started:
                            is_started = True
                            task_status.started(store)
                        await trio.sleep_forever()
        except StorageLostError:
            _STORE_LOG.write(StorageReopening(config.store.storage, ""), logging.WARNING)
        except (StorageError, TransportError) as error:
            if not is_started:
                raise
            event = StorageReopening(config.store.storage, str(error))
            if event != last_logged:
                _STORE_LOG.write(event, logging.WARNING)
                last_logged = event
            await trio.sleep(config.store.retry_ms / 1000)


def _announce_tower(tower: Tower) -> None:
    click.echo(f"tower takes beacons at {tower.sub_endpoint} and passes them on at {tower.pub_endpoint}")


def _announce_metrics(supervisor: Supervisor) -> None:
    if supervisor.metrics_url is not None:
        click.echo(f"metrics at {supervisor.metrics_url}/metrics")
