"""`dafka up`, `dafka tower`, `dafka store`: what an operator keeps running."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
import trio

from dafka.cli.keeping import keep_store
from dafka.cli.options import add_options, node_options, setting_option, tower_options
from dafka.cli.runner import run, tower_required
from dafka.cli.supervision import Supervision
from dafka.config import BeaconConfig, Config
from dafka.roles import Store, Tower, serve_tower
from dafka.transport import open_security

_sub_option = setting_option("tower", "sub", "ENDPOINT", "Where the tower receives beacons.")
_pub_option = setting_option("tower", "pub", "ENDPOINT", "Where the tower announces nodes to each other.")


def _store_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the node options, and those of a store, to a command, which gets `config`."""
    options = (
        setting_option("store", "storage", "URL", "Where to keep records: sqlite:PATH, filelog:FOLDER or memory:."),
        setting_option(
            "store",
            "retention_ms",
            "DURATION",
            "How long to keep records after they were stored, such as 7d.",
            default="without limit",
        ),
        setting_option(
            "store",
            "retention_bytes",
            "SIZE",
            "How much of each partition to keep, such as 10GiB.",
            default="without limit",
        ),
        setting_option(
            "store", "retention_records", "N", "How many records of each partition to keep.", default="without limit"
        ),
    )
    return add_options(node_options(command), *options)


@click.command()
@_sub_option
@_pub_option
@tower_options
def tower(config: Config) -> None:
    """Run a tower, which introduces nodes to each other."""
    supervision = Supervision(config, "tower")

    async def program() -> int:
        async with supervision.open() as url, trio.open_nursery() as nursery:
            _announce_tower(await _start_tower(nursery, config, supervision))
            _announce_metrics(url)
        return 0

    run(program, ending=supervision.ending(is_graceful=False))


@click.command()
@_store_options
def store(config: Config) -> None:
    """Run a store, which keeps every record and acknowledges it."""

    supervision = Supervision(config, "store")

    async def program() -> int:
        async with supervision.open() as url, trio.open_nursery() as nursery:
            await _serve_store(nursery, config, supervision, url)
        return 0

    run(program, ending=supervision.ending(is_graceful=False))


@click.command()
@_store_options
@_sub_option
@_pub_option
def up(config: Config) -> None:
    """Run a tower and a store in one process.

    It is all that a small cluster needs. The store joins this tower, and others where --tower-sub and --tower-pub
    name some.
    """
    supervision = Supervision(config, "tower", "store")

    async def program() -> int:
        async with supervision.open() as url, trio.open_nursery() as nursery:
            tower = await _start_tower(nursery, config, supervision)
            _announce_tower(tower)
            await _serve_store(nursery, _join(config, tower), supervision, url)
        return 0

    run(program, ending=supervision.ending(is_graceful=False))


def _join(config: Config, tower: Tower) -> Config:
    """The store's configuration: this tower in the place of the default one, or before those that are named."""
    default = BeaconConfig()
    beacon = config.beacon
    further_sub = beacon.tower_sub if beacon.tower_sub != default.tower_sub else ()
    further_pub = beacon.tower_pub if beacon.tower_pub != default.tower_pub else ()
    return config.with_beacon(
        tower_sub=tuple(dict.fromkeys((_connectable(tower.sub_endpoint), *further_sub))),
        tower_pub=tuple(dict.fromkeys((_connectable(tower.pub_endpoint), *further_pub))),
    ).with_security(tower_keys=_tower_keys(config, len(further_sub)))


def _tower_keys(config: Config, further: int) -> tuple[str, ...]:
    """This tower has this process's key; one key given for several others is that of each."""
    security = open_security(config)
    if security is None:
        return ()
    keys = config.security.tower_keys
    return (security.pair.public, *(keys * further if len(keys) == 1 else keys))


async def _start_tower(nursery: trio.Nursery, config: Config, supervision: Supervision) -> Tower:
    tower: Tower = await nursery.start(serve_tower, config)
    supervision.monitor.add(tower)
    return tower


async def _serve_store(nursery: trio.Nursery, config: Config, supervision: Supervision, url: str | None) -> None:
    @contextmanager
    def running(store: Store) -> Iterator[None]:
        with supervision.monitor.watching(store):
            click.echo(f"store {store.address} at {store.endpoint} keeps {config.store.storage}")
            yield

    store: Store = await nursery.start(keep_store, config, running)
    _announce_metrics(url)
    async with tower_required(store.events, config):
        await trio.sleep_forever()


def _announce_tower(tower: Tower) -> None:
    click.echo(f"tower takes beacons at {tower.sub_endpoint} and passes them on at {tower.pub_endpoint}")


def _announce_metrics(url: str | None) -> None:
    if url is not None:
        click.echo(f"metrics at {url}/metrics")


def _connectable(endpoint: str) -> str:
    """The endpoint at which this machine reaches itself."""
    return endpoint.replace("0.0.0.0", "127.0.0.1").replace("[::]", "127.0.0.1")
