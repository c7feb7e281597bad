"""Writes what is made from the code: pages and tables in docs/, and the descriptions of settings that a broker serves.

python docs/generate.py            writes them
python docs/generate.py --check    exits with 1 if they are out of date
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from inspect import getsource
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import attrs
import click
from http_page import http_page
from kafka_page import kafka_page
from replication_page import replication_page
from suites_page import suites_page
from websocket_page import websocket_page

from dafka.cli import main as command_line
from dafka.cli.options import SettingOption
from dafka.config import Config, settings
from dafka.config.loading import variable_name
from dafka.config.values import format_duration_ms
from dafka.errors import ConfigError
from dafka_conformance.catalog import Catalog
from dafka_conformance.cli import main as conformance_command_line
from dafka_conformance.model import Clause, Dialect
from dafka_conformance.testbed.message_checks import universal_clauses

FOLDER = Path(__file__).parent / "reference"

CLI_PREFACE = """\
# The `dafka` command

This page is made from the commands' own help by `docs/generate.py`.

| exit status | meaning |
| --- | --- |
| 0 | the job was done, or the operator stopped `tower`, `store`, `up`, `consume` or a command with `--watch` |
| 1 | the job could not be done |
| 2 | the command was used wrongly |
| 130, 143, 129 | SIGINT (Ctrl-C), SIGTERM or SIGHUP ended a command before its job was done |

After a signal, `dafka produce` exits with 0 if all that it has read is stored, otherwise with 1. Each error is one
sentence on standard error.

Durations are a number with a unit: `500ms`, `10s`, `15m`, `12h`, `7d` or `2w`. Sizes are a number of bytes, or have a
unit: `512KiB`, `64MiB`, `10GB`. An option whose name ends with `-ms` also takes a number of milliseconds. The options
that change a setting have the setting's name: see [configuration.md](configuration.md).

Times are dates with or without a time of day, in ISO 8601: `2026-11-23`, `2026-11-23T08:00Z`,
`2026-11-23T09:00+01:00`. One that names no offset is UTC, and so are all times that commands print.
"""

CONFORMANCE_CLI_PREFACE = """\
# The `dafka-conformance` command

[conformance.md](../how-to/conformance.md) explains how to test an implementation with it.

Exit status: 0 if no binding clause is violated; 1 if one is, or if a scenario could not run; 2 if the command was used
wrongly; 130, 143 or 129 if SIGINT, SIGTERM or SIGHUP stopped it. Each error is one sentence on standard error.
"""

CONFIGURATION_PREFACE = """\
# Settings

This page is made from `dafka/config/settings.py` by `docs/generate.py`.

Settings come from a TOML file (`--config FILE`, `dafka.Config.load(path)`), then from environment variables, then from
the command line or the program. Later ones override earlier ones. A setting has the same name in all of them:
`offset_reset` of `[consumer]` is the variable `DAFKA_CONSUMER_OFFSET_RESET`, the option `--offset-reset`, and
`config.with_consumer(offset_reset="earliest")` in a program.

A setting whose name ends with `_ms` takes a number of milliseconds, or text with a unit: `500ms`, `10s`, `15m`, `12h`,
`7d` or `2w`. A size in bytes takes a number, or text such as `512KiB`, `64MiB` or `10GB`. Several endpoints are a list,
or one text with commas.

    [beacon]
    tower = ["tower-a", "tower-b"]

    [consumer]
    offset_reset = "earliest"
"""


CLAUSES_PREFACE = """\
# The clauses of the conformance suite

`docs/generate.py` writes this page from `clauses.toml` and the scenarios. [conformance.md](../how-to/conformance.md)
describes the suite.

