"""The file of users, permissions and logins."""

from __future__ import annotations

import json
import os
from pathlib import Path

import attrs
import pytest
from scramp import ScramClient

from dafka.broker.access.credentials import MECHANISMS, derive_credential
from dafka.broker.access.login import PLAIN, LoginError, begin_login
from dafka.broker.access.permissions import Permission, Permissions
from dafka.broker.access.users_file import User, UsersFile, read_users, write_users
from dafka.errors import ConfigError

ITERATIONS = 4096


def make_user(name: str, password: str = "secret", **patterns: tuple[str, ...]) -> User:
    credentials = {each: derive_credential(each, password, ITERATIONS) for each in MECHANISMS}
    return User(name, credentials, Permissions(**patterns))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "users"
    write_users(found, {"alice": make_user("alice", read=("orders-*",)), "bob": make_user("bob", "other")})
    return found


def log_in_by_scram(users: UsersFile, mechanism: str, name: str, password: str) -> str | None:
    client = ScramClient([mechanism], name, password)
    login = begin_login(mechanism, users)
    client.set_server_first(login.answer(client.get_client_first().encode()).decode())
    client.set_server_final(login.answer(client.get_client_final().encode()).decode())
    return login.user


def test_users_are_read_as_they_were_written(path: Path) -> None:
    users = read_users(path)
    assert list(users) == ["alice", "bob"]
    assert users["alice"].permissions == Permissions(read=("orders-*",))
    copy = path.with_name("copy")
    write_users(copy, users)
    assert read_users(copy) == users


def test_file_has_no_password_and_only_its_owner_reads_it(path: Path) -> None:
    assert "secret" not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o604)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_users(path)


def test_same_password_has_different_credentials() -> None:
    first, second = (derive_credential("SCRAM-SHA-256", "secret", ITERATIONS) for _ in range(2))
    assert first.salt != second.salt
    assert first.stored_key != second.stored_key
    assert "stored_key" not in repr(first)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_scram_proves_the_user(path: Path, mechanism: str) -> None:
    assert log_in_by_scram(UsersFile(path), mechanism, "alice", "secret") == "alice"


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("name", "password"), [("alice", "other"), ("carol", "secret"), ("bob", "secret")])
def test_scram_refuses_wrong_passwords_and_unknown_users(path: Path, mechanism: str, name: str, password: str) -> None:
    with pytest.raises(LoginError, match="unknown user or wrong password"):
        log_in_by_scram(UsersFile(path), mechanism, name, password)


def test_unknown_user_looks_like_a_known_one(path: Path) -> None:
    users = UsersFile(path)

    def ask(name: str) -> dict[str, str]:
        text = begin_login("SCRAM-SHA-256", users).answer(f"n,,n={name},r=abc".encode()).decode()
        return dict(part.split("=", 1) for part in text.split(","))

    assert len(ask("carol")["s"]) == len(ask("alice")["s"])
    assert ask("carol")["s"] == ask("carol")["s"]
    assert ask("carol")["s"] != ask("dave")["s"]


@pytest.mark.parametrize(
    "message",
    [b"\0alice\0wrong", b"\0carol\0secret", b"\0\0", b"\0alice\0", b"bob\0alice\0secret", b"alice\0secret", b"\xff"],
)
def test_plain_refuses(path: Path, message: bytes) -> None:
    login = begin_login(PLAIN, UsersFile(path))
    with pytest.raises(LoginError):
        login.answer(message)
    assert login.user is None


@pytest.mark.parametrize("message", [b"\0alice\0secret", b"alice\0alice\0secret"])
def test_plain_proves_the_user(path: Path, message: bytes) -> None:
    login = begin_login(PLAIN, UsersFile(path))
    assert login.answer(message) == b""
    assert login.user == "alice"


@pytest.mark.parametrize(
    "first", [b"", b"n,,", b"n,,n=alice", b"p=x,,n=alice,r=a", b"\xff", b"n,,r=a,n=alice", b"," * 999]
)
def test_malformed_scram_is_refused(path: Path, first: bytes) -> None:
    with pytest.raises(LoginError):
        begin_login("SCRAM-SHA-256", UsersFile(path)).answer(first)


def test_changed_file_is_read_again(path: Path) -> None:
    users = UsersFile(path)
    write_users(path, {"carol": make_user("carol")})
    assert users.find("carol") is None
    assert users.refresh()
    assert users.find("carol") is not None
    assert users.find("alice") is None
    path.write_text("{")
    with pytest.raises(ConfigError, match="expected what `dafka user add` writes"):
        users.refresh()
    assert users.find("carol") is not None
    os.utime(path, (0, 0))
    with pytest.raises(ConfigError):
        users.refresh()
    users.refresh()  # an old file that has not changed is not read again


@pytest.mark.parametrize(
    "document",
    [
        [],
        {},
        {"users": {"alice": {}}},
        {"users": {"a b": {"credentials": {}}}},
        {"users": {"alice": {"credentials": {}}}},
        {"users": {"alice": {"credentials": {"PLAIN": {}}}}},
    ],
)
def test_damaged_file_is_refused_by_one_sentence(tmp_path: Path, document: object) -> None:
    found = tmp_path / "users"
    found.touch(0o600)
    found.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match=str(found)):
        read_users(found)


def test_weak_credentials_are_refused(path: Path) -> None:
    users = read_users(path)
    weak = {name: attrs.evolve(each, iterations=100) for name, each in users["bob"].credentials.items()}
    write_users(path, {"bob": attrs.evolve(users["bob"], credentials=weak)})
    with pytest.raises(ConfigError, match="at least 4096 iterations"):
        read_users(path)


@pytest.mark.parametrize(
    ("pattern", "name", "is_permitted"),
    [
        ("orders", "orders", True),
        ("orders", "orders-2", False),
        ("orders-*", "orders-2", True),
        ("orders-*", "orders", False),
        ("*", "anything\n", True),
        ("*-eu", "orders-eu", True),
        ("*-eu", "orders-eu-2", False),
        ("a*b*c", "axbxbxc", True),
        ("a*b*c", "ac", False),
        ("a.b", "axb", False),
        ("a*b", "a\nb", True),
    ],
)
def test_patterns(pattern: str, name: str, is_permitted: bool) -> None:
    assert Permissions(read=(pattern,)).allow(Permission.READ, name) is is_permitted
    assert Permissions(read=(pattern,)).may_see(name) is is_permitted
    assert not Permissions(groups=(pattern,)).may_see(name)


def test_long_names_take_no_time() -> None:
    permissions = Permissions(read=("*a" * 30 + "*b",))
    assert not permissions.allow(Permission.READ, "a" * 30_000)


def test_administrators_administer_every_topic() -> None:
    assert Permissions(admin=("*",)).is_administrator
    assert not Permissions(admin=("a*",)).is_administrator
