"""`dafka user`: manages the users of a broker. It never prints or keeps a password."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import click

from dafka.broker.access.credentials import (
    DEFAULT_ITERATIONS,
    MECHANISMS,
    Credential,
    Token,
    create_token,
    derive_credential,
)
from dafka.broker.access.permissions import Permissions
from dafka.broker.access.users_file import User, find_user_name_problem, read_users, write_users
from dafka.cli.kafka.cluster_users import cluster
from dafka.cli.kafka.options import password_option, read_password
from dafka.cli.options import DURATION, add_options, config_options, setting_option, usage_mistakes
from dafka.cli.terminal import UsageMistake
from dafka.config import Config
from dafka.storage.plugin_helpers import now_ms
from dafka.text import format_time

_KINDS = {
    "read": "A topic whose records the user may read; * stands for any characters. Repeat it for several.",
    "write": "A topic to which the user may publish.",
    "admin": "A topic that the user may create, change and delete; '*' also permits what concerns the whole broker.",
    "groups": "A group of consumers that the user may use.",
    "transactions": "A transactional id that the user may use.",
}
_FLAGS = {"groups": "--group", "transactions": "--transaction"}
_EVERYTHING = Permissions(**dict.fromkeys(_KINDS, ("*",)))

_users_option = setting_option("clients", "users", "The file of users.", "FILE", default="the setting [clients] users")


_permission_options = add_options(
    *(
        click.option(_FLAGS.get(kind, f"--{kind}"), kind, metavar="PATTERN", multiple=True, help=text)
        for kind, text in _KINDS.items()
    ),
    click.option("--everything", is_flag=True, help="Permit everything."),
)


@click.group()
def user() -> None:
    """Manage the users of a broker: their passwords, and what they may do.

    The file of users has salted and hashed passwords (SCRAM). A running broker reads it again when it changes. `dafka
    user cluster` manages users who are in no file, over a broker.
    """


@user.command()
@click.argument("name")
@_users_option
@_permission_options
@password_option
@config_options
def add(name: str, password_file: str | None, everything: bool, config: Config, **patterns: tuple[str, ...]) -> None:
    """Add a user.

    The password is asked for, or is the first line of the standard input if that is no terminal. Without permissions,
    the user may do nothing.
    """
    with _changing_users(config, is_new_allowed=True) as (path, users):
        problem = find_user_name_problem(name)
        if problem:
            raise UsageMistake(problem)
        if name in users:
            raise UsageMistake(f"there is a user {name!r} already; change it with `dafka user change`")
        permissions = _permissions(Permissions(), patterns, everything=everything)
        if permissions.read and not permissions.groups:
            permissions = attrs.evolve(permissions, groups=("*",))
        if permissions.write and not permissions.transactions:
            permissions = attrs.evolve(permissions, transactions=("*",))
        users[name] = User(name, _derive(read_password(password_file, is_new=True)), permissions)
    click.echo(f"added {_describe(users[name])} to {path}", err=True)


@user.command()
@click.argument("name")
@_users_option
@_permission_options
@click.option("--password", is_flag=True, help="Ask for a new password.")
@password_option
@config_options
def change(
    name: str, password: bool, password_file: str | None, everything: bool, config: Config, **patterns: tuple[str, ...]
) -> None:
    """Change a user's password, or what it may do.

    Each kind of permission that is given replaces the former ones of that kind. An empty pattern removes them.
    """
    with _changing_users(config) as (path, users):
        former = _find(users, name, path)
        changed = attrs.evolve(former, permissions=_permissions(former.permissions, patterns, everything=everything))
        if password or password_file:
            changed = attrs.evolve(changed, credentials=_derive(read_password(password_file, is_new=True)))
        elif changed == former:
            raise UsageMistake("nothing to change: give permissions or --password")
        users[name] = changed
    click.echo(f"changed {_describe(changed)} in {path}", err=True)


@user.command()
@click.argument("name")
@_users_option
@config_options
def remove(name: str, config: Config) -> None:
    """Remove a user. A running broker disconnects the user's clients at their next request."""
    with _changing_users(config) as (path, users):
        del users[_find(users, name, path).name]
    click.echo(f"removed {name} from {path}", err=True)