A clause is one requirement of RFC 46 or, in the last two sections, of its companions on
[record batches](../spec/record-batches.md) and [positions by time](../spec/positions-by-time.md), which are optional.
Its level is their keyword; **grammar** for what a
grammar rule, its comment, or the meaning of a field determines; **deployed** for an unwritten rule that every
implementation relies on; or
**usual** for a habit of deployed nodes that no other node relies on. All levels are binding, except SHOULD,
RECOMMENDED, MAY and usual. If the RFC contradicts itself, the readings are listed, and the one that the suite tests is
in bold. `store.grammar.*` (37) stands for 37 of the grammar's sentences. *Always* means that every message of the
target is checked, in every scenario.
"""


def cli_page() -> str:
    """Return the page with the help of every command."""
    parts = [CLI_PREFACE, *_commands(command_line, "dafka")]
    parts += [CONFORMANCE_CLI_PREFACE, *_commands(conformance_command_line, "dafka-conformance")]
    return "\n".join(parts)


def _commands(group: click.Group, program: str) -> Iterator[str]:
    for context in _walk(click.Context(group, info_name=program, **group.context_settings)):
        yield f"## {context.command_path}\n\n```text\n{context.command.get_help(context)}\n```\n"


def _walk(parent: click.Context) -> Iterator[click.Context]:
    """Yield a context for each command of a group, and of the groups in it."""
    group = parent.command
    assert isinstance(group, click.Group)
    for name in group.list_commands(parent):
        command = group.get_command(parent, name)
        assert command is not None
        context = click.Context(command, info_name=name, parent=parent, terminal_width=100)
        yield context
        if isinstance(command, click.Group):
            yield from _walk(context)


def configuration_page() -> str:
    """Return the page with the settings of every section."""
    module = ast.parse(getsource(settings))
    classes = {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}
    parts = [CONFIGURATION_PREFACE]
    for section in attrs.fields(Config):
        kind = type(getattr(Config(), section.name))
        parts.append(f"## [{section.name}]\n\n{_rest_of_docstring(kind)}\n")
        parts.append(
            "| setting | variable | option | takes | default | meaning |\n| --- | --- | --- | --- | --- | --- |"
        )
        parts[-1] += "".join(_rows(section.name, kind, dict(_attribute_docs(classes[kind.__name__])))) + "\n"
    return "\n".join(parts)


def setting_descriptions() -> str:
    """Return the description of each setting as JSON, which a broker serves without the source code."""
    module = ast.parse(getsource(settings))
    classes = {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}
    found = {
        section.name: {
            name: text.replace("`", "")
            for name, text in _attribute_docs(classes[type(getattr(Config(), section.name)).__name__])
        }
        for section in attrs.fields(Config)
    }
    return json.dumps(found, indent=2, ensure_ascii=False) + "\n"


def _rest_of_docstring(kind: type) -> str:
    _, _, rest = (kind.__doc__ or "").partition("`: ")
    return rest[:1].upper() + rest[1:]


def _rows(section: str, kind: type, documents: dict[str, str]) -> Iterator[str]:
    flags = _setting_options()
    for attribute in attrs.fields(kind):
        name = attribute.name
        default = getattr(kind(), name)
        shown = ", ".join(default) if isinstance(default, tuple) else str(default)
        shown = f"`{shown}`" if shown else "empty"
        shown += _readable(name, default)
        flag = f"`{flags[section, name]}`" if (section, name) in flags else ""
        variable = variable_name(section, name)
        yield f"\n| `{name}` | `{variable}` | {flag} | {_taken(attribute)} | {shown} | {documents[name]} |"


def _taken(attribute: attrs.Attribute[Any]) -> str:
    """Return what a setting takes, as the error about another value describes it."""
    assert attribute.validator is not None
    for wrong in (" ", None):
        try:
            attribute.validator(None, attribute, wrong)
        except ConfigError as error:
            expected, _, _ = str(error).partition("expected ")[2].rpartition(", not ")
            return expected.partition(", or a duration")[0].partition(", or a size")[0]
    raise AssertionError(f"{attribute.name} takes everything")


def _readable(name: str, default: object) -> str:
    """Return a default in a larger unit, in parentheses, if that reads better."""
    if not isinstance(default, int) or not default:
        return ""
    if "_bytes" in name:
        return f" ({default // 2**20} MiB)" if default % 2**20 == 0 else f" ({default // 1024} KiB)"
    return f" ({format_duration_ms(default)})" if name.endswith("_ms") and default >= 1000 else ""


def _setting_options() -> dict[tuple[str, str], str]:
    """Return the option of each setting that has one."""
    flags = {}
    for context in _walk(click.Context(command_line, info_name="dafka")):
        for option in context.command.params:
            if isinstance(option, SettingOption):
                flags[option.section, option.setting] = option.opts[0]
    return flags


def _attribute_docs(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield each attribute's name and the docstring below it."""
    for statement, following in pairwise(node.body):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
        ):
            yield statement.target.id, " ".join(str(following.value.value).split())


