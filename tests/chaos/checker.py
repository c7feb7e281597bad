"""The checks at the end of a run, from the ledgers of producers and consumers and from the storages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dafka.storage import PartitionInfo, Storage, open_storage, read_range
from tests.chaos.contents import find_wrong
from tests.chaos.ledger import Published

PROBLEMS_MAX = 20
"""Problems of one kind that are reported for one storage. Further ones add nothing."""

Holdings = Mapping[str, PartitionInfo]
"""The partitions that a store holds, by address."""


def find_lost(store: str, held: Holdings, published: Mapping[str, Published]) -> list[str]:
    """Return the acknowledged records that a store lacks, and those that no producer can have published."""
    problems = []
    for address, ought in published.items():
        info = held.get(address, PartitionInfo())
        if info.earliest_sequence:
            problems.append(f"{store} lacks the records of {address} before {info.earliest_sequence}")
        if info.end_sequence < ought.acknowledged:
            problems.append(
                f"{store} holds {address} up to {info.end_sequence}, and {ought.acknowledged} records were acknowledged"
            )
        if ought.is_complete and info.end_sequence != ought.sent:
            problems.append(f"{store} holds {info.end_sequence} records of {address}, and {ought.sent} were published")
        if ought.is_spooled and info.end_sequence < ought.sent:
            problems.append(f"{store} lacks records of {address} from {info.end_sequence} on, which a spool holds")
    problems += [
        f"{store} holds {address}, which no producer published" for address in held if address not in published
    ]
    return problems


def find_different(stores: Mapping[str, Holdings]) -> list[str]:
    """Return the partitions whose ranges differ between two stores."""
    problems = []
    (first, model), *others = stores.items()
    for name, held in others:
        for address in sorted({*model, *held}):
            one, other = model.get(address, PartitionInfo()), held.get(address, PartitionInfo())
            if _range(one) != _range(other):
                problems.append(f"of {address}, {first} holds {_range(one)}, {name} holds {_range(other)}")
    return problems


def find_unconsumed(consumer: str, ends: Mapping[str, int], stores: Iterable[Holdings]) -> list[str]:
    """Return the records that stores hold and a consumer never got."""
    longest: dict[str, int] = {}
    for held in stores:
        for address, info in held.items():
            longest[address] = max(longest.get(address, 0), info.end_sequence)
    return [
        f"{consumer} was given {address} up to {ends.get(address, 0)}, and stores hold {end}"
        for address, end in longest.items()
        if ends.get(address, 0) < end
    ]


async def find_wrong_contents(name: str, url: str) -> tuple[int, list[str]]:
    """Read a whole storage. Return the number of records, and what is wrong with them."""
    async with open_storage(url, read_only=True) as storage:
        return await read_all(name, storage)


async def read_all(name: str, storage: Storage) -> tuple[int, list[str]]:
    """Read a whole open storage. Return the number of records, and what is wrong with them."""
    problems: list[str] = []
    count = 0
    for partition, info in (await storage.partitions()).items():
        expected = info.earliest_sequence
        async for batch in read_range(storage, partition, expected, info.end_sequence):
            count += len(batch)
            if batch.first_sequence != expected:
                problems.append(f"{name}: {batch.first_sequence} of {partition} was read where {expected} was due")
            expected = batch.end_sequence
            problem = find_wrong(batch)
            if problem:
                problems.append(f"{name}: {problem}")
            if len(problems) >= PROBLEMS_MAX:
                return count, problems
        if expected != info.end_sequence:
            problems.append(f"{name}: {partition} can be read up to {expected} only, and holds {info.end_sequence}")
    return count, problems


def _range(info: PartitionInfo) -> str:
    return f"{info.earliest_sequence}..{info.end_sequence}"
