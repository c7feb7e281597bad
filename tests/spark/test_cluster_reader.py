"""The stream of a running cluster without Spark: planning, tasks and errors, driven as Spark drives them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from dafka.errors import ConfigError, DiscoveryError, StorageError
from dafka.records import Partition
from dafka.spark.offsets import StreamOffset
from dafka.spark.schema import COLUMNS
from tests.roles.helpers import contents
from tests.spark.cluster import RunningCluster, cluster, run_cluster
from tests.spark.driving import Offsets, Query, open_query
from tests.waiting import DEADLINE_S, poll_until

__all__ = ["cluster"]


@contextmanager
def open_stream(cluster: RunningCluster | None, columns: StructType = COLUMNS, **options: object) -> Iterator[Query]:
    """Open a stream of all stored records, with these options."""
    towers = "127.0.0.1:2:1" if cluster is None else cluster.towers
    given = {"subscribe": "orders", "startingOffsets": "earliest", "towers": towers}
    with open_query({**given, **options}, columns) as query:
        yield query


def wait_latest(query: Query, start: Offsets, **ends: int) -> Offsets:
    """Plan micro-batches until they end at these offsets."""
    deadline = time.monotonic() + DEADLINE_S
    while (end := query.latest(start, ReadAllAvailable()))["offsets"] != {"orders": ends}:
        assert time.monotonic() < deadline, f"{end} instead of {ends}"
        time.sleep(0.01)
    return end


def read(query: Query, start: Offsets, end: Offsets) -> dict[str, list[tuple[int, bytes]]]:
    """Return the records of a micro-batch by partition."""
    found: dict[str, list[tuple[int, bytes]]] = {}
    for row in (row for task in query.read(start, end) for row in task):
        assert (row["topic"], round(row["stored_at"].timestamp() * 1000)) == ("orders", end["timestamp"])
        found.setdefault(row["partition"], []).append((row["offset"], row["value"]))
    return found


def document(address: str, first: int, end: int) -> Offsets:
    """Return the checkpoint's document of a micro-batch that reads one range."""
    name = "orders", address
    return StreamOffset(offsets={name: end}, begins={name: first}, tasks_min=1, timestamp=1).to_checkpoint()


def records(first: int, end: int) -> list[tuple[int, bytes]]:
    return list(enumerate(contents(first, end), first))


@pytest.mark.parametrize("seed", range(2))
def test_each_stored_record_is_read_once(cluster: RunningCluster, seed: int) -> None:
    """Producers come, go and send more; the query is stopped, started again, and repeats micro-batches."""
    random = Random(seed)
    limit = random.choice([12, 1000])
    options: dict[str, Any] = {"maxOffsetsPerTrigger": limit, "minPartitions": random.choice([1, 4])}
    ends: dict[str, int] = {}
    found: dict[str, list[tuple[int, bytes]]] = {}
    cluster.publish(7, "orders2")
    with cluster.producer() as producer:
        cluster.send(producer, 20)
        ends[producer.partition.address] = 20
        offset: Offsets = {}
        for _ in range(2):
            with open_stream(cluster, **options) as query:
                offset = offset or query.initial()
                assert query.reader.getDefaultReadLimit() == ReadMaxRows(limit)
                for _ in range(2):
                    count, more = random.randint(1, 30), random.randint(1, 9)
                    ends[cluster.publish(count).address] = count
                    cluster.send(producer, more)
                    ends[producer.partition.address] += more
                    end = query.latest(offset)
                    batch = read(query, offset, end)
                    assert read(query, offset, end) == batch, "a micro-batch can be repeated"
                    assert sum(map(len, batch.values())) <= limit
                    for address, some in batch.items():
                        found.setdefault(address, []).extend(some)
                    offset = end
        with open_stream(cluster, **options) as query:
            end = wait_latest(query, offset, **ends)
            for address, some in read(query, offset, end).items():
                found.setdefault(address, []).extend(some)
            assert query.latest(end) == end, "without new records the offset must not change"
            assert query.reader.partitions(end, end) == []
            assert query.reader.reportLatestOffset() == {"offsets": end["offsets"]}
    assert found == {address: records(0, end) for address, end in ends.items()}


def test_latest_starts_at_the_end_and_new_partitions_at_their_start(cluster: RunningCluster) -> None:
    old = cluster.publish(10)
    with open_stream(cluster, startingOffsets="latest") as query:
        start = query.initial()
        assert start["offsets"] == {"orders": {old.address: 10}}
        new = cluster.publish(20)
        end = wait_latest(query, start, **{old.address: 10, new.address: 20})
        assert read(query, start, end) == {new.address: records(0, 20)}


