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
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import attrs
import trio

import dafka
from tests.chaos.processes import Node
from tests.chaos.timeline import Timeline
from tests.ports import free_ports

HANDOVER_S = 1.0
"""How long a program may take to save its positions."""

RESTART_S = 1.0
"""Seconds until a killed member is started again, at most."""

END_S = 120.0
"""Seconds in which a process must be ready, and end."""

QUIET_S = 60.0
"""Seconds until all records must be handled after the last fault."""

PRODUCERS_PER_PROCESS = 25
HOST = "127.0.0.1"
TOPIC, GROUP = "orders", "billing"


class Handling(NamedTuple):
    """One batch that a member has handled, or begun to.

    It ended with the kill if the member was killed before. `saved` is when the member knew that its position was saved.
    """

    member: str
    first: int
    end: int
    begun: float
    ended: float
    saved: float | None = None


@attrs.define
class Verdict:
    """What was not as promised, and what happened; the overlap is the longest of two members that were not frozen."""

    problems: list[str] = attrs.field(factory=list)
    handled: int = 0
    repeated: int = 0
    handovers: int = 0
    overlap_s: float = 0.0


def read_ledgers(paths: Iterable[Path], killed: Mapping[str, float]) -> dict[str, list[Handling]]:
    """Return what was handled by partition, in the order of time; `killed` is when processes were, by their ids."""
    found: dict[str, list[Handling]] = defaultdict(list)
    for path in paths:
        times: dict[tuple[str, str, int, int], dict[str, float]] = defaultdict(dict)
        for line in path.read_text().splitlines():
            kind, member, at, partition, first, end = json.loads(line)
            times[member, partition, first, end][kind] = at
        for (member, partition, first, end), at in times.items():
            over = at.get("end", killed.get(member.rpartition("/")[2], at["begin"]))
            found[partition].append(Handling(member, first, end, at["begin"], over, at.get("saved")))
    return {partition: sorted(each, key=lambda one: one.begun) for partition, each in found.items()}


def judge(handled: Mapping[str, list[Handling]], ends: Mapping[str, int], frozen: Mapping[str, list[range]]) -> Verdict:
    """Check what was handled, by partition; `frozen` is when processes were, in milliseconds, by their ids."""
    verdict = Verdict()
    for partition, end in ends.items():
        reached, before = 0, None
        found = handled.get(partition, [])
        for number, each in enumerate(found):
            if each.first > reached:
                verdict.problems.append(f"{partition}: {reached} to {each.first - 1} were skipped at {each.begun:.3f}")
            known = max(
                (one.end for one in found[:number] if one.saved is not None and one.saved < each.begun), default=0
            )
            if each.first < known:
                place = f"{each.member} began at {each.first} at {each.begun:.3f}"
                verdict.problems.append(f"{partition}: {place}, though {known} was saved")
            verdict.handled += each.end - each.first
            verdict.repeated += max(min(reached, each.end) - each.first, 0)
            reached = max(reached, each.end)
            if before is not None and before.member != each.member:
                verdict.handovers += 1
                verdict.overlap_s = max(verdict.overlap_s, _overlap_s(before, each, frozen))
            before = each
        if reached != end:
            verdict.problems.append(f"{partition}: {reached} of {end} records were handled")
    return verdict


def _overlap_s(before: Handling, after: Handling, frozen: Mapping[str, list[range]]) -> float:
    """Return for how long both were handled, but for the time in which one of them was frozen."""
    begin, end = round(after.begun * 1000), round(min(before.ended, after.ended) * 1000)
    pauses = [each for one in (before, after) for each in frozen.get(one.member.rpartition("/")[2], [])]
    still = sum(max(min(end, each.stop) - max(begin, each.start), 0) for each in pauses)
    return max(end - begin - still, 0) / 1000


@attrs.frozen(kw_only=True)
class Plan:
    """What happens: faults for some seconds, each after the average time since the one before."""

    members: int = 10
    partitions: int = 200
    seconds: float = 600.0
    fault_s: float = 3.0
    lease_s: float = 5.0
    records_per_s: float = 2.0


