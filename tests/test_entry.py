"""The command `dafka`, as the interpreter runs it: how it calls itself, and what it says without an extra."""

from __future__ import annotations

import os

from tests.cli.forks import run_python

MISSING = """
import signal, sys, types
import dafka._entry
from dafka.errors import MissingExtraError

class Needing(types.ModuleType):
    def __getattr__(self, name):
        print(signal.getsignal(signal.SIGINT) == signal.SIG_DFL)
        raise MissingExtraError("install dafka[extra]")

sys.modules["dafka.cli"] = Needing("dafka.cli")
dafka._entry.main()
"""


def test_an_extra_that_is_missing_is_a_usage_error() -> None:
    ended = run_python(MISSING, {**os.environ}, 60)
    assert (ended.returncode, ended.stderr) == (2, "Error: install dafka[extra]\n")
    assert set(ended.stdout.split()) == {"True"}, "Ctrl-C ends the process while it loads its modules"


def test_the_command_calls_itself_by_its_name() -> None:
    program = "import sys, dafka._entry; sys.argv = ['anything', '--help']; dafka._entry.main()"
    assert run_python(program, {**os.environ}, 60).stdout.startswith("Usage: dafka [OPTIONS]")


def test_the_package_is_the_command() -> None:
    program = "import runpy, sys; sys.argv = ['anything', 'health', '-h']; runpy.run_module('dafka', None, '__main__')"
    ended = run_python(program, {**os.environ}, 60)
    assert (ended.returncode, ended.stdout.partition("[")[0]) == (0, "Usage: dafka health ")