def test_micro_batches_are_limited_in_proportion_and_divided_into_tasks(cluster: RunningCluster) -> None:
    large, small = cluster.publish(1000), cluster.publish(10)
    with open_stream(cluster, minPartitions=4) as query:
        start = query.initial()
        end = query.latest(start, ReadMaxRows(100))
        assert end["offsets"]["orders"] == {large.address: 98, small.address: 2}
        assert len(query.reader.partitions(start, end)) >= 4


def test_available_now_reads_what_was_stored_at_its_start(cluster: RunningCluster) -> None:
    old = cluster.publish(10)
    with open_stream(cluster) as query:
        start = query.initial()
        query.reader.prepareForTriggerAvailableNow()
        cluster.publish(10)
        end = query.latest(start)
        assert end["offsets"] == {"orders": {old.address: 10}}
        assert query.latest(end) == end


def test_only_the_selected_columns_are_returned(cluster: RunningCluster) -> None:
    cluster.publish(3)
    with open_stream(cluster, columns=StructType([COLUMNS["offset"]])) as query:
        start = query.initial()
        assert query.read(start, query.latest(start)) == [[{"offset": 0}, {"offset": 1}, {"offset": 2}]]


def test_starting_offsets_by_partition(cluster: RunningCluster) -> None:
    by_number, at_end, first, unnamed = (cluster.publish(10) for _ in range(4))
    offsets = {"orders": {by_number.address: 7, at_end.address: -1, first.address: -2}}
    with open_stream(cluster, startingOffsets=offsets) as query:
        expected = {by_number.address: 7, at_end.address: 10, first.address: 0, unnamed.address: 10}
        assert query.initial()["offsets"] == {"orders": expected}


def test_starting_offsets_that_are_not_stored(cluster: RunningCluster) -> None:
    partition = cluster.publish(10)
    beyond = {"orders": {partition.address: 11}}
    for offsets, message in (
        (beyond, f"option startingOffsets: expected at most 10, the end of {partition}, not 11"),
        (
            '{"orders": {"ABSENT": 0}}',
            "option startingOffsets: no store in the cluster has the partition orders/ABSENT "
            "(set failOnDataLoss to false to ignore it)",
        ),
    ):
        with open_stream(cluster, startingOffsets=offsets) as query, pytest.raises(ConfigError) as caught:
            query.initial()
        assert str(caught.value) == message
    with open_stream(cluster, startingOffsets=beyond, failOnDataLoss=False) as query:
        assert query.initial()["offsets"] == {"orders": {partition.address: 10}}


def test_earliest_is_the_first_record_that_retention_has_kept() -> None:
    with run_cluster() as cluster, cluster.store(retention_records=100, retention_interval_ms=20) as store:
        partition = cluster.publish(1000)
        poll_until(lambda: store.statistics().records_dropped == 900)
        with open_stream(cluster) as query:
            start = query.initial()
            assert start["offsets"] == {"orders": {partition.address: 900}}
            new = cluster.publish(300)
            poll_until(lambda: store.statistics().records_dropped == 1100)
            end = wait_latest(query, start, **{partition.address: 1000, new.address: 300})
            assert end["begins"]["orders"][new.address] == 200
            assert read(query, start, end) == {partition.address: records(900, 1000), new.address: records(200, 300)}


def test_dropped_records_fail_the_task_or_are_skipped(caplog: pytest.LogCaptureFixture) -> None:
    with run_cluster() as cluster, cluster.store(retention_records=100, retention_interval_ms=20) as store:
        partition = cluster.publish(1000)
        poll_until(lambda: store.statistics().records_dropped == 900)
        start = document(partition.address, 0, 500)
        end, none = (document(partition.address, 500, each) for each in (950, 800))
        with open_stream(cluster) as query, pytest.raises(StorageError) as caught:
            read(query, start, end)
        assert str(caught.value) == (
            f"records 500 to 899 of {partition} are no longer in any store (set failOnDataLoss to false to skip them)"
        )
        with open_stream(cluster) as query, pytest.raises(StorageError, match="records 500 to 799 of"):
            read(query, start, none)
        with open_stream(cluster, failOnDataLoss=False) as query:
            assert read(query, start, end) == {partition.address: records(900, 950)}
            assert read(query, start, none) == {}
    assert (
        f"{partition}: records 500 to 899 (400 of them) are left out: they are no longer in the stores" in caplog.text
    )


