"""Target files: TOML files that describe how to start each role of an implementation, or where it is running.

    name = "mine"
    dialects = ["rfc46"]

    [store]
    command = ["mystore", "--folder", "{folder}", "--tower", "{sub}", "{pub}"]

    [producer]
    command = ["myproducer", "--tower", "{sub}", "{pub}", "{topic}"]
    input = "{content}"

    [consumer.attach]
    sub = "tcp://10.0.0.7:5556"
    pub = "tcp://10.0.0.7:5557"
    topic = "orders"

`[variables]` are values that only the user knows: a name and a description, or `{ about = "...", default = "..." }`.
The whole file is validated before anything is started.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import attrs

from dafka_conformance.model import Dialect, Role
from dafka_conformance.targets.base import Attachment, Reset, TargetError
from dafka_conformance.targets.line_formats import InputFormat, OutputFormat
from dafka_conformance.targets.toml_tables import Table, Template, join_names

BUILTIN_PLACEHOLDERS = frozenset({"python", "here"})
"""The placeholders of every target file: the interpreter that runs the suite, and the folder of the target file."""

NODE_PLACEHOLDERS = frozenset({"sub", "pub", "sub_host", "sub_port", "pub_host", "pub_port", "dialect", "folder"})
"""The placeholders that have a value when a node is started."""

STOP_SIGNALS = {"TERM": signal.SIGTERM, "INT": signal.SIGINT, "KILL": signal.SIGKILL}


@attrs.frozen
class RoleCommand:
    """The command that starts a role, and its options.

    Attributes:
        command: The program and its arguments. The argument `{reset}` is replaced by those of a reset.
        working_folder: The folder that it runs in; None for the suite's.
        files: The files to write into its folder before it starts, by name.
        stop: The signal that stops it.
        is_durable: Whether a store's records in its folder survive a kill.
        input: The format of records on a producer's standard input; None if it reads none.
        output: The format of records on a consumer's standard output; None if it prints none.
        resets: The arguments for each position that a consumer can start at.
        is_terminal: Whether a consumer's output must be a terminal.
        nodes: The number of nodes, each with its own address, that it consists of.
    """

    command: tuple[Template, ...]
    working_folder: Template | None
    files: Mapping[str, Template]
    stop: signal.Signals
    is_durable: bool
    input: InputFormat | None
    output: OutputFormat | None
    resets: Mapping[Reset, tuple[Template, ...]]
    is_terminal: bool
    nodes: int

    @property
    def placeholders(self) -> frozenset[str]:
        """The placeholders in its command, files and resets."""
        templates = (*self.command, *self.files.values(), *(part for parts in self.resets.values() for part in parts))
        return frozenset[str]().union(*(template.placeholders for template in templates))


@attrs.frozen
class TargetFile:
    """The content of a target file.

    Attributes:
        name: The target's name in reports.
        dialects: The dialects that it can send.
        environment: The variables that are added to the environment.
        preload: The Python modules that are loaded once for all commands of the suite's interpreter.
        values: The values of the placeholders that are known from the start.
        roles: For each role of the target, the command that starts it, or the running node.
    """

    name: str
    dialects: tuple[Dialect, ...]
    environment: Mapping[str, Template]
    preload: tuple[str, ...]
    values: Mapping[str, bytes]
    roles: Mapping[Role, RoleCommand | Attachment]


def read_target_file(path: Path, variables: Mapping[str, str]) -> TargetFile:
    """Read a target file.

    Args:
        path: The file.
        variables: The values of its variables, from --set.

    Returns:
        The content.

    Raises:
        TargetError: The file cannot be read or is wrong, or a variable is missing or unknown.
    """
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise TargetError(f"cannot read the target file {path}: {error.strerror}") from None
    except ValueError as error:  # not TOML, or not UTF-8
        raise TargetError(f"{path} is not TOML: {error}") from None
    table = Table(str(path), "", document)
    name = table.text("name", default=path.stem)
    dialects = table.choices("dialects", Dialect)
    values = {
        "python": os.fsencode(sys.executable),
        "here": os.fsencode(path.absolute().parent),
        **_read_variables(table, name, variables),
    }
    known = frozenset(values) | NODE_PLACEHOLDERS
    environment = table.templates("environment", known)
    preload = table.modules("preload")
    roles = {role: _read_role(table.table(role.title), role, values) for role in Role if table.has(role.title)}
    table.reject_unknown_keys()
    if not roles:
        raise table.error(f"there is no role: expected {join_names(f'[{role.title}]' for role in Role)}")
    has_dialect = any(isinstance(role, RoleCommand) and "dialect" in role.placeholders for role in roles.values())
    if (
        len(dialects) > 1
        and not has_dialect
        and not any("dialect" in each.placeholders for each in environment.values())
    ):
        raise table.error("dialects: expected only one, or {dialect} in a command or in [environment]")
    description = TargetFile(name, dialects, environment, preload, values, roles)
    for role, command in roles.items():
        if isinstance(command, RoleCommand):
            _check_command(table.table(role.title), command, description)
    return description


def _read_variables(table: Table, target: str, given: Mapping[str, str]) -> dict[str, bytes]:
    values: dict[str, bytes] = {}
    declared = table.table("variables")
    for name in declared.names:
        about, default = declared.variable(name)
        if not name.isidentifier() or name in NODE_PLACEHOLDERS | BUILTIN_PLACEHOLDERS | {"topic", "reset", "content"}:
            raise declared.error(f"{name}: expected a name of letters and digits that is not yet a placeholder")
        value = given.get(name, default)
        if value is None:
            raise TargetError(f"{target} needs {about}: set it with --set {name}=...")
        # The path is relative to the user's folder, and a command may run in another one.
        is_path = "/" in value and os.path.exists(os.path.expanduser(value))
        values[name] = os.fsencode(os.path.abspath(os.path.expanduser(value)) if is_path else value)
    for name in given:
        if name not in values:
            known = f"expected {join_names(values)}" if values else "it has no variables"
            raise TargetError(f"--set: {target} has no variable {name!r}: {known}")
    return values


def _read_role(table: Table, role: Role, values: Mapping[str, bytes]) -> RoleCommand | Attachment:
    has_topic = role in {Role.PRODUCER, Role.CONSUMER}
    if table.has("attach"):
        attach = table.table("attach")
        topic = os.fsencode(attach.text("topic")) if has_topic else None
        address = os.fsencode(attach.text("address", "")) or None
        attachment = Attachment(_endpoint(attach, "sub"), _endpoint(attach, "pub"), topic, address)
        attach.reject_unknown_keys()
        table.reject_unknown_keys("expected only attach for a node that is running already")
        return attachment
    known = frozenset(values) | NODE_PLACEHOLDERS | ({"topic"} if has_topic else set())
    in_command = known | ({"reset"} if role is Role.CONSUMER else set())
    is_consumer = role is Role.CONSUMER
    resets = {reset: table.arguments(reset.value, known) for reset in Reset if is_consumer and table.has(reset.value)}
    command = RoleCommand(
        command=table.arguments("command", in_command),
        working_folder=table.template("working_folder", frozenset(values) | {"folder"}),
        files=table.templates("files", known),
        stop=STOP_SIGNALS[table.choice("stop", tuple(STOP_SIGNALS), "TERM")],
        is_durable=role is Role.STORE and table.flag("durable"),
        input=table.format("input", InputFormat.from_template) if role is Role.PRODUCER else None,
        output=table.format("output", OutputFormat.from_template) if is_consumer else None,
        resets={Reset.EARLIEST: (), **resets},
        is_terminal=is_consumer and table.flag("terminal"),
        nodes=table.count("nodes"),
    )
    table.reject_unknown_keys()
    return command


def _endpoint(table: Table, key: str) -> str:
    value = table.text(key)
    if not re.fullmatch(r"tcp://.+:[0-9]+|(ipc|inproc)://.+", value):
        raise table.error(f"{key}: expected an endpoint such as tcp://10.0.0.7:5556, not {value!r}")
    return value


def _check_command(table: Table, role: RoleCommand, description: TargetFile) -> None:
    """Raise `TargetError` if the command has no endpoints of the tower, or the program does not exist."""
    if not role.command:
        raise table.error("command: expected a program and its arguments, not an empty list")
    for name in role.files:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise table.error(f"files: expected a name within the node's folder, not {name!r}")
    known = role.placeholders.union(*(value.placeholders for value in description.environment.values()))
    for end in ("sub", "pub"):
        if not known & {end, f"{end}_port"}:
            raise table.error(f"the tower's endpoint is missing: expected {{{end}}} or {{{end}_port}} in the command")
    for template in role.command:
        if "reset" in template.placeholders and template.parts != ((b"", "reset"),):
            raise table.error("command: expected {reset} as a whole argument")
    program = role.command[0]
    if program.placeholders <= description.values.keys():
        place = os.fsdecode(program.fill(description.values))
        if shutil.which(place) is None:
            raise table.error(f"command: the program {place} does not exist")
