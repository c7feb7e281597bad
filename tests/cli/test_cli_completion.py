"""Completion in shells: each shell runs, loads the code of `dafka completion`, and completes what is typed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from dafka.cli import COMMANDS, main
from tests.cli.harness import Dafka, open_terminal

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
