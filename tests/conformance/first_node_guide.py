"""The guide docs/tutorial/first-node.md as instructions: files to create and change, and commands with their output.

A sentence before a block of code says what to do with it:

    Create `FILE`:                                 the block is the file
    Append to `FILE`:                              the block is its end
    Add to the class `CLASS` in `FILE`:            the block has methods
    Add to `CLASS.METHOD` in `FILE`:               the block has the method's last lines
    In `FILE`, replace `LINE` with:                the block replaces the line

A shell block with `dafka-conformance run` is a command. The text block after it is a part of its output;
`…` is what is left out.

`python -m tests.conformance.first_node_guide` runs all commands and updates the numbers in their output on the page.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import attrs

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial" / "first-node.md"
EXAMPLE = ROOT / "conformance" / "examples" / "python"
GIVEN = ("consumer.py",)
"""The files of the example that the guide does not show."""

_FENCE = re.compile(r"^```(?P<language>python|toml|sh|text)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
_INSTRUCTIONS = {
    "create": re.compile(r"Create `([^`]+)`[^`]*:$"),
    "append": re.compile(r"Append to `([^`]+)`:$"),
    "class": re.compile(r"Add\sto\sthe\sclass\s`([^`]+)`\sin\s`([^`]+)`:$"),
    "method": re.compile(r"Add\sto\s`([^`]+)`\sin\s`([^`]+)`:$"),
    "replace": re.compile(r"In\s`([^`]+)`,\sreplace\s`([^`]+)`\swith:$"),
}
_SUMMARY = re.compile(r"\d+ clauses conform, (\d+) violated")


@attrs.frozen
class Edit:
    """A change of a file.

    Attributes:
        kind: The kind of the instruction.
        names: What it names, in order: files, classes, lines.
        code: The block.
    """

    kind: str
    names: tuple[str, ...]
    code: str


@attrs.frozen
class Command:
    """A command line, and the output that the page shows of it."""

    line: str
    shown: str


def read_guide(text: str) -> Iterator[Edit | Command]:
    """Yield what the guide tells its reader to do, in order. Raise ValueError for code without an instruction."""
    command = ""
    for found in _FENCE.finditer(text):
        if found["language"] in {"python", "toml"}:
            yield _read_edit(text[: found.start()].rstrip(), found["code"])
        elif found["language"] == "text":
            yield Command(command, found["code"])
        elif found["code"].startswith("dafka-conformance run"):
            command = found["code"]


def _read_edit(before: str, code: str) -> Edit:
    for kind, pattern in _INSTRUCTIONS.items():
        found = pattern.search(before)
        if found:
            return Edit(kind, found.groups(), code)
    raise ValueError(f"no instruction before a block: {before[-80:]!r}")


def apply_edit(edit: Edit, files: dict[str, str]) -> None:
    """Change the files as an instruction says."""
    if edit.kind == "create":
        files[edit.names[0]] = edit.code
    elif edit.kind == "append":
        files[edit.names[0]] += "\n" + edit.code
    elif edit.kind == "replace":
        name, line = edit.names
        if files[name].count(f"{line}\n") != 1:
            raise ValueError(f"{name} does not have the line {line!r} once")
        files[name] = files[name].replace(f"{line}\n", edit.code)
    else:
        scope, name = edit.names
        lines = files[name].splitlines(keepends=True)
        end = _last_line(ast.parse(files[name]), scope.split("."))
        lines[end:end] = [*(["\n"] if edit.kind == "class" else []), edit.code]
        files[name] = "".join(lines)


def _last_line(tree: ast.AST, names: list[str]) -> int:
    """Return the number of the last line of a class, or of a method in a class."""
    for name in names:
        tree = next(node for node in ast.iter_child_nodes(tree) if getattr(node, "name", None) == name)
    end = getattr(tree, "end_lineno", None)
    assert isinstance(end, int)
    return end


def run_command(line: str, folder: Path) -> str:
    """Run a command of the guide in a folder, with the suite of this interpreter, and return its output."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["sh", "-c", line],
        cwd=folder,
        env=os.environ | {"PATH": path, "COLUMNS": "120"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout


def follow(text: str, folder: Path) -> Iterator[tuple[Command, str]]:
    """Do what the guide says in a folder. Yield each command with its output."""
    files = {name: (EXAMPLE / name).read_text("utf-8") for name in GIVEN}
    for step in read_guide(text):
        if isinstance(step, Edit):
            apply_edit(step, files)
            continue
        for name, code in files.items():
            (folder / name).write_text(code, "utf-8")
        yield step, run_command(step.line, folder)


def without_numbers(line: str) -> str:
    """Return a line of the suite's output without what differs between runs and with the number of clauses."""
    summary = _SUMMARY.search(line)
    if summary:
        return f"{summary[1]} violated"
    return " ".join(re.sub(r"\d+(\.\d+)?", "#", re.sub(r"topic-[0-9a-f]+", "topic-#", line)).split())


def find_line(shown: str, output: str) -> str | None:
    """Return the line of the output that the page shows, perhaps without its end; None if there is none."""
    wanted = without_numbers(shown.removesuffix("…"))
    for line in output.splitlines():
        found = without_numbers(line)
        if found == wanted or (shown.endswith("…") and found.startswith(wanted)):
            return line
    return None


def _update_page() -> None:
    text = PAGE.read_text("utf-8")
    for command, output in follow(text, Path(tempfile.mkdtemp())):
        lines = []
        for line in command.shown.splitlines():
            found = find_line(line, output) if line != "…" else line
            if found is None:
                sys.exit(f"{command.line.strip()}\nno longer prints {line!r}:\n{output}")
            lines.append(line if line.endswith("…") else found)
        text = text.replace(command.shown, "\n".join(lines) + "\n", 1)
    PAGE.write_text(text, "utf-8")


if __name__ == "__main__":
    _update_page()