def test_a_task_waits_for_a_store_and_fails_after_the_timeout(tmp_path: Path) -> None:
    storage = f"sqlite:{tmp_path}/orders.db"
    with run_cluster() as cluster:
        with cluster.store(storage):
            partition = cluster.publish(10)
            with open_stream(cluster) as query:
                start = query.initial()
                end = query.latest(start)
        with open_stream(cluster, fetchTimeout=300) as query, pytest.raises(StorageError) as caught:
            read(query, start, end)
        assert str(caught.value) == (
            f"no store sent record 0 of {partition} within 0.3 s; check that the stores that hold it are running, "
            "or raise fetchTimeout"
        )
        with cluster.store(storage), open_stream(cluster) as query:
            assert read(query, start, end) == {partition.address: records(0, 10)}


def test_a_second_store_replaces_the_first(tmp_path: Path) -> None:
    with run_cluster() as cluster:
        with cluster.store(f"sqlite:{tmp_path}/one.db"), cluster.store(f"sqlite:{tmp_path}/two.db") as second:
            partition = cluster.publish(10)
            poll_until(lambda: second.statistics().records_stored == 10)
        with cluster.store(f"sqlite:{tmp_path}/two.db"), open_stream(cluster) as query:
            start = query.initial()
            assert read(query, start, query.latest(start)) == {partition.address: records(0, 10)}


def test_stores_that_hold_less_than_was_read_cause_one_warning_each_time(
    cluster: RunningCluster, caplog: pytest.LogCaptureFixture
) -> None:
    with cluster.producer() as producer, open_stream(cluster) as query:
        partition = producer.partition
        for count, position in ((10, 15), (10, 25)):
            cluster.send(producer, count)
            wait_latest(query, document(partition.address, 0, 0), **{partition.address: position - 5})
            checkpoint = document(partition.address, 0, position)
            assert query.latest(checkpoint) == query.latest(checkpoint) == checkpoint
    warnings = [record.message for record in caplog.records if record.name == "dafka.spark"]
    assert warnings == [
        f"The running stores hold less than was read before (partitions: 1): {partition} ends at {end}, not {end + 5}; "
        "check that all stores are running"
        for end in (10, 20)
    ]


def test_a_partition_whose_start_no_store_reports_is_planned_later_and_fails_a_run_that_must_end(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = cluster.publish(10)
    with open_stream(cluster) as query:
        start = query.latest(query.initial())
        answering, waits = query.reader._reader, []

        def answer_nothing(partitions: object, timeout_s: float) -> dict[Partition, int]:
            waits.append(timeout_s)
            return {}

        new = cluster.publish(5)
        with monkeypatch.context() as patch:
            patch.setattr(answering, "earliest", answer_nothing)
            poll_until(lambda: new in answering.ends())
            assert query.latest(start) == start
            query.reader.prepareForTriggerAvailableNow()
            with pytest.raises(StorageError, match=f"^no store reported within 10 s where {new} starts; "):
                query.latest(start)
        assert waits == [0.5, 10.0], "a running query asks again soon"
        end = query.latest(start)
        assert end["offsets"] == {"orders": {known.address: 10, new.address: 5}}
        monkeypatch.setattr(answering, "earliest", None)  # what is known is not asked for again
        assert query.latest(start)["offsets"] == end["offsets"]


def test_a_configuration_file_names_the_cluster_unless_options_do(cluster: RunningCluster, tmp_path: Path) -> None:
    partition, beacon, path = cluster.publish(10), cluster.config.beacon, tmp_path / "dafka.toml"
    options = {"subscribe": "orders", "startingOffsets": "earliest", "config": path}
    wrong = ["tcp://127.0.0.1:9"]
    for subs, pubs, more in (
        (beacon.tower_sub, beacon.tower_pub, {}),
        (wrong, wrong, {"towers": cluster.towers}),
    ):
        path.write_text(f"[beacon]\ntower_sub = {json.dumps([*subs])}\ntower_pub = {json.dumps([*pubs])}\n")
        with open_query({**options, **more}) as query:
            start = query.initial()
            assert read(query, start, query.latest(start)) == {partition.address: records(0, 10)}


def test_the_other_dialect() -> None:
    with run_cluster(wire="libdafka") as cluster, cluster.store():
        partition = cluster.publish(10)
        with open_stream(cluster, wire="libdafka") as query:
            start = query.initial()
            assert read(query, start, query.latest(start)) == {partition.address: records(0, 10)}


def test_a_missing_tower_or_store_is_reported() -> None:
    no_tower = r"no tower answered at tcp://127.0.0.1:1 within 0.2 s"
    with open_stream(None, discoveryTimeout=200) as query:
        with pytest.raises(DiscoveryError, match=no_tower):
            query.initial()
        with pytest.raises(DiscoveryError, match=no_tower):
            query.read({}, document("ABSENT", 0, 1))
    with (
        run_cluster() as without_store,
        open_stream(without_store, discoveryTimeout=300) as query,
        pytest.raises(DiscoveryError, match=r"no store was found within 0.3 s through"),
    ):
        query.initial()
