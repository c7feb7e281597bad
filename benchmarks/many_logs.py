"""Measures brokers with thousands of logs: how long they take to create them, to start, and to replace a leader.

A cluster of one broker, and one of three that all keep all logs, each of processes of their own, with file logs. A
start is measured from the start of the process until it answers a request for the metadata of all topics with all logs,
and until that answer has a leader for each log, with the processor time of the process until then. It is measured after
a clean stop and after `kill -9`, of one broker and of all at once. Memory is resident memory; `without topics`, it is
that of brokers that have run for some seconds.

    python benchmarks/many_logs.py [--logs 10000] [--topics 10] [--brokers 1 --brokers 3] [--folder .]

Wall time depends on what else the machine does, and so does the memory of a process that has not been used for a while.
Compare processor time.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import click
import trio

from dafka.kafka.protocol.constants import ApiKey
from tests.broker.cluster.brokers import BrokerNode, ProcessCluster, open_cluster
from tests.kafka.apis.door import Client
from tests.waiting import wait_until

DEADLINE_S = 300.0
POLL_S = 0.1
REST_S = 10.0
STOP_S = 60.0
METADATA_VERSION = 9


def processor_s(broker: BrokerNode) -> float:
    """Return the processor time that a broker has taken since it was started, in seconds."""
    fields = Path(f"/proc/{broker.node.process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(broker: BrokerNode) -> float:
    """Return the resident memory of a broker, in MiB."""
    (kib,) = re.findall(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{broker.node.process_id}/status").read_text())
    return int(kib) / 1024


@attrs.define
class Seen:
    """What one broker has answered since a time: when all logs were in its answer, and when all had a leader."""

    begun: float
    answered: tuple[float, float] | None = None
    led: tuple[float, float] | None = None

    def __str__(self) -> str:
        assert self.answered is not None
        assert self.led is not None
        return (
            f"all logs {self.answered[0]:6.2f} s ({self.answered[1]:6.2f} s of processor time), "
            f"all leaders {self.led[0]:6.2f} s ({self.led[1]:6.2f} s)"
        )


def ask_metadata(broker: BrokerNode) -> list[Any]:
    """Return the logs of all topics, as a broker describes them; none if it is not there."""
    try:
        with Client(broker.servers) as client:
            client.socket.settimeout(DEADLINE_S)
            answer = client.ask(ApiKey.METADATA, METADATA_VERSION, topics=None, allow_auto_topic_creation=False)
    except OSError:
        return []
    return [log for topic in answer["topics"] for log in topic["partitions"]]


def watch(broker: BrokerNode, logs: int, seen: Seen, leaders: frozenset[int]) -> None:
    """Ask a broker until it names all logs, and a leader among some brokers for each of them."""
    while seen.led is None:
        assert time.perf_counter() < seen.begun + DEADLINE_S, f"{broker.name} has not named all leaders"
        found = ask_metadata(broker)
        now = time.perf_counter() - seen.begun, processor_s(broker) if found else 0.0
        if seen.answered is None and len(found) >= logs:
            seen.answered = now
        if len(found) >= logs and all(each["leader_id"] in leaders for each in found):
            seen.led = now
        else:
            time.sleep(POLL_S)


async def watch_all(brokers: Sequence[BrokerNode], logs: int, leaders: frozenset[int]) -> dict[str, Seen]:
    """Watch brokers until all of them name all logs and leaders."""
    seen = {each.name: Seen(time.perf_counter()) for each in brokers}

    async def run(broker: BrokerNode) -> None:
        await trio.to_thread.run_sync(watch, broker, logs, seen[broker.name], leaders)

    async with trio.open_nursery() as nursery:
        for each in brokers:
            nursery.start_soon(run, each)
    return seen


class Report:
    """Prints what was measured."""

    def __init__(self, cluster: ProcessCluster) -> None:
        self.cluster = cluster

    def show(self, what: str, seen: dict[str, Seen]) -> None:
        for name, each in seen.items():
            print(f"  {what:<38} {name}: {each}", flush=True)

    async def rest(self, what: str) -> None:
        """Print the memory of all brokers when they have had nothing to do for a while, and the work that they do."""
        before = {each.name: processor_s(each) for each in self.cluster.running()}
        await trio.sleep(REST_S)
        for each in self.cluster.running():
            share = (processor_s(each) - before[each.name]) / REST_S
            print(f"  {what:<38} {each.name}: {resident_mib(each):6.1f} MiB, {share:6.1%} of a core", flush=True)


async def create(cluster: ProcessCluster, logs: int, topics: int) -> float:
    """Create the topics by one request, and return how many seconds the answer took."""
    count, more = divmod(logs, topics)
    asked = [
        {
            "name": f"topic-{number}",
            "num_partitions": count + (number < more),
            "replication_factor": len(cluster.brokers),
            "assignments": [],
            "configs": [],
        }
        for number in range(topics)
    ]
    begun = time.perf_counter()

    def send() -> Any:
        with Client(cluster.running()[0].servers) as client:
            client.socket.settimeout(DEADLINE_S)
            return client.ask(ApiKey.CREATE_TOPICS, 7, topics=asked, timeout_ms=round(DEADLINE_S * 1000))

    answer = await trio.to_thread.run_sync(send)
    refused = [each for each in answer["topics"] if each["error_code"]]
    assert not refused, refused[0]
    return time.perf_counter() - begun


@contextmanager
def measured(cluster: ProcessCluster) -> Iterator[dict[str, float]]:
    """Measure the processor time of each broker during the block."""
    found: dict[str, float] = {}
    before = {each.name: processor_s(each) for each in cluster.running()}
    yield found
    found.update((each.name, processor_s(each) - before[each.name]) for each in cluster.running())


async def measure(folder: Path, brokers: int, logs: int, topics: int) -> None:
    """Measure one cluster."""
    print(f"{brokers} brokers, {topics:,} topics with {logs:,} logs", flush=True)
    async with open_cluster(folder, brokers, settings={}) as cluster:
        report = Report(cluster)
        everybody = [*cluster.brokers.values()]
        numbers = frozenset(each.number for each in everybody)
        await report.rest("without topics")
        with measured(cluster) as taken:
            answered_s = await create(cluster, logs, topics)
            print(f"  created after {answered_s:.2f} s", flush=True)
            seen = await watch_all(everybody, logs, numbers)
        led_s = answered_s + max(each.led[0] for each in seen.values() if each.led is not None)
        costs = ", ".join(f"{each:.2f} s" for each in taken.values())
        print(f"  the same leaders everywhere after {led_s:.2f} s; processor time {costs}", flush=True)
        await report.rest("with topics")
        for is_clean in (True, False):
            for stopped in [everybody[:1], everybody] if brokers > 1 else [everybody]:
                await restart(report, stopped, logs, is_clean=is_clean)


async def restart(report: Report, stopped: Sequence[BrokerNode], logs: int, *, is_clean: bool) -> None:
    """Measure what happens when some brokers end, and when they start again."""
    way = "SIGTERM" if is_clean else "kill -9"
    everybody = [*report.cluster.brokers.values()]
    others = [each for each in everybody if each not in stopped]
    async with trio.open_nursery() as nursery:
        for each in stopped:
            nursery.start_soon(stop, each, is_clean)
    if others:
        leaders = frozenset(each.number for each in others)
        report.show(f"others, after {way} of one", await watch_all(others, logs, leaders))
        await trio.sleep(2.0)
    for each in stopped:
        each.node.start()
    await wait_until(lambda: all(each.node.is_running for each in stopped))
    what = f"start after {way} of {'one' if others else 'all'}"
    report.show(what, await watch_all(stopped, logs, frozenset(each.number for each in everybody)))
    await report.rest(what)


async def stop(broker: BrokerNode, is_clean: bool) -> None:
    """End a broker."""
    if is_clean:
        await broker.node.terminate(STOP_S)
    else:
        await broker.node.kill()


@click.command()
@click.option("--logs", default=10_000, show_default=True, help="The number of logs of all topics.")
@click.option("--topics", default=10, show_default=True, help="The number of topics.")
@click.option("--brokers", default=(1, 3), show_default=True, multiple=True, help="The numbers of brokers.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=Path(),
    help="A folder on a disk.",
)
def main(logs: int, topics: int, brokers: Sequence[int], folder: Path) -> None:
    """Measure, and print what was found."""
    for count in brokers:
        with tempfile.TemporaryDirectory(prefix=".many-logs-", dir=folder) as path:
            trio.run(measure, Path(path).resolve(), count, logs, topics)


if __name__ == "__main__":
    main()