@user.command()
@click.argument("name")
@_users_option
@click.option(
    "--expires-after", type=DURATION, metavar="DURATION", help="How long it counts, such as 30d.  [default: no limit]"
)
@config_options
def token(name: str, expires_after: int | None, config: Config) -> None:
    """Make a token for a user, and print it.

    A token stands for the user in place of a password, in the header `Authorization: Bearer` of HTTP and in WebSocket.
    It is printed once: the file of users has its hash only.
    """
    with _changing_users(config) as (path, users):
        former = _find(users, name, path)
        secret, made = create_token(None if expires_after is None else now_ms() + expires_after)
        users[name] = attrs.evolve(former, tokens=(*former.tokens, made))
    click.echo(f"made {_describe_token(made)} for {name} in {path}", err=True)
    click.echo(secret)


@user.command("revoke-token")
@click.argument("name")
@click.argument("token_id", metavar="ID")
@_users_option
@config_options
def revoke_token(name: str, token_id: str, config: Config) -> None:
    """Revoke a token of a user. Clients that use it are refused from their next request on.

    `dafka user list` shows the ids of tokens.
    """
    with _changing_users(config) as (path, users):
        former = _find(users, name, path)
        kept = tuple(each for each in former.tokens if each.token_id != token_id)
        if kept == former.tokens:
            raise UsageMistake(
                f"the user {name!r} has no token {token_id!r}; `dafka user list` shows the ids of tokens"
            )
        users[name] = attrs.evolve(former, tokens=kept)
    click.echo(f"revoked token {token_id} of {name} in {path}", err=True)


@user.command("list")
@_users_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per user.")
@config_options
def list_users(as_json: bool, config: Config) -> None:
    """List the users, what they may do, and the ids of their tokens."""
    _, users = _read(config)
    for each in users.values():
        if as_json:
            tokens = [{"id": known.token_id, "expires_at": known.expires_at_ms} for known in each.tokens]
            click.echo(json.dumps({"user": each.name, **attrs.asdict(each.permissions), "tokens": tokens}))
        else:
            click.echo("; ".join([_describe(each), *map(_describe_token, each.tokens)]))


def _read(config: Config, *, is_new_allowed: bool = False) -> tuple[Path, dict[str, User]]:
    if not config.clients.users:
        raise UsageMistake("expected a file of users: name it with --users")
    path = Path(config.clients.users)
    if is_new_allowed and not path.exists():
        return path, {}
    with usage_mistakes():
        return path, read_users(path)


@contextmanager
def _changing_users(config: Config, *, is_new_allowed: bool = False) -> Iterator[tuple[Path, dict[str, User]]]:
    """Read the file of users, and write it when the block has changed them."""
    path, users = _read(config, is_new_allowed=is_new_allowed)
    yield path, users
    with usage_mistakes():
        write_users(path, users)


def _find(users: dict[str, User], name: str, path: Path) -> User:
    if name not in users:
        raise UsageMistake(f"there is no user {name!r} in {path}")
    return users[name]


def _permissions(former: Permissions, patterns: dict[str, tuple[str, ...]], *, everything: bool) -> Permissions:
    if everything:
        return _EVERYTHING
    given = {kind: tuple(each for each in some if each) for kind, some in patterns.items() if some}
    return attrs.evolve(former, **given)


def _derive(password: str) -> dict[str, Credential]:
    with usage_mistakes():
        return {mechanism: derive_credential(mechanism, password, DEFAULT_ITERATIONS) for mechanism in MECHANISMS}


def _describe(each: User) -> str:
    patterns = {kind: " ".join(getattr(each.permissions, kind)) for kind in _KINDS}
    kinds = [f"{kind} {text}" for kind, text in patterns.items() if text]
    return f"{each.name}: {', '.join(kinds) or 'no permissions'}"


def _describe_token(each: Token) -> str:
    if each.expires_at_ms is None:
        return f"token {each.token_id}"
    time = format_time(each.expires_at_ms, "seconds")
    return f"token {each.token_id}, which {'expires' if each.is_valid() else 'has expired'} at {time}"


user.add_command(cluster)
