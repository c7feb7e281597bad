"""`dafka up --kafka`, `dafka broker` and `dafka user`, with clients of Kafka."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import attrs
import pytest
from click.testing import CliRunner

from dafka.broker.access.login import begin_login
from dafka.broker.access.permissions import Permissions
from dafka.broker.access.users import Users
from dafka.broker.access.users_file import read_users
from dafka.cli import main
from tests.cli.harness import Dafka
from tests.kafka.server.clients import Confluent, Message
from tests.kafka.server.secured import Login, RefusedError, write_as
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
    first.wait_output(2)
    second = dafka.node("broker", "--number", "1", "--kafka", "0", "--storage", "memory:")
    assert second.status == 2
    assert " has the number 1; start this broker with another number" in second.errors
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


def run_user(*arguments: str | Path, stdin: str = "") -> tuple[int, str, str]:
    """Return the exit status, and what is printed on standard output and on standard error."""
    done = CliRunner().invoke(main, ["user", *map(str, arguments)], input=stdin)
    return done.exit_code, done.stdout, done.stderr


def test_user_is_added_changed_listed_and_removed(tmp_path: Path) -> None:
    """What was done is said on standard error; standard output has the list alone."""
    path = tmp_path / "users"
    added = run_user("add", "alice", "--users", path, "--read", "orders-*", stdin="secret\n")
    assert added == (0, "", f"added alice: read orders-*, groups * to {path}\n")
    assert "secret" not in path.read_text()
    assert read_users(path)["alice"].permissions == Permissions(read=("orders-*",), groups=("*",))
    assert log_in(path, "secret") == "alice"

    again = run_user("add", "alice", "--users", path, stdin="x\n")
    assert again == (2, "", "Error: there is a user 'alice' already; change it with `dafka user change`\n")
    changed = run_user("change", "alice", "--users", path, "--write", "a", "--write", "b")
    assert changed == (0, "", f"changed alice: read orders-*, write a b, groups * in {path}\n")
    assert log_in(path, "secret") == "alice"
    assert run_user("change", "alice", "--users", path, "--password", stdin="new\n")[0] == 0
    assert log_in(path, "new") == "alice"
    (tmp_path / "password").write_text("newer\nand more")
    assert run_user("change", "alice", "--users", path, "--password-file", tmp_path / "password")[0] == 0
    assert log_in(path, "newer") == "alice"
    unchanged = run_user("change", "alice", "--users", path)
    assert unchanged == (2, "", "Error: nothing to change: give permissions or --password\n")

    status, output, errors = run_user("list", "--users", path, "--json")
    assert (status, errors) == (0, "")
    assert json.loads(output) == {
        "user": "alice",
        "read": ["orders-*"],
        "write": ["a", "b"],
        "admin": [],
        "groups": ["*"],
        "transactions": [],
        "tokens": [],
    }
    assert run_user("add", "bob", "--users", path, stdin="secret\n")[0] == 0
    listed = run_user("list", "--users", path)
    assert listed == (0, "alice: read orders-*, write a b, groups *\nbob: no permissions\n", "")
    assert run_user("remove", "alice", "--users", path) == (0, "", f"removed alice from {path}\n")
    assert run_user("remove", "alice", "--users", path) == (2, "", f"Error: there is no user 'alice' in {path}\n")
    assert run_user("list", "--users", path)[1] == "bob: no permissions\n"


@pytest.mark.parametrize(
    ("options", "permissions"),
    [
        ([], Permissions()),
        (["--read", "a", "--group", "g"], Permissions(read=("a",), groups=("g",))),
        (["--write", "a"], Permissions(write=("a",), transactions=("*",))),
        (["--write", "a", "--transaction", "t"], Permissions(write=("a",), transactions=("t",))),
        (["--admin", "a", "--admin", ""], Permissions(admin=("a",))),
        (["--everything", "--read", "a"], Permissions(("*",), ("*",), ("*",), ("*",), ("*",))),
    ],
)
def test_a_new_user_may_do_what_is_given_and_what_that_needs(
    options: list[str], permissions: Permissions, tmp_path: Path
) -> None:
    """An empty pattern then removes the permissions of a kind, and of no other."""
    path = tmp_path / "users"
    added = run_user("add", "alice", "--users", path, *options, stdin="secret\n")
    described = run_user("list", "--users", path)[1].strip()
    assert added == (0, "", f"added {described} to {path}\n")
    assert read_users(path)["alice"].permissions == permissions
    changed = run_user("change", "alice", "--users", path, "--write", "")
    if permissions.write:
        described = run_user("list", "--users", path)[1].strip()
        assert changed == (0, "", f"changed {described} in {path}\n")
    assert read_users(path)["alice"].permissions == attrs.evolve(permissions, write=())


def test_token_is_made_listed_and_revoked(tmp_path: Path) -> None:
    """The token alone is on standard output, for a program that keeps it."""
    path = tmp_path / "users"
    assert run_user("add", "alice", "--users", path, "--read", "*", stdin="secret\n")[0] == 0
    status, output, errors = run_user("token", "alice", "--users", path)
    token = output.strip()
    assert (status, token.startswith("dafka_"), output.count("\n")) == (0, True, 1)
    assert token not in path.read_text()
    found = Users(path).find_token(token)
    assert found is not None
    user, known = found
    assert user.name == "alice"
    assert errors == f"made token {known.token_id} for alice in {path}\n"

    assert run_user("token", "alice", "--users", path, "--expires-after", "30d")[0] == 0
    assert run_user("change", "alice", "--users", path, "--write", "orders")[0] == 0
    shown = run_user("list", "--users", path)[1]
    assert f"; token {known.token_id}; token " in shown
    assert "which expires at 20" in shown
    listed = json.loads(run_user("list", "--users", path, "--json")[1])["tokens"]
    assert [(each["id"] == known.token_id, each["expires_at"] is None) for each in listed] == [
        (True, True),
        (False, False),
    ]

    revoked = run_user("revoke-token", "alice", known.token_id, "--users", path)
    assert revoked == (0, "", f"revoked token {known.token_id} of alice in {path}\n")
    assert Users(path).find_token(token) is None
    assert [each.token_id for each in read_users(path)["alice"].tokens] == [listed[1]["id"]]
    status, output, errors = run_user("revoke-token", "alice", known.token_id, "--users", path)
    assert (status, output, f"has no token '{known.token_id}'" in errors) == (2, "", True)
    expired = run_user("token", "alice", "--users", path, "--expires-after", "1ms")[1].strip()
    assert Users(path).find_token(expired) is None
    assert ", which has expired at 20" in run_user("list", "--users", path)[1]


def test_broker_serves_the_users_of_the_file(dafka: Dafka, tmp_path: Path) -> None:
    path = tmp_path / "users"
    assert run_user("add", "alice", "--users", path, "--everything", stdin="secret\n")[0] == 0
    up = dafka.start_up("--kafka", "0.0.0.0:0", "--storage", "memory:", "--users", str(path))
    port = up.wait_output(3)[2].rpartition(":")[2].strip()
    servers = f"127.0.0.1:{port}"
    write_as(Login("SCRAM-SHA-512", "alice", "secret"), servers, "orders")
    with pytest.raises(RefusedError):
        write_as(Login("SCRAM-SHA-512", "alice", "wrong"), servers, "orders")


def log_in(path: Path, password: str) -> str | None:
    login = begin_login("PLAIN", Users(path))
    login.answer(f"\0alice\0{password}".encode())
    return login.user
