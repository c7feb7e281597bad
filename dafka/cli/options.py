"""The options that every node command has, and how they become a `Config`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from dafka.cli.terminal import UsageMistake, start_logging
from dafka.cli.units import DURATION
from dafka.config import Config
from dafka.errors import ConfigError


def seconds(text: str) -> float:
    """An option's type: a number of seconds above 0."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise click.BadParameter(f"expected a number of seconds above 0, not {text!r}")
    return number


_NODE_OPTIONS = (
    click.option(
        "--tower-sub",
        multiple=True,
        metavar="ENDPOINT",
        help="Where nodes send their beacons; repeat it for several towers.  [default: tcp://127.0.0.1:5556]",
    ),
    click.option(
        "--tower-pub",
        multiple=True,
        metavar="ENDPOINT",
        help="Where nodes hear of each other; repeat it for several towers.  [default: tcp://127.0.0.1:5557]",
    ),
    click.option(
        "--bind",
        metavar="ENDPOINT",
        help="Where this node listens to its peers, such as tcp://*:*.  [default: tcp://127.0.0.1:*]",
    ),
    click.option(
        "--advertise",
        metavar="HOST",
        help="The host by which peers reach this node.  [default: the address that the tower sees]",
    ),
    click.option(
        "--wire",
        type=click.Choice(["rfc46", "libdafka"]),
        help="The dialect to send; both are understood.  [default: rfc46]",
    ),
    click.option(
        "--grace",
        type=DURATION,
        metavar="DURATION",
        help="When stopped by a signal, finish what was begun for at most this long.  [default: 10s]",
    ),
)

_TOWER_KEY_OPTION = click.option(
    "--tower-key",
    multiple=True,
    metavar="KEY",
    help="The tower's public key, or a file with it; repeat it where towers have different ones.",
)

_SECURITY_OPTIONS = (
    click.option("--key", metavar="FILE", help="This node's secret key, made by `dafka keys new`."),
    click.option("--authorized", metavar="PATH", help="Whom to let in: a file or a folder of public keys."),
)

_METRICS_OPTION = click.option(
    "--metrics",
    metavar="[ADDRESS:]PORT",
    help="Answer /metrics, /livez and /readyz here; without an address, at 127.0.0.1.  [default: nowhere]",
)

LOG_OPTIONS = (
    click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        help="Leave out what is less important.  [default: warning]",
    ),
    click.option(
        "--log-format", type=click.Choice(["text", "json"]), help="A sentence or an object a line.  [default: text]"
    ),
)

_COMMON_OPTIONS = (
    click.option("--config", "config_path", metavar="FILE", help="A TOML file with settings."),
    click.option("-v", "--verbose", count=True, help="Log what happens (--log-level info); twice for more."),
)


def node_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the node options, `--config` and `-v`; the command gets `config` instead of them."""

    @functools.wraps(command)
    def wrapper(
        *args: Any,
        tower_sub: tuple[str, ...],
        tower_pub: tuple[str, ...],
        bind: str | None,
        advertise: str | None,
        wire: str | None,
        grace: int | None,
        tower_key: tuple[str, ...],
        config: Config,
        **options: Any,
    ) -> Any:
        with usage_mistakes():
            config = (
                config.override(
                    "beacon", sub_addresses=tower_sub or None, pub_addresses=tower_pub or None, address=advertise
                )
                .override("node", wire=wire, bind=bind, grace_ms=grace)
                .override("security", tower_keys=tower_key or None)
            )
        return command(*args, config=config, **options)

    return decorate(security_options(wrapper), (*_NODE_OPTIONS, _TOWER_KEY_OPTION))


def security_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `--key`, `--authorized` and what `operation_options` adds; the command gets `config` instead of them."""

    @functools.wraps(command)
    def wrapper(*args: Any, key: str | None, authorized: str | None, config: Config, **options: Any) -> Any:
        with usage_mistakes():
            config = config.override("security", key_file=key, authorized_keys=authorized)
        return command(*args, config=config, **options)

    return decorate(operation_options(wrapper), _SECURITY_OPTIONS)


def operation_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `--metrics`, `--log-level`, `--log-format`, `--config` and `-v`; the command gets `config` instead."""

    @functools.wraps(command)
    def wrapper(
        *args: Any, metrics: str | None, log_level: str | None, log_format: str | None, config: Config, **options: Any
    ) -> Any:
        with usage_mistakes():
            config = config.override("log", level=log_level, format=log_format).override("metrics", listen=metrics)
        start_logging(config.log)
        return command(*args, config=config, **options)

    return decorate(config_options(wrapper), (_METRICS_OPTION, *LOG_OPTIONS))


def config_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `--config` and `-v`; the command gets `config`."""
    return decorate(_with_config(command), _COMMON_OPTIONS)


@contextmanager
def usage_mistakes() -> Iterator[None]:
    """Turns a `ConfigError` into a `UsageMistake`."""
    try:
        yield
    except ConfigError as error:
        raise UsageMistake(str(error)) from None


def _with_config(command: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(command)
    def wrapper(*args: Any, config_path: str | None, verbose: int, **options: Any) -> Any:
        with usage_mistakes():
            config = Config.load(config_path)
        config = config.override("log", level=(None, "info", "debug")[min(verbose, 2)])
        start_logging(config.log)
        return command(*args, config=config, **options)

    return wrapper


def decorate(command: Callable[..., Any], options: tuple[Callable[[Any], Any], ...]) -> Callable[..., Any]:
    """Adds options to a command, in this order."""
    for option in reversed(options):
        command = option(command)
    return command
