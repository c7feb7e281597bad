"""The state of a broker: keys and values that outlive restarts, failed writes and rewrites of their partition."""

from __future__ import annotations

import random

import pytest

from dafka.broker import local_state
from dafka.broker.local_state import LocalState, LocalStatePartition
from dafka.records import Partition
from dafka.storage.memory import MemoryStorage

OWN = "a" * 32
TOPICS = ("$one", "$two")
REWRITE_RECORDS = 10


async def load(storage: MemoryStorage) -> LocalState:
    state = LocalState()
    await state.load(storage, *(Partition(topic, OWN) for topic in TOPICS))
    return state


async def test_what_was_written_is_there_after_any_failures_and_restarts() -> None:
    for seed in range(60):
        draw, storage = random.Random(seed), MemoryStorage()
        state = await load(storage)
        durable: dict[str, dict[bytes, bytes]] = {topic: {} for topic in TOPICS}
        pending = {topic: dict(values) for topic, values in durable.items()}
        for number in range(30):
            topic = draw.choice(TOPICS)
            match draw.choice(["put", "put", "write", "fail", "restart"]):
                case "put":
                    key, value = draw.choice([b"k", b"l", b"m"]), draw.choice([b"%d" % number, None])
                    state.put(topic, [(key, value)])
                    pending[topic].pop(key, None)
                    if value is not None:
                        pending[topic][key] = value
                    assert state
                case "write":
                    batches = state.begin_write(1000)
                    state.put(topic, [(b"late", b"%d" % number)])
                    await storage.append(batches)
                    state.write_done()
                    durable = {each: dict(values) for each, values in pending.items()}
                    pending[topic][b"late"] = b"%d" % number
                case "fail":
                    state.begin_write(1000)  # and the storage refuses it
                case "restart":
                    state = await load(storage)
                    pending = {each: dict(values) for each, values in durable.items()}
                    assert not state
            assert {each: dict(state.values(each)) for each in TOPICS} == pending
        for batches in (state.begin_write(1000), []):
            await storage.append(batches)
            state.write_done()
        again = await load(storage)
        for topic in TOPICS:
            assert dict(again.values(topic)) == pending[topic]
            info = await storage.find_partition(Partition(topic, OWN))
            end = 0 if info is None else info.end_sequence
            assert again.end_of(Partition(topic, OWN)) == state.end_of(Partition(topic, OWN)) == end
        assert again.end_of(Partition("$one", "b")) == again.end_of(Partition("orders", OWN)) == 0


async def test_a_partition_with_many_obsolete_records_is_rewritten_and_trimmed_when_that_is_durable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local_state, "REWRITE_RECORDS", REWRITE_RECORDS)
    storage, partition = MemoryStorage(), Partition("$one", OWN)
    state = LocalStatePartition(partition)

    async def write(*changes: tuple[bytes, bytes | None]) -> int:
        state.put(changes)
        batch = state.begin_write(1000)
        assert batch is not None
        await storage.append([batch])
        state.write_done()
        return len(batch)

    await write((b"kept", b"1"), (b"gone", b"1"))
    await write((b"gone", None))
    allowed = 2 + REWRITE_RECORDS  # beyond twice the one value
    for number in range(allowed - 3):
        await write((b"kept", b"%d" % number))
    assert state.end_sequence == allowed
    await write((b"kept", b"before"))
    await state.trim(storage)
    info = await storage.find_partition(partition)
    assert info is not None
    assert info.earliest_sequence == 0
    state.put([(b"kept", b"last")])
    for _ in range(2):
        state.begin_write(1000)  # this write fails
        await state.trim(storage)
        assert await storage.find_partition(partition) == info
    assert await write((b"other", b"2")) == 3, "the two changes, and the value that the first one has left, again"
    rewritten = state.end_sequence - 2
    await state.trim(storage)
    info = await storage.find_partition(partition)
    assert info is not None
    assert allowed < info.earliest_sequence <= rewritten
    again = LocalStatePartition(partition)
    await again.load(storage)
    assert again.values == state.values == {b"kept": b"last", b"other": b"2"}
    assert await write((b"kept", b"more")) == 1, "it is rewritten once"
