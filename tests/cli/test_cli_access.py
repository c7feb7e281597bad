"""`dafka acl` and `dafka quota`, which speak Kafka's protocol to a broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from dafka.broker.access.permissions import Permissions
from dafka.cli import main
from dafka.testing import kafka
from tests.cli.test_cli_kafka import Broker
from tests.kafka.server.secured import PASSWORD, run_secured, write_user_file


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("secured")
    write_user_file(folder / "users", root=Permissions(admin=("*",)), carl=Permissions(read=("a*",)))
    (folder / "password").write_text(PASSWORD)
    with run_secured(users=str(folder / "users")) as running:
        yield Broker(running, "--user", "root", "--password-file", str(folder / "password"))


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with kafka("memory:") as running:
        yield Broker(running)


def acl(*arguments: str) -> tuple[str, ...]:
    return "acl", *arguments


def test_acls_are_created_listed_and_deleted(secured: Broker) -> None:
    created = secured.run(
        *acl(
            "create", "--allow", "anne", "--deny", "User:bob", "--operation", "read", "--operation", "describe-configs"
        ),
        *("--topic", "orders-*", "--topic", "visits", "--host", "10.0.0.1"),
    )
    assert (created.exit_code, created.stdout) == (0, "")
    assert created.stderr.splitlines()[0] == "created: allow User:anne read on topic orders-* from 10.0.0.1"
    assert len(created.stderr.splitlines()) == 8
    secured.output(
        *acl("create", "--allow", "*", "--operation", "all", "--group", "*", "--transaction", "t", "--cluster")
    )
    assert secured.output(*acl("list", "--principal", "anne")).splitlines() == [
        "principal  effect  operation         resource  name      host",
        "anne       allow   read              topic     orders-*  10.0.0.1",
        "anne       allow   describe-configs  topic     orders-*  10.0.0.1",
        "anne       allow   read              topic     visits    10.0.0.1",
        "anne       allow   describe-configs  topic     visits    10.0.0.1",
    ]
    everybody = {"principal": "*", "effect": "allow", "operation": "all", "host": "*"}
    assert secured.lines(*acl("list", "--principal", "*")) == [
        {**everybody, "resource": "group", "name": "*"},
        {**everybody, "resource": "cluster", "name": "kafka-cluster"},
        {**everybody, "resource": "transactional-id", "name": "t"},
    ]
    about = secured.lines(*acl("list", "--topic", "orders-1", "--operation", "read"))
    assert {(each["principal"], each["effect"], each["name"]) for each in about} == {
        ("anne", "allow", "orders-*"),
        ("bob", "deny", "orders-*"),
    }
    assert secured.error(*acl("delete", "--topic", "orders-1", "--yes")) == "there are no such ACLs"
    assert secured.run(*acl("delete", "--topic", "visits", "--principal", "bob", "--yes")).stderr.splitlines() == [
        "deleted: deny User:bob read on topic visits from 10.0.0.1",
        "deleted: deny User:bob describe-configs on topic visits from 10.0.0.1",
    ]
    assert "expected --yes" in secured.run(*acl("delete", "--cluster")).stderr
    assert secured.run(*acl("delete", "--topic", "orders-*", "--yes")).exit_code == 0
    assert [each["name"] for each in secured.lines(*acl("list", "--principal", "anne"))] == ["visits", "visits"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["create", "--allow", "anne", "--topic", "t"], "expected what is allowed or denied: name it with --operation"),
        (["create", "--operation", "read", "--topic", "t"], "expected users: name them with --allow or --deny"),
        (["create", "--allow", "anne", "--operation", "read"], "expected what the ACLs are about: --topic, --group"),
        (
            ["create", "--allow", "anne", "--operation", "read", "--topic", "a*b"],
            "expected a name, what names begin with and *, or * alone, not 'a*b'",
        ),
        (
            ["create", "--allow", "anne", "--operation", "read", "--topic", "t", "--host", "10.0.0.0/8"],
            "expected one address as the host, or '*' for all, not '10.0.0.0/8'",
        ),
        (
            ["create", "--allow", "carl", "--operation", "read", "--topic", "t"],
            "the ACL 'allow User:carl read on topic t': the user 'carl' is in the file of users of this broker",
        ),
        (["list", "--topic", "t", "--cluster"], "expected one of --topic and --cluster"),
        (["delete", "--yes"], "expected which ACLs: --principal"),
        (
            ["delete", "--principal", "carl", "--yes"],
            "the ACL 'allow User:carl read on topic a*': the user 'carl' is in the file of users of this broker",
        ),
    ],
)
def test_errors_of_acls_are_one_sentence(secured: Broker, arguments: list[str], sentence: str) -> None:
    assert secured.error(*acl(*arguments)).startswith(sentence)


def test_a_watched_command_asks_for_the_password_once(secured: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[float] = []

    def sleep(seconds: float) -> None:
        rounds.append(seconds)
        if len(rounds) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("dafka.cli.kafka.options.sleep", sleep)
    for command in (["group", "list"], ["topic", "list", "--json"]):
        rounds.clear()
        asked = [*command, "--watch", "1s", "--kafka", secured.servers, "--user", "root"]
        found = CliRunner().invoke(main, asked, input=f"{PASSWORD}\n")
        assert (found.exit_code, len(rounds), found.stderr) == (0, 3, ""), found.output


@pytest.mark.parametrize("password", ["secret", "p\u00e4ss \u00aaword"])
def test_users_of_the_cluster_are_added_listed_and_removed(secured: Broker, tmp_path: Path, password: str) -> None:
    path = tmp_path / "new"
    for content in ("other", password):
        path.write_text(content)
        done = secured.done("user", "cluster", "add", "dora", "--new-password-file", str(path))
        assert done == "added dora to the cluster: `dafka acl create --allow dora` says what it may do\n"
    assert secured.output("user", "cluster", "list").splitlines() == [
        "user  mechanisms",
        "carl  SCRAM-SHA-256, SCRAM-SHA-512",
        "dora  SCRAM-SHA-256, SCRAM-SHA-512",
        "root  SCRAM-SHA-256, SCRAM-SHA-512",
    ]
    assert secured.lines("user", "cluster", "list")[1]["iterations"] == {"SCRAM-SHA-256": 15000, "SCRAM-SHA-512": 15000}
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"):
        options = ("--user", "dora", "--password-file", str(path), "--mechanism", mechanism)
        found = CliRunner().invoke(main, ["topic", "list", "--kafka", secured.servers, *options])
        assert found.exit_code == 0, found.output
    assert secured.done("user", "cluster", "remove", "dora") == "removed dora from the cluster\n"
    assert secured.error("user", "cluster", "remove", "dora") == "there is no user 'dora'"
    sentence = "the user 'carl' is in the file of users of this broker, which clients cannot change"
    assert sentence in secured.error("user", "cluster", "add", "carl", "--new-password-file", str(path))
    assert sentence in secured.error("user", "cluster", "remove", "carl")
    for unusable in ("\0", "\u00ad"):
        path.write_text(unusable)
        assert secured.error("user", "cluster", "add", "dora", "--new-password-file", str(path)).startswith(
            "password: "
        )


def test_acls_need_a_broker_with_users(broker: Broker) -> None:
    assert "start it with --users" in broker.error("acl", "list")


def test_quotas_are_set_listed_and_removed(broker: Broker) -> None:
    changed = broker.run(
        "quota", "set", "producer_byte_rate=10MB", "controller_mutation_rate=2.5", "--for-user", "anne"
    )
    assert changed.stderr.splitlines() == [
        "producer_byte_rate is 10,000,000 per second for user anne",
        "controller_mutation_rate is 2.5 per second for user anne",
    ]
    broker.output("quota", "set", "consumer_byte_rate=1MiB", "--for-user", "*", "--for-client", "app")
    broker.output("quota", "set", "connection_creation_rate=100", "--for-ip", "*")
    assert broker.output("quota", "list").splitlines() == [
        "user  client id  ip  limit                     per second",
        "-     -          *   connection_creation_rate         100",
        "*     app        -   consumer_byte_rate         1,048,576",
        "anne  -          -   producer_byte_rate        10,000,000",
        "anne  -          -   controller_mutation_rate         2.5",
    ]
    limits = {"producer_byte_rate": 1e7, "controller_mutation_rate": 2.5}
    assert broker.lines("quota", "list", "--for-user", "anne") == [{"entity": {"user": "anne"}, "limits": limits}]
    of_app = {"entity": {"user": None, "client-id": "app"}, "limits": {"consumer_byte_rate": 1048576.0}}
    assert broker.lines("quota", "list", "--for-client", "app") == [of_app]
    assert broker.lines("quota", "list", "--for-user", "*") == [of_app]
    removed = broker.run("quota", "remove", "producer_byte_rate", "--for-user", "anne")
    assert removed.stderr == "removed producer_byte_rate of user anne\n"
    for options in (["--for-user", "anne"], ["--for-user", "*", "--for-client", "app"], ["--for-ip", "*"]):
        broker.output("quota", "remove", *options)
    assert broker.lines("quota", "list") == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["set", "producer_byte_rate=1"], "expected for whom: --for-user, --for-client, both, or --for-ip"),
        (["set", "producer_byte_rate", "--for-user", "a"], "expected LIMIT=VALUE with one of producer_byte_rate,"),
        (["set", "producer_byte_rate=fast", "--for-user", "a"], "producer_byte_rate: expected a size such as 64MiB"),
        (["set", "controller_mutation_rate=x", "--for-user", "a"], "controller_mutation_rate: expected a number, not"),
        (["set", "producer_byte_rate=0", "--for-user", "a"], "producer_byte_rate: expected a number above 0"),
        (["set", "request_percentage=5", "--for-user", "a"], "request_percentage cannot be measured here"),
        (["set", "producer_byte_rate=1", "--for-ip", "::1", "--for-user", "a"], "a quota for an ip is for no user"),
        (["set", "connection_creation_rate=1", "--for-ip", "here"], "the quotas of ip here: expected an address"),
        (["remove", "connection_creation_rate", "--for-user", "a"], "there is no quota 'connection_creation_rate' for"),
        (["remove"], "expected for whom: --for-user"),
    ],
)
def test_errors_of_quotas_are_one_sentence(broker: Broker, arguments: list[str], sentence: str) -> None:
    assert broker.error("quota", *arguments).startswith(sentence)
