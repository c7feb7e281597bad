"""A group of real processes, some of which are killed and frozen: `python -m tests.groups.chaos --minutes 10`.

A tower and a store run, producers publish, and members handle. Members are killed with SIGKILL and started again, and
stopped with SIGSTOP for up to two leases. At the end all records must have been handled, in order; records may have
been handled twice only if their position was not saved; and no two members may have handled one partition for longer
than a hand-over takes.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import attrs
import trio

from tests.chaos.processes import Node
from tests.chaos.timeline import Timeline
from tests.groups.ledger import Handling, Verdict, judge, read_ledgers
from tests.ports import free_ports

HANDOVER_S = 1.0
"""How long a program may take to save its positions."""

RESTART_S = 1.0
"""Seconds until a killed member is started again, at most."""

PRODUCERS_PER_PROCESS = 25
"""Producers in one process."""

END_S = 120.0
"""Seconds in which a process must be ready, and end."""

QUIET_S = 60.0
"""Seconds until all records must be handled after the last fault."""

HOST = "127.0.0.1"


@attrs.frozen(kw_only=True)
class Plan:
    """What happens."""

    members: int = 10
    partitions: int = 200
    seconds: float = 600.0
    fault_s: float = 3.0
    lease_s: float = 5.0
    records_per_s: float = 2.0


class Chaos:
    """The processes, and what happens to them."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.killed: dict[str, float] = {}
        self.frozen: dict[str, list[range]] = defaultdict(list)
        self.timeline = Timeline(folder / "timeline.txt")
        self._plan = plan
        self._folder = folder
        self._busy: set[Node] = set()
        sub, pub = (f"tcp://{HOST}:{port}" for port in free_ports(2, HOST))
        self._environment = {
            "DAFKA_BEACON_TOWER_SUB": sub,
            "DAFKA_BEACON_TOWER_PUB": pub,
            "DAFKA_NODE_BIND": f"tcp://{HOST}:*",
            "DAFKA_CONSUMER_OFFSET_RESET": "earliest",
            "DAFKA_CONSUMER_GROUP_LEASE_MS": str(round(plan.lease_s * 1000)),
            "DAFKA_CONSUMER_GROUP_HANDOVER_MS": str(round(HANDOVER_S * 1000)),
        }
        storage = f"sqlite:{folder}/store.db"
        self._tower = self._node("up", "dafka", "up", "--sub", sub, "--pub", pub, "--storage", storage, ready="tcp://")
        counts = [min(PRODUCERS_PER_PROCESS, plan.partitions - at) for at in range(0, plan.partitions, 25)]
        self._producers = [
            self._node(
                f"p{number}", "tests.groups.producers_process", str(count), str(plan.records_per_s), f"p{number}"
            )
            for number, count in enumerate(counts)
        ]
        self._members = [
            self._node(f"m{number}", "tests.groups.member_process", f"m{number}", f"m{number}.ledger")
            for number in range(plan.members)
        ]

    def _node(self, name: str, module: str, *arguments: str, ready: str = "ready") -> Node:
        command = [sys.executable, "-m", module, *arguments]
        return Node(name, command, self._environment, self._folder, self.timeline, ready)

    async def run(self) -> Verdict:
        async with trio.open_nursery() as nursery:
            nodes = [self._tower, *self._producers, *self._members]
            for node in nodes:
                nursery.start_soon(node.run)
            for some in ([self._tower], self._producers, self._members):
                for node in some:
                    node.start()
                with trio.fail_after(END_S):
                    for node in some:
                        await node.wait_ready()
            async with trio.open_nursery() as faults:
                with trio.move_on_after(self._plan.seconds):
                    while True:
                        faults.start_soon(self._strike)
                        await trio.sleep(random.expovariate(1 / self._plan.fault_s))
            await self._end(self._producers)
            ends: dict[str, int] = {}
            for producer in self._producers:
                ends |= json.loads((self._folder / producer.name).read_text())
            with trio.move_on_after(QUIET_S):
                while self._reached() != ends:  # noqa: ASYNC110 (the ledgers are files)
                    await trio.sleep(0.5)
            await self._end(self._members)
            await self._end([self._tower])
            nursery.cancel_scope.cancel()
        self.timeline.close()
        verdict = judge(self._handled(), ends, self.frozen)
        return attrs.evolve(verdict, problems=(*verdict.problems, *self.timeline.problems))

    async def _strike(self) -> None:
        """Kill or freeze a member, and let it come back."""
        free = [each for each in self._members if each not in self._busy]
        if not free:
            return
        member = random.choice(free)
        self._busy.add(member)
        process = str(member.process_id)
        begun = time.monotonic()
        if random.random() < 0.5:
            await member.kill()
            self.killed[process] = begun
            await trio.sleep(random.uniform(0.0, RESTART_S))
            member.start()
            await member.wait_ready()
        else:
            member.signal(signal.SIGSTOP)
            await trio.sleep(random.uniform(0.2, 2 * self._plan.lease_s))
            member.signal(signal.SIGCONT)
            self.frozen[process].append(range(round(begun * 1000), round(time.monotonic() * 1000) + 50))
        self._busy.discard(member)

    async def _end(self, nodes: list[Node]) -> None:
        async with trio.open_nursery() as nursery:
            for node in nodes:
                nursery.start_soon(node.terminate, END_S)

    def _handled(self) -> dict[str, list[Handling]]:
        return read_ledgers(sorted(self._folder.glob("*.ledger")), self.killed)

    def _reached(self) -> dict[str, int]:
        """Return how far each partition has been handled."""
        return {partition: max(each.end for each in found) for partition, found in self._handled().items()}


async def run(plan: Plan, folder: Path) -> tuple[Verdict, Chaos]:
    chaos = Chaos(plan, folder)
    return await chaos.run(), chaos


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.groups.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--members", type=int, default=10)
    parser.add_argument("--partitions", type=int, default=200)
    parser.add_argument("--lease", type=float, default=5.0, help="seconds")
    given = parser.parse_args()
    plan = Plan(members=given.members, partitions=given.partitions, seconds=given.minutes * 60, lease_s=given.lease)
    with tempfile.TemporaryDirectory() as folder:
        verdict, chaos = trio.run(run, plan, Path(folder))
    for problem in verdict.problems[:20]:
        print(problem)
    print(
        f"{len(chaos.killed)} kills, {sum(map(len, chaos.frozen.values()))} freezes, {verdict.handovers} hand-overs, "
        f"{verdict.handled} records handled, {verdict.repeated} of them again, "
        f"overlap at most {verdict.overlap_s:.3f} s, {len(verdict.problems)} problems"
    )
    return 1 if verdict.problems or verdict.overlap_s > HANDOVER_S else 0


if __name__ == "__main__":
    sys.exit(main())