def clauses_page() -> str:
    """Return the page with every clause and the scenarios that test it."""
    catalog = Catalog.load()
    parts = [CLAUSES_PREFACE]
    for section, clauses in groupby(catalog.clauses, key=lambda clause: clause.section):
        parts.append(
            f"## {section}\n\n| clause | level | roles | requirement | scenarios |\n| --- | --- | --- | --- | --- |"
        )
        parts[-1] += "".join(f"\n{_clause_row(clause, catalog)}" for clause in clauses) + "\n"
    return "\n".join(parts)


def _clause_row(clause: Clause, catalog: Catalog) -> str:
    requirement = " ".join([clause.text, *_remarks(clause)]).replace("|", "\\|")
    roles = ", ".join(role.title for role in clause.roles)
    always = ["*always*"] if clause.id in universal_clauses(catalog.grammar) else []
    names = ", ".join([*always, *_scenario_names(clause, catalog)]) or "none"
    tested = f"not testable: {clause.untestable}" if clause.untestable else names
    return f"| `{clause.id}` | {clause.level.value} | {roles} | {requirement} | {tested} |"


def _remarks(clause: Clause) -> Iterator[str]:
    for reading, text in clause.readings.items():
        yield f"**{reading}: {text}**" if reading == clause.holds else f"{reading}: {text}"
    if clause.erratum:
        yield f"([erratum](errata.md) {clause.erratum})"
    if len(clause.dialects) < len(Dialect):
        yield f"({' and '.join(dialect.value for dialect in clause.dialects)} alone)"


def _scenario_names(clause: Clause, catalog: Catalog) -> Iterator[str]:
    """Yield the names of the scenarios that test a clause; those of the grammar as one name per role, with a count."""
    names = [re.sub(r"\.grammar\..*", ".grammar.*", scenario.name) for scenario in catalog.scenarios_testing(clause)]
    for name, count in sorted(Counter(names).items()):
        yield f"`{name}` ({count})" if name.endswith("*") else f"`{name}`"


def main(arguments: list[str]) -> int:
    """Write the pages, or compare them with the code, and return the exit status."""
    stale = []
    pages = {
        "cli.md": cli_page,
        "configuration.md": configuration_page,
        "conformance-clauses.md": clauses_page,
        "http.md": http_page,
        "kafka.md": kafka_page,
        "kafka-suites.md": suites_page,
        "../explanation/replication-safety.md": replication_page,
        "../spec/websocket.md": websocket_page,
        "../../dafka/http/api/setting_descriptions.json": setting_descriptions,
    }
    for name, page in pages.items():
        path, text = FOLDER / name, page()
        if arguments == ["--check"]:
            stale += [name] if not path.exists() or path.read_text("utf-8") != text else []
        else:
            path.write_text(text, "utf-8")
    for name in stale:
        path = (FOLDER / name).resolve().relative_to(FOLDER.parent.parent)
        print(f"{path} is out of date: run python docs/generate.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
