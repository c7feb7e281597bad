"""Target files: TOML that says how to start each role of an implementation, or where to find it running.

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

Values that only the user knows are `[variables]`: a name, and what it is for; or `{ about = "...", default = "..." }`.
Everything is checked when the file is read, so that a mistake in it is found before anything is started.
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
"""`{python}` is the interpreter that runs the suite, `{here}` the folder of the target file."""

NODE_PLACEHOLDERS = frozenset({"sub", "pub", "sub_host", "sub_port", "pub_host", "pub_port", "dialect", "folder"})
"""What every node is told when it is started."""

STOP_SIGNALS = {"TERM": signal.SIGTERM, "INT": signal.SIGINT, "KILL": signal.SIGKILL}


@attrs.frozen
class RoleCommand:
    """How a role is started.

    Attributes:
        command: the program and its arguments; `{reset}` alone is the place of a reset's arguments.
        working_folder: where it runs; None: where the suite does.
        files: what to write into its folder before it starts, by name.
        stop: the signal that asks it to end.
        is_durable: do a store's records outlive it, in its folder?
        input: how a producer is given records; None where it cannot be.
        output: how a consumer prints records; None where it does not.
        resets: the arguments of each place where a consumer can begin.
        is_terminal: is a consumer's output to be a terminal?
        nodes: how many nodes, with an address each, it consists of.
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
        """Everything that the node can be told."""
        templates = (*self.command, *self.files.values(), *(part for parts in self.resets.values() for part in parts))
        return frozenset[str]().union(*(template.placeholders for template in templates))


@attrs.frozen
class TargetFile:
    """A target file's content.

    Attributes:
        name: what the report calls the target.
        dialects: those that it can be told to send.
        environment: what is added to the suite's own environment.
        values: the placeholders whose value is known from the start.
        roles: each role that the target has.
    """

    name: str
    dialects: tuple[Dialect, ...]
    environment: Mapping[str, Template]
    values: Mapping[str, bytes]
    roles: Mapping[Role, RoleCommand | Attachment]


def read_target_file(path: Path, variables: Mapping[str, str]) -> TargetFile:
    """Reads a target file; `variables` are those given with --set.

    Raises `TargetError` for a file that cannot be read, or says anything that is not understood, and for variables
    that are missing or that it does not have.
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
    roles = {role: _read_role(table.table(role.title), role, values) for role in Role if table.has(role.title)}
    table.finish()
    if not roles:
        raise table.error(f"it has no role: expected {join_names(f'[{role.title}]' for role in Role)}")
    is_told = any(isinstance(role, RoleCommand) and "dialect" in role.placeholders for role in roles.values())
    if len(dialects) > 1 and not is_told and not any("dialect" in value.placeholders for value in environment.values()):
        raise table.error("dialects: there are two, but nothing says {dialect}: expected one, or a command with it")
    description = TargetFile(name, dialects, environment, values, roles)
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
            raise declared.error(f"{name}: expected a name of letters and digits that is no placeholder already")
        value = given.get(name, default)
        if value is None:
            raise TargetError(f"{target} needs {about}: give --set {name}=...")
        # A command may run in another folder than the one that a path was given in.
        is_path = "/" in value and os.path.exists(os.path.expanduser(value))
        values[name] = os.fsencode(os.path.abspath(os.path.expanduser(value)) if is_path else value)
    for name in given:
        if name not in values:
            known = f"it has {join_names(values)}" if values else "it has none"
            raise TargetError(f"{target} has no variable {name!r} to --set: {known}")
    return values


def _read_role(table: Table, role: Role, values: Mapping[str, bytes]) -> RoleCommand | Attachment:
    has_topic = role in {Role.PRODUCER, Role.CONSUMER}
    if table.has("attach"):
        attach = table.table("attach")
        topic = os.fsencode(attach.text("topic")) if has_topic else None
        address = os.fsencode(attach.text("address", "")) or None
        attachment = Attachment(_endpoint(attach, "sub"), _endpoint(attach, "pub"), topic, address)
        attach.finish()
        table.finish("a node that is attached to has nothing else")
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
    table.finish()
    return command


def _endpoint(table: Table, key: str) -> str:
    value = table.text(key)
    if not re.fullmatch(r"tcp://.+:[0-9]+|(ipc|inproc)://.+", value):
        raise table.error(f"{key}: expected an endpoint such as tcp://10.0.0.7:5556, not {value!r}")
    return value


def _check_command(table: Table, role: RoleCommand, description: TargetFile) -> None:
    """Raises `TargetError` where the tower's place is not told, or the program is not there."""
    if not role.command:
        raise table.error("command: expected a program and its arguments, not an empty list")
    for name in role.files:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise table.error(f"files: {name!r} is outside of the node's folder: expected a name within it")
    told = role.placeholders.union(*(value.placeholders for value in description.environment.values()))
    for end in ("sub", "pub"):
        if not told & {end, f"{end}_port"}:
            raise table.error(
                f"it is not told where the tower is: expected {{{end}}}, or {{{end}_port}}, in its command"
            )
    for template in role.command:
        if "reset" in template.placeholders and template.parts != ((b"", "reset"),):
            raise table.error("command: expected {reset} as an argument of its own")
    program = role.command[0]
    if program.placeholders <= description.values.keys():
        place = os.fsdecode(program.fill(description.values))
        if shutil.which(place) is None:
            raise table.error(f"command: there is no program {place}")
