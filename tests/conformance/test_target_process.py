import os
import re
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeAlias

import pytest
import trio

from dafka_conformance.model import Dialect, Role
from dafka_conformance.targets import Ability, Delivery, Node, Request, Reset, Target, TargetError, open_target

MIB = 2**20
MANY = 10_000


MakeTarget: TypeAlias = Callable[..., Awaitable[Target]]
"""Makes a target with one role, which is a Python script."""


@pytest.fixture(params=[False, True], ids=["started", "forked"])
async def make_target(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MakeTarget]:
    """Return the function that makes targets, whose processes are started anew, or forked from one with modules."""
    is_forked: bool = request.param
    head = 'dialects = ["rfc46"]\n' + ('preload = ["json"]\n' if is_forked else "")
    async with AsyncExitStack() as stack:

        async def make(role: str, script: str, settings: str = "", arguments: str = '"{topic}"') -> Target:
            (tmp_path / "node.py").write_text("import os, signal, sys, time\n" + textwrap.dedent(script))
            command = f'command = ["{{python}}", "{{here}}/node.py", "{{sub}}", "{{pub}}", {arguments}]'
            (tmp_path / "mine.toml").write_text(f"{head}[{role}]\n{command}\n{settings}\n")
            target = open_target(str(tmp_path / "mine.toml"), {})
            await stack.enter_async_context(target.prepared())
            return target

        yield make


def request(folder: Path, role: Role, topic: bytes = b"orders", reset: Reset = Reset.EARLIEST) -> Request:
    return Request(role, Dialect.RFC46, "tcp://127.0.0.1:1", "tcp://127.0.0.1:2", topic, folder, reset)


async def collect(node: Node, count: int) -> list[Delivery]:
    found: list[Delivery] = []
    with trio.fail_after(60):
        while len(found) < count:
            found += await node.deliveries.receive()
    return found


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def exit_reason(node: Node) -> str:
    with trio.fail_after(60):
        await node.ended.wait()
    return node.exit_reason


async def test_producer_accepts_many_records(make_target: MakeTarget, tmp_path: Path) -> None:
    script = """
        data = sys.stdin.buffer.read()
        open(os.path.dirname(__file__) + "/got", "wb").write(data)
    """
    target = await make_target("producer", script, 'input = "<{content}>"')
    contents = [b"%d" % number for number in range(MANY)]
    async with target.start(request(tmp_path, Role.PRODUCER)) as node:
        with trio.fail_after(60):
            await node.feed(contents[:1])
            await node.feed(contents[1:])
            await node.feed([])
        await node.end_input()
        assert await exit_reason(node) == ""
    assert (tmp_path / "got").read_bytes() == b"".join(b"<%b>\n" % content for content in contents)


async def test_producer_that_ended_accepts_no_more(make_target: MakeTarget, tmp_path: Path) -> None:
    target = await make_target("producer", "sys.exit('no tower')", 'input = "{content}"')
    async with target.start(request(tmp_path, Role.PRODUCER)) as node:
        assert await exit_reason(node) == "exit status 1: no tower"
        with pytest.raises(TargetError, match="the producer of mine no longer reads its input: exit status 1: no t"):
            await node.feed([b"x" * MIB])


@pytest.mark.parametrize("terminal", ["true", "false"])
async def test_consumer_prints_many_lines(make_target: MakeTarget, tmp_path: Path, terminal: str) -> None:
    script = """
        for number in range(10_000):
            print(sys.argv[3], "AB", number, f"content {number}")
        is_terminal = sys.stdout.isatty()  # which makes a program print each line at once
        assert is_terminal == (sys.argv[4] == "true")
        if not is_terminal:
            sys.stdout.flush()
        time.sleep(100)
    """
    settings = f'output = "{{topic}} {{address}} {{sequence}} {{content}}"\nterminal = {terminal}'
    target = await make_target("consumer", script, settings, f'"{{topic}}", "{terminal}"')
    async with target.start(request(tmp_path, Role.CONSUMER)) as node:
        found = await collect(node, MANY)
        assert not node.ended.is_set()
    assert found == [Delivery(b"content %d" % number, b"orders", b"AB", number) for number in range(MANY)]


LONG_LINE = """
for _ in range(16):
    sys.stdout.buffer.write(b"x" * 2**20)
sys.stdout.buffer.write(b"\\nlast")
"""
CRASH = 'sys.stderr.write("x" * 9000 + "end")\nos.kill(os.getpid(), signal.SIGSEGV)'
MUCH = 'sys.stdout.write("o" * 500_000)\nsys.stderr.write("e" * 500_000)\nsys.exit(3)'


