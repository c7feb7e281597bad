"""Users and keys are durable when a command has written them, and whole at any moment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from dafka.broker.access.credentials import MECHANISMS, derive_credential
from dafka.broker.access.permissions import Permissions
from dafka.broker.access.users_file import User, write_users
from dafka.cli.keys import authorize
from dafka.transport.keys import KeyPair, write_key_file
from tests.power.disk import NOTHING, Disk
from tests.power.recorder import Recorder

PAIR = KeyPair.generate("alice")


def add_users(root: Path) -> None:
    credential = {MECHANISMS[0]: derive_credential(MECHANISMS[0], "secret", 4096)}
    write_users(root / "users", {"alice": User("alice", credential, Permissions())})
    write_users(root / "users", {"bob": User("bob", credential, Permissions())})


def add_key_file(root: Path) -> None:
    write_key_file(root / "alice.key", PAIR)


def authorize_key(root: Path) -> None:
    for pair in (PAIR, KeyPair.generate("bob")):
        arguments = [pair.public, "--authorized-keys", str(root / "keys")]
        done = CliRunner().invoke(authorize, arguments, catch_exceptions=False)
        assert done.exit_code == 0, done.output


WRITES = {add_users: "users", add_key_file: "alice.key", authorize_key: "keys"}
"""What writes a file, by the name of the file."""


@pytest.mark.parametrize(("write", "name"), WRITES.items())
def test_what_was_written_is_synced(write: Callable[[Path], None], name: str, tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    with recorder.recording():
        write(tmp_path)
    written = (tmp_path / name).read_bytes()
    disk = Disk(tmp_path)
    found: set[bytes | None] = set()
    for entry in recorder.entries:
        disk.apply(entry)
        for default, others in disk.fates() if write is not add_key_file else ():
            found.add(disk.tree(default, others).get(name))
    assert disk.tree(NOTHING) == {name: written}
    assert len(found) <= 3, "absent, the former content or the new one"
