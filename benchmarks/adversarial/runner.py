"""Run an attack on one role, and measure honest traffic before and during the attack."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import attrs
import trio

from dafka.config import Config
from dafka.roles import open_consumer, open_producer

from .target import INTERVAL_S, TOPIC, stamp

IDLE_S = 5.0
MEMORY_FACTOR = 2.0
LATENCY_FACTOR = 2.0
LATENCY_FLOOR_S = 0.005
"""Latencies up to this, in seconds, always pass: the scheduler of a busy machine causes as much."""


@attrs.define
class Phase:
    """Latencies of honest traffic in seconds, and the target's memory in bytes and share of a processor.

    The share shows what an attack costs the target, even on a machine that is busy with other things.
    """

    latencies: list[float] = attrs.field(factory=list)
    memory: int = 0
    processor: float = 0.0

    def quantile(self, share: float) -> float:
        """Return the latency that a share of the measurements does not exceed; infinite if there are none."""
        found = sorted(self.latencies)
        return found[min(int(share * len(found)), len(found) - 1)] if found else float("inf")


@attrs.define
class Outcome:
    """The result of an attack."""

    target: str
    attack: str
    sent: int
    connections: int
    seconds: float
    idle: Phase
    attacked: Phase
    discarded: dict[str, int]
    is_up: bool
    is_served: bool

    def broken(self) -> list[str]:
        """Return the bounds that were exceeded, as sentences."""
        found = []
        if not self.is_up:
            found.append("the target ended")
        if not self.is_served:
            found.append("honest traffic stopped")
        if self.attacked.memory > MEMORY_FACTOR * self.idle.memory:
            found.append(f"memory grew {self.attacked.memory / self.idle.memory:.1f} times")
        before, after = self.idle.quantile(0.5), self.attacked.quantile(0.5)
        if after > max(LATENCY_FACTOR * before, LATENCY_FLOOR_S):
            found.append(f"the median latency grew {after / before:.1f} times")
        return found


class Process:
    """A child process that reads and writes lines of JSON."""

    def __init__(self, module: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def tell(self, values: dict[str, Any]) -> None:
        """Send a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(values) + "\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """Wait for a line, and return it. Raise `EOFError` if the process has ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise EOFError(f"{self.process.args!r} ended")
        values: dict[str, Any] = json.loads(line)
        return values

    @property
    def memory(self) -> int:
        """The resident memory in bytes; 0 if the process has ended."""
        try:
            pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            return 0
        return pages * os.sysconf("SC_PAGE_SIZE")

    @property
    def processor_s(self) -> float:
        """The processor time used so far, in seconds; 0 if the process has ended."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.communicate()


@contextmanager
def start(module: str, *arguments: str, order: dict[str, Any]) -> Iterator[Process]:
    """Start a process, and send it its order."""
    process = Process(module, *arguments)
    try:
        process.tell(order)
        yield process
    finally:
        process.close()


@attrs.define
class Honest:
    """Honest traffic to a target that does not measure itself."""

    latencies: list[float] = attrs.field(factory=list)

    async def publish(self, config: Config) -> None:
        """Publish records, and measure the time until the target acknowledges them."""
        config = config.with_producer(close_timeout_ms=0)
        async with open_producer(TOPIC, config) as producer:
            self.partition = producer.partition.address
            while True:
                began = time.monotonic()
                await producer.send(stamp())
                await producer.wait_stored()
                self.latencies.append(time.monotonic() - began)
                await trio.sleep(INTERVAL_S)

    async def meet(self, config: Config) -> None:
        """Open and close nodes, and measure how long each takes to settle through the tower."""
        while True:
            began = time.monotonic()
            async with open_consumer([TOPIC], config) as consumer:
                await consumer.wait_settled()
            self.latencies.append(time.monotonic() - began)

    async def publish_only(self, config: Config) -> None:
        """Publish records that the target consumes."""
        config = config.with_producer(close_timeout_ms=0, min_stores=0)
        async with open_producer(TOPIC, config) as producer:
            self.partition = producer.partition.address
            while True:
                await producer.send(stamp())
                await trio.sleep(INTERVAL_S)

    partition: str = ""


def run_attack(
    role: str, attack: str, frames: int, seconds: float, seed: int = 0, attackers: int = 1, loops: str = ""
) -> Outcome:
    """Attack a role that runs in a process of its own, for a number of messages or a time."""
    with ExitStack() as stack:
        if loops:
            os.environ["DAFKA_ACCELERATOR"] = loops
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dafka-adversarial-"))
        free = "tcp://127.0.0.1:*"
        order: dict[str, Any] = {"tower": {"sub": free, "pub": free}}
        tower = stack.enter_context(start("benchmarks.adversarial.target", "tower", order=order))
        where = tower.hear()
        order["beacon"] = {"tower_sub": [where["sub"]], "tower_pub": [where["pub"]]}
        config = Config().with_beacon(tower_sub=(where["sub"],), tower_pub=(where["pub"],))
        order["store"] = {"storage": f"sqlite:{folder}/store.db"}
        target, said = tower, where
        if role in ("store", "producer"):
            store = stack.enter_context(start("benchmarks.adversarial.target", "store", order=order))
            target, said = store, store.hear()
        if role in ("producer", "consumer"):
            target = stack.enter_context(start("benchmarks.adversarial.target", role, order=order))
            said = target.hear()
        return trio.run(_measure, role, attack, frames, seconds, seed, attackers, config, target, said, where)


async def _measure(
    role: str,
    attack: str,
    frames: int,
    seconds: float,
    seed: int,
    attackers: int,
    config: Config,
    target: Process,
    said: dict[str, Any],
    where: dict[str, Any],
) -> Outcome:
    honest = Honest()
    async with trio.open_nursery() as nursery:
        if role == "store":
            nursery.start_soon(honest.publish, config)
        elif role == "consumer":
            nursery.start_soon(honest.publish_only, config)
        elif role == "tower":
            nursery.start_soon(honest.meet, config)
        await trio.sleep(2.0)
        idle, attacked = Phase(), Phase()
        await _ask(target, honest, Phase())
        spent = target.processor_s
        await trio.sleep(IDLE_S)
        idle.processor = (target.processor_s - spent) / IDLE_S
        await _ask(target, honest, idle)
        idle.memory = target.memory
        partition = honest.partition or said["address"]
        attacked_node = {"address": said["address"], "topic": TOPIC, "partition": partition, "role": role}
        order = {"target": attacked_node, "attack": attack, "frames": frames // attackers, "seconds": seconds}
        order |= {"tower_sub": where["sub"], "endpoint": said["endpoint"]}
        with ExitStack() as stack:
            running = [
                stack.enter_context(start("benchmarks.adversarial.attacker", order={**order, "seed": seed + number}))
                for number in range(attackers)
            ]
            for process in running:
                await trio.to_thread.run_sync(process.hear)
            await _ask(target, honest, Phase())
            began, spent = time.monotonic(), target.processor_s
            for process in running:
                process.tell({})
            ended: list[dict[str, Any]] = []
            async with trio.open_nursery() as waiting:
                for process in running:
                    waiting.start_soon(_wait, process, ended)
                while len(ended) < attackers and target.process.poll() is None:
                    await trio.sleep(0.25)
                    attacked.memory = max(attacked.memory, target.memory)
                waiting.cancel_scope.cancel() if target.process.poll() is not None else None
        took = time.monotonic() - began
        attacked.processor = (target.processor_s - spent) / took
        discarded, is_up = {}, target.process.poll() is None
        is_served = False
        if is_up:
            discarded = (await _ask(target, honest, attacked))["discarded"]
            await trio.sleep(2.0)
            after = Phase()
            await _ask(target, honest, after)
            is_served = bool(after.latencies)
        nursery.cancel_scope.cancel()
    sent, connections = sum(each["sent"] for each in ended), sum(each["connections"] for each in ended)
    return Outcome(role, attack, sent, connections, took, idle, attacked, discarded, is_up, is_served)


async def _wait(process: Process, ended: list[dict[str, Any]]) -> None:
    ended.append(await trio.to_thread.run_sync(process.hear, abandon_on_cancel=True))


async def _ask(target: Process, honest: Honest, phase: Phase) -> dict[str, Any]:
    """Add what the target and the honest traffic have measured since the previous call."""
    target.tell({})
    values = await trio.to_thread.run_sync(target.hear, abandon_on_cancel=True)
    own, honest.latencies = honest.latencies, []
    phase.latencies += values["latencies"] + own
    phase.memory = max(phase.memory, target.memory)
    return values


def describe(outcome: Outcome) -> str:
    """Return a report of a few lines."""
    idle, attacked = outcome.idle, outcome.attacked
    lines = [
        f"{outcome.target}, {outcome.attack}: {outcome.sent:,} messages in {outcome.seconds:.0f} s"
        f" ({outcome.connections} connections)",
        f"  memory   {idle.memory / 2**20:7.1f} MiB idle   {attacked.memory / 2**20:7.1f} MiB under attack"
        f"   ({attacked.memory / max(idle.memory, 1):.2f} times)",
        f"  processor {idle.processor:6.1%} of a core idle   {attacked.processor:6.1%} under attack",
        f"  latency  {_ms(idle.quantile(0.5))} p50, {_ms(idle.quantile(0.99))} p99 alone;"
        f" {_ms(attacked.quantile(0.5))} p50, {_ms(attacked.quantile(0.99))} p99 under attack"
        f" ({len(attacked.latencies)} measured)",
    ]
    lines += [
        f"  {count:>12,}  {reason}" for reason, count in sorted(outcome.discarded.items(), key=lambda each: -each[1])
    ]
    lines += [f"  BROKEN: {bound}" for bound in outcome.broken()]
    return "\n".join(lines)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