@pytest.mark.parametrize(
    ("role", "script", "settings", "reason", "printed"),
    [
        (Role.CONSUMER, LONG_LINE, 'output = "{content}"', "exit status 0", [b"x" * 16 * MIB, b"last"]),
        (Role.CONSUMER, 'print("oops")\nprint("A b")', 'output = "{address} {content}"', "exit status 0: oops", [b"b"]),
        (Role.CONSUMER, CRASH, 'output = "{content}"', "ended by SIGSEGV: x{1,4900}end", []),
        (Role.STORE, MUCH, "", "exit status 3: e+", []),
    ],
    ids=["a line of 16 MiB", "lines that are no records", "the end of standard error", "much output"],
)
async def test_exit_reason_and_what_was_printed_before(
    make_target: MakeTarget, tmp_path: Path, role: Role, script: str, settings: str, reason: str, printed: list[bytes]
) -> None:
    target = await make_target(role.title, script, settings, '"x"')
    async with target.start(request(tmp_path, role)) as node:
        found = await collect(node, len(printed))
        assert re.fullmatch(reason, await exit_reason(node))
    assert [each.content for each in found] == printed


async def test_reset_files_environment_and_folder(make_target: MakeTarget, tmp_path: Path) -> None:
    script = (
        'print(*sys.argv[3:], open("mine.cfg").read(), os.environ["TOWER"], os.getcwd(), flush=True)\ntime.sleep(100)'
    )
    settings = (
        'output = "{content}"\nearliest = ["-e"]\nlatest = ["-l", "{dialect}"]\nworking_folder = "{folder}"\n'
        'files = { "mine.cfg" = "{{{sub_port}}}" }\n[environment]\nTOWER = "{pub_host} {pub_port}"'
    )
    target = await make_target("consumer", script, settings)
    folder = tmp_path / "node"
    folder.mkdir()
    async with target.start(request(folder, Role.CONSUMER)) as node:
        assert await collect(node, 1) == [Delivery(b"orders -e {1} 127.0.0.1 2 %b" % os.fsencode(folder))]
    async with target.start(request(folder, Role.CONSUMER, reset=Reset.LATEST)) as node:
        assert await collect(node, 1) == [Delivery(b"orders -l rfc46 {1} 127.0.0.1 2 %b" % os.fsencode(folder))]
    target = await make_target("consumer", script, settings, '"{reset}", "--", "{topic}"')
    async with target.start(request(folder, Role.CONSUMER)) as node:
        assert await collect(node, 1) == [Delivery(b"-e -- orders {1} 127.0.0.1 2 %b" % os.fsencode(folder))]


async def test_topic_of_any_bytes(make_target: MakeTarget, tmp_path: Path) -> None:
    script = "sys.stdout.buffer.write(os.fsencode(sys.argv[3]) + b' x\\n')\nsys.stdout.flush()\ntime.sleep(100)"
    target = await make_target("consumer", script, 'output = "{topic} {content}"')
    topic = bytes(value for value in range(1, 256) if value != ord("\n"))
    async with target.start(request(tmp_path, Role.CONSUMER, topic)) as node:
        assert await collect(node, 1) == [Delivery(b"x", topic)]
    for topic, message in ((b"a\0b", "topic without NUL"), (b"a\nb", "topic without a line feed")):
        with pytest.raises(TargetError, match=f"expected a {message}"):
            async with target.start(request(tmp_path, Role.CONSUMER, topic)):
                pass


async def test_process_that_ignores_sigterm_is_killed_with_its_children(
    make_target: MakeTarget, tmp_path: Path
) -> None:
    script = """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        alive = os.open(os.path.dirname(__file__) + "/alive", os.O_WRONLY)
        child = os.fork()
        if child:
            print(os.getpid(), flush=True)
        time.sleep(100)
    """
    target = await make_target("consumer", script, 'output = "{content}"')
    os.mkfifo(tmp_path / "alive")
    async with trio.lowlevel.FdStream(os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)) as alive:
        async with target.start(request(tmp_path, Role.CONSUMER)) as node:
            (delivery,) = await collect(node, 1)
        assert not node.ended.is_set()
        assert not is_running(int(delivery.content))
        with trio.fail_after(60):
            assert await alive.receive_some() == b""  # the last that had it open for writing is gone: the child too


