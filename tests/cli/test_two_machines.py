"""The recipes for several machines, followed word by word on machines that are network namespaces."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.harness import Running
from tests.cli.namespaces import Machine, open_machines, shell_blocks, split_by_machine

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
TWO_MACHINES = HOW_TO / "two-machines.md"
LINES = [f"{number}\n" for number in range(1, 1001)]


@pytest.fixture
def two_machines(tmp_path: Path) -> Iterator[list[Machine]]:
    with open_machines(tmp_path, ["first", "second"]) as machines:
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
    assert "10.0.0.1:7000" in status
    assert "10.0.0.2:7001" in status
    assert "127.0.0.1" not in status
    assert "loopback" not in up.errors + consumer.errors


def test_a_store_that_listens_on_loopback_says_that_others_cannot_reach_it(two_machines: list[Machine]) -> None:
    first, second = two_machines
    (up_command,) = shell_blocks(TWO_MACHINES, "On the first machine")
    consume_command, _ = shell_blocks(TWO_MACHINES, "On the second machine")
    local = start_up(first, up_command.replace("--bind 'tcp://*:7000'", ""))
    second.start(consume_command)
    local.wait_errors("where nodes on other machines, such as the one at tcp://10.0.0.2:7001, cannot connect to it")
    assert "--bind 'tcp://*:*'" in local.errors


@pytest.mark.long  # test_cli_keys.py runs the same commands on one machine
@pytest.mark.timeout(300)  # starts the command twelve times
def test_the_recipe_for_a_closed_cluster(tmp_path: Path) -> None:
    names = ["hub", "orders", "billing"]
    with open_machines(tmp_path, names) as opened:
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
