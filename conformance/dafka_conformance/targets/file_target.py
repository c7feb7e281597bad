"""The target that a target file describes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from dafka_conformance.model import Role
from dafka_conformance.targets.base import Ability, Attachment, Node, Request, Reset, Target, TargetError
from dafka_conformance.targets.process import ProcessCommand, run_process
from dafka_conformance.targets.target_file import RoleCommand, TargetFile


@asynccontextmanager
async def attach(what: str) -> AsyncIterator[Node]:
    """A block for a node that is left as it is. `what` is its name in messages, as in `the store of NAME`."""
    yield AttachedNode(what)


class AttachedNode(Node):
    """A node of which the suite has nothing but what it says on the wire."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self._what = what

    async def feed(self, contents: Sequence[bytes]) -> None:
        """Raises `TargetError`."""
        raise TargetError(f"{self._what} is attached to: it cannot be given records")

    async def end_input(self) -> None:
        """Raises `TargetError`."""
        raise TargetError(f"{self._what} is attached to: it has no input to end")

    async def kill(self) -> None:
        """Raises `TargetError`."""
        raise TargetError(f"{self._what} is attached to: it cannot be killed")


class FileTarget(Target):
    """Each role is a process, or a node that is running already."""

    def __init__(self, description: TargetFile) -> None:
        self.name = description.name
        self.dialects = description.dialects
        self.abilities = {role: _abilities(role, how) for role, how in description.roles.items()}
        self.node_counts = {role: how.nodes for role, how in description.roles.items() if isinstance(how, RoleCommand)}
        self._description = description

    def attachment(self, role: Role) -> Attachment | None:
        """Where the node of this role is running already."""
        how = self._description.roles.get(role)
        return how if isinstance(how, Attachment) else None

    def start(self, request: Request) -> AbstractAsyncContextManager[Node]:
        """Starts the role's command, or leaves the node as it is that is running already."""
        what = f"the {request.role.title} of {self.name}"
        how = self._description.roles.get(request.role)
        if how is None:
            raise TargetError(f"{self.name} has no {request.role.title}: its target file has no [{request.role.title}]")
        return attach(what) if isinstance(how, Attachment) else self._run(what, how, request)

    @asynccontextmanager
    async def _run(self, what: str, role: RoleCommand, request: Request) -> AsyncIterator[Node]:
        try:
            launch = self._prepare(what, role, request)
        except KeyError as error:
            raise TargetError(
                f"{what} is told {{{error.args[0]}}}, which only an endpoint like tcp://127.0.0.1:5556 has"
            ) from None
        async with run_process(launch) as node:
            yield node

    def _prepare(self, what: str, role: RoleCommand, request: Request) -> ProcessCommand:
        """What to start, with every placeholder replaced. Its files are written.

        Raises `KeyError` for a placeholder that has no value with endpoints such as these.
        """
        values = {**self._description.values, **_values(request)}
        output = None
        if role.output is not None:
            if b"\n" in request.topic and role.output.tells_topic:
                raise TargetError(
                    f"{what} prints topics within lines: one with a line feed cannot be told from two lines"
                )
            output = role.output.parser(request.topic)
        for name, template in role.files.items():
            _write(what, request.folder / name, template.fill(values))
        additions = {name: os.fsdecode(value.fill(values)) for name, value in self._description.environment.items()}
        return ProcessCommand(
            what,
            tuple(_command(role, request, values)),
            {**os.environ, **additions},
            None if role.working_folder is None else role.working_folder.fill(values),
            role.stop,
            role.input,
            output,
            role.is_terminal,
        )


def _values(request: Request) -> dict[str, bytes]:
    """What the placeholders of a request stand for."""
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
    """The command line, with the reset's arguments where they belong: in the end, if no place is given."""
    arguments = [template.fill(values) for template in role.resets.get(request.reset, ())]
    has_place = False
    for index, template in enumerate(role.command):
        if "reset" in template.placeholders:
            has_place = True
            yield from arguments
        elif index == 0:
            yield _program(template.fill(values))
        else:
            yield template.fill(values)
    if not has_place:
        yield from arguments


def _program(program: bytes) -> bytes:
    """A path that is relative is so to the suite's folder, wherever the process is to run."""
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
