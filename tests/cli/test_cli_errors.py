from __future__ import annotations

import os
import sqlite3
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from dafka.cli import main
from tests.cli.harness import FREE, MODULE, Dafka

NOWHERE = ("--tower-sub", "tcp://127.0.0.1:9", "--tower-pub", "tcp://127.0.0.1:9")
IMPATIENT = {"DAFKA_NODE_TOWER_TIMEOUT_MS": "300"}


def run_here(*arguments: str) -> tuple[int, str]:
    """Return the exit status and the error of a command that starts no node. It runs in this process, to be fast."""
    result = CliRunner().invoke(main, arguments)
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ")
    return result.exit_code, line.removeprefix("Error: ")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--output", "full", "--format", "%s"], "--format: expected this or --output, not both"),
        (
            ["--output", "json", "--null-as", "x"],
            "--null-as: expected none with --output json, which has a null of its own",
        ),
        (
            ["--format", "%x"],
            "--format: expected %t, %p, %o, %k, %K, %s, %S, %h, %T or %% after a percent sign, not %x",
        ),
        (
            ["--format", "100%"],
            "--format: expected %t, %p, %o, %k, %K, %s, %S, %h, %T or %% after a percent sign, not %",
        ),
        (["--format", "\\"], r"--format: expected \n, \t, \r, \\ or \xNN after a backslash, not \\"[:-1]),
        (["--format", r"\x4"], r"--format: expected \n, \t, \r, \\ or \xNN after a backslash, not \x"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_output_that_dafka_consume_cannot_print(arguments: list[str], error: str) -> None:
    assert run_here("consume", "t", *arguments) == (2, error)


def test_tower_and_its_endpoints_exclude_each_other() -> None:
    status, sentence = run_here("status", "--tower", "a", "--tower-sub", "tcp://b:5556")
    assert (status, sentence) == (2, "[beacon] tower: expected either tower, or tower_sub and tower_pub, not both")


def test_missing_file_of_a_tower_key_is_named(tmp_path: Path) -> None:
    CliRunner().invoke(main, ["keys", "new", str(tmp_path / "node.key")])
    (tmp_path / "list").touch()
    own = ("--key-file", str(tmp_path / "node.key"), "--authorized-keys", str(tmp_path / "list"))
    status, sentence = run_here("status", *own, "--tower-keys", "hub.pub")
    assert status == 2
    assert sentence.endswith("there is no file 'hub.pub', and it is no public key, which has 40 characters")


@pytest.mark.parametrize("pub", ["tcp://127.0.0.1:8001", "tcp://*:8001"])
@pytest.mark.parametrize("command", ["tower", "up"])
def test_one_port_for_both_sockets_of_a_tower_is_refused(command: str, pub: str) -> None:
    status, sentence = run_here(command, "--sub", "tcp://127.0.0.1:8001", "--pub", pub)
    assert status == 2
    assert sentence.startswith(f"[tower] sub and pub: expected two ports, not tcp://127.0.0.1:8001 and {pub}; ")


def test_unresolvable_host_of_a_tower_is_named(dafka: Dafka) -> None:
    ended = dafka.run("status", "--tower", "nowhere.invalid", "--timeout", "2s")
    assert (ended.status, ended.output) == (1, b"")
    *_, warning, error = ended.errors.splitlines()
    assert "The tower's host name 'nowhere.invalid' cannot be resolved; retrying: " in warning
    assert error.startswith("Error: the tower's host name 'nowhere.invalid' cannot be resolved: ")
    assert error.endswith("; check the name, or name another tower with --tower")


def test_unused_configuration_is_one_warning(dafka: Dafka, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dafka.toml").write_text("[node]\n")
    warning = "./dafka.toml is not read; to use it, write --config dafka.toml"
    unused = dafka.run("tower", "--sub", FREE, "--pub", "tcp://256.0.0.1:1")
    assert [warning in line for line in unused.errors.splitlines()] == [True, False]
    used = dafka.run("tower", "--sub", FREE, "--pub", "tcp://256.0.0.1:1", "--config", "dafka.toml")
    assert (used.status, warning in used.errors) == (1, False)


def test_missing_extra_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "structlog", None)
    status, sentence = run_here("tower", "--log-format", "json")
    assert (status, sentence) == (2, "JSON logging needs structlog: pip install 'dafka[json-logs]'")


def test_unknown_variable_is_one_warning(dafka: Dafka) -> None:
    environment = {**IMPATIENT, "DAFKA_NODE_GRACE": "10s", "DAFKA_VOLUME": "no"}
    ended = dafka.run("consume", "t", *NOWHERE, environment=environment)
    warning, error = ended.errors.splitlines()
    assert warning.endswith(
        "WARNING dafka.config: Ignored environment variables that are not settings: "
        "DAFKA_NODE_GRACE (did you mean DAFKA_NODE_GRACE_MS?), DAFKA_VOLUME"
    )
    assert error.startswith("Error: no tower answered")


def test_settings_that_a_node_refuses(dafka: Dafka) -> None:
    for arguments, error in (
        (["produce", ""], "topic: expected at least one character"),
        (["consume", "t" * 256], "topic: expected at most 255 bytes, not 256"),
        (["produce", "t", "--min-stores", "2", "--wire", "libdafka"], "min_stores: expected 0 or 1 with wire libdafka"),
    ):
        ended = dafka.run(*arguments)
        assert (ended.status, ended.output) == (2, b"")
        assert ended.error.startswith(error)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["produce", "t", "--file", "{folder}/none"], "cannot read {folder}/none: No such file or directory"),
        (["produce", "t", "--file", "{folder}"], "cannot read {folder}: it is a folder"),
        (["consume", "t", "--config", "{folder}/none"], "cannot read the configuration {folder}/none: No such file"),
        (["store", "--storage", "dafka.db"], "storage 'dafka.db': expected SCHEME:LOCATION, such as sqlite:dafka.db"),
        (["store", "--storage", "redis:x"], "unknown storage 'redis': installed are "),
        (["up", "--sub", FREE, "--pub", FREE, "--storage", "redis:x"], "unknown storage 'redis': installed are "),
        (["store", "--storage", "sqlite:"], "storage 'sqlite:': expected a path, as in sqlite:dafka.db"),
        (["store", "--storage", "sqlite:{folder}/none/x.db"], "folder {folder}/none does not exist; create it first"),
        (["store", "--storage", "sqlite:{folder}"], "{folder} is a folder, not a dafka store"),
        (["store", "--storage", "sqlite:{folder}/text"], "{folder}/text is not a dafka store"),
        (["store", "--storage", "sqlite:{folder}/other.db"], "{folder}/other.db is not a dafka store"),
        (["topics", "--storage", "sqlite:{folder}/other.db"], "{folder}/other.db is not a dafka store"),
        (["topics", "--storage", "sqlite:{folder}/none"], "{folder}/none does not exist"),
        (["topics", "--storage", "redis:x"], "unknown storage 'redis': installed are "),
        (["demo", "--file", "{folder}/none"], "cannot read {folder}/none: No such file or directory"),
        (["demo", "--file", "{folder}/empty"], "cannot publish {folder}/empty: it is empty"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_usage_errors(tmp_path: Path, arguments: list[str], error: str) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("0\n" * 1000)
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("CREATE TABLE other (id)")
    connection.close()

    status, sentence = run_here(*(argument.format(folder=tmp_path) for argument in arguments))
    assert status == 2
    assert error.format(folder=tmp_path) in sentence


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("interval_ms = 3", "'interval_ms' is outside of a section; write it below the line of its section, [beacon]"),
        ("[beacons]", "unknown section [beacons]: did you mean [beacon]?"),
        ("[beacon]\nintervall_ms = 3", "unknown setting 'intervall_ms' in [beacon]: did you mean interval_ms?"),
        ("[beacon]\ninterval_ms = 'often'", "[beacon] interval_ms: expected a number of milliseconds from 1 up, or a"),
        ("[beacon", "config.toml is not TOML: "),
    ],
)
def test_configuration_errors(tmp_path: Path, text: str, error: str) -> None:
    (tmp_path / "config.toml").write_text(text)
    status, sentence = run_here("consume", "t", "--config", str(tmp_path / "config.toml"))
    assert status == 2
    assert error in sentence