async def test_cancellation_and_an_error_leave_no_process(make_target: MakeTarget, tmp_path: Path) -> None:
    target = await make_target("store", "time.sleep(100)", arguments='"store"')
    pids: list[int] = []
    with trio.CancelScope() as scope:
        async with target.start(request(tmp_path, Role.STORE)) as node:
            pids.append(node.pid)  # type: ignore[attr-defined]
            assert is_running(pids[0])
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert not is_running(pids[0])
    with pytest.raises(RuntimeError, match="within"):  # not a group
        async with target.start(request(tmp_path, Role.STORE)):
            raise RuntimeError("within")


async def test_stop_signal_of_the_target(make_target: MakeTarget, tmp_path: Path) -> None:
    script = """
        def stop(*_):
            open(os.path.dirname(__file__) + "/stopped", "w").close()
            sys.exit()
        signal.signal(signal.SIGINT, stop)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("ready", flush=True)
        time.sleep(100)
    """
    target = await make_target("consumer", script, 'output = "{content}"\nstop = "INT"')
    async with target.start(request(tmp_path, Role.CONSUMER)) as node:
        await collect(node, 1)
    assert (tmp_path / "stopped").exists()


async def test_killed_store_is_gone_and_starts_again(make_target: MakeTarget, tmp_path: Path) -> None:
    script = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(100)"
    target = await make_target("store", script, "durable = true", '"store"')
    assert Ability.KILL in target.abilities[Role.STORE]
    for _ in range(2):
        async with target.start(request(tmp_path, Role.STORE)) as node:
            await node.kill()
            assert not is_running(node.pid)  # type: ignore[attr-defined]
        assert not node.ended.is_set()


async def test_program_that_was_removed(tmp_path: Path) -> None:
    program = tmp_path / "node"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    target = open_file(tmp_path, '[store]\ncommand = ["{here}/node", "{sub}", "{pub}"]')
    program.unlink()
    with pytest.raises(TargetError, match=r"the store of mine cannot be started: .*node: No such file"):
        async with target.start(request(tmp_path, Role.STORE)):
            pass


def open_file(folder: Path, text: str) -> Target:
    (folder / "mine.toml").write_text(f'dialects = ["rfc46"]\n{text}\n')
    return open_target(str(folder / "mine.toml"), {})


async def test_modules_are_loaded_once_for_programs_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork has what a process has that was just started, and nothing that another one changed in the module."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "heavy.py").write_text("import os\nloaded_by, users = os.getpid(), []\n")
    (tmp_path / "program.py").write_text(
        "import heavy, os, sys\n"
        "heavy.users.append(0)\n"
        "own = [os.getpgrp() == os.getsid(0) == os.getpid(), sys.path[0] == os.getcwd(), os.path.isabs(sys.argv[0])]\n"
        "print(__name__, heavy.loaded_by, len(heavy.users), *own, 'dafka_conformance' in sys.modules, *sys.argv[3:])\n"
        "sys.exit('the end')\n"
    )
    command = 'command = ["{python}", "-m", "program", "{sub}", "{pub}", "{topic}"]'
    target = open_file(
        tmp_path, f'preload = ["heavy", "no.such.module"]\n[consumer]\noutput = "{{content}}"\n{command}'
    )
    printed = set()
    async with target.prepared():
        for _ in range(2):
            async with target.start(request(tmp_path, Role.CONSUMER)) as node:
                printed |= {delivery.content for delivery in await collect(node, 1)}
                assert await exit_reason(node) == "exit status 1: the end"
                assert node.pid != os.getpid()  # type: ignore[attr-defined]
    (line,) = printed
    name, loaded_by, *rest = line.decode().split()
    assert (name, rest) == ("__main__", ["1", "True", "True", "True", "False", "orders"])
    assert not is_running(int(loaded_by))


async def test_module_that_ends_the_process_that_loads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deadly.py").write_text("import os\nos._exit(1)\n")
    command = 'command = ["{python}", "{here}/deadly.py", "{sub}", "{pub}"]'
    target = open_file(tmp_path, f'preload = ["deadly"]\n[store]\n{command}')
    async with target.prepared():
        with pytest.raises(TargetError, match="the store of mine cannot be started: the process that had loaded"):
            async with target.start(request(tmp_path, Role.STORE)):
                pass
