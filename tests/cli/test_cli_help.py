from __future__ import annotations

import re
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from dafka.cli import COMMANDS, main

CONTEXT = click.Context(main)

COMMON = {"--metrics-listen", "--log-level", "--log-format", "--config", "--verbose", "--help"}
SECURITY = {"--key-file", "--authorized-keys"}
NODE = (
    {"--tower", "--tower-sub", "--tower-pub", "--bind", "--advertise", "--wire", "--grace-ms", "--tower-keys"}
    | SECURITY
    | COMMON
)
STORE = {"--storage", "--retention-ms", "--retention-bytes", "--retention-records", "--forget-empty-after-ms"} | {
    "--cold",
    "--local-retention-ms",
    "--local-retention-bytes",
}
KAFKA = {"--kafka", "--http", "--advertised-listener", "--log-count", "--number", "--rack", "--secret-file"} | {
    "--users",
    "--tls-certificate",
    "--tls-key",
    "--tls-client-ca",
    "--allow-unauthenticated",
}
OPTIONS = {
    "up": {*STORE, *KAFKA, "--sub", "--pub"} | NODE,
    "tower": {"--sub", "--pub"} | SECURITY | COMMON,
    "store": STORE | NODE,
    "broker": STORE | KAFKA | NODE,
    "produce": {"--file", "--key-separator", "--header", "--timestamp", "--null-as"}
    | {"--min-stores", "--spool", "--compression", "--close-timeout-ms"}
    | NODE,
    "consume": {
        "--from-beginning",
        "--tail",
        "--offset",
        "--partition",
        "--exit-at-end",
        "--since",
        "--group",
        "--offset-reset",
        "--count",
        "--idle-exit",
        "--output",
        "--format",
        "--null-as",
    }
    | NODE,
    "status": {"--json", "--watch", "--timeout", "--max-lag", "--partitions", "--all"} | NODE,
    "topics": {"--storage", "--json", "--help"},
    "topic": {"--help"},
    "cluster": {"--help"},
    "group": {"--help"},
    "storage": {"--help"},
    "keys": {"--help"},
    "user": {"--help"},
    "health": {"--live", "--timeout", "--help"},
    "completion": {"--help"},
    "spark": {"--master", "--conf", "--views", "--help"},
    "demo": {"--file", "--wire", "--log-level", "--log-format", "--help"},
    "bench": {
        "--system",
        "--storage",
        "--wire",
        "--accelerator",
        "--c-tools",
        "--base",
        "--records",
        "--rounds",
        "--producers",
        "--stores",
        "--per-process",
        "--timeout",
        "--rest",
        "--idle",
        "--observe",
        "--folder",
        "--json",
        "--plot",
        "--help",
    },
}


def show_help(*arguments: str, width: int = 80) -> str:
    result = CliRunner().invoke(main, [*arguments, "--help"], terminal_width=width)
    assert result.exit_code == 0
    return result.output


def options_of(command: str) -> list[click.Option]:
    found = main.get_command(CONTEXT, command)
    assert found is not None
    context = click.Context(found, parent=click.Context(main, **main.context_settings))
    return [option for option in found.get_params(context) if isinstance(option, click.Option)]


def test_commands_are_listed_in_the_order_of_their_use() -> None:
    assert main.list_commands(CONTEXT) == list(OPTIONS)
    listed = re.findall(r"^  (\S+)", show_help().partition("Commands:\n")[2], re.MULTILINE)
    assert listed == list(OPTIONS)


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_every_command_is_described_by_its_first_sentence(width: int) -> None:
    words = " ".join(show_help(width=width).split())
    for name in OPTIONS:
        command = main.get_command(CONTEXT, name)
        assert command is not None
        assert command.help is not None
        sentence = " ".join(command.help.partition(".")[0].split())
        assert f" {sentence}." in words
        assert f"{sentence}." == COMMANDS[name][1]


@pytest.mark.parametrize("command", OPTIONS)
def test_every_option_exists_and_has_help(command: str) -> None:
    options = options_of(command)
    assert {option.opts[-1] for option in options} == OPTIONS[command]
    for option in options:
        assert option.help
        assert option.help.rstrip("]")[-1] != " "
    text = show_help(command, width=200)
    assert text.startswith(f"Usage: main {command} [OPTIONS]")
    for option in options:
        assert option.opts[-1] in text


@pytest.mark.parametrize("command", ["up", "store", "produce", "consume"])
def test_tower_options_may_be_repeated(command: str) -> None:
    options = {option.opts[0]: option for option in options_of(command)}
    assert options["--tower-sub"].multiple
    assert options["--tower-pub"].multiple


def test_help_shows_the_defaults_of_the_configuration() -> None:
    for command, default in [
        ("tower", "tcp://127.0.0.1:5556"),
        ("tower", "tcp://127.0.0.1:5557"),
        ("store", "sqlite:dafka.db"),
        ("consume", "tcp://127.0.0.1:5556"),
        ("consume", "tcp://127.0.0.1:5557"),
        ("consume", "auto"),
        ("produce", "standard input"),
    ]:
        assert f"[default: {default}]" in show_help(command, width=200)


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_has_a_short_option(option: str) -> None:
    assert CliRunner().invoke(main, ["produce", option]).output == show_help("produce")


def test_help_does_not_load_heavy_modules() -> None:
    heavy = ("rich", "structlog", "prometheus_client", "jinja2", "pyspark")
    program = f"import sys, dafka.cli; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "[]\n"


def test_version() -> None:
    assert CliRunner().invoke(main, ["--version"]).exit_code == 0


@pytest.mark.parametrize(
    ("name", "package"), [("spark", "'dafka[spark]'"), ("demo", "'dafka[demo]'"), ("bench", "dafka-bench")]
)
def test_a_binary_leaves_out_what_needs_python(monkeypatch: pytest.MonkeyPatch, name: str, package: str) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    done = CliRunner().invoke(main, [name])
    sentence = f"this binary has no 'dafka {name}', which needs Python: pip install {package}"
    assert (done.exit_code, done.stderr) == (2, f"Error: {sentence}\n")
    assert name not in main.list_commands(CONTEXT)
    assert f"\n  {name} " not in CliRunner().invoke(main, ["--help"]).output
