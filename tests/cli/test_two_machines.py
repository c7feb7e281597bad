"""The recipes for several machines, followed word by word on machines that are network namespaces."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest
import trio

from tests.broker.cluster.network import Place, find_obstacle, open_network
from tests.cli.harness import Dafka, Running

pytestmark = pytest.mark.skipif(find_obstacle() != "", reason=find_obstacle())

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
TWO_MACHINES = HOW_TO / "two-machines.md"
LINES = [f"{number}\n" for number in range(1, 1001)]
PROGRAMS = {
    # Copies files to the folder of another machine: scp FILE... NAME.example:
    "scp": """for target; do :; done
while [ $# -gt 1 ]; do cp "$1" {root}/"${{target%%.example:}}"/ || exit 1; shift; done""",
    "dafka": 'exec {python} -m dafka "$@"',
}


@attrs.frozen
class Machine:
    """One machine, with a folder in which its commands run. `hosts` has the addresses of the machines on the pages."""

    place: Place
    folder: Path
    dafka: Dafka
    programs: Path
    hosts: dict[str, str]

    def start(self, script: str) -> Running:
        for shown, host in self.hosts.items():
            script = script.replace(shown, host)
        script = f"cd {shlex.quote(str(self.folder))}\n{'' if '|' in script else 'exec '}{script}"
        environment = {"PATH": f"{self.programs}:{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"}
        command = (*self.place.prefix, "sh", "-e")
        return self.dafka.start("-c", script, command=command, environment=environment)

    def run(self, script: str) -> bytes:
        ended = self.start(f"sh -e -c {shlex.quote(script)}").wait()
        assert ended.status == 0, (self.folder, script, ended.errors)
        return ended.output


@contextmanager
def open_machines(folder: Path, *names: str) -> Iterator[list[Machine]]:
    """Open machines that know each other, with folders of their names. Their processes are killed at the end."""
    programs, dafka = folder / "bin", Dafka(folder)
    programs.mkdir()
    for name, text in PROGRAMS.items():
        (programs / name).write_text("#!/bin/sh\n" + text.format(root=folder, python=sys.executable))
        (programs / name).chmod(0o755)
    network = trio.run(open_network)
    try:
        places = [trio.run(network.add, name) for name in names]
        hosts = {f"10.0.0.{number}": place.host for number, place in enumerate(places, 1)}
        hosts |= {f"--tower {name}.example": f"--tower {each.host}" for name, each in zip(names, places, strict=True)}
        for name in names:
            (folder / name).mkdir()
        yield [Machine(each, folder / name, dafka, programs, hosts) for name, each in zip(names, places, strict=True)]
    finally:
        dafka.close()
        trio.run(network.close)


def shell_blocks(page: Path, heading: str) -> list[str]:
    section = page.read_text("utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^```sh\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)


def split_by_machine(block: str) -> list[tuple[str, str]]:
    """Split a block with comments such as `# on hub` into the machine's name and its commands, in order."""
    parts = re.split(r"^# on (\w+).*\n", block, flags=re.MULTILINE)
    return list(zip(parts[1::2], parts[2::2], strict=True))


@pytest.fixture
def two_machines(tmp_path: Path) -> Iterator[list[Machine]]:
    with open_machines(tmp_path, "first", "second") as machines:
        yield machines


def start_up(machine: Machine, command: str) -> Running:
    up = machine.start(command)
    assert "keeps" in up.wait_output(2)[1]
    return up


def published(machine: Machine, command: str) -> None:
    """Run a `dafka produce`, which succeeds only if a store has acknowledged everything."""
    ended = machine.start(command).wait()
    assert ended.status == 0, ended.errors


def test_the_recipe_for_two_machines(two_machines: list[Machine]) -> None:
    """The first records are stored while no other machine is there: only the store on loopback has them."""
    first, second = two_machines
    (up_command,) = shell_blocks(TWO_MACHINES, "On the first machine")
    consume_command, produce_command = shell_blocks(TWO_MACHINES, "On the second machine")
    (status_command,) = shell_blocks(TWO_MACHINES, "Check it")
    up = start_up(first, up_command)
    published(first, produce_command.replace("10.0.0.1", "127.0.0.1"))
    consumer = second.start(consume_command)
    assert consumer.wait_output(len(LINES)) == LINES
    published(second, produce_command)
    assert consumer.wait_output(2 * len(LINES)) == 2 * LINES
    status = second.run(status_command).decode()
    assert f"{first.place.host}:7000" in status
    assert f"{second.place.host}:7001" in status
    assert "127.0.0.1" not in status
    assert "loopback" not in up.errors + consumer.errors


def test_a_store_that_listens_on_loopback_says_that_others_cannot_reach_it(two_machines: list[Machine]) -> None:
    first, second = two_machines
    (up_command,) = shell_blocks(TWO_MACHINES, "On the first machine")
    consume_command, _ = shell_blocks(TWO_MACHINES, "On the second machine")
    local = start_up(first, up_command.replace("--bind 'tcp://*:7000'", ""))
    second.start(consume_command)
    there = f"tcp://{second.place.host}:7001"
    local.wait_errors(f"where nodes on other machines, such as the one at {there}, cannot connect to it")
    assert "--bind 'tcp://*:*'" in local.errors


@pytest.mark.long  # test_cli_keys.py runs the same commands on one machine
@pytest.mark.timeout(300)  # starts the command twelve times
def test_the_recipe_for_a_closed_cluster(tmp_path: Path) -> None:
    names = ["hub", "orders", "billing"]
    with open_machines(tmp_path, *names) as opened:
        machines = dict(zip(names, opened, strict=True))
        keys, nodes = shell_blocks(HOW_TO / "security.md", "Set up a closed cluster")
        for name, script in split_by_machine(keys):
            machines[name].run(script)
        secret = {name: (machine.folder / f"{name}.key").read_text() for name, machine in machines.items()}
        assert len(set(secret.values())) == len(names)
        assert all(len(list(machine.folder.glob("*.key"))) == 1 for machine in opened)
        commands = dict(split_by_machine(nodes))
        up = start_up(machines["hub"], commands["hub"])
        consumer = machines["billing"].start(commands["billing"])
        published(machines["orders"], commands["orders"])
        assert consumer.wait_output(len(LINES)) == LINES
        assert not re.search("efused|loopback", up.errors + consumer.errors)
