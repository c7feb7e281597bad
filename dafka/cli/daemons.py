"""`dafka up`, `dafka tower`, `dafka store`: what an operator keeps running."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
import trio

from dafka.cli.keeping import keep_store
from dafka.cli.options import decorate, node_options, security_options, usage_mistakes
from dafka.cli.runner import run, tower_required
from dafka.cli.supervision import Supervision
from dafka.cli.units import BYTES, DURATION
from dafka.config import BeaconConfig, Config
from dafka.roles import Store, Tower, serve_tower
from dafka.transport import open_security

_sub_option = click.option(
    "--sub", metavar="ENDPOINT", help="Where to take nodes' beacons.  [default: tcp://127.0.0.1:5556]"
)
_pub_option = click.option(
    "--pub", metavar="ENDPOINT", help="Where to tell nodes of each other.  [default: tcp://127.0.0.1:5557]"
)
_STORE_OPTIONS = (
    click.option(
        "--storage",
        metavar="URL",
        help="Where records are kept: sqlite:PATH, filelog:FOLDER or memory:.  [default: sqlite:dafka.db]",
    ),
    click.option("--retain-age", type=DURATION, metavar="DURATION", help="Drop records stored longer ago, such as 7d."),
    click.option(
        "--retain-bytes",
        type=BYTES,
        metavar="SIZE",
        help="Drop the oldest records of a partition above this, such as 1GB.",
    ),
    click.option(
        "--retain-records",
        type=click.IntRange(min=1),
        metavar="N",
        help="Drop the oldest records of a partition above this number.",
    ),
)


def _store_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the node options, and those of where and how long records are kept; the command gets `config`."""

    @functools.wraps(command)
    def wrapper(
        *args: Any,
        config: Config,
        storage: str | None,
        retain_age: int | None,
        retain_bytes: int | None,
        retain_records: int | None,
        **options: Any,
    ) -> Any:
        config = config.override(
            "store",
            storage=storage,
            retention_ms=retain_age,
            retention_bytes=retain_bytes,
            retention_records=retain_records,
        )
        return command(*args, config=config, **options)

    return decorate(node_options(wrapper), _STORE_OPTIONS)


@click.command()
@_sub_option
@_pub_option
@security_options
def tower(config: Config, sub: str | None, pub: str | None) -> None:
    """Run a tower, which introduces nodes to each other."""
    with usage_mistakes():
        config = config.override("tower", sub_address=sub, pub_address=pub)

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
def up(config: Config, sub: str | None, pub: str | None) -> None:
    """Run a tower and a store in one process.

    It is all that a small cluster needs. The store joins this tower, and others where --tower-sub and --tower-pub
    name some.
    """
    with usage_mistakes():
        config = config.override("tower", sub_address=sub, pub_address=pub)

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
    further_sub = beacon.sub_addresses if beacon.sub_addresses != default.sub_addresses else ()
    further_pub = beacon.pub_addresses if beacon.pub_addresses != default.pub_addresses else ()
    return config.override(
        "beacon",
        sub_addresses=tuple(dict.fromkeys((_connectable(tower.sub_endpoint), *further_sub))),
        pub_addresses=tuple(dict.fromkeys((_connectable(tower.pub_endpoint), *further_pub))),
    ).override("security", tower_keys=_tower_keys(config, len(further_sub)))


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
