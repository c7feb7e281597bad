"""What the replicas of topics have stored in the end, by the commands of an administrator."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.broker.cluster.brokers import BrokerNode
from tests.broker.cluster.traffic import Records

COMMAND_S = 600


def run(*arguments: str) -> tuple[int, str]:
    """Return the exit status of a command of dafka, and what it has printed."""
    command = [sys.executable, "-m", "dafka", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    return done.returncode, done.stdout + done.stderr


def verify_running(broker: BrokerNode) -> list[str]:
    """Return what is wrong with the replicas of all topics, as the brokers say that run."""
    status, text = run("cluster", "verify", "--http", broker.url)
    return [f"dafka cluster verify: {text}"] if status else []


def compare_stopped(
    brokers: Sequence[BrokerNode], replicas: dict[str, dict[int, list[int]]], logs: dict[str, list[Records]]
) -> list[str]:
    """Return what is wrong with the storages of brokers that are stopped.

    No record is damaged or differs between two of them, and each replica has all records of its log.
    """
    problems, first = [], dict[tuple[str, str, int], str]()
    for broker in brokers:
        status, text = run("storage", "verify", broker.storage)
        problems += [f"{broker.name}: dafka storage verify: {text}"] if status else []
        kept = [topic for topic in logs if any(broker.number in numbers for numbers in replicas[topic].values())]
        stored: dict[str, set[str]] = {topic: set() for topic in kept}
        for record in export(broker, kept, problems):
            place = record["topic"], record["partition"], record["sequence"]
            stored[place[0]].add(f"{log_of(place[1])} {record['value']}")
            if (there := first.setdefault(place, record["value"])) != record["value"]:
                problems.append(f"{broker.name} has {record['value']} at {place}, and another has {there}")
        for topic in kept:
            for log, records in enumerate(logs[topic]):
                wanted = {f"{log} {value.decode()}" for _, value in records}
                if broker.number in replicas[topic][log] and (missing := wanted - stored[topic]):
                    problems.append(f"{broker.name} misses {len(missing)} records of log {log} of {topic}")
    return problems


def export(broker: BrokerNode, topics: Sequence[str], problems: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the records of topics in the storage of a broker, which keeps logs of each."""
    if not topics:
        return
    output = Path(f"{broker.folder}.jsonl")
    named = [part for topic in topics for part in ("--topic", topic)]
    status, text = run("storage", "export", *named, "--output", str(output), broker.storage)
    if status:
        problems.append(f"{broker.name}: dafka storage export: {text}")
        return
    with output.open() as lines:
        yield from map(json.loads, lines)


def log_of(partition: str) -> str:
    """Return the number of the log in the name of a partition: STORE/TOPIC/LOG, or STORE/TOPIC/LOG/EPOCH."""
    return partition.split("/")[2]
