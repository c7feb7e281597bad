"""`dafka keys`: manages the keys of the nodes and towers of a closed cluster. It never prints a secret key."""

from __future__ import annotations

from pathlib import Path

import click

from dafka.cli.options import config_options, setting_option, usage_mistakes
from dafka.cli.terminal import UsageMistake
from dafka.config import Config
from dafka.durable_files import replace_text
from dafka.transport.keys import AuthorizedKeys, KeyPair, parse_public_key, read_public_keys, write_key_file


@click.group()
def keys() -> None:
    """Manage the keys of a closed cluster.

    Each node and tower has its own key file, and a list of the public keys of the others.
    """


@keys.command()
@click.argument("file", type=click.Path())
@click.option("--name", metavar="TEXT", help="The name of the key's owner.  [default: the file's name]")
def new(file: str, name: str | None) -> None:
    """Make a key file that only you can read, and print its public key.

    Add the printed line to the lists of the other nodes and towers with `dafka keys authorize`.
    """
    path = Path(file)
    pair = KeyPair.generate(_check_name(path.stem if name is None else name))
    with usage_mistakes():
        write_key_file(path, pair)
    _show(pair.public, pair.name)


@keys.command()
@click.argument("file", type=click.Path())
def show(file: str) -> None:
    """Print the public key of a key file, or all keys of a list.

    FILE is a key file, a file of public keys, or a folder of them. Each key is printed with its name.
    """
    path = Path(file)
    with usage_mistakes():
        listed = AuthorizedKeys(path, "").names() if path.is_dir() else read_public_keys(path)
    for key, name in listed.items():
        _show(key, name)


@keys.command()
@click.argument("key")
@setting_option(
    "security",
    "authorized_keys",
    "The list to add the key to: a file or a folder. A new folder's name ends with /.",
    "PATH",
    default="the setting [security] authorized_keys",
)
@click.option("--name", metavar="TEXT", help="The name of the key's owner.  [default: the name in the file]")
@config_options
def authorize(key: str, name: str | None, config: Config) -> None:
    """Add a public key to a list of authorized keys.

    KEY is the public key, or a file with it. Nodes and towers that use the list accept the key within a second.
    """
    place = config.security.authorized_keys
    if not place:
        raise UsageMistake("expected a list to add the key to: name a file or folder with --authorized-keys")
    with usage_mistakes():
        public = parse_public_key(key)
        given = "" if public == key else read_public_keys(Path(key))[public]
        name = _check_name(given if name is None else name)
        path = Path(place)
        is_folder = path.is_dir() or place.endswith("/")
        listed = AuthorizedKeys(path, "").names() if path.exists() else {}
    if public in listed:
        click.echo(f"{path} already authorizes {public}", err=True)
        return
    try:
        if is_folder:
            path.mkdir(exist_ok=True)
            replace_text(path / f"{_file_name(name, public)}.pub", f"{public} {name}".strip() + "\n", 0o644)
        else:
            former = path.read_text("utf-8") if path.exists() else ""
            separator = "" if former.endswith("\n") or not former else "\n"
            replace_text(path, f"{former}{separator}{public} {name}".strip() + "\n", 0o644)
    except OSError as error:
        raise UsageMistake(f"cannot write {path}: {error.strerror}") from None
    click.echo(f"{path} now authorizes {public} {name}".rstrip(), err=True)


def _show(key: str, name: str) -> None:
    click.echo(f"{key} {name}".rstrip())


def _check_name(name: str) -> str:
    if '"' in name or not name.isprintable():
        raise UsageMistake(f"name {name!r}: expected printable characters without quotation marks")
    return name.strip()


def _file_name(name: str, public: str) -> str:
    """Return the name of a key's file in a folder: the owner's name, made safe, and the beginning of the key."""
    plain = "".join(each if each.isalnum() or each in "-_." else "_" for each in name).lstrip(".")
    mark = public.encode("ascii").hex()[:16]
    return f"{plain}-{mark}" if plain else mark
