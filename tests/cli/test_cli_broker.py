"""`dafka up --kafka`, `dafka broker` and `dafka user`, with clients of Kafka."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from dafka.broker.access.login import begin_login
from dafka.broker.access.permissions import Permissions
from dafka.broker.access.users_file import UsersFile, read_users
from tests.cli.harness import Dafka
from tests.kafka.server.clients import Confluent, Message
from tests.kafka.server.secured import Confluent as SecuredConfluent
from tests.kafka.server.secured import Login, RefusedError
from tests.ports import free_ports


def test_up_serves_clients_of_kafka(dafka: Dafka, tmp_path: Path) -> None:
    up = dafka.start_up("--kafka", "0", "--storage", f"filelog:{tmp_path}/log")
    servers = up.wait_output(3)[2].split()[-1]
    Confluent().write(servers, "orders", [Message(b"from a client", b"k")], "none")
    consumed = dafka.node("consume", "orders", "--from-beginning", "--count", "1")
    assert consumed.output == b"from a client\n"
    assert dafka.node("produce", "orders", stdin=b"from the command\n").status == 0
    values = [each.value for each in Confluent().read(servers, "orders", 2)]
    assert values == [b"from a client", b"from the command"]


def test_a_broker_that_is_refused_for_its_number_invites_no_clients(dafka: Dafka) -> None:
    dafka.start_tower()
    first = dafka.start_node("broker", "--number", "1", "--kafka", "0", "--storage", "memory:")
    servers = first.wait_output(2)[1].split()[-1]
    second = dafka.node("broker", "--number", "1", "--kafka", "0", "--storage", "memory:")
    assert second.status == 2
    assert f" at {servers} has the number 1, too; start this broker with another one" in second.errors
    assert second.output == b""


@pytest.mark.parametrize("role", ["store", "broker"])
def test_a_daemon_that_hears_no_tower_serves_and_finds_it_later(dafka: Dafka, role: str) -> None:
    sub, pub = (f"tcp://127.0.0.1:{port}" for port in free_ports(2))
    dafka.options = ["--tower-sub", sub, "--tower-pub", pub]
    kafka = ["--kafka", "0", "--number", "3"] if role == "broker" else []
    environment = {"DAFKA_NODE_TOWER_TIMEOUT_MS": "100"}
    daemon = dafka.start_node(role, "--storage", "memory:", *kafka, environment=environment)
    daemon.wait_errors(f"No tower heard at {pub}")
    if role == "broker":
        servers = daemon.wait_output(2)[1].split()[-1]
        Confluent().write(servers, "orders", [Message(b"before the tower", b"k")], "none")
    dafka.start("tower", "--sub", sub, "--pub", pub)
    assert dafka.node("produce", "orders", stdin=b"after it\n").status == 0
    assert daemon.end(signal.SIGTERM).status == 0


# `dafka user`, and brokers whose clients authenticate


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
    SecuredConfluent().write(servers, "orders", Login("SCRAM-SHA-512", "alice", "secret"))
    with pytest.raises(RefusedError):
        SecuredConfluent().write(servers, "orders", Login("SCRAM-SHA-512", "alice", "wrong"))


def log_in(path: Path, password: str) -> str | None:
    login = begin_login("PLAIN", UsersFile(path))
    login.answer(f"\0alice\0{password}".encode())
    return login.user
