"""Writes the two reference pages that the code itself determines: docs/cli.md and docs/configuration.md.

python docs/generate.py            writes them
python docs/generate.py --check    exits with 1 where they are out of date
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from inspect import getsource
from itertools import pairwise
from pathlib import Path

import attrs
import click

from dafka import config
from dafka.cli import main as command_line

FOLDER = Path(__file__).parent

CLI_PREFACE = """\
# The `dafka` command

Written from the commands' own help by `docs/generate.py`.

Exit status: 0 where the job was done, or the operator ended it; 1 where it could not be done; 2 where it was asked for
wrongly. Errors are one sentence on standard error.
"""

CONFIGURATION_PREFACE = """\
# Settings

Written from `dafka/config.py` by `docs/generate.py`.

Settings come from a TOML file (`--config FILE`, `dafka.Config.load(path)`), then from environment variables, then from
the command line or the program, each overriding the one before. A key is written in its section, or as a variable in
capitals with an underscore for every dot: `offset.reset` of `[consumer]` is `DAFKA_CONSUMER_OFFSET_RESET`. Several
endpoints are a list, or one text with commas. Keys that libdafka has keep its names, units and defaults; times are in
milliseconds.

    [beacon]
    sub_address = ["tcp://tower-a:5556", "tcp://tower-b:5556"]
    pub_address = ["tcp://tower-a:5557", "tcp://tower-b:5557"]

    [consumer]
    offset.reset = "earliest"
"""


def cli_page() -> str:
    """The help of every command."""
    parts = [CLI_PREFACE]
    for name, command in command_line.commands.items():
        parent = click.Context(command_line, info_name="dafka", **command_line.context_settings)
        context = click.Context(command, info_name=name, parent=parent, terminal_width=100)
        parts.append(f"## dafka {name}\n\n```text\n{command.get_help(context)}\n```\n")
    return "\n".join(parts)


def configuration_page() -> str:
    """Every section's settings, their defaults, and what the code says of them."""
    module = ast.parse(getsource(config))
    classes = {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}
    parts = [CONFIGURATION_PREFACE]
    for section in attrs.fields(config.Config):
        kind = type(getattr(config.Config(), section.name))
        parts.append(f"## [{section.name}]\n\n{_rest_of_docstring(kind)}\n")
        parts.append("| key | attribute | default | |\n| --- | --- | --- | --- |")
        parts[-1] += "".join(_rows(kind, dict(_attribute_docs(classes[kind.__name__])))) + "\n"
    return "\n".join(parts)


def _rest_of_docstring(kind: type) -> str:
    _, _, rest = (kind.__doc__ or "").partition("`: ")
    return rest[:1].upper() + rest[1:]


def _rows(kind: type, documents: dict[str, str]) -> Iterator[str]:
    for attribute in attrs.fields(kind):
        key = attribute.metadata["key"] or attribute.name
        default = getattr(kind(), attribute.name)
        shown = ", ".join(default) if isinstance(default, tuple) else str(default)
        shown = f"`{shown}`" if shown else "empty"
        yield f"\n| `{key}` | `{attribute.name}` | {shown} | {documents[attribute.name]} |"


def _attribute_docs(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """The text that stands behind each attribute."""
    for statement, following in pairwise(node.body):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
        ):
            yield statement.target.id, " ".join(str(following.value.value).split())


def main(arguments: list[str]) -> int:
    """Writes the pages, or compares them."""
    stale = []
    for name, text in (("cli.md", cli_page()), ("configuration.md", configuration_page())):
        path = FOLDER / name
        if arguments == ["--check"]:
            stale += [name] if not path.exists() or path.read_text("utf-8") != text else []
        else:
            path.write_text(text, "utf-8")
    for name in stale:
        print(f"docs/{name} is out of date: run python docs/generate.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
