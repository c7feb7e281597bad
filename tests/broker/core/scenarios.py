"""Scenarios as text: commands, each followed by what happens, after the idea of etcd's `raft/testdata`.

A file begins with a paragraph on what it shows. Each block has commands, four dashes, and the expected output:

    cut 1 | 2 3
    advance 2s
    ----
    700ms 2 requests votes
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import attrs

SEPARATOR = "----"


class UnknownCommandError(Exception):
    """A command is unknown or malformed."""


@attrs.define
class Block:
    """Commands, and what they print together."""

    commands: list[str]
    output: list[str]

    def __str__(self) -> str:
        return "\n".join([*self.commands, SEPARATOR, *self.output])


@attrs.define
class Scenario:
    """A file of commands with their expected outputs."""

    path: Path
    introduction: list[str]
    blocks: list[Block]

    def write(self) -> None:
        parts = ["\n".join(self.introduction), *map(str, self.blocks)]
        self.path.write_text("\n\n".join(parts) + "\n")


def read_scenario(path: Path) -> Scenario:
    introduction, *parts = path.read_text().rstrip("\n").split("\n\n")
    blocks: list[Block] = []
    for part in parts:
        if SEPARATOR not in part.split("\n"):
            assert not blocks, f"{path.name} has a block without an output: {part}"
            introduction += f"\n\n{part}"
            continue
        lines = part.split("\n")
        place = lines.index(SEPARATOR)
        blocks.append(Block(lines[:place], lines[place + 1 :]))
    return Scenario(path, introduction.split("\n"), blocks)


def find_command(script: object, command: str) -> Callable[[], object] | None:
    """Return what runs a command: the method `do_NAME` of a script, with the words after it. None for a comment."""
    if command.startswith("#"):
        return None
    name, *arguments = command.split()
    method = getattr(script, f"do_{name.replace('-', '_')}", None)
    if method is None:
        raise UnknownCommandError(command)
    return partial(method, *arguments)


def play(scenario: Scenario, run: Callable[[str], list[str]]) -> list[Block]:
    return [
        Block(each.commands, [line for command in each.commands for line in run(command)]) for each in scenario.blocks
    ]


def check(scenario: Scenario, run: Callable[[str], list[str]]) -> None:
    """Play a scenario, and compare."""
    played = play(scenario, run)
    assert "\n\n".join(map(str, played)) == "\n\n".join(map(str, scenario.blocks))


def write_outputs(folder: Path, make_run: Callable[[], Callable[[str], list[str]]]) -> None:
    """Write the outputs of all scenarios of a folder anew."""
    for path in sorted(folder.glob("*.txt")):
        scenario = read_scenario(path)
        scenario.blocks = play(scenario, make_run())
        scenario.write()
