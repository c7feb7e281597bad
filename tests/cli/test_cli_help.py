from __future__ import annotations

import re
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from dafka.cli import COMMANDS, main

CONTEXT = click.Context(main)


def show_help(*arguments: str, width: int = 80) -> str:
    result = CliRunner().invoke(main, [*arguments, "--help"], terminal_width=width)
    assert result.exit_code == 0
    return result.output


def test_commands_are_listed_in_the_order_of_their_use() -> None:
    assert main.list_commands(CONTEXT) == list(COMMANDS)
    listed = re.findall(r"^  (\S+)", show_help().partition("Commands:\n")[2], re.MULTILINE)
    assert listed == list(COMMANDS)


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_every_command_is_described_by_its_first_sentence(width: int) -> None:
    words = " ".join(show_help(width=width).split())
    for name in COMMANDS:
        command = main.get_command(CONTEXT, name)
        assert command is not None
        assert command.help is not None
        sentence = " ".join(command.help.partition(".")[0].split())
        assert f" {sentence}." in words
        assert f"{sentence}." == COMMANDS[name][1]


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
