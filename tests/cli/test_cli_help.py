from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import click
import pytest
from click.testing import CliRunner

from dafka import __version__, cli
from dafka.batches import records_codec
from dafka.cli import COMMANDS, main
from dafka.cli.advice import CLOSED_CLUSTER, advise, with_advice
from dafka.errors import MissingExtraError, StorageError, UnacknowledgedError
from dafka.protocol import (
    EndpointsExposed,
    ForeignDialect,
    PeerNotAuthorized,
    PeerRefused,
    RefusedByPeer,
    TowerHostAmbiguous,
    TowersHeard,
)
from dafka.transport import choose_loops
from tests.cli.harness import Dafka, open_terminal

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


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (MissingExtraError("install it"), "install it"),
        (ModuleNotFoundError(name="dafka_bench.command"), "'dafka bench' needs dafka-bench: pip install dafka-bench"),
        (ModuleNotFoundError(name="other.dafka_bench"), None),
    ],
)
def test_a_command_whose_packages_are_missing_names_them(
    error: Exception, sentence: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module of dafka itself that is missing is a fault of its packaging."""
    monkeypatch.setattr(cli, "import_module", Mock(side_effect=error))
    done = CliRunner().invoke(main, ["bench"])
    if sentence is None:
        assert done.exception is error
    else:
        assert (done.exit_code, done.stderr) == (2, f"Error: {sentence}\n")


# Completion in shells: each shell runs, loads the code of `dafka completion`, and completes what is typed

PATH = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))

SHELLS = {"bash": ("bash", "--norc", "--noprofile", "-i"), "zsh": ("zsh", "-f", "-i")}
PREPARATIONS = {"bash": b"bind 'set enable-bracketed-paste off'", "zsh": b"autoload -Uz compinit && compinit -u"}


@pytest.mark.parametrize("shell", SHELLS)
def test_tab_completes(shell: str, dafka: Dafka, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "the-settings.toml").touch()
    (tmp_path / "code").write_text(CliRunner().invoke(main, ["completion", shell]).stdout)
    environment = {"PATH": PATH, "PS1": "$ ", "HOME": str(tmp_path), "TERM": "dumb"}
    with open_terminal(dafka, program=SHELLS[shell], environment=environment) as terminal:
        terminal.type(b"%b; cd %s; source code; echo rea''dy\n" % (PREPARATIONS[shell], bytes(tmp_path)))
        terminal.wait_for(b"\nready")
        for typed, completed in (
            (b"dafka topic desc\t", b"dafka topic describe "),
            (b"dafka store --config the-s\t", b"--config the-settings.toml "),
        ):
            terminal.seen = b""
            terminal.type(typed)
            terminal.wait_for(completed)
            terminal.type(b"\x15")  # Ctrl-U empties the line


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("prod", ["plain,produce"]),
        ("topic de", ["plain,describe", "plain,delete"]),
        ("consume --offset-r", ["plain,--offset-reset"]),
        ("consume --offset-reset earl", ["plain,earliest"]),
        ("up --key-file the-s", ["file,the-s"]),
        ("completion ", ["plain,bash", "plain,zsh", "plain,fish"]),
    ],
)
def test_what_is_completed(typed: str, completed: list[str]) -> None:
    words = f"dafka {typed}".split(" ")
    environment = {"COMP_WORDS": " ".join(words), "COMP_CWORD": f"{len(words) - 1}", "_DAFKA_COMPLETE": "bash_complete"}
    found = CliRunner().invoke(main, prog_name="dafka", env=environment).stdout.splitlines()
    assert sorted(found) == sorted(completed)


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes(dafka: Dafka, tmp_path: Path) -> None:
    (tmp_path / "the-settings.toml").touch()
    expected = {"dafka topic de": ["delete", "describe"], "dafka store --config the-s": ["the-settings.toml"]}
    completions = "".join(f"; complete -C {typed!r}; echo" for typed in expected)
    (tmp_path / "code").write_text(CliRunner().invoke(main, ["completion", "fish"]).stdout)
    program = ["fish", "--no-config", "-c", f"source code{completions}"]
    environment = dafka.environment({"PATH": PATH, "HOME": str(tmp_path)})
    done = subprocess.run(program, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    found = [[line.partition("\t")[0] for line in each.splitlines()] for each in done.stdout.split("\n\n")]
    assert [sorted(each) for each in found if each] == list(expected.values())


def test_names_of_commands_are_completed_without_their_modules() -> None:
    environment = {"COMP_WORDS": "dafka ", "COMP_CWORD": "1", "_DAFKA_COMPLETE": "bash_complete"}
    program = (
        "import sys\nfrom dafka.cli import main\ntry: main(prog_name='dafka')\nexcept SystemExit: print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    *names, modules = done.stdout.splitlines()
    assert names == [f"plain,{name}" for name in COMMANDS]
    assert not {module for module, _ in COMMANDS.values()} & set(modules.split())


# The advice that commands add to events and errors

AUTHORIZE = "to authorize it, run: dafka keys authorize 'k' --authorized-keys list"


@pytest.mark.parametrize(
    ("event", "advice"),
    [
        (PeerRefused("10.0.0.1", "k", "key not authorized", "list"), AUTHORIZE),
        (PeerNotAuthorized("tcp://10.0.0.1:1", "k", "list"), AUTHORIZE),
        (PeerNotAuthorized("tcp://10.0.0.1:1", "", "list"), ""),
        (PeerRefused("10.0.0.1", "", "no key", "list"), f"start it with {CLOSED_CLUSTER}"),
        (PeerRefused("10.0.0.1", "", "another key expected", "list"), "`dafka keys show` prints the right one"),
        (RefusedByPeer("tcp://a:1", "own", "key not authorized"), "run there: dafka keys authorize 'own'"),
        (RefusedByPeer("tcp://a:1", "", "no key"), f"if it belongs to a closed cluster, use {CLOSED_CLUSTER}"),
        (RefusedByPeer("tcp://a:1", "", "unknown"), f"if it belongs to a closed cluster, use {CLOSED_CLUSTER}"),
        (RefusedByPeer("tcp://a:1", "own", "no key"), f"use {CLOSED_CLUSTER} on both sides"),
        (RefusedByPeer("tcp://a:1", "own", "unknown"), "`dafka keys show` prints the right one there"),
        (ForeignDialect("rfc", "libdafka"), "use --wire libdafka, or change the peer"),
        (EndpointsExposed(("tcp://*:1",)), f"listen on 127.0.0.1, or close the cluster with {CLOSED_CLUSTER}"),
        (TowerHostAmbiguous("a", "b"), "with --advertise HOST"),
        (UnacknowledgedError(3, 0, 1), "check with `dafka status` that enough stores run"),
        (TowersHeard(), ""),
        (StorageError("full"), ""),
        (None, ""),
    ],
    ids=lambda each: type(each).__name__ if not isinstance(each, str) else None,
)
def test_advice_names_what_to_run(event: object, advice: str) -> None:
    assert advise(event).endswith(advice)
    assert bool(advise(event)) == bool(advice)
    assert with_advice(event) == (f"{event}; {advise(event)}" if advice else str(event))
