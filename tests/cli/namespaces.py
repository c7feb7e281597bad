"""Machines of a small network, each a network namespace of this machine (Linux, root, iproute2)."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.harness import Dafka, Running

_SCP = """#!/bin/sh
# Copies files to the folder of another machine: scp FILE... NAME.example:
for target; do :; done
while [ $# -gt 1 ]; do cp "$1" {root}/"${{target%%.example:}}"/ || exit 1; shift; done
"""


class Machine:
    """One machine: a network namespace with its own loopback, and a folder in which its commands run."""

    def __init__(self, name: str, folder: Path, namespace: str, dafka: Dafka) -> None:
        self.folder = folder
        self._name = name
        self._namespace = namespace
        self._dafka = dafka

    def start(self, script: str) -> Running:
        is_pipeline = "|" in script
        script = f"cd {shlex.quote(str(self.folder))}\n{'' if is_pipeline else 'exec '}{script}"
        return self._dafka.start("-c", script, command=("ip", "netns", "exec", self._namespace, "sh", "-e"))

    def run(self, script: str) -> bytes:
        ended = self.start(f"sh -e -c {shlex.quote(script)}").wait()
        assert ended.status == 0, (self._name, script, ended.errors)
        return ended.output


@contextmanager
def open_machines(folder: Path, names: list[str]) -> Iterator[list[Machine]]:
    """Open machines with the addresses 10.0.0.1, 10.0.0.2 and so on, which know each other as `NAME.example`.

    No machine has a default route. Their folders are in `folder`, and their processes are killed at the end.
    """
    _require_namespaces()
    root = folder / "machines"
    programs = folder / "bin"
    programs.mkdir()
    _write_program(programs / "scp", _SCP.format(root=shlex.quote(str(root))))
    _write_program(programs / "dafka", f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m dafka "$@"\n')
    dafka = _Shell(folder, programs)
    mark = f"dafka-{secrets.token_hex(3)}"
    namespaces = [f"{mark}-{number}" for number in range(1, len(names) + 1)]
    hosts = "".join(f"10.0.0.{number} {name}.example\n" for number, name in enumerate(names, 1))
    machines = []
    try:
        for number, (name, namespace) in enumerate(zip(names, namespaces, strict=True), 1):
            (root / name).mkdir(parents=True)
            settings = Path("/etc/netns") / namespace
            settings.mkdir(parents=True)
            (settings / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
            _ip("netns", "add", namespace)
            _ip("-n", namespace, "link", "set", "lo", "up")
            if number == 1:
                _ip("-n", namespace, "link", "add", "net", "type", "bridge")
            else:
                port = f"port{number}"
                _ip("-n", namespaces[0], "link", "add", port, "type", "veth", "peer", "name", "net", "netns", namespace)
                _ip("-n", namespaces[0], "link", "set", port, "master", "net", "up")
            _ip("-n", namespace, "address", "add", f"10.0.0.{number}/24", "dev", "net")
            _ip("-n", namespace, "link", "set", "net", "up")
            machines.append(Machine(name, root / name, namespace, dafka))
        yield machines
    finally:
        dafka.close()
        for namespace in namespaces:
            subprocess.run(["ip", "netns", "delete", namespace], check=False, capture_output=True)
            shutil.rmtree(Path("/etc/netns") / namespace, ignore_errors=True)


class _Shell(Dafka):
    """Shell commands that find `dafka` and `scp` in a folder of their own."""

    def __init__(self, folder: Path, programs: Path) -> None:
        super().__init__(folder)
        self._programs = programs

    def environment(self, changes: dict[str, str] | None = None) -> dict[str, str]:
        inherited = super().environment(changes)
        return {**inherited, "PATH": f"{self._programs}:{inherited['PATH']}", "PYTHONUNBUFFERED": "1"}


def shell_blocks(page: Path, heading: str) -> list[str]:
    section = page.read_text("utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^```sh\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)


def split_by_machine(block: str) -> list[tuple[str, str]]:
    """Split a block with comments such as `# on hub` into the machine's name and its commands, in order."""
    parts = re.split(r"^# on (\w+).*\n", block, flags=re.MULTILINE)
    return list(zip(parts[1::2], parts[2::2], strict=True))


def _require_namespaces() -> None:
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    if shutil.which("ip") is None:
        pytest.skip("network namespaces need the command ip (iproute2)")
    name = f"dafka-try-{secrets.token_hex(3)}"
    added = subprocess.run(["ip", "netns", "add", name], check=False, capture_output=True, text=True)
    if added.returncode:
        pytest.skip(f"this system does not allow network namespaces: {added.stderr.strip()}")
    try:
        linked = subprocess.run(
            ["ip", "-n", name, "link", "add", "net", "type", "bridge"], check=False, capture_output=True, text=True
        )
    finally:
        _ip("netns", "delete", name)
    if linked.returncode:
        pytest.skip(f"this system does not allow bridges in network namespaces: {linked.stderr.strip()}")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def _write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
