"""The partitions of several stores: each is read once, from the replica with the highest end."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from contextlib import closing
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from dafka.errors import StorageError
from dafka.exceptions import unwrap_group
from dafka.records import Partition
from dafka.spark.offsets import EARLIEST, PartitionName
from dafka.spark.options import Options
from dafka.spark.schema import COLUMNS
from dafka.spark.store_source import SHARED_OPTIONS, StoreQuery
from dafka.spark.stores import Replica, StoreCache, StoredPartition, list_partitions, merge_replicas, open_stores
from dafka.storage import PartitionInfo
from tests.spark.stores import A, B, batch, fill, trim


def stored_in(*urls: str) -> dict[PartitionName, StoredPartition]:
    async def program() -> dict[PartitionName, StoredPartition]:
        with unwrap_group():
            async with open_stores(urls) as storages:
                return await list_partitions(storages)

    return trio.run(program)


INFOS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6)), min_size=1, max_size=4).map(
    lambda found: [PartitionInfo(earliest, earliest + count) for earliest, count in found]
)


@given(INFOS, st.integers(0, 20), st.integers(0, 20))
def test_the_chosen_replicas_hold_their_ranges(infos: list[PartitionInfo], start: int, end: int) -> None:
    stored = merge_replicas(Partition("orders", A), [Replica(str(number), info) for number, info in enumerate(infos)])
    by_url = {str(number): range(info.earliest_sequence, info.end_sequence) for number, info in enumerate(infos)}
    everything = {sequence for each in by_url.values() for sequence in each}
    assert stored.end == max(info.end_sequence for info in infos)
    assert everything.issuperset(range(stored.earliest, stored.end))
    assert stored.earliest - 1 not in everything or stored.earliest == stored.end
    start, end = max(start, stored.earliest), min(end, stored.end)
    found = [
        (url, sequence) for url, first, last in stored.choose_replicas(start, end) for sequence in range(first, last)
    ]
    assert [sequence for _, sequence in found] == list(range(start, end))
    assert all(sequence in by_url[url] for url, sequence in found)


def test_an_emptied_partition_keeps_its_offsets(tmp_path: Path, scheme: str) -> None:
    url = fill(f"{scheme}:{tmp_path}/store", batch("orders", A, 0, 5))
    trim(url, {Partition("orders", A): 5})
    (stored,) = stored_in(url).values()
    assert (stored.earliest, stored.end, stored.choose_replicas(5, 5), stored.record_bytes) == (5, 5, [], 0)


def test_names_that_are_not_utf8_are_escaped(tmp_path: Path, scheme: str) -> None:
    topic = b"caf\xe9".decode("utf-8", "surrogateescape")
    url = fill(
        f"{scheme}:{tmp_path}/store", batch(topic, A, 0, 1), batch("naïve 'x';\"\t", B, 0, 1), batch("", A, 0, 1)
    )
    found = stored_in(url)
    assert found.keys() == {("caf\\xe9", A), ("naïve 'x';\"\t", B), ("", A)}
    assert found["caf\\xe9", A].partition == Partition(topic, A)


def test_names_that_are_equal_once_escaped_are_refused_if_they_are_read(tmp_path: Path) -> None:
    topic = b"caf\xe9".decode("utf-8", "surrogateescape")
    fill(f"sqlite:{tmp_path}/store", batch(topic, A, 0, 1), batch("caf\\xe9", A, 0, 1), batch("tea", A, 0, 1))

    def select(**options: str) -> Collection[PartitionName]:
        parsed = Options({"path": f"{tmp_path}/store", **options}, SHARED_OPTIONS, "reading")
        query = StoreQuery(parsed, COLUMNS, EARLIEST)
        return query.select_partitions(stored_in(*query.finder.find_stores())).keys()

    with pytest.raises(
        StorageError, match=r"two partitions are both shown as caf\\xe9/A+, because their names are not UTF-8"
    ):
        select()
    assert select(subscribe="tea") == {("tea", A)}


def test_a_store_that_is_too_damaged_to_open(tmp_path: Path) -> None:
    url = fill(f"filelog:{tmp_path}/log", batch("orders", A, 0, 1))
    (tmp_path / "log/filelog.json").write_text("{}")
    with pytest.raises(StorageError, match=r"log cannot be opened: filelog\.json is damaged"):
        stored_in(url)


def test_the_cache_sees_appended_records(tmp_path: Path, scheme: str) -> None:
    url = fill(f"{scheme}:{tmp_path}/store", batch("orders", A, 0, 5))
    with closing(StoreCache()) as cache:
        assert cache.list_partitions([url])["orders", A].end == 5
        fill(url, batch("orders", A, 5, 7), batch("orders", B, 0, 1))
        found = cache.list_partitions([url])
        assert {name: each.end for name, each in found.items()} == {("orders", A): 7, ("orders", B): 1}
        assert cache.find_sequence_by_time(found["orders", A], 1_700_000_000_006) == 6
    with closing(cache):  # a closed cache opens the stores again
        assert cache.list_partitions([url])["orders", A].end == 7


def test_the_cache_opens_a_store_that_replaced_another(tmp_path: Path, scheme: str) -> None:
    place = tmp_path / "store"
    url = fill(f"{scheme}:{place}", batch("orders", A, 0, 5))
    with closing(StoreCache()) as cache:
        cache.list_partitions([url])
        place.rename(tmp_path / "away")
        for side in ("-wal", "-shm"):
            Path(f"{place}{side}").unlink(missing_ok=True)
        if scheme == "filelog":
            shutil.rmtree(tmp_path / "away")
        fill(url, batch("orders", A, 0, 3))
        assert cache.list_partitions([url])["orders", A].end == 3


def test_the_cache_recovers_from_a_store_that_cannot_be_opened(tmp_path: Path) -> None:
    good = fill(f"sqlite:{tmp_path}/good", batch("orders", A, 0, 5))
    with closing(StoreCache()) as cache:
        with pytest.raises(StorageError, match="bad does not exist"):
            cache.list_partitions([good, f"sqlite:{tmp_path}/bad"])
        assert cache.list_partitions([good])["orders", A].end == 5
