"""The system calls of a process and its threads, as strace prints them, and in which order they happened."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import attrs

NAMES = "write,writev,pwrite64,pwritev,pwritev2,fsync,fdatasync,sendto,sendmsg"

_LINE = re.compile(
    r"(?P<thread>\d+) +(?:(?P<name>\w+)\((?P<arguments>.*)|<\.\.\. (?P<resumed>\w+) resumed>(?P<rest>.*))$"
)
_DESCRIPTOR = re.compile(r"(\d+)<(.*?)>(?:, |\)|$| )")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_UNFINISHED = "<unfinished ...>"


@attrs.define
class Call:
    """A system call that succeeded.

    Attributes:
        name: Its name.
        fd: The file descriptor.
        target: The file of the descriptor: a path, or `socket:[...]`.
        data: The bytes written or sent.
        begin: The number of the line at which it began.
        end: The number of the line at which it returned.
    """

    name: str
    fd: int
    target: str
    data: bytes
    begin: int
    end: int


@cache
def obstacle() -> str:
    """Return why no process can be traced on this machine; empty if nothing is in the way."""
    if shutil.which("strace") is None:
        return "tracing needs strace"
    traced = subprocess.run(["strace", "-f", "-e", "trace=none", "true"], capture_output=True, check=False)
    return "" if traced.returncode == 0 else "strace is not allowed to trace processes here"


def command(output: Path) -> list[str]:
    """Return the command that traces the command that is appended to it."""
    strings = ["-xx", "-s", str(2**20)]
    return ["strace", "-f", "-y", "-o", str(output), *strings, "-e", f"trace={NAMES}", "-e", "signal=none"]


def read(lines: Iterable[str]) -> Iterator[Call]:
    """Yield the calls in the order in which they returned."""
    unfinished: dict[str, tuple[str, str, int]] = {}
    for number, line in enumerate(lines):
        found = _LINE.match(line)
        if found is None:
            continue
        thread, name, begin = found["thread"], found["name"], number
        if name is None:
            name, arguments, begin = unfinished.pop(thread)
            arguments += found["rest"]
        else:
            arguments = found["arguments"]
            if arguments.endswith(_UNFINISHED):
                unfinished[thread] = name, arguments.removesuffix(_UNFINISHED), begin
                continue
        call = _parse(name, arguments, begin, number)
        if call is not None:
            yield call


def _parse(name: str, arguments: str, begin: int, end: int) -> Call | None:
    descriptor = _DESCRIPTOR.match(arguments)
    result = arguments.rpartition(" = ")[2].split()[:1]
    if descriptor is None or not result or not result[0].isdigit():
        return None
    data = b"".join(bytes.fromhex(text.replace("\\x", "")) for text in _TEXT.findall(arguments))
    written = int(result[0])
    target = descriptor[2]
    if target.startswith("\\x"):
        target = bytes.fromhex(target.replace("\\x", "")).decode()
    return Call(name, int(descriptor[1]), target, data[:written] if written else data, begin, end)