def test_configuration_file_is_used(dafka: Dafka, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        '[node]\ntower_timeout_ms = 100\n[beacon]\ntower_pub = ["tcp://127.0.0.1:7", "tcp://127.0.0.1:8"]\n'
    )
    ended = dafka.run("consume", "t", "--from-beginning", "--config", str(tmp_path / "config.toml"))
    assert ended.status == 1
    assert ended.error.startswith("no tower answered at tcp://127.0.0.1:7, tcp://127.0.0.1:8 within ")


@pytest.mark.parametrize("command", ["consume", "produce"])
def test_no_tower(dafka: Dafka, command: str) -> None:
    arguments = ["t"]
    arguments += ["--from-beginning"] if command == "consume" else []  # `latest` waits for towers for two seconds first
    ended = dafka.run(command, *arguments, *NOWHERE, stdin=b"0\n1\n", environment=IMPATIENT)
    assert ended.status == 1
    counted = "2 records were not acknowledged by a store (from sequence 0): " if command == "produce" else ""
    assert ended.error.startswith(f"{counted}no tower answered at tcp://127.0.0.1:9 within ")


def test_no_tower_is_an_error_before_idle_exit(dafka: Dafka) -> None:
    ended = dafka.run("consume", "t", "--from-beginning", "--idle-exit", "100ms", *NOWHERE, environment=IMPATIENT)
    assert ended.status == 1
    assert ended.error.startswith("no tower answered")


