"""`dafka topic` and `dafka group`, which speak Kafka's protocol to a broker."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result
from confluent_kafka import Consumer, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from dafka import Config
from dafka.broker.access.permissions import Permissions
from dafka.cli import main
from dafka.cli.kafka import options
from dafka.testing import RunningKafka, kafka
from tests.kafka.server.clients import Confluent, Message
from tests.kafka.server.secured import EVERYTHING, PASSWORD, Authority, write_user_file
from tests.waiting import poll_until

TIMES = [1_700_000_000_000 + n * 1000 for n in range(10)]


class Broker:
    """A broker, and the command with these further options."""

    def __init__(self, running: RunningKafka, *options: str) -> None:
        self.servers = running.bootstrap_servers
        self._options = options

    def run(self, *arguments: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(main, [*arguments, "--kafka", self.servers, *self._options], input=stdin)

    def output(self, *arguments: str) -> str:
        result = self.run(*arguments)
        assert result.exit_code == 0, result.output
        return result.stdout

    def done(self, *arguments: str) -> str:
        """Run a command that says on standard error what it has done."""
        result = self.run(*arguments)
        assert (result.exit_code, result.stdout) == (0, ""), result.output
        return result.stderr

    def lines(self, *arguments: str) -> list[Any]:
        return [json.loads(line) for line in self.output(*arguments, "--json").splitlines()]

    def error(self, *arguments: str, status: int = 2) -> str:
        result = self.run(*arguments)
        assert (result.exit_code, result.stdout) == (status, "")
        assert result.stderr.count("\n") == 1, result.stderr
        return result.stderr.removeprefix("Error: ").rstrip("\n")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with kafka(f"filelog:{tmp_path_factory.mktemp('broker')}/log") as running:
        yield Broker(running)


def test_a_watched_command_repeats_through_errors_until_it_is_interrupted(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.output("topic", "create", "watched")
    done: list[float] = []

    def sleep(seconds: float) -> None:
        done.append(seconds)
        match len(done):
            case 1:
                broker.output("topic", "delete", "watched", "--yes")
            case 2:
                broker.output("topic", "create", "watched", "--logs", "2")
            case _:
                raise KeyboardInterrupt

    monkeypatch.setattr(options, "sleep", sleep)
    result = broker.run("topic", "describe", "watched", "--watch", "2s", "--json")
    assert (result.exit_code, done) == (0, [2.0, 2.0, 2.0])
    assert [len(json.loads(line)["logs"]) for line in result.stdout.splitlines()] == [1, 2]
    assert result.stderr.count("Error: ") == result.stderr.count("\n") == 1
    assert "'watched'" in result.stderr
    assert "Error" in broker.run("topic", "describe", "missing", "--watch", "2s").stderr, "it has never succeeded"
    for command in (["topic", "list"], ["group", "list"]):
        done[:] = [0.0, 0.0]
        assert broker.run(*command, "--watch", "2s").exit_code == 0


def test_names_of_settings_are_completed() -> None:
    complete = ShellComplete(main, {}, "dafka", "_DAFKA_COMPLETE")
    for options_before, end in ((["topic", "create", "t", "--set"], "="), (["topic", "alter", "t", "--unset"], "")):
        found = [each.value for each in complete.get_completions(options_before, "retention.")]
        assert found == [f"retention.bytes{end}", f"retention.ms{end}"]


def test_topics_are_created_changed_and_deleted(broker: Broker) -> None:
    made = ["made", "--logs", "3", "--set", "retention.ms=60000", "--availability", "branch"]
    assert broker.done("topic", "create", *made) == "created made\n"
    assert {"topic": "made", "logs": 3} in broker.lines("topic", "list")
    (found,) = broker.lines("topic", "describe", "made")
    assert found["settings"] == {"retention.ms": "60000", "availability": "branch"}
    broker.output("topic", "alter", "made", "--unset", "availability")
    place = {"leader": 0, "leader_epoch": 0, "replicas": [0], "in_sync": [0]}
    assert found["logs"] == [{"log": n, "start_offset": 0, "end_offset": 0, **place} for n in range(3)]
    changed = ["--logs", "4", "--unset", "retention.ms", "--set", "retention.bytes=1000"]
    assert broker.done("topic", "alter", "made", *changed) == "changed made\n"
    (found,) = broker.lines("topic", "describe", "made")
    assert (len(found["logs"]), found["settings"]) == (4, {"retention.bytes": "1000"})
    broker.output("topic", "alter", "made", "--set", "segment.ms=1000")
    assert broker.output("topic", "describe", "made").splitlines()[-2:] == [
        "made: retention.bytes=1000",
        "made: segment.ms=1000 (no effect)",
    ]
    assert broker.error("topic", "delete", "made").startswith("expected --yes, since standard input is not a terminal")
    assert broker.run("topic", "delete", "made", "--yes").stderr == "deleted made\n"
    assert "made" not in broker.output("topic", "list")


def test_tables_have_a_line_for_each_log(broker: Broker) -> None:
    Confluent().write(broker.servers, "shown", [Message(b"x")] * 3, "none")
    assert broker.output("topic", "describe", "shown").splitlines() == [
        "topic  log  start offset  end offset  records  leader  epoch  replicas  in sync",
        "shown    0             0           3        3       0      0         0        0",
    ]
    lines = broker.output("topic", "list").splitlines()
    assert lines[0].split() == ["topic", "logs"]
    assert ["shown", "1"] in [line.split() for line in lines]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["topic", "create", "a/b"], "topic 'a/b': "),
        (["topic", "create", "bad", "--set", "x=1"], "topic 'bad': a topic has the settings availability"),
        (["topic", "describe", "missing"], "topic 'missing': there is no such topic"),
        (["topic", "alter", "missing", "--set", "retention.ms=1"], "topic 'missing': there is no such topic"),
        (["topic", "alter", "missing"], "nothing to change: give --logs, --set or --unset"),
        (["topic", "delete", "$topics", "--yes"], "'$topics' is a system topic"),
        (["topic", "delete", "missing", "--yes"], "topic 'missing': there is no such topic"),
        (["group", "describe", "missing"], "group 'missing': there is no such group"),
        (["group", "delete", "missing"], "expected --yes, since standard input is not a terminal"),
        (["group", "delete", "missing", "--yes"], "group 'missing': there is no such group"),
        (["group", "reset", "missing", "--to", "latest"], "group 'missing': it has no committed offsets: name topics"),
    ],
)
def test_errors_are_one_sentence(broker: Broker, arguments: list[str], sentence: str) -> None:
    assert broker.error(*arguments).startswith(sentence)


def test_part_of_several_topics_is_deleted(broker: Broker) -> None:
    broker.output("topic", "create", "present")
    result = broker.run("topic", "delete", "absent", "present", "--yes")
    assert result.exit_code == 2
    assert sorted(result.stderr.splitlines()) == ["Error: topic 'absent': there is no such topic", "deleted present"]


def test_groups_are_described_reset_and_deleted(broker: Broker) -> None:
    messages = [Message(b"%d" % n, timestamp=time) for n, time in enumerate(TIMES)]
    Confluent().write(broker.servers, "grouped", messages, "none")
    Confluent().read(broker.servers, "grouped", 10, "readers")
    listed = {"group": "readers", "state": "Empty", "type": "classic", "protocol": "consumer"}
    poll_until(lambda: listed in broker.lines("group", "list"))

    def offset() -> Any:
        (found,) = broker.lines("group", "describe", "readers")
        (only,) = found["offsets"]
        assert (only["topic"], only["log"], only["end_offset"]) == ("grouped", 0, 10)
        assert only["lag"] == 10 - only["offset"]
        return only["offset"]

    assert offset() == 10
    dry = broker.lines("group", "reset", "readers", "--to", "earliest", "--dry-run")
    assert dry == [{"group": "readers", "topic": "grouped", "log": 0, "former_offset": 10, "offset": 0}]
    table = broker.run("group", "reset", "readers", "--to", "4", "--dry-run")
    assert [line.split() for line in table.stdout.splitlines()[1:]] == [["grouped", "0", "10", "4"]]
    assert table.stderr == "nothing was committed: this was a dry run\n"
    assert offset() == 10
    for target, expected in [
        ("earliest", 0),
        ("4", 4),
        ("latest", 10),
        ("2023-11-14T22:13:26Z", 6),
        ("2023-11-14T23:13:23+01:00", 3),
        ("2023-11-14T22:13:22", 2),
        ("2030-01-01", 10),
        ("99", 10),
    ]:
        broker.output("group", "reset", "readers", "--to", target)
        assert offset() == expected, target
    broker.output("group", "reset", "readers", "--to", "7")
    assert [each.value for each in Confluent().read(broker.servers, "grouped", 3, "readers")] == [b"7", b"8", b"9"]
    poll_until(lambda: "readers: Empty" in broker.output("group", "describe", "readers"))
    assert broker.run("group", "delete", "readers", "--yes").stderr == "deleted readers\n"
    assert "readers" not in broker.output("group", "list")


def test_groups_whose_coordinator_assigns_are_described_and_not_reset_while_they_have_members(broker: Broker) -> None:
    Confluent().write(broker.servers, "assigned", [Message(b"%d" % n) for n in range(3)], "none")
    group = {"group.id": "assigned", "group.protocol": "consumer", "auto.offset.reset": "earliest"}
    with closing(Consumer({"bootstrap.servers": broker.servers, "client.id": "me", **group})) as consumer:
        consumer.subscribe(["assigned"])
        while consumer.poll(60) is None:
            pass
        consumer.commit(asynchronous=False)
        assert {"group": "assigned", "state": "Stable", "type": "consumer", "protocol": "consumer"} in broker.lines(
            "group", "list"
        )
        (found,) = broker.lines("group", "describe", "assigned")
        assert (found["state"], [each["client"] for each in found["members"]]) == ("Stable", ["me"])
        assert [each["topic"] for each in found["offsets"]] == ["assigned"]
        refused = broker.error("group", "reset", "assigned", "--to", "earliest")
        assert refused == "group 'assigned': it has members (it is Stable): stop them first"
    poll_until(lambda: "assigned: Empty" in broker.output("group", "describe", "assigned"))
    assert broker.lines("group", "reset", "assigned", "--to", "earliest")[0]["offset"] == 0
    assert broker.error("group", "describe", "absent") == "group 'absent': there is no such group"


def test_share_groups_are_described_and_moved_while_they_have_no_members(broker: Broker) -> None:
    Confluent().write(broker.servers, "shared", [Message(b"%d" % n) for n in range(3)], "none")
    settings = {"bootstrap.servers": broker.servers, "client.id": "me", "group.id": "sharing"}

    def read(consumer: Any, is_enough: Callable[[int], bool]) -> list[bytes]:
        found: list[bytes] = []
        while not is_enough(len(found)):
            for message in consumer.poll(0.2):
                assert message.error() is None
                found.append(message.value())
        return found

    with closing(ShareConsumer(settings)) as consumer:
        consumer.subscribe(["shared"])
        read(consumer, lambda _: "sharing: Stable" in broker.run("group", "describe", "sharing").output)
        read(consumer, lambda _: bool(broker.lines("group", "describe", "sharing")[0]["offsets"]))
        assert {"group": "sharing", "state": "Stable", "type": "share", "protocol": "share"} in broker.lines(
            "group", "list"
        )
        (found,) = broker.lines("group", "describe", "sharing")
        assert (found["state"], [(each["client"], each["logs"]) for each in found["members"]]) == (
            "Stable",
            [("me", "shared 0")],
        )
        assert [(each["topic"], each["offset"], each["lag"]) for each in found["offsets"]] == [("shared", 3, 0)]
        refused = broker.error("group", "reset", "sharing", "--to", "earliest")
        assert refused == "group 'sharing': it has members (it is Stable): stop them first"
    poll_until(lambda: "sharing: Empty" in broker.output("group", "describe", "sharing"))
    assert broker.lines("group", "reset", "sharing", "--to", "1")[0]["offset"] == 1
    with closing(ShareConsumer(settings)) as consumer:
        consumer.subscribe(["shared"])
        assert read(consumer, lambda count: count == 2) == [b"1", b"2"]
        consumer.commit_sync()
        assert [each["lag"] for each in broker.lines("group", "describe", "sharing")[0]["offsets"]] == [0]
    entry = ConfigEntry("errors.deadletterqueue.topic.name", "dlq.x", incremental_operation=AlterConfigOpType.SET)
    group = ConfigResource(ConfigResource.Type.GROUP, "sharing", incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": broker.servers})
    admin.incremental_alter_configs([group])[group].result(60)
    assert "dead letters go to dlq.x\n" in broker.output("group", "describe", "sharing")
    assert broker.lines("group", "describe", "sharing")[0]["dead_letters"] == "dlq.x"
    assert broker.run("group", "delete", "sharing", "--yes").stderr == "deleted sharing\n"


def test_group_without_offsets_gets_those_of_the_named_topics(broker: Broker) -> None:
    Confluent().write(broker.servers, "named", [Message(b"%d" % n) for n in range(5)], "none")
    broker.output("group", "reset", "fresh", "--to", "3", "--topic", "named")
    assert [each.value for each in Confluent().read(broker.servers, "named", 2, "fresh")] == [b"3", b"4"]


def test_active_group_is_neither_reset_nor_deleted(broker: Broker) -> None:
    Confluent().write(broker.servers, "active", [Message(b"x")], "none")
    consumer = Consumer({"bootstrap.servers": broker.servers, "group.id": "actives", "auto.offset.reset": "earliest"})
    consumer.subscribe(["active"])
    with closing(consumer):
        for _ in range(60):
            if consumer.poll(1) is not None:
                break
        reason = broker.error("group", "reset", "actives", "--to", "earliest", "--topic", "active")
        assert reason.startswith("group 'actives': it has members (it is ")
        assert (
            broker.error("group", "delete", "actives", "--yes")
            == "group 'actives': the group has members: stop them first"
        )
        (found,) = broker.lines("group", "describe", "actives")
        assert len(found["members"]) == 1


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningKafka, Authority, Path]]:
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority(folder)
    write_user_file(folder / "users", alice=EVERYTHING, bob=Permissions(read=("open-*",)))
    settings = {"users": str(folder / "users"), "tls_certificate": str(authority.issue("127.0.0.1"))}
    (folder / "password").write_text(f"{PASSWORD}\n")
    (folder / "wrong").write_text("wrong\n")
    with kafka("memory:", Config().with_clients(**settings)) as running:  # type: ignore[arg-type]
        yield running, authority, folder


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_commands_authenticate_over_tls(secured: tuple[RunningKafka, Authority, Path], mechanism: str) -> None:
    running, authority, folder = secured
    login = ["--tls-ca", str(authority.path), "--user", "alice", "--mechanism", mechanism]
    broker = Broker(running, *login, "--password-file", str(folder / "password"))
    name = f"made-by-{mechanism.lower()}"
    broker.output("topic", "create", name)
    assert name in broker.output("topic", "list")
    typed = Broker(running, *login).run("topic", "list", stdin=f"{PASSWORD}\n")
    assert (typed.exit_code, name in typed.stdout) == (0, True)


def test_refusals_are_one_sentence(secured: tuple[RunningKafka, Authority, Path]) -> None:
    running, authority, folder = secured
    servers, tls, password = running.bootstrap_servers, ["--tls-ca", str(authority.path)], str(folder / "password")
    wrong = Broker(running, *tls, "--user", "alice", "--password-file", str(folder / "wrong"))
    expected = (
        f"the broker at {servers} refuses the user 'alice': authentication failed: unknown user or wrong password"
    )
    assert wrong.error("topic", "list") == expected
    bob = Broker(running, *tls, "--user", "bob", "--password-file", password)
    assert "is not permitted to do this (TOPIC_AUTHORIZATION_FAILED)" in bob.error("topic", "create", "secret")
    assert "is not permitted to do this (GROUP_AUTHORIZATION_FAILED)" in bob.error("group", "delete", "others", "--yes")
    assert "it expects authentication, use --user" in Broker(running, *tls).error("topic", "list", status=1)
    plain = Broker(running).error("topic", "list", status=1)
    assert f"{servers}" in plain
    assert f"the certificate of {servers} is not accepted" in Broker(running, "--tls").error("topic", "list")
    assert "cannot load the certificates of missing" in Broker(running, "--tls-ca", "missing").error("topic", "list")


def test_user_is_refused_by_a_broker_without_users(broker: Broker, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("x")
    options = ["--user", "alice", "--password-file", str(tmp_path / "password")]
    assert "expects no authentication: omit --user" in broker.error("topic", "list", *options)


@pytest.mark.parametrize(
    ("command", "answered", "named"),
    [
        (
            "topic list --kafka",
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            "ended the connection; if it expects TLS, use --tls",
        ),
        ("topic list --tls --kafka", b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak TLS: "),
        ("topic list --kafka", b"\0\0\0\4\0\0\0\7", "does not answer as a broker: "),
        ("cluster brokers --http", b"", "if it expects TLS, use https://"),
    ],
)
def test_what_is_no_broker_is_named(command: str, answered: bytes, named: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(answered)
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(1000):  # if it closed with something unread, the answer could be lost
                        pass

        thread = threading.Thread(target=answer)
        thread.start()
        result = CliRunner().invoke(main, [*command.split(), address])
        thread.join()
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert address in result.stderr
    assert named in result.stderr
