from __future__ import annotations

import re
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from dafka import __version__
from dafka.batches import records_codec
from dafka.cli import COMMANDS, main
from dafka.transport import choose_loops

CONTEXT = click.Context(main)


def show_help(*arguments: str, width: int = 80) -> str:
    result = CliRunner().invoke(main, [*arguments, "--help"], terminal_width=width)
    assert result.exit_code == 0
    return result.output


@pytest.mark.parametrize("width", [40, 200])
def test_commands_are_listed_in_the_order_of_their_use_with_their_first_sentences(width: int) -> None:
    assert main.list_commands(CONTEXT) == list(COMMANDS)
    listed = show_help(width=width).partition("Commands:\n")[2]
    assert re.findall(r"^  (\S+)", listed, re.MULTILINE) == list(COMMANDS)
    words = " ".join(listed.split())
    for name, (_, sentence) in COMMANDS.items():
        command = main.get_command(CONTEXT, name)
        assert command is not None
        assert command.help is not None
        assert " ".join(command.help.partition(".")[0].split()) + "." == sentence
        assert f" {sentence}" in words


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


@pytest.mark.parametrize("choice", ["", "off"])
def test_version_names_the_transport_and_the_codec(choice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAFKA_ACCELERATOR", choice)
    found = CliRunner().invoke(main, ["--version"])
    parts = f"transport: {choose_loops().name}, batches: {records_codec().name}"
    expected = f"dafka, version {__version__} ({parts})\n"
    assert (found.exit_code, found.output) == (0, expected)


def test_version_refuses_an_unknown_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAFKA_ACCELERATOR", "yes")
    found = CliRunner().invoke(main, ["--version"])
    assert (found.exit_code, found.output) == (2, "Error: DAFKA_ACCELERATOR: expected on or off, not 'yes'\n")


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
