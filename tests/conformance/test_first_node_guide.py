"""The guide docs/tutorial/first-node.md builds the example in Python, and its commands print what it shows."""

from __future__ import annotations

import re
import shutil
from fnmatch import fnmatch
from pathlib import Path

import pytest

from dafka_conformance.catalog import Catalog
from tests.conformance.first_node_guide import (
    EXAMPLE,
    PAGE,
    Edit,
    apply_edit,
    find_line,
    follow,
    read_guide,
    run_command,
    without_numbers,
)

TIMEOUT_S = 900


MISTAKES = {
    "The address is in lower case.": ("node.py", ".hex.upper()", ".hex"),
    "The beacon has the port as two bytes.": ("node.py", 'b"%d" % port', 'port.to_bytes(2, "big")'),
    "The signature is that of the RFC's prose.": ("messages.py", r"\xaa\xa5", r"\xaa\xa0"),
    "A string's length has four bytes.": ("messages.py", "bytes([len(text)]) +", 'len(text).to_bytes(4, "big") +'),
    "Numbers are little-endian.": ("messages.py", 'sequence.to_bytes(8, "big")', 'sequence.to_bytes(8, "little")'),
    "The content is not a frame of its own.": ("messages.py", "[*frames, message.content]", "frames"),
    "Records keep the newline of the input.": ("producer.py", "publish(line)", r'publish(line + b"\n")'),
    "HEAD is published to the partition, as the RFC's prose has it.": (
        "producer.py",
        '"HEAD", self.topic',
        '"HEAD", self.address',
    ),
    "HEAD has the count of records.": (
        "producer.py",
        '"HEAD", self.topic, self.next - 1',
        '"HEAD", self.topic, self.next',
    ),
    "DIRECT-RECORD is sent to the producer's own address.": ("producer.py", "fetch.address, seq", "self.address, seq"),
    "The answer to a FETCH includes its end.": ("producer.py", "+ fetch.count,", "+ fetch.count + 1,"),
    "The topic and subject of a FETCH are not compared.": (
        "producer.py",
        "(fetch.topic, fetch.subject) == (self.address, self.topic)",
        "True",
    ),
    "The publisher has the default high watermark.": ("node.py", "self.publisher.sndhwm = 0", "pass"),
    "The program ends with its input.": ("producer.py", "self.is_input_ended and not self.kept", "self.is_input_ended"),
}
"""Mistakes in the finished producer: a file, and what the mistake makes of a part of it."""

ATTEMPTS = 3
"""How often a mistake is looked for. A queue that is too short shows only when it fills: not on every busy machine."""


def mistakes_on_page() -> dict[str, tuple[str, str]]:
    """Return the table of mistakes: the scenario and the finding of each."""
    section = PAGE.read_text("utf-8").partition("## Likely mistakes")[2]
    return {
        what: (name, finding)
        for what, name, finding in re.findall(r"^\| (.+?) \| `(.+?)` \| `(.+?)` \|$", section, re.M)
    }


def test_guide_builds_the_example() -> None:
    files: dict[str, str] = {}
    for step in read_guide(PAGE.read_text("utf-8")):
        if isinstance(step, Edit):
            apply_edit(step, files)
    assert set(files) == {"messages.py", "node.py", "producer.py", "target.toml"}
    for name, text in files.items():
        assert text == (EXAMPLE / name).read_text("utf-8"), name


def test_every_command_shows_output() -> None:
    text = PAGE.read_text("utf-8")
    shown = [step.line for step in read_guide(text) if not isinstance(step, Edit)]
    assert shown == re.findall(r"^```sh\n(dafka-conformance run .*?)^```$", text, re.DOTALL | re.MULTILINE)


def test_every_scenario_on_the_page_exists() -> None:
    names = re.findall(r"\b(?:producer|consumer)\.(?!py\b|js\b)[a-z][a-z*-]*", PAGE.read_text("utf-8"))
    assert len(names) > 30
    scenarios = Catalog.load().scenarios
    assert [name for name in names if not any(fnmatch(each, name) for each in scenarios)] == []


def test_code_without_an_instruction_is_refused() -> None:
    with pytest.raises(ValueError, match="no instruction before a block"):
        list(read_guide("Consider:\n\n```python\nprint()\n```\n"))


def test_output_is_compared_but_for_its_numbers() -> None:
    output = "9 clauses conform, 1 violated, 3 not tested; 1 scenario in 4.3 s\n  0.3  P ──▶ S  ACK sequence=4\n"
    assert find_line("7 clauses conform, 1 violated; 2 scenarios in 5 s", output) is not None
    assert find_line("9 clauses conform, 0 violated; 1 scenario in 4.3 s", output) is None
    assert find_line("  12.3  P ──▶ S  ACK sequence=5", output) is not None
    assert find_line("  0.3  P ──▶ S  ACK …", output) is not None
    assert find_line("  0.3  P ──▶ S  FETCH sequence=4", output) is None


@pytest.mark.long
@pytest.mark.timeout(TIMEOUT_S)
def test_commands_print_what_the_guide_shows(tmp_path: Path) -> None:
    count = 0
    for command, output in follow(PAGE.read_text("utf-8"), tmp_path):
        lines = [line for line in command.shown.splitlines() if line != "…"]
        assert [line for line in lines if find_line(line, output) is None] == [], f"{command.line}\n{output}"
        count += 1
    assert count > 10


def test_table_has_every_mistake() -> None:
    assert list(mistakes_on_page()) == list(MISTAKES)


@pytest.mark.long
@pytest.mark.parametrize("what", MISTAKES)
def test_mistake_is_found_as_the_guide_says(what: str, tmp_path: Path) -> None:
    scenario, finding = mistakes_on_page()[what]
    file, right, wrong = MISTAKES[what]
    folder = tmp_path / "node"
    shutil.copytree(EXAMPLE, folder)
    path = folder / file
    text = path.read_text("utf-8")
    assert text.count(right) == 1
    path.write_text(text.replace(right, wrong), "utf-8")
    output = ""
    for _ in range(ATTEMPTS):
        output += run_command(f"dafka-conformance run target.toml --scenario {scenario}", folder)
        if any(without_numbers(finding) in without_numbers(line) for line in output.splitlines()):
            return
    raise AssertionError(output)
