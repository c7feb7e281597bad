"""The exit status and the sentence of each command in each way to end: 0, 1, 2, and 128 with a signal's number."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner

from dafka.cli import main
from dafka.records import Partition, RecordBatch
from dafka.storage import open_storage
from tests.cli.harness import Dafka, Running

IMPATIENT = {"DAFKA_NODE_TOWER_TIMEOUT_MS": "100", "DAFKA_PRODUCER_CLOSE_TIMEOUT_MS": "100"}

Run = Callable[[str], tuple[int, str]]

FAILED = """
tower --sub {taken} --pub tcp://127.0.0.1:*              | cannot listen at {taken}: address already in use;
up --sub {taken} --pub tcp://127.0.0.1:* --storage memory: | cannot listen at {taken}: address already in use;
up --pub {taken} --sub tcp://127.0.0.1:* --storage memory: | in use; another tower may be running; choose other ports
store --storage memory: --bind {taken} --tower 127.0.0.1:9 | cannot listen at {taken}: address already in use
produce t --file {folder}/node.pub --tower 127.0.0.1:9   | 1 record was not acknowledged by a store (from sequence
consume t --from-beginning --tower 127.0.0.1:9           | no tower answered at tcp://127.0.0.1:10 within
consume t --from-beginning --idle-exit 1ms --tower 127.0.0.1:9 | no tower answered at tcp://127.0.0.1:10 within
consume t --from-beginning --config {folder}/settings    | no tower answered at tcp://127.0.0.1:7,
status --tower 127.0.0.1:9                               | no tower answered at tcp://127.0.0.1:10 within
status --tower nowhere.invalid --timeout 2s              | check the name, or name another tower with --tower
broker --storage memory: --kafka 127.0.0.1:0 --bind {taken} --tower 127.0.0.1:9 | cannot listen at {taken}: address
broker --storage memory: --kafka 127.0.0.1:{taken_port} --tower 127.0.0.1:9 | cannot listen to clients of Kafka at
topic list --kafka 127.0.0.1:{port}                      | cannot connect to 127.0.0.1:{port}: Connection refused; start
group list --kafka 127.0.0.1:{port}                      | cannot connect to 127.0.0.1:{port}: Connection
bench --system c                                         | none of the systems can run: C libdafka: expected the
cluster brokers --http http://127.0.0.1:{port}           | no answer from the broker at http://127.0.0.1:{port}
"""
"""Commands that cannot do their job, and the sentence on standard error: a port is taken, or no tower answers."""

REFUSED = r"""
up --storage redis:x                                     | unknown storage 'redis': installed are filelog, memory,
up --sub tcp://127.0.0.1:8001 --pub tcp://127.0.0.1:8001 | [tower] sub and pub: expected two ports, not
tower --key-file {folder}/node.key                       | [security] key_file: expected authorized_keys beside it
tower --authorized-keys {folder}/keys                    | [security] authorized_keys: expected a key_file beside it
tower --key-file {folder}/node.key --authorized-keys {folder}/none | cannot read the authorized keys
up --key-file {folder}/node.key --authorized-keys {folder}/list | {folder}/list, line 1: expected a public
tower u                                                  | Got unexpected extra argument (u)
store --storage sqlite:{folder}/none/store.db            | cannot open {folder}/none/store.db: folder {folder}/none
produce t --file {folder}/none                           | cannot read {folder}/none: No such file or directory
produce t --file {folder}                                | cannot read {folder}: it is a folder
produce t message --file {folder}/none                   | --file: expected this or messages, not both
produce ''                                               | topic: expected at least one character
produce t --min-stores 2 --wire libdafka                 | min_stores: expected 0 or 1 with wire libdafka
produce t --spool nope:x                                 | unknown storage 'nope'
produce t --timestamp 1969-12-31                         | Invalid value for '--timestamp': expected
consume t --config {folder}/none                         | cannot read the configuration {folder}/none: No such file
consume t --config {folder}/list                         | {folder}/list: unknown section [beacons]: did you mean
consume t --output full --format %s                      | --format: expected this or --output, not both
consume t --output json --null-as x                      | --null-as: expected none with --output json, which has a
consume t --format %x                                    | --format: expected %t, %p, %o, %k, %K, %s, %S, %h, %T or
consume t --format 100%                                  | --format: expected %t, %p, %o, %k, %K, %s, %S, %h, %T or
consume t --format '\'                                   | --format: expected \n, \t, \r, \\ or \xNN after a
consume t --format '\x4'                                 | --format: expected \n, \t, \r, \\ or \xNN after a
consume t --tail 1 --offset 2                            | --offset: expected this or --tail, not both
consume t --tail 1 --from-beginning                      | --tail: expected this or --from-beginning, not both
consume t --since 2h --offset 1                          | --since: expected this or --offset, not both
consume t --group billing --tail 3                       | --tail: expected no --group with it
status --key-file {folder}/none --authorized-keys {folder}/list | cannot read the key file {folder}/none: No such
status --key-file {folder}/node.key --authorized-keys {folder}/keys | [security] tower_keys: expected the tower's
status --key-file {folder}/node.key --authorized-keys {folder}/keys --tower-keys no | [security] tower_keys: there is
status --tower a --tower-sub tcp://b:5556                | [beacon] tower: expected either tower, or tower_sub and
status --timeout 10                                      | Invalid value for '--timeout': expected a duration such
status --timeout 0s                                      | Invalid value for '--timeout': expected a duration above
topics --storage sqlite:{folder}/other.db                | {folder}/other.db is not a dafka store, but the database
storage info memory:                                     | storage 'memory:' takes no path and cannot be opened
storage import sqlite:{folder}/none/store.db             | cannot open {folder}/none/store.db: folder {folder}/none
storage trim u --bytes 0                                 | Invalid value for '--bytes': expected a size above 0, not
storage move sqlite:{folder}/none                        | {folder}/none does not exist
storage objects sqlite:{folder}/none                     | {folder}/none does not exist
storage adopt sqlite:{folder}/store.db 1D                | expected an ID and --as NAME, or neither
storage adopt sqlite:{folder}/store.db 1D --as t         | the storage has no partitions of an unnamed topic '1D'
keys new {folder}/node.key                               | {folder}/node.key exists already; a key file is never
keys show {folder}/none                                  | cannot read the file of public keys {folder}/none: No
keys authorize {folder}/none --authorized-keys {folder}/list | there is no file '{folder}/none', and it is no public
keys new {folder}/none/k                                 | cannot write the key file {folder}/none/k: No such file
keys new {folder}/k --name 'a"b'                         | name 'a"b': expected printable characters without
keys show {folder}/list                                  | {folder}/list, line 1: expected a public key (40
keys authorize {folder}/none                             | expected a list to add the key to: name a file or folder
keys authorize {folder}/node.pub --authorized-keys {folder}/none/x | cannot write {folder}/none/x: No such
health 'no port'                                         | Invalid value for '[ADDRESS:]PORT': expected a port, or
spark {folder}/none.py                                   | cannot read {folder}/none.py: No such file or
demo --file {folder}/none                                | cannot read {folder}/none: No such file or directory
demo --file {folder}/empty                               | cannot publish {folder}/empty: it is empty
bench --json {folder}/none/results.json                  | cannot write {folder}/none/results.json: folder
bench --base tea --system dafka                          | --base: expected one of 'dafka
bench no-job                                             | Invalid value for '[JOB]...':
broker --storage sqlite:{folder}/none/store.db           | cannot open {folder}/none/store.db: folder {folder}/none
broker --kafka 0 --storage memory: --config {folder}/slow | [broker] heartbeat_ms: expected less than leader_timeout_ms
broker --kafka 0.0.0.0:0 --storage memory:               | clients that do not authenticate could connect to 0.0.0.0
topic move t --log 0 --replicas 1;2                      | Invalid value for '--replicas': expected the numbers of
topic recover t --log 0 --from x                         | Invalid value for '--from': 'x' is not a valid integer
cluster brokers --http https://x --tls-ca {folder}/none  | cannot load the certificates of {folder}/none: No such
cluster restore {folder}/none --yes                      | cannot read {folder}/none: No such file or directory
cluster restore {folder}/empty --yes                     | {folder}/empty: it is no snapshot of a cluster, or it is
cluster drain 1024                                       | Invalid value for 'NUMBER': 1024 is not in the range
cluster recover sqlite:{folder}/none --dry-run          | {folder}/none does not exist
cluster undrain x                                        | Invalid value for 'NUMBER': 'x' is not a valid integer
user add name                                            | expected a file of users: name it with --users
user add name --users {folder}/new                       | expected a password that is not empty
user add 'a b' --users {folder}/new                      | user 'a b': expected 1 to 100 letters
user add name --users {folder}/new --password-file {folder}/none | cannot read the password in {folder}/none: No such
user change name --users {folder}/none                   | cannot read the users {folder}/none: No such file or
user list --users {folder}/none                          | cannot read the users {folder}/none: No such file or
completion csh                                           | Invalid value for '{bash|zsh|fish}': 'csh' is not one of
prodce                                                   | No such command 'prodce'. Did you mean 'produce'?
qqqq                                                     | No such command 'qqqq'.
"""
"""Commands that are used wrongly, and how the sentence on standard error begins."""


def rows(table: str) -> list[tuple[str, str]]:
    split = (line.partition(" | ") for line in table.strip().splitlines())
    return [(command.strip(), sentence.lstrip()) for command, _, sentence in split]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, object]]:
    """The names in the arguments above: a folder with a store and keys, and a port that is taken and never answers."""
    folder = tmp_path_factory.mktemp("place")

    async def fill() -> None:
        for url in (f"sqlite:{folder / 'store.db'}", f"filelog:{folder / 'damaged'}"):
            async with open_storage(url) as storage:
                await storage.append([RecordBatch(Partition("t", "P"), 0, [b"0" * 100, b"1" * 100, b"2" * 100])])

    trio.run(fill)
    (segment,) = (
        path for path in (folder / "damaged").rglob("*") if path.is_file() and b"1" * 100 in path.read_bytes()
    )
    content = segment.read_bytes()
    segment.write_bytes(content.replace(b"1" * 100, b"x" * 100))
    shown = CliRunner().invoke(main, ["keys", "new", str(folder / "node.key")])
    for name in ("node.pub", "keys"):
        (folder / name).write_text(shown.stdout)
    (folder / "empty").touch()
    (folder / "list").write_text("[beacons]")
    (folder / "slow").write_text("[broker]\nheartbeat_ms = 1000\n")
    towers = '["tcp://127.0.0.1:7", "tcp://127.0.0.1:8"]'
    (folder / "settings").write_text(f"[node]\ntower_timeout_ms = 100\n[beacon]\ntower_pub = {towers}\n")
    with sqlite3.connect(folder / "other.db") as connection:
        connection.execute("CREATE TABLE other (id)")
    connection.close()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            yield {
                "folder": folder,
                "taken": f"tcp://127.0.0.1:{port}",
                "taken_port": port,
                "port": unused.getsockname()[1],
            }


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], place: dict[str, object]) -> Iterator[Run]:
    for name, value in IMPATIENT.items():
        monkeypatch.setenv(name, value)

    def run_here(command: str) -> tuple[int, str]:
        given = [re.sub(r"\{(\w+)\}", lambda name: str(place[name[1]]), each) for each in shlex.split(command)]
        with pytest.raises(SystemExit) as ended:
            main.main(given, prog_name="dafka")
        status = ended.value.code
        assert isinstance(status, int)
        return status, capfd.readouterr().err

    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        yield run_here


@pytest.mark.parametrize(("command", "sentence"), rows(FAILED))
def test_status_1_for_a_job_that_cannot_be_done(
    command: str, sentence: str, run: Run, place: dict[str, object]
) -> None:
    status, errors = run(command)
    assert status == 1
    assert errors.splitlines()[-1].startswith("Error: ")
    assert sentence.format(**place) in errors.splitlines()[-1]
    assert "Traceback" not in errors


def test_status_1_for_damage_and_a_server_that_does_not_answer(run: Run) -> None:
    assert run("storage verify filelog:{folder}/damaged")[0] == 1
    assert run("health {port}")[0] == 1


@pytest.mark.parametrize(("command", "sentence"), rows(REFUSED))
def test_status_2_for_a_command_that_is_used_wrongly(
    command: str, sentence: str, run: Run, place: dict[str, object]
) -> None:
    status, errors = run(command)
    assert status == 2
    for name in ("folder", "taken"):
        sentence = sentence.replace(f"{{{name}}}", str(place[name]))
    assert errors.splitlines()[-1].startswith(f"Error: {sentence}")


def test_closed_standard_streams_are_errors(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdin", None)
        assert run("produce t") == (2, "Error: cannot read the input: standard input is closed\n")
    monkeypatch.setattr(sys, "stdout", None)
    assert run("consume t") == (1, "Error: cannot write the output: standard output is closed\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_job_is_done(
    dafka: Dafka, tower: list[str], tmp_path: Path, number: signal.Signals
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        no_tower = ["--tower-sub", f"tcp://127.0.0.1:{port}", "--tower-pub", f"tcp://127.0.0.1:{port}"]
        health = dafka.start("health", f"{port}", "--timeout", "1h")
        status = dafka.start("status", "-v", "--max-lag", "0", "--timeout", "1h", *no_tower)
        watch = dafka.start("status", "--watch", "1h", "--json", *tower)
        imported = dafka.start("storage", "import", f"sqlite:{tmp_path / 'imported.db'}", stdin=subprocess.PIPE)
        silent.settimeout(90)
        with silent.accept()[0]:
            status.wait_errors("Listening at")
            watch.wait_output(1)
            assert shell_status(health, number) == 128 + number
            assert shell_status(status, number) == 128 + number
            assert shell_status(watch, number) == 0
            assert shell_status(imported, number) == 128 + number


def shell_status(running: Running, number: signal.Signals) -> int:
    """Stop a process, and return the exit status that a shell shows, whether it was killed or has exited."""
    status = running.end(number).status
    return 128 - status if status < 0 else status