def test_tower_that_only_sends_is_an_error(dafka: Dafka, tower: list[str]) -> None:
    pub = tower[-1]
    environment = {"DAFKA_NODE_TOWER_TIMEOUT_MS": "1500"}
    ended = dafka.run("produce", "t", *NOWHERE[:2], "--tower-pub", pub, stdin=b"0\n", environment=environment)
    assert ended.status == 1
    assert f"the tower at {pub} is heard, but does not pass on what is sent to tcp://127.0.0.1:9;" in ended.errors


@pytest.mark.parametrize(("command", "option"), [("tower", "--sub"), ("up", "--pub")])
def test_port_in_use_is_an_error(dafka: Dafka, tower: list[str], tmp_path: Path, command: str, option: str) -> None:
    taken = tower[1]
    storage = ["--storage", f"sqlite:{tmp_path / 'store.db'}"] if command == "up" else []
    other = "--pub" if option == "--sub" else "--sub"
    ended = dafka.run(command, option, taken, other, FREE, *storage)
    assert (ended.status, ended.output) == (1, b"")
    assert ended.error == (
        f"cannot listen at {taken}: address already in use; "
        "another tower may be running; choose other ports with --sub and --pub"
    )


def test_store_in_use_is_an_error(cluster: Dafka) -> None:
    path = cluster.folder / "store.db"
    ended = cluster.node("store", "--storage", f"sqlite:{path}")
    assert ended.status == 2
    assert ended.error == f"{path} is in use by another writer; stop it first"


def test_produce_without_a_store_is_an_error(dafka: Dafka, tower: list[str]) -> None:
    dafka.options = tower
    ended = dafka.node("produce", "t", "--close-timeout-ms", "300", stdin=b"0\n1\n2\n")
    assert ended.status == 1
    assert ended.error == (
        "3 records were not acknowledged by a store (from sequence 0); check with `dafka status` that enough stores run"
    )


def test_unpublished_rest_of_the_input_is_an_error(dafka: Dafka, tower: list[str]) -> None:
    dafka.options = tower
    lines = b"".join(b"%d\n" % number for number in range(5000))
    environment = {"DAFKA_PRODUCER_UNACKNOWLEDGED_RECORDS_MAX": "10"}
    ended = dafka.node("produce", "t", "--close-timeout-ms", "300", stdin=lines, environment=environment)
    assert ended.status == 1
    assert ended.error.endswith("(from sequence 0), and the rest of the input was not published")


def test_closed_standard_streams_are_errors(dafka: Dafka) -> None:
    shell = ("/bin/sh", "-c", '"$0" -m dafka "$@"', MODULE[0])
    produced = dafka.start("produce", "t", *NOWHERE, command=(*shell[:2], f"{shell[2]} <&-", shell[3])).wait()
    assert (produced.status, produced.error) == (2, "cannot read the input: standard input is closed")
    consumed = dafka.start("consume", "t", *NOWHERE, command=(*shell[:2], f"{shell[2]} >&-", shell[3])).wait()
    assert (consumed.status, consumed.error) == (1, "cannot write the output: standard output is closed")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_full_disk_is_an_error(cluster: Dafka) -> None:
    assert cluster.node("produce", "full-disk", stdin=b"0\n").status == 0
    shell = ("/bin/sh", "-c", '"$0" -m dafka "$@" >/dev/full', MODULE[0])
    consumed = cluster.start("consume", "full-disk", "--from-beginning", *cluster.options, command=shell).wait()
    assert (consumed.status, consumed.error) == (1, "cannot write the output: No space left on device")
    listed = cluster.start("topics", "--storage", f"sqlite:{cluster.folder / 'store.db'}", command=shell).wait()
    assert (listed.status, listed.error) == (1, "No space left on device")
