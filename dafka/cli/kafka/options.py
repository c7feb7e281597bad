"""The options of commands that connect to a broker as clients of Kafka."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import sleep
from typing import Any

import click

from dafka.broker.access.credentials import MECHANISMS
from dafka.broker.access.login import PLAIN
from dafka.cli.kafka.client import Access, KafkaClient
from dafka.cli.kafka.http_client import DEFAULT_URL, HttpClient
from dafka.cli.options import DURATION, add_options, node_options, usage_mistakes
from dafka.cli.terminal import UsageMistake
from dafka.config import DEFAULT_KAFKA_LISTEN, Config
from dafka.endpoints import split_tcp_endpoint

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")

_BROKER = click.option(
    "--kafka", metavar="HOST:PORT", default=DEFAULT_KAFKA_LISTEN, show_default=True, help="Where the broker listens."
)

_BROKER_OR_CLUSTER = click.option(
    "--kafka",
    metavar="HOST:PORT",
    help="Ask the broker that listens here, about groups of Kafka's clients.  [default: ask the cluster]",
)

password_option = click.option(
    "--password-file",
    type=click.Path(),
    metavar="FILE",
    help="A file whose first line is the password.  [default: ask for it]",
)

_USER = (click.option("--user", metavar="NAME", default="", help="Authenticate as this user."), password_option)

_OPTIONS = (
    click.option("--tls", is_flag=True, help="Connect with TLS, and trust the authorities of the system."),
    click.option(
        "--tls-ca", type=click.Path(), metavar="FILE", default="", help="Connect with TLS, and trust these authorities."
    ),
    click.option(
        "--tls-certificate", type=click.Path(), metavar="FILE", default="", help="The client's own certificate."
    ),
    click.option("--tls-key", type=click.Path(), metavar="FILE", default="", help="Its key, if it is in another file."),
    *_USER,
    click.option(
        "--mechanism",
        type=click.Choice([*MECHANISMS, PLAIN]),
        default=MECHANISMS[0],
        show_default=True,
        help="How to authenticate.",
    ),
)


_HTTP_OPTIONS = (
    click.option("--http", metavar="URL", default=DEFAULT_URL, show_default=True, help="Where a broker serves HTTP."),
    click.option(
        "--tls-ca", type=click.Path(), metavar="FILE", default="", help="The authorities of the broker's certificate."
    ),
    *_USER,
)


def watch_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option `--watch`, which repeats a command until it is interrupted.

    Once it has succeeded, it goes on after errors, such as a broker that restarts, and prints them.
    """

    @functools.wraps(command)
    def wrapper(*args: Any, watch: int | None, as_json: bool, **given: Any) -> None:
        run = functools.partial(command, *args, as_json=as_json, **given)
        if watch is None:
            run()
            return
        has_succeeded = False
        with suppress(KeyboardInterrupt):
            while True:
                try:
                    with suppress(SystemExit):
                        run()
                        has_succeeded = True
                except click.ClickException as error:
                    if not has_succeeded:
                        raise
                    error.show()
                sys.stdout.flush()
                sleep(watch / 1000)
                if not as_json:
                    click.echo()
                    click.clear()

    option = click.option(
        "--watch", type=DURATION, metavar="DURATION", help="Repeat after this long, until interrupted."
    )
    return option(wrapper)


def client_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a connection to a command, which gets `client`."""

    @functools.wraps(command)
    def wrapper(*args: Any, **given: Any) -> Any:
        access = _take_access(given)
        with usage_mistakes(), KafkaClient(access) as client:
            return command(*args, client=client, **given)

    return add_options(_BROKER, *_OPTIONS)(wrapper)


def http_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a connection over HTTP to a command, which gets `client`."""

    @functools.wraps(command)
    def wrapper(*args: Any, http: str, tls_ca: str, user: str, password_file: str | None, **others: Any) -> Any:
        client = HttpClient(http, tls_ca, user, _read_own_password(password_file) if user else "")
        with usage_mistakes():
            return command(*args, client=client, **others)

    return add_options(*_HTTP_OPTIONS)(wrapper)


def client_or_node_options(ask_cluster: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the options of a connection and those of a node to a command, which gets `client`.

    If no option names a broker, `ask_cluster` is called with `config` instead.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def wrapper(*args: Any, config: Config, **given: Any) -> Any:
            has_access = any(given[name] for name in _ACCESS - {"mechanism"})
            given["kafka"] = given["kafka"] or DEFAULT_KAFKA_LISTEN
            if not has_access:
                for name in _ACCESS:
                    del given[name]
                return ask_cluster(*args, config=config, **given)
            access = _take_access(given)
            with usage_mistakes(), KafkaClient(access) as client:
                return command(*args, client=client, **given)

        return add_options(_BROKER_OR_CLUSTER, *_OPTIONS)(node_options(wrapper))

    return decorate


_PASSWORD = f"{__name__}.password"
"""The key under which the context of a command has the password."""

_ACCESS = {"kafka", "tls", "tls_ca", "tls_certificate", "tls_key", "user", "password_file", "mechanism"}


def _take_access(given: dict[str, Any]) -> Access:
    """Return what the options of a connection say, and remove them from those of the command."""
    access = {name: given.pop(name) for name in _ACCESS}
    kafka, password_file = access.pop("kafka"), access.pop("password_file")
    found = split_tcp_endpoint(f"tcp://{kafka}")
    if found is None or not found[1].isdecimal():
        raise UsageMistake(f"--kafka: expected HOST:PORT, such as {DEFAULT_KAFKA_LISTEN}, not {kafka!r}")
    access["tls"] = bool(access["tls"] or access["tls_ca"] or access["tls_certificate"])
    password = _read_own_password(password_file) if access["user"] else ""
    return Access(found[0].strip("[]"), int(found[1]), password=password, **access)


def _read_own_password(path: str | None) -> str:
    """Return the password with which a command authenticates. A command that is repeated asks for it once."""
    known = click.get_current_context().meta
    if _PASSWORD not in known:
        known[_PASSWORD] = read_password(path)
    password: str = known[_PASSWORD]
    return password


def read_password(path: str | None, *, is_new: bool = False) -> str:
    """Return a password: the first line of a file, what the user types, or the first line of the standard input.

    A new one is typed twice. Raise `UsageMistake` if there is none.
    """
    if path is not None:
        try:
            lines = Path(path).read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "expected text"
            raise UsageMistake(f"cannot read the password in {path}: {reason}") from None
        password = lines[0] if lines else ""
    elif sys.stdin is not None and sys.stdin.isatty():
        password = click.prompt("Password", hide_input=True, confirmation_prompt=is_new, err=True)
    else:
        password = sys.stdin.readline().rstrip("\r\n") if sys.stdin is not None else ""
    if not password:
        raise UsageMistake("expected a password that is not empty")
    return password
