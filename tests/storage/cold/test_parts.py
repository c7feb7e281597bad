"""The parts of a cold tier by themselves: its manifest, its options, buckets that fail, and when records move."""

from __future__ import annotations

import json
import logging
import random
import re
import stat
from collections.abc import Awaitable, Callable
from itertools import combinations, combinations_with_replacement, pairwise
from pathlib import Path
from typing import Any

import attrs
import obstore
import pytest
import trio
from obstore.exceptions import AlreadyExistsError, GenericError, NotFoundError, PreconditionError
from trio.testing import MockClock

from dafka.config import Config
from dafka.errors import StorageError, StorageFormatError, StorageSequenceError
from dafka.records import Partition, Record, RecordBatch
from dafka.storage import RetentionPolicy
from dafka.storage.arrow import ARROW_TYPES, to_arrow
from dafka.storage.cold import manifest, reader
from dafka.storage.cold.buckets import BucketStore
from dafka.storage.cold.contents import ColdRange
from dafka.storage.cold.folders import FolderStore
from dafka.storage.cold.manifest import CHUNKS_FOLDER, Chunk, Manifest, decode_chunk, decode_root, encode_segments
from dafka.storage.cold.manifest_store import COPY_FILE, ManifestStore
from dafka.storage.cold.object_store import (
    ObjectConflictError,
    ObjectMissingError,
    ObjectStoreError,
    RetryingObjectStore,
)
from dafka.storage.cold.options import ColdOptions, read_tier, split_tiered, write_tier
from dafka.storage.cold.parquet import ColumnChunk
from dafka.storage.cold.segments import Segment, escape_part
from dafka.storage.cold.tiered import TieredStorage
from dafka.storage.memory import MemoryStorage
from dafka.storage.opening import delete_partitions
from dafka.storage.tiers import TIER_FILE
from tests.storage.cold.stores import A, B, batch, open_tiered
from tests.storage.model import Log
from tests.storage.quick import quickly

# The manifest


def make_segment(number: int) -> Segment:
    """Return a segment whose fields are all different."""
    fields = [field.name for field in attrs.fields(Segment) if field.name not in ("partition", "digest")]
    values = {name: 100 * number + place for place, name in enumerate(fields)}
    return Segment(partition=(A, B, Partition("\udcff", ""))[number % 3], digest=f"{number:x}", **values)


