"""Object stores against a dictionary, how requests are tried again, and the cache of what was read."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, assert_checkpoints, wait_all_tasks_blocked

from dafka.storage.cold import buckets, object_store, reader
from dafka.storage.cold.buckets import BucketStore
from dafka.storage.cold.folders import FolderStore
from dafka.storage.cold.object_store import (
    ObjectConflictError,
    ObjectMissingError,
    ObjectStore,
    ObjectStoreError,
    RetryingObjectStore,
    Version,
)
from dafka.storage.cold.reader import Cache
from tests.storage.cold.stores import A, B, Faults, FaultyStore, batch, open_tiered
from tests.storage.quick import quickly

NAMES = ["root.json", "a/1", "a/2", "a/b/3", "ab/4"]


@pytest.mark.parametrize("kind", [FolderStore, lambda folder: BucketStore(f"memory://{folder}", 1000)])
def test_an_object_store_is_as_a_dictionary(kind: Callable[[str], ObjectStore], tmp_path: Path) -> None:
    store, model, draw = kind(f"{tmp_path}/bucket"), dict[str, bytes](), random.Random(5)
    versions: dict[str, Version | None] = dict.fromkeys(NAMES)
    for number in range(300):
        name, data = draw.choice(NAMES), b"%d" % number * draw.randrange(9)
        match draw.randrange(5):
            case 0:
                store.write(name, data)
                model[name], versions[name] = data, store.read(name)[1]
            case 1:
                version = draw.choice([None, versions[name], versions[name], *versions.values()])
                if version == (versions[name] if name in model else None):
                    versions[name] = store.replace(name, data, version)
                    model[name] = data
                else:
                    with pytest.raises((ObjectConflictError, ObjectMissingError)):
                        store.replace(name, data, version)
            case 2:
                chosen = draw.sample(NAMES, 2)
                store.delete(chosen)
                for each in chosen:
                    model.pop(each, None)
            case 3:
                prefix = draw.choice(["a/", "ab/", "none/"])
                found = {(each.name, each.size) for each in store.list(prefix)}
                assert found == {(each, len(data)) for each, data in model.items() if each.startswith(prefix)}
            case _:
                start = draw.randrange(4)
                if name not in model:
                    with pytest.raises(ObjectMissingError):
                        store.read(name)
                    with pytest.raises(ObjectMissingError):
                        store.read_range(name, start, start + 2)
                elif len(model[name]) > start:
                    assert store.read(name) == (model[name], versions[name])
                    assert store.read_range(name, start, start + 2) == model[name][start : start + 2]


@pytest.mark.parametrize("timeout_s", [1, 10, 60])
def test_connecting_takes_ten_seconds_at_most_and_only_uploads_may_take_longer_than_set(
    timeout_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = list[timedelta]()
    monkeypatch.setattr(
        buckets,
        "from_url",
        lambda _, client_options, **__: limits.extend(client_options[name] for name in ("connect_timeout", "timeout")),
    )
    assert BucketStore("s3://bucket", timeout_s * 1000)._uploads is None
    assert [each.total_seconds() for each in limits] == [min(timeout_s, 10), timeout_s, 10, timeout_s + 256]


async def test_requests_are_tried_again_and_a_failing_store_rests(tmp_path: Path, mock_clock: MockClock) -> None:
    """It rests twice as long each time, up to half a minute, until a request succeeds."""
    asked: list[str] = []
    failures = failed = requests = 0
    mock_clock.autojump_threshold = 0

    def fault(operation: str, name: str) -> None:
        nonlocal failures, failed, requests
        asked.append(operation)
        requests += not operation.startswith("after")
        if failures:
            failures -= 1
            failed += 1
            raise ObjectStoreError("failed")

    store = RetryingObjectStore(lambda: FaultyStore(FolderStore(str(tmp_path)), fault))
    with quickly():
        for number, rest_s in enumerate((1, 2, 4, 8, 16, 30, 30, None, 1)):
            failures = 0 if rest_s is None else object_store.ATTEMPTS
            asked.clear()
            if rest_s is None:
                assert await store.list("a/") == []
                assert store.last_error == ""
                continue
            begun = trio.current_time()
            with pytest.raises(ObjectStoreError, match=r"^failed$"):
                await store.list("a/")
            assert asked == ["list"] * object_store.ATTEMPTS
            assert 0.35 <= trio.current_time() - begun <= 1.05
            await trio.sleep(rest_s - 0.01)
            with pytest.raises(ObjectStoreError, match="a moment ago"):
                await store.list("a/")
            assert (len(asked), store.last_error) == (object_store.ATTEMPTS, "failed"), number
            await trio.sleep(0.02)
        for request, failing, wanted in (
            (lambda: store.write("x", b""), 3, ["write"] * 4 + ["after write"]),
            (lambda: store.replace("root", b"", None), 1, ["replace"]),  # it may have been replaced
            (lambda: store.read("none"), 0, ["read"]),  # that there is none is an answer
        ):
            asked.clear()
            failures = failing
            with nullcontext() if failing == 3 else pytest.raises(ObjectStoreError):
                await request()
            assert asked == wanted
            assert (store.requests, store.failures) == (requests, failed)
            await trio.sleep(1)


async def test_a_cache_keeps_what_was_used_last_up_to_its_size() -> None:
    draw, cache, model = random.Random(3), Cache[int](10), OrderedDict[int, int]()
    hits = misses = 0
    for _ in range(500):
        key = draw.randrange(8)

        async def load(key: int = key) -> tuple[int, int]:
            await trio.lowlevel.checkpoint()
            return -key, 2 * key

        async with trio.open_nursery() as nursery:
            for _ in range(tasks := draw.choice((1, 1, 3))):
                nursery.start_soon(cache.get, key, load)
        misses += (is_missing := key not in model)
        hits += tasks - is_missing
        model[key] = 2 * key
        model.move_to_end(key)
        while sum(model.values()) > 10 and len(model) > 1:
            model.popitem(last=False)
        assert (cache.hits, cache.misses, cache.bytes_held) == (hits, misses, sum(model.values()))
        with assert_checkpoints():
            assert await cache.get(key, load) == -key
        hits += 1


async def test_a_reader_of_record_after_record_finds_the_next_ones_fetched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(reader, "SEQUENTIAL_READS_MAX", 3)
    faults, asked = Faults(), set[str]()
    faults.fault = lambda operation, name: asked.add(name) if operation == "read_range" else None
    monkeypatch.setattr(
        "dafka.storage.cold.opening.connect", lambda _: FaultyStore(FolderStore(f"{tmp_path}/bucket"), faults)
    )
    with quickly():
        async with open_tiered(tmp_path) as storage:
            await storage.append([batch(A, 0, 110), batch(B, 0, 110)])
            await storage.move_due()
            for partition, sequences, step in ((A, [*range(0, 100, 10)], 1), (B, [90, 70, 50, 30], 0)):
                asked.clear()
                for number, sequence in enumerate(sequences, 1):
                    await storage.read(partition, sequence, 10)
                    await wait_all_tasks_blocked()
                    is_next = step and 1 < number < len(sequences)
                    assert len(asked) == number + is_next
                    assert storage.reader._reads_ahead == 0
                    assert len(storage.reader._read_ends) <= reader.SEQUENTIAL_READS_MAX
