"""Compares the storages of stopped brokers: all that keep a log must hold the same records of it.

python -m tests.broker.cluster.replicas TOPIC STORAGE...

A storage is a URL, such as sqlite:broker-0, or the path of a file log.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence

import attrs
import trio

from dafka.storage import open_storage, read_range


@attrs.frozen
class Held:
    """What a storage holds of a partition: a range of sequences, and a digest of the records in it."""

    first: int
    end: int
    digest: str = ""


Holding = dict[tuple[int, str], Held]
"""What a storage holds, by the number of the log and the address of the partition."""


async def read_holding(url: str, topic: str, *, with_contents: bool = True) -> Holding:
    """Return what a storage holds of the logs of a topic. The order of the logs is left out: readers tell it."""
    found: Holding = {}
    async with open_storage(url, read_only=True) as storage:
        partitions = await storage.partitions()
        for partition, info in partitions.items():
            names = partition.address.split("/")
            if len(names) < 3 or partition.topic != topic or not info.end_sequence:
                continue
            digest = hashlib.sha256()
            if with_contents:
                async for batch in read_range(storage, partition, info.earliest_sequence, info.end_sequence):
                    digest.update(b"".join(value or b"" for value in batch.values))
            held = Held(info.earliest_sequence, info.end_sequence, digest.hexdigest() if with_contents else "")
            found[int(names[2]), partition.address] = held
    return found


def compare(holdings: Mapping[str, Holding], replicas: Mapping[int, Sequence[str]]) -> list[str]:
    """Return where brokers that keep a log differ.

    Args:
        holdings: What each broker holds.
        replicas: The brokers that keep each log.

    Returns:
        A line for each difference.
    """
    problems = []
    for log, brokers in sorted(replicas.items()):
        keys = {key for broker in brokers for key in holdings[broker] if key[0] == log}
        if not keys:
            problems.append(f"none of {', '.join(brokers)} holds anything of log {log}")
        for key in sorted(keys):
            held = {broker: holdings[broker].get(key) for broker in brokers}
            if len(set(held.values())) > 1:
                problems.append(f"of log {log}, partition {key[1]}, brokers hold: {describe(held)}")
    return problems


def describe(held: Mapping[str, Held | None]) -> str:
    """Return what each broker holds of a partition, for people."""
    return "; ".join(
        f"{broker} nothing" if each is None else f"{broker} {each.first} to {each.end} ({each.digest[:8]})"
        for broker, each in held.items()
    )


async def read_all(topic: str, storages: Mapping[str, str]) -> dict[str, Holding]:
    """Return what the storage of each broker holds, by its name."""
    return {name: await read_holding(url, topic) for name, url in storages.items()}


def main() -> int:
    topic, *storages = sys.argv[1:]
    holdings = trio.run(read_all, topic, {each: each if ":" in each else f"filelog:{each}" for each in storages})
    logs = {key[0] for holding in holdings.values() for key in holding}
    keepers = {log: [each for each in holdings if any(key[0] == log for key in holdings[each])] for log in logs}
    problems = compare(holdings, keepers)
    print("\n".join(problems) or f"{len(logs)} logs are equal wherever they are kept")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