def test_a_manifest_is_the_segments_that_were_added_and_not_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every object is named by it until it has been deleted."""
    monkeypatch.setattr(manifest, "CHUNK_SEGMENTS", 3)
    draw, found, model = random.Random(1), Manifest(store="S"), set[Segment]()
    objects, stored, added = set[str](), dict[str, Chunk](), list[Segment]()
    for number in range(200):
        removed = draw.sample(sorted(model, key=lambda each: each.first), min(len(model), draw.randrange(4)))
        again = [each for each in added if each not in removed][: draw.randrange(2)]
        added = [make_segment(number * 10 + each) for each in range(draw.randrange(4))]
        deleted = draw.sample(found.dropped, len(found.dropped) // 2)
        found = found.change(f"{number}", added=[*again, *added], removed=removed, deleted=deleted)
        model = {*model, *added} - {*removed}
        assert sorted(map(repr, found.segments())) == sorted(map(repr, model))
        assert (found.number, found.writer) == (number + 1, f"{number}")
        assert {len(chunk.segments) for chunk in found.chunks} <= {1, 2, 3}
        assert len(found.latest) < 6
        needed = {chunk.name for chunk in found.chunks} | {each.name for each in model}
        objects = (objects - {*deleted}) | needed
        assert sorted(found.dropped) == sorted(objects - needed)
        stored |= {chunk.name: decode_chunk(chunk.name, encode_segments(chunk.segments), "") for chunk in found.chunks}
        root = decode_root(found.encode(), "here")
        assert root.complete(stored) == found
    assert len(stored) > 10


def test_a_damaged_manifest_is_refused() -> None:
    data = Manifest(store="S").change("W", added=[make_segment(1)]).encode()
    for position in range(len(data)):
        with pytest.raises(StorageFormatError, match=r"^here is damaged, or not the manifest of a cold tier$"):
            decode_root(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :], "here")
    for other in (b"", b"[]", b"1", b"[" * 100_000, data[:-1]):
        with pytest.raises(StorageFormatError, match="damaged"):
            decode_root(other, "here")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest, "VERSION", 2)
        newer = Manifest(store="S").encode()
    with pytest.raises(StorageFormatError, match=r"^here has version 2, expected 1; upgrade dafka$"):
        decode_root(newer, "here")
    chunk = Chunk.of([make_segment(1), make_segment(2)])
    content = encode_segments(chunk.segments)
    assert chunk.name.startswith(f"{CHUNKS_FOLDER}/")
    with pytest.raises(StorageFormatError, match="a part of the manifest is damaged"):
        decode_chunk(chunk.name, content[:-1] + b" ", "here")


def test_names_of_objects_are_safe_and_differ() -> None:
    texts = ["", ".", "..", "...", "a", "A", "a.b", "!", "!2E", "/", "a/b", "\0", "é", "\udcff", " ", "%2E", "~"]
    texts += ["x" * length + end for length in (158, 159, 160, 161, 254) for end in ("", "y", "/")]
    names = [escape_part(text) for text in texts]
    assert len(set(names)) == len(texts)
    for text, name in zip(texts, names, strict=True):
        assert re.fullmatch(r"[A-Za-z0-9_.!-]{1,160}", name), text
        assert name.strip(".")
        assert (name == text) is (re.fullmatch(r"[A-Za-z0-9_.-]{1,160}", text) is not None and text.strip(".") != "")


def test_what_does_not_satisfy_a_policy_is_found_by_whole_segments() -> None:
    """As in a list of records; and so is the segment with a sequence, or with a time."""
    ends, times, sizes = [2, 3, 6], [5, 5, 7, 8, 8, 9, 9, 12], [3, 0, 2, 5, 1, 0, 1, 4]
    log = Log(0, [Record(A, at, b"x" * sizes[at], stored_at=times[at]) for at in range(8)])
    segments = [
        attrs.evolve(make_segment(end), first=first, start=first, end=end, content_bytes=sum(sizes[first:end]))
        for first, end in pairwise([0, *ends])
    ]
    segments = [attrs.evolve(each, first_at=times[each.start], last_at=times[each.end - 1]) for each in segments]
    found = ColdRange.of(segments[::-1])
    assert (found.start, found.end, found.count, found.content_bytes) == (0, 6, 6, sum(sizes[:6]))
    for sequence in range(-1, 8):
        assert found.find(sequence) == next((each for each in segments if each.start <= sequence < each.end), None)
    for cut_at in range(4, 14):
        assert found.find_by_time(cut_at) == next((each for each in segments if each.last_at >= cut_at), None)
        surplus = found.find_surplus(log.info(), RetentionPolicy(age_ms=100 - cut_at), cut_at)
        assert [*surplus] == segments[: len(surplus)]
        end = log.end_of_surplus(RetentionPolicy(age_ms=100 - cut_at), 100, ends)
        assert (surplus[-1].end if surplus else 0) == end
    for number in range(18):
        for policy in (RetentionPolicy(records_max=number), RetentionPolicy(bytes_max=number)):
            surplus = found.find_surplus(log.info(), policy, None)
            assert (surplus[-1].end if surplus else 0) == log.end_of_surplus(policy, 0, ends)


async def test_a_reader_without_a_copy_follows_the_object_store(tmp_path: Path) -> None:
    objects = RetryingObjectStore(lambda: FolderStore(str(tmp_path)))
    writer, follower = (ManifestStore(objects, "S", None, is_writer=each) for each in (True, False))
    with quickly():
        for number in range(2):
            await writer.change(added=[make_segment(number)])
            await follower.follow()
            assert follower.manifest == writer.manifest
            assert not follower.is_stale
            assert not await follower.load_copy()


async def test_a_copy_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / CHUNKS_FOLDER).touch()
    store = ManifestStore(
        RetryingObjectStore(lambda: FolderStore(f"{tmp_path}/bucket")), "S", f"{tmp_path}/copy", is_writer=True
    )
    with quickly(), pytest.raises(StorageError, match=f"^{tmp_path}/copy/{CHUNKS_FOLDER}: File exists$"):
        await store.change(added=[make_segment(1)])


# Options

PLACES = ["/bucket", "file:///b", "s3://b/p?endpoint=http://h", "gs://b", "az://c/p", "https://h/b", "memory://m"]
NUMBERS = {
    "local_retention_ms": (0, "-1"),
    "local_retention_bytes": (0, "x"),
    "cold_segment_bytes": (1, "0"),
    "cold_segment_ms": (0, ""),
    "cold_interval_ms": (1, "0"),
    "cold_rate_bytes": (0, "1.5"),
    "cold_cache_bytes": (0, "²"),
    "cold_timeout_ms": (1, "0"),
}
"""Options, each with its least value and one that is refused."""


def test_options_are_split_from_those_of_the_hot_storage_and_kept_with_it(tmp_path: Path) -> None:
    hot = f"filelog:{tmp_path}/log"
    folder = f"{tmp_path}/log/cold"
    assert read_tier(hot) is None
    for place in PLACES:
        quoted = place.replace("?", "%3F").replace("=", "%3D")
        numbers = {name: least for name, (least, _) in NUMBERS.items()}
        query = "&".join(f"{name}={number}" for name, number in numbers.items())
        found_hot, found = split_tiered(f"{hot}?fsync=never&cold={quoted}/&{query}&segment_bytes=9")
        assert found_hot == f"{hot}?fsync=never&segment_bytes=9"
        assert found == ColdOptions(cold=place, **numbers)
        assert found.place == place.partition("?")[0]
        write_tier(folder, found)
        path = Path(folder, TIER_FILE)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600 or "?" not in place
        state = path.stat().st_ino, path.stat().st_mtime_ns
        write_tier(folder, found)
        assert (path.stat().st_ino, path.stat().st_mtime_ns) == state, "it is written once"
        assert read_tier(f"{hot}?fsync=never") == found
        assert split_tiered(f"{hot}?cold_rate_bytes=7") == (hot, attrs.evolve(found, cold_rate_bytes=7))
    assert split_tiered(f"{hot}?cold=/other") == (hot, ColdOptions(cold="/other"))
    config, default = Config().cold, ColdOptions(cold="/other")
    assert (default.cold_segment_bytes, default.cold_segment_ms) == (config.segment_bytes, config.segment_ms)
    assert (default.cold_interval_ms, default.cold_rate_bytes) == (config.interval_ms, config.second_bytes_max)
    assert (default.cold_cache_bytes, default.cold_timeout_ms) == (config.cache_bytes_max, config.timeout_ms)


def test_wrong_options_are_refused(tmp_path: Path) -> None:
    for name, (least, wrong) in NUMBERS.items():
        with pytest.raises(StorageError, match=rf"^storage 'tiered:': {name}: expected a whole number of at least"):
            split_tiered(f"memory:?cold=/b&{name}={wrong}")
        assert getattr(split_tiered(f"memory:?cold=/b&{name}={least}")[1], name) == least
    for place in ("", "bucket", "ftp://b", "file://host/b"):
        with pytest.raises(StorageError, match=rf"^storage 'tiered:': cold: expected s3://.*, not '{place}'$"):
            split_tiered(f"memory:?cold={place}")
    for location in ("memory:", "memory", "memory?cold=/b", f"filelog:{tmp_path}?fsync=never"):
        with pytest.raises(StorageError, match="expected a hot storage and a cold one, as in"):
            split_tiered(location)
    (tmp_path / "cold").mkdir()
    path = tmp_path / "cold" / TIER_FILE
    good = {"format": "dafka tier", "cold": "/b"}
    wrong_fields: list[dict[str, Any]] = [{"format": "x"}, {"unknown": 1}, {"format": None}]
    for document in ([], {"cold": "/b"}, {"format": "dafka tier"}, *({**good, **each} for each in wrong_fields)):
        path.write_text(json.dumps(document))
        with pytest.raises(StorageFormatError, match=f"^{path} is damaged; write it again"):
            read_tier(f"filelog:{tmp_path}")
    path.write_text(json.dumps(good))
    assert read_tier(f"filelog:{tmp_path}") == ColdOptions(cold="/b")
    path.unlink()
    path.mkdir()
    with pytest.raises(StorageError, match=f"^{path}: Is a directory$"):
        read_tier(f"filelog:{tmp_path}")


# Buckets

LONG = "x" * 300
FAILURES: list[tuple[Exception, type[ObjectStoreError], str]] = [
    (NotFoundError("gone"), ObjectMissingError, ": there is no such object"),
    (FileNotFoundError("gone"), ObjectMissingError, ": there is no such object"),
    (AlreadyExistsError("there"), ObjectConflictError, " was replaced by another process"),
    (PreconditionError("other"), ObjectConflictError, " was replaced by another process"),
    (GenericError("down\nDebug source: Rust"), ObjectStoreError, ": down"),
    (GenericError(LONG), ObjectStoreError, f": {LONG}"),
    (GenericError(f"{LONG}y"), ObjectStoreError, f": {LONG}..."),
    (OSError("broken"), ObjectStoreError, ": broken"),
]
REQUESTS: list[Callable[[BucketStore], object]] = [
    lambda store: store.read("a"),
    lambda store: store.read_range("a", 0, 1),
    lambda store: store.write("a", b""),
    lambda store: store.replace("a", b"", None),
    lambda store: store.delete(["a"]),
    lambda store: [*store.list("a")],
]


def test_every_request_to_a_bucket_fails_with_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    store = BucketStore("memory://failing", 1000)
    for error, kind, text in FAILURES:

        def fail(*_: object, error: Exception = error, **__: object) -> None:
            raise error

        for name in ("get", "get_range", "put", "delete", "list"):
            monkeypatch.setattr(obstore, name, fail)
        for number, request in enumerate(REQUESTS):
            if number == 4 and kind is ObjectMissingError:
                request(store)  # what is not there need not be deleted
                continue
            with pytest.raises(ObjectStoreError) as caught:
                request(store)
            assert (type(caught.value), str(caught.value)) == (kind, f"memory://failing/a{text}")


def test_objects_are_uploaded_in_one_request_with_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """An upload in several parts that is interrupted would leave some of them, which cost money."""
    store, puts = BucketStore("memory://uploads", 1000), list[tuple[object, Any]]()

    def put(client: object, _name: str, _data: bytes, **options: Any) -> dict[str, str | None]:
        puts.append((client, options))
        return {"e_tag": "E", "version": None}

    monkeypatch.setattr(obstore, "put", put)
    store.write("a", b"")
    store.replace("a", b"", store.replace("a", b"", None))
    assert puts == [
        (store._uploads, {"use_multipart": False}),
        (store._requests, {"mode": "create", "use_multipart": False}),
        (store._requests, {"mode": {"e_tag": "E"}, "use_multipart": False}),
    ]


# Reading


def test_columns_close_to_each_other_are_fetched_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "GAP_BYTES_MAX", 3)
    for starts in combinations(range(0, 20, 2), 4):
        chunks = [ColumnChunk(str(start), start, start + 1, 0) for start in starts]
        runs = reader._join_ranges(chunks[::-1])
        assert [each for run in runs for each in run] == chunks
        assert all(after.start - each.end <= 3 for run in runs for each, after in pairwise(run))
        assert all(after[0].start - run[-1].end > 3 for run, after in pairwise(runs))


async def test_columns_are_those_of_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dafka.storage.cold.parquet.GROUP_RECORDS", 4)
    monkeypatch.setattr("dafka.storage.cold.offloader.READ_BYTES", 400)
    columns = ["value", "offset", "stored_at"]
    with quickly():
        async with open_tiered(tmp_path, local_retention_bytes=0) as storage:
            await storage.append([batch(A, 0, 20)])
            assert await storage.move_due() == 2
            assert await storage.read_columns(A, 20, 21, columns) is None
            assert await storage.read_columns(B, 0, 1, columns) is None
            for first, end in [*pairwise(range(21)), *pairwise(range(0, 21, 3)), (0, 20), (7, 20)]:
                found = await storage.read_columns(A, first, end, columns)
                assert found is not None
                stop = min(end, next(each for each in (4, 8, 10, 14, 18, 20) if each > first))
                wanted = to_arrow(batch(A, first, stop), [*ARROW_TYPES])
                assert found.to_pydict() == {name: wanted.column(name).to_pylist() for name in columns}


async def test_records_that_are_in_both_tiers_count_once(tmp_path: Path) -> None:
    """Whichever records the hot storage has, and however many of the cold tier were trimmed."""
    with quickly():
        async with (
            open_tiered(tmp_path, local_retention_bytes=0, cold_segment_bytes=500) as storage,
            trio.open_nursery() as nursery,
        ):
            await storage.append([batch(A, 0, 10)])
            assert await storage.move_due() == 2
            parts = storage._object_store, storage._manifest_store, storage.options, nursery
            for start in (0, 3, 5):
                await storage.trim(A, start)
                for earliest, end in combinations_with_replacement(range(13), 2):
                    hot = MemoryStorage()
                    await hot.append([batch(A, 0, end)] if end else [])
                    await hot.trim(A, earliest)
                    info = await TieredStorage(hot, *parts, is_writer=True).find_partition(A)
                    assert info is not None
                    first, last = (earliest, end) if earliest > 10 else (start, max(end, 10))
                    assert (info.earliest_sequence, info.end_sequence) == (first, last)
                    assert info.content_bytes == 100 * (last - first), (start, earliest, end)
                    vars(hot)["read"] = read_nothing
                    assert (await TieredStorage(hot, *parts, is_writer=True).find_partition(A)) is not None


async def read_nothing(*_arguments: object) -> None:
    """Find that the records have just been dropped."""


CHANGES: list[tuple[Callable[[TieredStorage], Awaitable[object]], tuple[int, int, int] | None]] = [
    (lambda storage: storage.trim(A, 0), (0, 50, 4)),
    (lambda storage: storage.trim(A, 9), (9, 50, 4)),
    (lambda storage: storage.trim(A, 10), (10, 50, 3)),
    (lambda storage: storage.trim(A, 45), (45, 50, 0)),
    (lambda storage: storage.trim(A, 99), (50, 50, 0)),
    (lambda storage: storage.reset_to(A, 50), (50, 50, 0)),
    (lambda storage: storage.reset_to(A, 60), (60, 60, 0)),
    (lambda storage: delete_partitions(storage, [A]), None),
    (lambda storage: storage.apply_retention(RetentionPolicy(records_max=29)), (20, 50, 2)),
    (lambda storage: storage.apply_retention(RetentionPolicy(records_max=0), "other"), (0, 50, 4)),
]
"""Changes of a partition with 40 records in 4 objects and 10 hot ones; the records and the objects that are left."""


async def test_what_is_dropped_is_dropped_from_both_tiers(tmp_path: Path) -> None:
    for number, (change, left) in enumerate(CHANGES):
        folder = tmp_path / f"{number}"
        with quickly():
            async with open_tiered(folder) as storage:
                await storage.append([batch(A, 0, 50), batch(B, 0, 50)])
                await storage.move_due()
                with pytest.raises(StorageSequenceError):
                    await storage.reset_to(A, 49)
                before = await storage.find_partition(B)
                version = storage._manifest_store.manifest.number
                await storage.trim(Partition("none", ""), 3)
                await change(storage)
                assert (storage._manifest_store.manifest.number == version) == (left == (0, 50, 4))
                info = await storage.find_partition(A)
                objects = storage.object_urls(A.topic)
                count = sum(f"/{A.address}/" in each for each in objects)
                assert (info and (info.earliest_sequence, info.end_sequence, count)) == left
                assert len({*folder.rglob("*.parquet")}) == len(objects)
                assert storage.cold_end(A) == (40 if count else 0)
                assert number == 8 or await storage.find_partition(B) == before


async def test_a_reader_of_two_tiers_cannot_write_and_a_writer_passes_on_what_is_not_for_the_cold_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hot = f"sqlite:{tmp_path}/store.db"
    with quickly():
        async with open_tiered(tmp_path, hot) as storage, open_tiered(tmp_path, hot, read_only=True) as follower:
            await storage.append([batch(A, 0, 50)])
            await storage.move_due()
            copy = tmp_path / "store.db-cold" / COPY_FILE
            state = copy.stat().st_ino, copy.stat().st_mtime_ns
            await storage.move_due()
            assert (copy.stat().st_ino, copy.stat().st_mtime_ns) == state, "the copy is written when something changes"
            await storage.save_positions("name", {A: 7})
            assert await follower.load_positions("name") == {A: 7}
            assert await follower.position_names() == ["name"]
            changes: list[Callable[[], Any]] = [
                lambda: follower.trim(A, 1),
                lambda: follower.reset_to(A, 99),
                lambda: follower.apply_retention(RetentionPolicy(records_max=0)),
                lambda: delete_partitions(follower, [A]),
                follower.move_due,
            ]
            for change in changes:
                with pytest.raises(StorageError, match="opened read-only; open it for writing"):
                    await change()
            flushed: list[bool] = []

            async def flush() -> None:
                flushed.append(True)

            monkeypatch.setattr(storage.hot, "flush", flush)
            await storage.flush()
            assert flushed


# When records move


async def test_records_move_again_and_again_and_a_failure_is_logged_once(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = ["", "a", "a", "b", "", "b", "b", ""]
    times: list[float] = []

    async def move_due() -> int:
        await trio.lowlevel.checkpoint()
        times.append(trio.current_time() - begun)
        if message := failures[len(times) - 1]:
            raise StorageError(message)
        if len(times) == len(failures):
            scope.cancel()
        return 0

    with quickly(), caplog.at_level(logging.WARNING), trio.CancelScope() as scope:
        begun = trio.current_time()
        async with open_tiered(tmp_path, cold_interval_ms=2500) as storage:
            monkeypatch.setattr(storage.offloader, "move_due", move_due)
            await trio.sleep_forever()
    assert times == [2.5 * number for number in range(1, 9)]
    assert [record.getMessage()[-3:] for record in caplog.records] == [": a", ": b", ": b"]


async def test_records_that_go_while_they_are_read_do_not_move(tmp_path: Path) -> None:
    async def read(*arguments: Any, **options: Any) -> RecordBatch | None:
        found = await read_hot(*arguments, **options)
        await delete_partitions(storage.hot, [A])
        return found

    with quickly():
        async with open_tiered(tmp_path) as storage:
            read_hot, vars(storage.hot)["read"] = storage.hot.read, read
            for first in range(0, 20, 5):
                await storage.append([batch(A, first, first + 5)])
            assert await storage.move_due() == 0
            assert storage.object_urls() == []
            assert await storage._object_store.list("") == []


async def test_objects_are_written_at_a_limited_rate(tmp_path: Path, autojump_clock: MockClock) -> None:
    with quickly():
        async with open_tiered(tmp_path, cold_rate_bytes=1000) as storage:
            await storage.append([RecordBatch(A, 0, [bytes(100)] * 50)])
            begun = trio.current_time()
            await storage.move_due()
            assert trio.current_time() - begun == pytest.approx(storage.tier_statistics().moved_bytes / 1000)