class Chaos:
    """The processes, and what happens to them: when members were killed and frozen, by process id."""

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
        module, size, rate = "tests.groups.chaos", PRODUCERS_PER_PROCESS, str(plan.records_per_s)
        counts = [min(size, plan.partitions - at) for at in range(0, plan.partitions, size)]
        self._producers = [
            self._node(f"p{number}", module, "producers", str(count), rate, f"p{number}")
            for number, count in enumerate(counts)
        ]
        names = [f"m{number}" for number in range(plan.members)]
        self._members = [self._node(name, module, "member", name, f"{name}.ledger") for name in names]

    def _node(self, name: str, module: str, *arguments: str, ready: str = "ready") -> Node:
        command = [sys.executable, "-m", module, *arguments]
        return Node(name, command, self._environment, self._folder, self.timeline, ready)

    async def run(self) -> Verdict:
        async with trio.open_nursery() as nursery:
            for some in ([self._tower], self._producers, self._members):
                for node in some:
                    nursery.start_soon(node.run)
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
        verdict.problems += self.timeline.problems
        return verdict

    async def _strike(self) -> None:
        """Kill or freeze a member, and let it come back."""
        free = [each for each in self._members if each not in self._busy]
        if not free:
            return
        member = random.choice(free)
        self._busy.add(member)
        process, begun = str(member.process_id), time.monotonic()
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


async def handle(name: str, ledger: int, consumer: dafka.Consumer) -> None:
    """Handle records, and save how far this has come."""

    def write(kind: str, partition: str, first: int, end: int) -> None:
        line = [kind, f"{name}/{os.getpid()}", time.monotonic(), partition, first, end]
        os.write(ledger, json.dumps(line).encode() + b"\n")

    async for batch in consumer.batches():
        place = batch.partition.address, batch.first_sequence, batch.end_sequence
        write("begin", *place)
        assert list(batch.values) == [b"%d" % sequence for sequence in range(*place[1:])]
        await trio.sleep(random.uniform(0.0, 0.004))
        write("end", *place)
        await consumer.save_positions()
        if place[0] in {each.address for each in consumer.positions()}:
            write("saved", *place)


async def publish(producer: dafka.Producer, records_per_s: float) -> None:
    """Publish a few records again and again."""
    sequence = 0
    while True:
        count = random.randint(1, 3)
        await producer.send_many([b"%d" % each for each in range(sequence, sequence + count)])
        sequence += count
        await trio.sleep(random.expovariate(records_per_s / 2))


async def run_process(kind: str, count_or_name: str, *arguments: str) -> None:
    """Run a member or producers until SIGTERM. Settings come from the environment.

    A member writes what it handles to a ledger. The lines are in the file before the next thing happens, so they
    survive a kill. Their times are those of the machine's steady clock, which all processes share. Producers publish
    their sequences. At the end they write, as one JSON object, how many records each has published, by address.
    """
    config = dafka.Config.load()
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with AsyncExitStack() as stack:
            count = int(count_or_name) if kind == "producers" else 0
            openings = [dafka.open_producer(TOPIC, config) for _ in range(count)]
            producers = [await stack.enter_async_context(each) for each in openings]
            tasks = [partial(publish, each, float(arguments[0])) for each in producers]
            if kind == "member":
                ledger = os.open(arguments[0], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                consumer = await stack.enter_async_context(dafka.open_consumer([TOPIC], config, group=GROUP))
                tasks = [partial(handle, count_or_name, ledger, consumer)]
            async with trio.open_nursery() as nursery:
                for task in tasks:
                    nursery.start_soon(task)
                print("ready", flush=True)
                async for _ in signals:
                    break
                nursery.cancel_scope.cancel()
            for producer in producers:
                await producer.wait_stored()
            if producers:
                ends = {each.address: each.statistics().next_sequence for each in producers}
                await trio.Path(arguments[1]).write_text(json.dumps(ends))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.groups.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--members", type=int, default=10)
    parser.add_argument("--partitions", type=int, default=200)
    parser.add_argument("--lease", type=float, default=5.0, help="seconds")
    given = parser.parse_args()
    plan = Plan(members=given.members, partitions=given.partitions, seconds=given.minutes * 60, lease_s=given.lease)
    with tempfile.TemporaryDirectory() as folder:
        chaos = Chaos(plan, Path(folder))
        verdict = trio.run(chaos.run)
    for problem in verdict.problems[:20]:
        print(problem)
    print(
        f"{len(chaos.killed)} kills, {sum(map(len, chaos.frozen.values()))} freezes, {verdict.handovers} hand-overs, "
        f"{verdict.handled} records handled, {verdict.repeated} of them again, "
        f"overlap at most {verdict.overlap_s:.3f} s, {len(verdict.problems)} problems"
    )
    return 1 if verdict.problems or verdict.overlap_s > HANDOVER_S else 0


if __name__ == "__main__":
    if sys.argv[1:2] in (["member"], ["producers"]):
        trio.run(partial(run_process, *sys.argv[1:]))
    else:
        sys.exit(main())
