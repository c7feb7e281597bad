"""A group of real processes, some of which are killed and frozen: `python -m tests.groups.chaos --minutes 10`.

A tower and a store run, producers publish, and members handle. Members are killed with SIGKILL and started again, and
stopped with SIGSTOP for up to two leases. At the end all records must have been handled, in order; records may have
been handled twice only if their position was not saved; and no two members may have handled one partition for longer
than a hand-over takes.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import AsyncExitStack
from pathlib import Path
from subprocess import DEVNULL, PIPE

import attrs
import trio

from dafka import Config, Producer
from dafka.roles import open_producer
from dafka.testing import open_cluster
from tests.groups.ledger import TOPIC, Verdict, judge, read_ledgers

HANDOVER_S = 1.0
"""How long a program may take to save its positions."""

RESTART_S = 1.0
"""Seconds until a killed member is started again, at most."""

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
        config: The configuration of the cluster.
        plan: What happens.

    Attributes:
        killed: When processes were killed, by process id.
        frozen: When processes were frozen, in milliseconds, by process id.
        kills: How many were killed.
        freezes: How many were frozen.
    """

    def __init__(self, folder: Path, config: Config, plan: Plan) -> None:
        self.killed: dict[str, float] = {}
        self.frozen: dict[str, list[range]] = defaultdict(list)
        self.kills = 0
        self.freezes = 0
        self.processes: dict[int, trio.Process] = {}
        self._busy: set[int] = set()
        self._folder = folder
        self._plan = plan
        self._environment = {
            **os.environ,
            "DAFKA_BEACON_TOWER_SUB": ",".join(config.beacon.tower_sub),
            "DAFKA_BEACON_TOWER_PUB": ",".join(config.beacon.tower_pub),
            "DAFKA_NODE_BIND": "tcp://127.0.0.1:*",
            "DAFKA_CONSUMER_OFFSET_RESET": "earliest",
            "DAFKA_CONSUMER_GROUP_LEASE_MS": str(round(plan.lease_s * 1000)),
            "DAFKA_CONSUMER_GROUP_HANDOVER_MS": str(round(HANDOVER_S * 1000)),
        }

    def ledgers(self) -> list[Path]:
        """Return the ledgers."""
        return sorted(self._folder.glob("*.ledger"))

    async def start(self, number: int) -> None:
        """Start a member, and wait until it is ready."""
        process = await trio.lowlevel.open_process(
            [sys.executable, "-m", "tests.groups.member_process", f"m{number}", str(self._ledger(number))],
            stdout=PIPE,
            stderr=None if os.environ.get("DAFKA_CHAOS_VERBOSE") else DEVNULL,
            env=self._environment,
        )
        self.processes[number] = process
        assert process.stdout is not None
        await process.stdout.receive_some()

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

    def kill_all(self) -> None:
        """End all members."""
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()

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


async def run(plan: Plan, folder: Path) -> tuple[Verdict, Members]:
    """Run a group among faults, and judge what its members have handled."""
    config = Config().with_beacon(interval_ms=1000)
    async with open_cluster(config, storage=f"sqlite:{folder}/store.db") as cluster, AsyncExitStack() as stack:
        members = Members(folder, cluster.config, plan)
        stack.callback(members.kill_all)
        producers = [
            await stack.enter_async_context(open_producer(TOPIC, cluster.config)) for _ in range(plan.partitions)
        ]
        async with trio.open_nursery() as starting:
            for number in range(plan.members):
                starting.start_soon(members.start, number)
        async with trio.open_nursery() as publishing:
            for producer in producers:
                publishing.start_soon(_publish, producer, plan)
            async with trio.open_nursery() as faults:
                with trio.move_on_after(plan.seconds):
                    while True:
                        await trio.sleep(random.expovariate(1 / plan.fault_s))
                        faults.start_soon(members.strike)
            publishing.cancel_scope.cancel()
        ends = {each.address: each.statistics().next_sequence for each in producers}
        with trio.move_on_after(QUIET_S):
            while _reached(members) != ends:  # noqa: ASYNC110 (the ledgers are files)
                await trio.sleep(0.5)
        await members.stop()
        verdict = judge(read_ledgers(members.ledgers(), members.killed), ends, members.frozen)
    return verdict, members


async def _publish(producer: Producer, plan: Plan) -> None:
    while True:
        first = producer.statistics().next_sequence
        count = random.randint(1, 3)
        await producer.send_many([b"%d" % sequence for sequence in range(first, first + count)])
        await trio.sleep(random.expovariate(plan.records_per_s / 2))


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
