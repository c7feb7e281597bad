"""Only the leader of a log answers for it, and clients that know another leader learn the present one."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
import trio.testing

from dafka.batches import encode_batch
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.positions import Offset
from dafka.broker.core.replication.records import EPOCH_STEP
from dafka.config import Config
from dafka.errors import NotLeaderError
from dafka.kafka.protocol.constants import ApiKey
from tests.kafka.apis.fake_cluster import OWN, SECOND, THIRD, FakeCluster

LATEST, EARLIEST = -1, -2
ALL, LEADER = -1, 1
NONE, NOT_LEADER, FENCED = ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH

Part = dict[str, Any]
"""What a response says about the log."""


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


def leader_of(part: Part) -> tuple[int, int] | None:
    """Return the leader that a response names, and its epoch."""
    leader = part["current_leader"]
    return None if leader is None else (leader["leader_id"], leader["leader_epoch"])


# Produce


async def produce(
    cluster: FakeCluster, acks: int, timeout_ms: int = 1000, *, count: int = 1
) -> tuple[Part, list[Part]]:
    """Append one or more records. Return what is said about the log, and the brokers that are named."""
    parts = [{"index": 0, "records": encode_batch(0, [b"x"], timestamps=1)}] * count
    data = [{"name": "t", "partition_data": parts}]
    found = await cluster.ask(ApiKey.PRODUCE, 10, acks=acks, timeout_ms=timeout_ms, topic_data=data)
    return found["responses"][0]["partition_responses"][0], found["node_endpoints"]


async def outcome(cluster: FakeCluster, acks: int) -> tuple[int, str | None]:
    part, _ = await produce(cluster, acks)
    return part["error_code"], part["error_message"]


def appends(cluster: FakeCluster) -> list[bool]:
    """Let the broker append. Return the list of whom each append waits for: all replicas or not."""
    waited: list[bool] = []

    async def wait(all_replicas: bool) -> int:
        await trio.lowlevel.checkpoint()
        waited.append(all_replicas)
        return 8

    cluster.broker.appended = wait
    return waited


async def test_producers_wait_for_the_replicas_that_they_ask_for(cluster: FakeCluster) -> None:
    waited = appends(cluster)
    for acks in (ALL, LEADER):
        part, _ = await produce(cluster, acks)
        assert part["base_offset"] == 8
    assert waited == [True, False]


async def test_producers_are_sent_to_the_leader(cluster: FakeCluster) -> None:
    waited = appends(cluster)
    cluster.follow(SECOND, epoch=7)
    part, nodes = await produce(cluster, LEADER)
    assert (part["error_code"], leader_of(part)) == (NOT_LEADER, (1, 7))
    assert [(each["node_id"], each["host"], each["port"]) for each in nodes] == [(1, "fd00::1", 9093)]
    assert not waited


async def test_producers_learn_of_a_leader_that_is_deposed_meanwhile(cluster: FakeCluster) -> None:
    async def wait(_all_replicas: bool) -> int:
        await trio.lowlevel.checkpoint()
        cluster.follow(SECOND, epoch=7)
        raise NotLeaderError("another broker leads the log", SECOND)

    cluster.broker.appended = wait
    part, _ = await produce(cluster, ALL)
    assert (part["error_code"], leader_of(part)) == (NOT_LEADER, (1, 7))


async def test_producers_wait_no_longer_than_they_want(cluster: FakeCluster, autojump_clock: object) -> None:
    async def wait(_all_replicas: bool) -> int:
        await trio.sleep_forever()
        raise AssertionError

    cluster.broker.appended = wait
    begun = trio.current_time()
    part, _ = await produce(cluster, ALL, 500, count=3)
    assert part["error_code"] == ErrorCode.REQUEST_TIMED_OUT
    assert trio.current_time() - begun == pytest.approx(0.5)


def set_topic(cluster: FakeCluster, **settings: str) -> None:
    topics = cluster.broker.log_table.topics
    topics["t"] = attrs.evolve(topics["t"], settings={name.replace("_", "."): each for name, each in settings.items()})


async def test_acknowledgements_of_all_need_a_majority(cluster: FakeCluster) -> None:
    waited = appends(cluster)
    cluster.lead(replicas=(OWN, SECOND, THIRD))
    cluster.live(SECOND)
    assert await outcome(cluster, ALL) == (NONE, None)
    cluster.live()
    refused = (ErrorCode.NOT_ENOUGH_REPLICAS, "1 of 3 replicas are alive, which is no majority")
    assert await outcome(cluster, ALL) == refused
    assert await outcome(cluster, LEADER) == (NONE, None)
    set_topic(cluster, availability="branch")
    assert await outcome(cluster, ALL) == (NONE, None)
    assert waited == [True, False, True]


async def test_acknowledgements_of_all_need_replicas_in_sync(cluster: FakeCluster) -> None:
    appends(cluster)
    set_topic(cluster, min_insync_replicas="2")
    assert await outcome(cluster, ALL) == (NONE, None)
    refused = (ErrorCode.NOT_ENOUGH_REPLICAS, "1 replicas are in sync, and min.insync.replicas is 2")
    cluster.lead(in_sync=(OWN,))
    assert await outcome(cluster, ALL) == refused
    cluster.lead(replicas=(OWN, SECOND, THIRD), in_sync=(OWN, THIRD))
    cluster.live(SECOND)
    assert await outcome(cluster, ALL) == refused
    assert await outcome(cluster, LEADER) == (NONE, None)


# Fetch


async def read(
    cluster: FakeCluster, offset: int = 0, *, version: int = 12, rack: str = "", wait_ms: int = 0, **others: Any
) -> Part:
    part = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1000, **others}
    topics = [{"topic": "t", "partitions": [part]}]
    found = await cluster.ask(ApiKey.FETCH, version, max_wait_ms=wait_ms, min_bytes=1, topics=topics, rack_id=rack)
    read_part: Part = found["responses"][0]["partitions"][0]
    return read_part


async def test_readers_of_the_leader_get_records(cluster: FakeCluster) -> None:
    part = await read(cluster, 3, current_leader_epoch=5)
    assert (part["error_code"], part["records"], part["high_watermark"]) == (NONE, b"3-8", 8)
    for offset, error in ((8, NONE), (10, NONE), (11, ErrorCode.OFFSET_OUT_OF_RANGE)):
        part = await read(cluster, offset)
        assert (part["error_code"], part["records"]) == (error, b""), "too few replicas have what is there"


EPOCHS = [(-1, NONE), (5, NONE), (0, FENCED), (4, FENCED), (6, ErrorCode.UNKNOWN_LEADER_EPOCH)]


@pytest.mark.parametrize(("epoch", "error"), EPOCHS)
async def test_clients_that_know_another_epoch_are_refused(cluster: FakeCluster, epoch: int, error: ErrorCode) -> None:
    part = await read(cluster, current_leader_epoch=epoch)
    assert (part["error_code"], leader_of(part)) == (error, (0, 5) if error is FENCED else None)
    assert (await list_offset(cluster, LATEST, epoch))["error_code"] == error
    assert (await find_end(cluster, 0, epoch))[0] == error


async def test_nothing_is_read_from_a_log_that_changes_its_leader_meanwhile(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read_while_it_changes(*_: object) -> list[bytes]:
        await trio.lowlevel.checkpoint()
        cluster.follow(SECOND, epoch=6)
        return [b"of either branch"]

    monkeypatch.setattr(cluster.broker.reader, "read", read_while_it_changes)
    part = await read(cluster, 3, current_leader_epoch=5)
    assert (part["error_code"], part["records"], leader_of(part)) == (FENCED, b"", (1, 6))


async def test_readers_may_read_from_replicas_and_are_sent_to_the_leader_otherwise(cluster: FakeCluster) -> None:
    cluster.follow(SECOND)
    part = await read(cluster)
    assert (part["error_code"], leader_of(part)) == (NOT_LEADER, (1, 5))
    cluster.follow(SECOND, is_follower_readable=True)
    assert (await read(cluster, 3))["records"] == b"3-8"
    assert (await read(cluster, 3, current_leader_epoch=4))["error_code"] == FENCED
    # The replica has less than the leader, from which the reader comes.
    assert (await read(cluster, 11))["error_code"] == ErrorCode.OFFSET_NOT_AVAILABLE


async def test_readers_with_a_rack_are_sent_there_at_once(cluster: FakeCluster) -> None:
    cluster.lead(is_follower_readable=True)
    with trio.fail_after(30):
        part = await read(cluster, rack="two", wait_ms=60_000)
    assert (part["preferred_read_replica"], part["records"], part["high_watermark"]) == (1, b"", 8)
    assert (await read(cluster, rack="one"))["records"] == b"0-8"


@pytest.mark.parametrize(
    ("epoch", "offset", "expected"),
    [
        (5, 10, None),
        (0, 6, None),
        (0, 7, (0, 6)),  # the branch that the reader knows was left at offset 6
        (4, 5, (0, 6)),  # nothing of the epoch 4 is in the log
        (9, 5, (5, 10)),
    ],
)
async def test_readers_of_a_lost_branch_learn_where_it_ended(
    cluster: FakeCluster, epoch: int, offset: int, expected: tuple[int, int] | None
) -> None:
    with trio.fail_after(30):
        part = await read(cluster, offset, last_fetched_epoch=epoch, wait_ms=60_000 if expected else 0)
    diverging = part["diverging_epoch"]
    assert (None if diverging is None else (diverging["epoch"], diverging["end_offset"])) == expected
    assert bool(part["records"]) == (expected is None and offset < 8)


async def test_long_polls_end_when_the_leader_changes(cluster: FakeCluster) -> None:
    found: list[Part] = []

    async def poll() -> None:
        found.append(await read(cluster, 8, wait_ms=60_000))

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(poll)
            await trio.testing.wait_all_tasks_blocked()
            cluster.broker.watchers.notify(cluster.log)
            await trio.testing.wait_all_tasks_blocked()
            assert not found
            cluster.follow(SECOND)
            cluster.broker.watchers.notify(cluster.log)
    assert found[0]["error_code"] == NOT_LEADER


# Offsets


async def list_offset(cluster: FakeCluster, timestamp: int, epoch: int = -1, version: int = 5) -> Part:
    parts = [{"partition_index": 0, "current_leader_epoch": epoch, "timestamp": timestamp}]
    topics = [{"name": "t", "partitions": parts}]
    found = await cluster.ask(ApiKey.LIST_OFFSETS, version, replica_id=-1, topics=topics)
    part: Part = found["topics"][0]["partitions"][0]
    return part


async def test_offsets_have_their_epochs(cluster: FakeCluster) -> None:
    latest, earliest = await list_offset(cluster, LATEST), await list_offset(cluster, EARLIEST)
    assert [(each["offset"], each["leader_epoch"]) for each in (latest, earliest)] == [(8, 5), (0, 0)]


async def test_a_leader_that_may_have_been_replaced_names_no_end(cluster: FakeCluster) -> None:
    cluster.broker.has_lease = False
    found = await list_offset(cluster, LATEST)
    assert (found["error_code"], found["offset"]) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
    assert (await list_offset(cluster, EARLIEST))["error_code"] == NONE
    assert (await read(cluster, 8))["error_code"] == NOT_LEADER
    assert (await read(cluster, 7))["records"]
    cluster.broker.has_lease = True
    part = await read(cluster, 8)
    assert (part["error_code"], part["high_watermark"]) == (NONE, 8)


async def test_new_leader_does_not_name_an_end_before_its_own_branch(cluster: FakeCluster) -> None:
    cluster.log.high_watermark = Offset(5)
    for time_ms, version, error in (
        (LATEST, 5, ErrorCode.OFFSET_NOT_AVAILABLE),
        (LATEST, 4, ErrorCode.LEADER_NOT_AVAILABLE),
        (1000, 5, ErrorCode.OFFSET_NOT_AVAILABLE),
        (EARLIEST, 5, NONE),
    ):
        found = await list_offset(cluster, time_ms, version=version)
        assert (found["error_code"], found["offset"]) == (error, -1 if error else 0)


@pytest.mark.parametrize(("epoch", "expected"), [(5, (5, 10)), (9, (5, 10)), (4, (0, 6)), (0, (0, 6)), (-1, (-1, -1))])
async def test_ends_of_epochs(cluster: FakeCluster, epoch: int, expected: tuple[int, int]) -> None:
    assert await find_end(cluster, epoch) == (NONE, *expected)


TOLD = (NONE, 0, 6)
UNTOLD = (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        (0, TOLD),
        (2, (NONE, 0, 3)),
        (5, (NONE, 5, 10)),
        (1, UNTOLD),
        (EPOCH_STEP + 1, UNTOLD),
        (EPOCH_STEP + 7, (NONE, 5, 10)),
    ],
)
async def test_branches_that_may_still_be_told_are_waited_for(
    cluster: FakeCluster, epoch: int, expected: tuple[int, int, int]
) -> None:
    cluster.log.divergences = {2: (0, Offset(3))}
    cluster.broker.brokers.record_heartbeat(SECOND, trio.current_time())
    assert await find_end(cluster, epoch) == expected
    assert (await read(cluster, 2, last_fetched_epoch=epoch))["error_code"] == expected[0]


async def test_branches_of_brokers_that_stay_dead_are_not_waited_for(
    cluster: FakeCluster, autojump_clock: trio.testing.MockClock
) -> None:
    cluster.log.divergences = {}
    patience_s = Config().broker.replace_replicas_after_ms / 1000
    for silent_s, expected in ((0.9 * patience_s, UNTOLD), (patience_s, TOLD)):
        cluster.broker.brokers.record_heartbeat(SECOND, trio.current_time() - silent_s)
        assert await find_end(cluster, 1) == expected


async def find_end(cluster: FakeCluster, epoch: int, current: int = -1) -> tuple[int, int, int]:
    parts = [{"partition": 0, "current_leader_epoch": current, "leader_epoch": epoch}]
    found = await cluster.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, 3, topics=[{"topic": "t", "partitions": parts}])
    (part,) = found["topics"][0]["partitions"]
    return part["error_code"], part["leader_epoch"], part["end_offset"]


async def delete_until(cluster: FakeCluster, offset: int) -> int:
    topics = [{"name": "t", "partitions": [{"partition_index": 0, "offset": offset}]}]
    found = await cluster.ask(ApiKey.DELETE_RECORDS, 1, topics=topics, timeout_ms=0)
    return int(found["topics"][0]["partitions"][0]["error_code"])


async def test_only_the_leader_knows_and_deletes(cluster: FakeCluster) -> None:
    async def errors() -> list[int]:
        topics = [{"name": "t", "partition_indexes": [0]}]
        described = await cluster.ask(ApiKey.DESCRIBE_PRODUCERS, 0, topics=topics)
        return [
            (await list_offset(cluster, LATEST))["error_code"],
            (await find_end(cluster, 0))[0],
            await delete_until(cluster, 3),
            described["topics"][0]["partitions"][0]["error_code"],
        ]

    assert await errors() == [NONE] * 4
    assert cluster.broker.deleted == [(cluster.log, 3)]
    cluster.follow(SECOND, is_follower_readable=True)
    assert await errors() == [NOT_LEADER] * 4
    assert len(cluster.broker.deleted) == 1


async def test_records_are_deleted_up_to_what_enough_replicas_have(cluster: FakeCluster) -> None:
    cluster.log.index.start_offset = Offset(2)
    for offset, error, deleted in (
        (2, NONE, []),
        (0, NONE, []),
        (3, NONE, [3]),
        (8, NONE, [8]),
        (-1, NONE, [8]),
        (9, ErrorCode.OFFSET_OUT_OF_RANGE, []),
        (-2, ErrorCode.OFFSET_OUT_OF_RANGE, []),
    ):
        cluster.broker.deleted.clear()
        assert await delete_until(cluster, offset) == error
        assert cluster.broker.deleted == [(cluster.log, each) for each in deleted]
