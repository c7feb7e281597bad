"""`dafka user`, and brokers whose clients authenticate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dafka.broker.access.login import begin_login
from dafka.broker.access.permissions import Permissions
from dafka.broker.access.users_file import UsersFile, read_users
from tests.cli.harness import Dafka
from tests.kafka.server.secured import Confluent, Login, RefusedError


def run_user(dafka: Dafka, *arguments: str | Path, stdin: bytes = b"") -> tuple[int, str, str]:
    done = dafka.run("user", *map(str, arguments), stdin=stdin)
    return done.status, done.output.decode(), done.errors


def test_user_is_added_changed_listed_and_removed(dafka: Dafka, tmp_path: Path) -> None:
    path = tmp_path / "users"
    status, _, errors = run_user(dafka, "add", "alice", "--users", path, "--read", "orders-*", stdin=b"secret\n")
    assert (status, errors) == (0, f"added alice: read orders-*, groups * to {path}\n")
    assert "secret" not in path.read_text()
    assert read_users(path)["alice"].permissions == Permissions(read=("orders-*",), groups=("*",))
    assert log_in(path, "secret") == "alice"

    assert run_user(dafka, "add", "alice", "--users", path, stdin=b"x\n")[0] == 2
    assert run_user(dafka, "change", "alice", "--users", path, "--write", "a", "--write", "b")[0] == 0
    assert log_in(path, "secret") == "alice"
    assert run_user(dafka, "change", "alice", "--users", path, "--password", stdin=b"new\n")[0] == 0
    assert log_in(path, "new") == "alice"
    assert run_user(dafka, "change", "alice", "--users", path)[0] == 2

    status, output, _ = run_user(dafka, "list", "--users", path, "--json")
    assert json.loads(output) == {
        "user": "alice",
        "read": ["orders-*"],
        "write": ["a", "b"],
        "admin": [],
        "groups": ["*"],
        "transactions": [],
        "tokens": [],
    }
    assert run_user(dafka, "list", "--users", path)[1] == "alice: read orders-*, write a b, groups *\n"
    assert run_user(dafka, "remove", "alice", "--users", path)[0] == 0
    assert run_user(dafka, "list", "--users", path)[1] == ""


def test_token_is_made_listed_and_revoked(dafka: Dafka, tmp_path: Path) -> None:
    path = tmp_path / "users"
    assert run_user(dafka, "add", "alice", "--users", path, "--read", "*", stdin=b"secret\n")[0] == 0
    status, output, errors = run_user(dafka, "token", "alice", "--users", path)
    token = output.strip()
    assert (status, token.startswith("dafka_")) == (0, True)
    assert token not in path.read_text()
    found = UsersFile(path).find_token(token)
    assert found is not None
    user, known = found
    assert user.name == "alice"
    assert errors == f"made token {known.token_id} for alice in {path}\n"

    assert run_user(dafka, "token", "alice", "--users", path, "--expires-after", "30d")[0] == 0
    assert run_user(dafka, "change", "alice", "--users", path, "--write", "orders")[0] == 0
    shown = run_user(dafka, "list", "--users", path)[1]
    assert f"; token {known.token_id}; token " in shown
    assert "which expires at 20" in shown
    listed = json.loads(run_user(dafka, "list", "--users", path, "--json")[1])["tokens"]
    assert [each["expires_at"] is None for each in listed] == [True, False]

    assert run_user(dafka, "revoke-token", "alice", known.token_id, "--users", path)[0] == 0
    assert UsersFile(path).find_token(token) is None
    assert run_user(dafka, "revoke-token", "alice", known.token_id, "--users", path)[0] == 2
    expired = run_user(dafka, "token", "alice", "--users", path, "--expires-after", "1ms")[1].strip()
    assert UsersFile(path).find_token(expired) is None


def test_broker_serves_the_users_of_the_file(dafka: Dafka, tmp_path: Path) -> None:
    path = tmp_path / "users"
    assert run_user(dafka, "add", "alice", "--users", path, "--everything", stdin=b"secret\n")[0] == 0
    up = dafka.start_up("--kafka", "0.0.0.0:0", "--storage", "memory:", "--users", str(path))
    port = up.wait_output(3)[2].rpartition(":")[2].strip()
    servers = f"127.0.0.1:{port}"
    Confluent().write(servers, "orders", Login("SCRAM-SHA-512", "alice", "secret"))
    with pytest.raises(RefusedError):
        Confluent().write(servers, "orders", Login("SCRAM-SHA-512", "alice", "wrong"))


def log_in(path: Path, password: str) -> str | None:
    login = begin_login("PLAIN", UsersFile(path))
    login.answer(f"\0alice\0{password}".encode())
    return login.user
