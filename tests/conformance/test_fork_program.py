"""The process that runs programs as its forks, for the targets of the suite."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import dafka_conformance.targets

PROGRAM = Path(dafka_conformance.targets.__file__).with_name("fork_program.py")


def test_it_ends_without_a_word_when_nobody_asks_for_programs_any_more() -> None:
    asking, asked = socket.socketpair()
    with asking, asked:
        number = asked.fileno()
        process = subprocess.Popen([sys.executable, PROGRAM, str(number)], pass_fds=[number], stderr=subprocess.PIPE)
    assert (process.communicate(timeout=60)[1], process.returncode) == (b"", 0)
