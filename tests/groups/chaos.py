"""A group of real processes, some of which are killed and frozen: `python -m tests.groups.chaos --minutes 10`.

A tower and a store run, producers publish, and members handle. Members are killed with SIGKILL and started again, and
stopped with SIGSTOP for up to two leases. At the end all records must have been handled, in order; records may have
been handled twice only if their position was not saved; and no two members may have handled one partition for longer
than a hand-over takes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from subprocess import DEVNULL, PIPE

import attrs
import trio

from tests.groups.ledger import Verdict, judge, read_ledgers

HANDOVER_S = 1.0
"""How long a program may take to save its positions."""

RESTART_S = 1.0
"""Seconds until a killed member is started again, at most."""

PRODUCERS_PER_PROCESS = 25
"""Producers in one process."""

ANY_PORT = "tcp://127.0.0.1:*"

START_S = 120.0
"""Seconds in which a process must be ready."""

QUIET_S = 60.0
"""Seconds until all records must be handled after the last fault."""


@attrs.frozen(kw_only=True)
class Plan:
    """What happens.

    Attributes:
        members: The number of members.
        partitions: The number of producers.
        seconds: For how long there are faults.
        fault_s: Seconds between two faults on average.
        lease_s: The lease of members.
        records_per_s: Records of each producer in a second.
    """

    members: int = 10
    partitions: int = 200
    seconds: float = 600.0
    fault_s: float = 3.0
    lease_s: float = 5.0
    records_per_s: float = 2.0


class Members:
    """The processes of the members.

    Args:
        folder: Where their ledgers are.
        opener: Opens the processes.
        plan: What happens.

    Attributes:
        killed: When processes were killed, by process id.
        frozen: When processes were frozen, in milliseconds, by process id.
        kills: How many were killed.
        freezes: How many were frozen.
    """

    def __init__(self, folder: Path, opener: Opener, plan: Plan) -> None:
        self.killed: dict[str, float] = {}
        self.frozen: dict[str, list[range]] = defaultdict(list)
        self.kills = 0
        self.freezes = 0
        self.processes: dict[int, trio.Process] = {}
        self._busy: set[int] = set()
        self._folder = folder
        self._plan = plan
        self._opener = opener

    def ledgers(self) -> list[Path]:
        """Return the ledgers."""
        return sorted(self._folder.glob("*.ledger"))

    async def start(self, number: int) -> None:
        """Start a member, and wait until it is ready."""
        arguments = [f"m{number}", str(self._ledger(number))]
        process = await self._opener.open("tests.groups.member_process", *arguments)
        self.processes[number] = process
        await _read_line(process)

    async def strike(self) -> None:
        """Kill or freeze a member, and let it come back."""
        free = [each for each in self.processes if each not in self._busy]
        if not free:
            return
        number = random.choice(free)
        self._busy.add(number)
        process = self.processes[number]
        if random.random() < 0.5:
            await self._kill(number, process)
        else:
            await self._freeze(process)
        self._busy.discard(number)

    async def stop(self) -> None:
        """Stop all members, as a service manager does."""
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            await process.wait()

    async def _kill(self, number: int, process: trio.Process) -> None:
        self.kills += 1
        process.kill()
        self.killed[str(process.pid)] = time.monotonic()
        await process.wait()
        await trio.sleep(random.uniform(0.0, RESTART_S))
        await self.start(number)

    async def _freeze(self, process: trio.Process) -> None:
        self.freezes += 1
        begun = time.monotonic()
        process.send_signal(signal.SIGSTOP)
        await trio.sleep(random.uniform(0.2, 2 * self._plan.lease_s))
        process.send_signal(signal.SIGCONT)
        self.frozen[str(process.pid)].append(range(round(begun * 1000), round(time.monotonic() * 1000) + 50))

    def _ledger(self, number: int) -> Path:
        return self._folder / f"m{number}.ledger"


class Producers:
    """The processes of the producers.

    Args:
        plan: What happens.
        opener: Opens the processes.
    """

    def __init__(self, plan: Plan, opener: Opener) -> None:
        self._plan = plan
        self._opener = opener
        self._processes: list[trio.Process] = []

    async def start(self) -> None:
        """Start them."""
        left = self._plan.partitions
        while left > 0:
            count = min(left, PRODUCERS_PER_PROCESS)
            left -= count
            arguments = [str(count), str(self._plan.records_per_s)]
            process = await self._opener.open("tests.groups.producers_process", *arguments)
            await _read_line(process)
            self._processes.append(process)

    async def stop(self) -> dict[str, int]:
        """Stop them, and return how many records each producer has published."""
        ends: dict[str, int] = {}
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            ends |= json.loads(await _read_line(process))
            await process.wait()
        return ends


async def run(plan: Plan, folder: Path) -> tuple[Verdict, Members]:
    """Run a group among faults, and judge what its members have handled."""
    async with AsyncExitStack() as stack:
        opener = Opener(stack)
        up = ["--sub", ANY_PORT, "--pub", ANY_PORT, "--storage", f"sqlite:{folder}/store.db"]
        sub, pub = re.findall(r"tcp://\S+", await _read_line(await opener.open("dafka", "up", *up)))
        opener.environment |= {
            "DAFKA_BEACON_TOWER_SUB": sub,
            "DAFKA_BEACON_TOWER_PUB": pub,
            "DAFKA_NODE_BIND": ANY_PORT,
            "DAFKA_CONSUMER_OFFSET_RESET": "earliest",
            "DAFKA_CONSUMER_GROUP_LEASE_MS": str(round(plan.lease_s * 1000)),
            "DAFKA_CONSUMER_GROUP_HANDOVER_MS": str(round(HANDOVER_S * 1000)),
        }
        members, producers = Members(folder, opener, plan), Producers(plan, opener)
        await producers.start()
        async with trio.open_nursery() as starting:
            for number in range(plan.members):
                starting.start_soon(members.start, number)
        async with trio.open_nursery() as faults:
            with trio.move_on_after(plan.seconds):
                while True:
                    faults.start_soon(members.strike)
                    await trio.sleep(random.expovariate(1 / plan.fault_s))
        ends = await producers.stop()
        with trio.move_on_after(QUIET_S):
            while _reached(members) != ends:  # noqa: ASYNC110 (the ledgers are files)
                await trio.sleep(0.5)
        await members.stop()
        return judge(read_ledgers(members.ledgers(), members.killed), ends, members.frozen), members


class Opener:
    """Opens processes, and ends those that are left when its block is left.

    Attributes:
        environment: The environment of the processes.
    """

    def __init__(self, stack: AsyncExitStack) -> None:
        self.environment = dict(os.environ)
        self._stack = stack

    async def open(self, module: str, *arguments: str) -> trio.Process:
        """Start a Python module."""
        return await self._stack.enter_async_context(_open_process(module, *arguments, environment=self.environment))


@asynccontextmanager
async def _open_process(module: str, *arguments: str, environment: dict[str, str]) -> AsyncIterator[trio.Process]:
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", module, *arguments],
        stdout=PIPE,
        stderr=None if os.environ.get("DAFKA_CHAOS_VERBOSE") else DEVNULL,
        env=environment,
    )
    try:
        yield process
    finally:
        with trio.CancelScope(shield=True):
            if process.poll() is None:
                process.kill()
            await process.wait()
            if process.stdout is not None:
                await process.stdout.aclose()


async def _read_line(process: trio.Process) -> str:
    assert process.stdout is not None
    line = b""
    with trio.fail_after(START_S):
        while not line.endswith(b"\n"):
            part = await process.stdout.receive_some()
            assert part, "the process has ended"
            line += part
    return line.decode().splitlines()[0]


def _reached(members: Members) -> dict[str, int]:
    """Return how far each partition has been handled."""
    handled = read_ledgers(members.ledgers(), members.killed)
    return {partition: max(each.end for each in found) for partition, found in handled.items()}


def main() -> int:
    """Run the chaos that the arguments describe."""
    parser = argparse.ArgumentParser(prog="python -m tests.groups.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--members", type=int, default=10)
    parser.add_argument("--partitions", type=int, default=200)
    parser.add_argument("--lease", type=float, default=5.0, help="seconds")
    arguments = parser.parse_args()
    plan = Plan(
        members=arguments.members,
        partitions=arguments.partitions,
        seconds=arguments.minutes * 60,
        lease_s=arguments.lease,
    )
    with tempfile.TemporaryDirectory() as folder:
        verdict, members = trio.run(run, plan, Path(folder))
    for problem in verdict.problems[:20]:
        print(problem)
    print(
        f"{members.kills} kills, {members.freezes} freezes, {verdict.handovers} hand-overs, "
        f"{verdict.handled} records handled, {verdict.repeated} of them again, "
        f"overlap at most {verdict.overlap_s:.3f} s, {len(verdict.problems)} problems"
    )
    return 1 if verdict.problems or verdict.overlap_s > HANDOVER_S else 0


if __name__ == "__main__":
    sys.exit(main())
