"""The target that a target file describes: commands that start its roles, or nodes that are already running."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from dafka_conformance.model import Role
from dafka_conformance.targets.base import Ability, Attachment, Node, Request, Reset, Target, TargetError
from dafka_conformance.targets.fork_server import ForkServer, open_fork_server
from dafka_conformance.targets.process import ProcessCommand, run_process
from dafka_conformance.targets.target_file import RoleCommand, TargetFile


@asynccontextmanager
async def attach(what: str) -> AsyncIterator[Node]:
    """Yield a node that is already running. `what` is its name in messages, such as `the store of NAME`."""
    yield AttachedNode(what)


class AttachedNode(Node):
    """A node that was running before. The suite can only exchange messages with it."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self._what = what

    async def feed(self, contents: Sequence[bytes]) -> None:
        """Raise `TargetError`: the suite cannot control the node."""
        raise TargetError(f"{self._what} was running already: the suite cannot give it records")

    async def end_input(self) -> None:
        """Raise `TargetError`: the suite cannot control the node."""
        raise TargetError(f"{self._what} was running already: the suite cannot end its input")

    async def kill(self) -> None:
        """Raise `TargetError`: the suite cannot control the node."""
        raise TargetError(f"{self._what} was running already: the suite cannot kill it")


class FileTarget(Target):
    """A target whose roles are processes, or nodes that are already running."""

    def __init__(self, description: TargetFile) -> None:
        self.name = description.name
        self.dialects = description.dialects
        self.abilities = {role: _abilities(role, how) for role, how in description.roles.items()}
        self.node_counts = {role: how.nodes for role, how in description.roles.items() if isinstance(how, RoleCommand)}
        self._description = description
        self._forks: ForkServer | None = None

    @asynccontextmanager
    async def prepared(self) -> AsyncIterator[None]:
        """Load the modules of the key `preload` for all nodes that are started inside the block."""
        if not self._description.preload:
            yield
            return
        async with open_fork_server(self._description.preload) as forks:
            self._forks = forks
            try:
                yield
            finally:
                self._forks = None

    def attachment(self, role: Role) -> Attachment | None:
        """Return where the running node of this role is; None if the suite starts it."""
        how = self._description.roles.get(role)
        return how if isinstance(how, Attachment) else None

    def carries(self, role: Role, content: bytes) -> bool:
        """Return whether a record fits a line of the role's input or output."""
        how = self._description.roles.get(role)
        is_line = isinstance(how, RoleCommand) and bool(how.input or how.output)
        return not is_line or b"\n" not in content

    def start(self, request: Request) -> AbstractAsyncContextManager[Node]:
        """Start the role's command, or attach to the node that is already running."""
        what = f"the {request.role.title} of {self.name}"
        how = self._description.roles.get(request.role)
        if how is None:
            raise TargetError(f"{self.name} has no {request.role.title}: add [{request.role.title}] to its target file")
        return attach(what) if isinstance(how, Attachment) else self._run(what, how, request)

    @asynccontextmanager
    async def _run(self, what: str, role: RoleCommand, request: Request) -> AsyncIterator[Node]:
        try:
            launch = self._prepare(what, role, request)
        except KeyError as error:
            raise TargetError(
                f"{what}: expected a TCP endpoint such as tcp://127.0.0.1:5556 for the placeholder {{{error.args[0]}}}"
            ) from None
        async with run_process(launch) as node:
            yield node

    def _prepare(self, what: str, role: RoleCommand, request: Request) -> ProcessCommand:
        """Write the role's files and return its command. Raise `KeyError` if a placeholder has no value."""
        values = {**self._description.values, **_values(request)}
        output = None
        if role.output is not None:
            if b"\n" in request.topic and role.output.has_topic:
                raise TargetError(f"{what} prints the topic in each line: expected a topic without a line feed")
            output = role.output.parser(request.topic)
        for name, template in role.files.items():
            _write(what, request.folder / name, template.fill(values))
        additions = {name: os.fsdecode(value.fill(values)) for name, value in self._description.environment.items()}
        command = tuple(_command(role, request, values))
        is_python = command[0] == os.fsencode(sys.executable)
        return ProcessCommand(
            what,
            command,
            {**os.environ, **additions},
            None if role.working_folder is None else role.working_folder.fill(values),
            role.stop,
            role.input,
            output,
            role.is_terminal,
            self._forks if is_python else None,
        )


def _values(request: Request) -> dict[str, bytes]:
    """Return the values of the placeholders for a request."""
    values = {
        "sub": os.fsencode(request.sub_endpoint),
        "pub": os.fsencode(request.pub_endpoint),
        "dialect": os.fsencode(request.dialect.value),
        "folder": os.fsencode(request.folder.absolute()),
        "topic": request.topic,
    }
    for end in ("sub", "pub"):
        scheme, _, place = values[end].partition(b"://")
        host, _, port = place.rpartition(b":")
        if scheme == b"tcp":
            values |= {f"{end}_host": host, f"{end}_port": port}
    return values


def _command(role: RoleCommand, request: Request, values: Mapping[str, bytes]) -> Iterator[bytes]:
    """Yield the command line, with the arguments of the reset in place of `{reset}`, or at the end."""
    arguments = [template.fill(values) for template in role.resets.get(request.reset, ())]
    has_reset = False
    for index, template in enumerate(role.command):
        if "reset" in template.placeholders:
            has_reset = True
            yield from arguments
        elif index == 0:
            yield _program(template.fill(values))
        else:
            yield template.fill(values)
    if not has_reset:
        yield from arguments


def _program(program: bytes) -> bytes:
    """Return a relative path as an absolute one, because the process may run in another folder."""
    return os.path.abspath(program) if b"/" in program else program


def _write(what: str, path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise TargetError(f"{what}: cannot write {path}: {error.strerror}") from None


def _abilities(role: Role, how: RoleCommand | Attachment) -> frozenset[Ability]:
    if isinstance(how, Attachment):
        return frozenset()
    has = {
        Ability.START: True,
        Ability.FEED: how.input is not None,
        Ability.COLLECT: how.output is not None,
        Ability.CHOOSE_TOPIC: role in {Role.PRODUCER, Role.CONSUMER} and "topic" in how.placeholders,
        Ability.LATEST: Reset.LATEST in how.resets,
        Ability.KILL: how.is_durable,
    }
    return frozenset(ability for ability, is_there in has.items() if is_there)
