"""Only the leader of a log answers for it, and clients that know another one learn the present one.

A failure gives the clients of a log an error that lets them try again, and no other log is affected.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import attrs
import pytest
import trio
import trio.testing

from dafka.batches import encode_batch
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.leader_and_isr import EPOCH_STEP
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.positions import FIRST_SEQUENCE, Offset
from dafka.broker.log.durable_waits import DURABLE_S
from dafka.broker.log.reader import LogRecords
from dafka.config import Config
from dafka.errors import (
    NoControllerError,
    NotLeaderError,
    OutcomeUnknownError,
    RefusedChangeError,
    StorageError,
    TopicDeletedError,
)
from dafka.kafka.apis.produce import ProduceRefusedError, begin_produce
from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.messages.logs import ProduceRequest
from dafka.kafka.server.fetch_sessions import FetchSessions
from tests.kafka.apis.door import build, logs_in, of_logs
from tests.kafka.apis.fake_cluster import OWN, SECOND, THIRD, FakeCluster

LATEST, EARLIEST = -1, -2
ALL, LEADER = -1, 1
NONE, NOT_LEADER, FENCED = ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH
UNKNOWN_EPOCH, FAILED = ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.KAFKA_STORAGE_ERROR
NOT_ENOUGH, OUT_OF_RANGE = ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.OFFSET_OUT_OF_RANGE
RECORDS = {"records": encode_batch(0, [b"x"], timestamps=1)}

Part = dict[str, Any]
"""What a response says about a log."""


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


def leader_of(part: Part) -> tuple[int, int] | None:
    leader = part["current_leader"]
    return None if leader is None else (leader["leader_id"], leader["leader_epoch"])


async def produce(cluster: FakeCluster, acks: int = ALL, **values: Any) -> Part:
    return await cluster.ask_log(ApiKey.PRODUCE, 10, RECORDS, acks=acks, **values)


async def read(cluster: FakeCluster, offset: int = 0, *, rack: str = "", wait_ms: int = 0, **others: Any) -> Part:
    asked = {"fetch_offset": offset, **others}
    with trio.fail_after(60):
        return await cluster.ask_log(ApiKey.FETCH, 12, asked, max_wait_ms=wait_ms, rack_id=rack)


async def list_offset(cluster: FakeCluster, timestamp: int, version: int = 5, **others: Any) -> Part:
    return await cluster.ask_log(ApiKey.LIST_OFFSETS, version, {"timestamp": timestamp, **others})


async def find_end(cluster: FakeCluster, epoch: int, **others: Any) -> tuple[int, int, int]:
    part = await cluster.ask_log(ApiKey.OFFSET_FOR_LEADER_EPOCH, 3, {"leader_epoch": epoch, **others})
    return part["error_code"], part["leader_epoch"], part["end_offset"]


async def delete_until(cluster: FakeCluster, offset: int) -> int:
    return int((await cluster.ask_log(ApiKey.DELETE_RECORDS, 1, {"offset": offset}))["error_code"])


def appends(cluster: FakeCluster) -> list[bool]:
    """Make the broker append. Return the list of whom each append waits for: all replicas or not."""
    waited: list[bool] = []

    async def wait(all_replicas: bool) -> int:
        await trio.lowlevel.checkpoint()
        waited.append(all_replicas)
        return 8

    cluster.broker.appended = wait
    return waited


async def test_who_answers_for_a_log_in_which_epoch(cluster: FakeCluster) -> None:
    """Records can be read from some replicas, too. Only these APIs name an epoch."""
    waited = appends(cluster)
    for (is_led, is_readable), known in product([(True, False), (False, False), (False, True)], (-1, 5, 0, 4, 6)):
        cluster.lead() if is_led else cluster.follow(SECOND, is_follower_readable=is_readable)
        wrong = NONE if known in {-1, 5} else FENCED if known < 5 else UNKNOWN_EPOCH
        epoch: dict[str, Any] = {"current_leader_epoch": known}
        only_leader = NONE if is_led else NOT_LEADER
        part = await read(cluster, **epoch)
        error = wrong or (NONE if is_readable else only_leader)
        named = {FENCED, NOT_LEADER} & {error}
        assert (part["error_code"], leader_of(part)) == (error, (0 if is_led else 1, 5) if named else None)
        assert (await list_offset(cluster, LATEST, **epoch))["error_code"] == (wrong or only_leader)
        assert (await find_end(cluster, 0, **epoch))[0] == (wrong or only_leader)
        assert await delete_until(cluster, 3) == only_leader
        part = await produce(cluster, LEADER)
        assert (part["error_code"], leader_of(part)) == (only_leader, None if is_led else (1, 5))
        topics = [{"name": "t", "partition_indexes": [0]}]
        described = await cluster.ask(ApiKey.DESCRIBE_PRODUCERS, 0, topics=topics)
        assert described["topics"][0]["partitions"][0]["error_code"] == only_leader
    assert (waited, cluster.broker.deleted) == ([False] * 5, [(cluster.log, 3)] * 5)


# Produce


async def test_producers_learn_of_a_leader_that_is_deposed_meanwhile(cluster: FakeCluster) -> None:
    async def wait(_all_replicas: bool) -> int:
        await trio.lowlevel.checkpoint()
        cluster.follow(SECOND, epoch=7)
        raise NotLeaderError("another broker leads the log", SECOND)

    cluster.broker.appended = wait
    answer = await cluster.ask(ApiKey.PRODUCE, 10, **of_logs(ApiKey.PRODUCE, {("t", 0): RECORDS}))
    part = logs_in(ApiKey.PRODUCE, answer)["t", 0]
    assert (part["error_code"], leader_of(part)) == (NOT_LEADER, (1, 7))
    assert [(each["node_id"], each["host"], each["port"]) for each in answer["node_endpoints"]] == [
        (1, "fd00::1", 9093)
    ]


async def test_producers_wait_no_longer_than_they_want(cluster: FakeCluster, autojump_clock: object) -> None:
    async def wait(_all_replicas: bool) -> int:
        await trio.sleep_forever()
        raise AssertionError

    cluster.broker.appended = wait
    begun = trio.current_time()
    cluster.broker.log_table.add_topic(Topic("u", "e" * 32))
    for log in cluster.broker.logs("u"):
        log.leadership = cluster.log.leadership
    found = await cluster.ask_logs(ApiKey.PRODUCE, 10, {("t", 0): RECORDS, ("u", 0): RECORDS}, timeout_ms=500)
    assert [part["error_code"] for part in found.values()] == [ErrorCode.REQUEST_TIMED_OUT] * 2
    assert trio.current_time() - begun == pytest.approx(0.5)


async def test_records_without_acknowledgement_are_waited_for_as_long_as_others(
    cluster: FakeCluster, autojump_clock: object
) -> None:
    """The timeout of the request does not matter, because no response could tell of it."""
    waits: list[float] = []

    async def append(_: bool) -> int:
        await trio.sleep(waits.pop())
        return 8

    cluster.broker.appended = append
    for wait_s, is_stored in ((DURABLE_S - 1, True), (DURABLE_S + 1, False)):
        waits.append(wait_s)
        asked = build(ProduceRequest, of_logs(ApiKey.PRODUCE, {("t", 0): RECORDS}, acks=0, timeout_ms=500))
        pending = await begin_produce(cluster.client(ApiKey.PRODUCE, 7), asked)
        with nullcontext() if is_stored else pytest.raises(ProduceRefusedError):
            assert await pending.wait() is None


async def test_acknowledgements_of_all_need_a_majority_and_replicas_in_sync(cluster: FakeCluster) -> None:
    waited = appends(cluster)
    few, out = "1 of 3 replicas are alive, which is no majority", "1 replicas are in sync, and min.insync.replicas is 2"
    three, two = (OWN, SECOND, THIRD), (OWN, SECOND)
    for settings, replicas, in_sync, alive, refusal in (
        ({}, three, three, (SECOND,), None),
        ({}, three, three, (), few),
        ({"availability": "branch"}, three, three, (), None),
        ({"min.insync.replicas": "2"}, two, two, (SECOND,), None),
        ({"min.insync.replicas": "2"}, two, (OWN,), (SECOND,), out),
        ({"min.insync.replicas": "2"}, three, (OWN, THIRD), (SECOND,), out),
    ):
        topics = cluster.broker.log_table.topics
        topics["t"] = attrs.evolve(topics["t"], settings=settings)
        cluster.lead(replicas=replicas, in_sync=in_sync)
        cluster.live(*alive)
        part = await produce(cluster)
        assert (part["error_code"], part["error_message"]) == (NOT_ENOUGH if refusal else NONE, refusal)
        assert (await produce(cluster, LEADER))["error_code"] == NONE
    assert waited == [True, False, False, True, False, True, False, False, False]


# Fetch


async def test_readers_get_what_enough_replicas_have(cluster: FakeCluster) -> None:
    part = await read(cluster, 3)
    assert (part["error_code"], part["records"], part["high_watermark"]) == (NONE, b"3-8", 8)
    # A replica can have less than the leader, from which the reader comes.
    for is_led, beyond in ((True, OUT_OF_RANGE), (False, ErrorCode.OFFSET_NOT_AVAILABLE)):
        cluster.lead() if is_led else cluster.follow(SECOND, is_follower_readable=True)
        for offset, error in ((8, NONE), (10, NONE), (11, beyond), (-1, OUT_OF_RANGE)):
            part = await read(cluster, offset)
            assert (part["error_code"], part["records"]) == (error, b"")


async def test_nothing_is_read_from_a_log_that_changes_its_leader_meanwhile(cluster: FakeCluster) -> None:
    async def read_while_it_changes(*_: object, **_options: object) -> LogRecords:
        await trio.lowlevel.checkpoint()
        cluster.follow(SECOND, epoch=6)
        return LogRecords(b"of either branch", Offset(4))

    cluster.broker.reader.read_joined = read_while_it_changes
    part = await read(cluster, 3, current_leader_epoch=5)
    assert (part["error_code"], part["records"], leader_of(part)) == (FENCED, b"", (1, 6))


async def test_readers_with_a_rack_are_sent_there_at_once(cluster: FakeCluster) -> None:
    cluster.lead(is_follower_readable=True)
    part = await read(cluster, rack="two", wait_ms=60_000)
    assert (part["preferred_read_replica"], part["records"], part["high_watermark"]) == (1, b"", 8)
    assert (await read(cluster, rack="one"))["records"] == b"0-8"


async def test_readers_of_a_lost_branch_learn_where_it_ended(cluster: FakeCluster) -> None:
    """The epoch 0 was left at offset 6, and nothing of the epoch 4 is in the log."""
    for epoch, offset, expected in ((5, 10, None), (0, 6, None), (0, 7, (0, 6)), (4, 5, (0, 6))):
        part = await read(cluster, offset, last_fetched_epoch=epoch, wait_ms=60_000 if expected else 0)
        diverging = part["diverging_epoch"]
        assert (None if diverging is None else (diverging["epoch"], diverging["end_offset"])) == expected
        assert bool(part["records"]) == (expected is None and offset < 8)


async def test_readers_of_a_deleted_topic_begin_elsewhere_in_the_next_one_of_its_name(cluster: FakeCluster) -> None:
    """As in Kafka, no end is defined for an epoch after the last one, and an earlier one ends with the first one."""
    assert await find_end(cluster, 9) == (NONE, -1, -1)
    for epoch, error in ((5, NONE), (6, OUT_OF_RANGE), (9, OUT_OF_RANGE)):
        part = await read(cluster, 5, last_fetched_epoch=epoch, wait_ms=60_000 if error else 0)
        assert (part["error_code"], part["diverging_epoch"], bool(part["records"])) == (error, None, not error)
    cluster.log.epochs = [(2, Offset(0)), (5, Offset(6))]
    assert await find_end(cluster, 1) == (NONE, 1, 0)
    assert (await read(cluster, 5, last_fetched_epoch=1))["diverging_epoch"] == {"epoch": 1, "end_offset": 0}
    cluster.follow(SECOND)
    cluster.log.leadership = attrs.evolve(cluster.log.leadership, is_follower_readable=True)
    part = await read(cluster, 5, last_fetched_epoch=9)
    assert (part["error_code"], part["diverging_epoch"]) == (ErrorCode.OFFSET_NOT_AVAILABLE, None)


async def test_long_polls_end_when_the_leader_changes(cluster: FakeCluster) -> None:
    found: list[Part] = []

    async def poll() -> None:
        found.append(await read(cluster, 8, wait_ms=60_000))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(poll)
        await trio.testing.wait_all_tasks_blocked()
        cluster.broker.watchers.notify(cluster.log)
        await trio.testing.wait_all_tasks_blocked()
        assert not found
        cluster.follow(SECOND)
        cluster.broker.watchers.notify(cluster.log)
    assert found[0]["error_code"] == NOT_LEADER


async def test_a_read_ends_in_time_however_often_its_logs_advance(cluster: FakeCluster, autojump_clock: object) -> None:
    async def advance() -> None:
        while True:
            await trio.sleep(0.4)
            cluster.broker.watchers.notify(cluster.log)

    begun = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cluster.broker.watchers.run)
        nursery.start_soon(advance)
        await read(cluster, 8, wait_ms=1000)
        nursery.cancel_scope.cancel()
    assert trio.current_time() - begun == pytest.approx(1)


async def test_sessions_of_others_are_replaced_when_they_have_been_idle(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = iter(range(7, 10))
    cluster.listener.fetch_sessions = FetchSessions(lambda: next(ids), sessions_max=1, idle_ms=100)
    asked = of_logs(ApiKey.FETCH, {("t", 0): {}}, session_epoch=0)
    for now_ms, session_id in ((500, 7), (599, 0), (600, 8)):
        monkeypatch.setattr("dafka.kafka.apis.fetch.steady_now_ms", lambda now_ms=now_ms: now_ms)
        assert (await cluster.ask(ApiKey.FETCH, 12, **asked))["session_id"] == session_id


# Offsets


async def test_offsets_and_ends_have_their_epochs(cluster: FakeCluster) -> None:
    latest, earliest = await list_offset(cluster, LATEST), await list_offset(cluster, EARLIEST)
    assert [(each["offset"], each["leader_epoch"]) for each in (latest, earliest)] == [(8, 5), (0, 0)]
    for epoch, expected in ((5, (5, 10)), (4, (0, 6)), (0, (0, 6)), (-1, (-1, -1))):
        assert await find_end(cluster, epoch) == (NONE, *expected)


async def test_a_leader_that_may_have_been_replaced_names_no_end(cluster: FakeCluster) -> None:
    cluster.broker.has_lease = False
    found = await list_offset(cluster, LATEST)
    assert (found["error_code"], found["offset"]) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
    assert (await list_offset(cluster, EARLIEST))["error_code"] == NONE
    assert (await read(cluster, 8))["error_code"] == NOT_LEADER
    assert (await read(cluster, 11))["error_code"] == NOT_LEADER
    diverging = await read(cluster, 7, last_fetched_epoch=4)
    assert (diverging["error_code"], diverging["diverging_epoch"]) == (NOT_LEADER, None)
    assert await find_end(cluster, 9) == (NOT_LEADER, -1, -1)
    assert (await read(cluster, 7))["records"]
    cluster.broker.has_lease = True
    assert (await read(cluster, 11))["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (await read(cluster, 7, last_fetched_epoch=4))["diverging_epoch"]
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
        found = await list_offset(cluster, time_ms, version)
        assert (found["error_code"], found["offset"]) == (error, -1 if error else 0)


TOLD, UNTOLD = (NONE, 0, 6), (UNKNOWN_EPOCH, -1, -1)


async def test_branches_that_may_still_be_told_are_waited_for(cluster: FakeCluster) -> None:
    cluster.log.divergences = {2: (0, Offset(3))}
    cluster.broker.brokers.record_heartbeat(SECOND, trio.current_time())
    own, others = (NONE, 5, 10), {1: UNTOLD, EPOCH_STEP + 1: UNTOLD}
    for epoch, expected in {0: TOLD, 2: (NONE, 0, 3), 5: own, **others, EPOCH_STEP + 7: own}.items():
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


async def test_records_are_deleted_up_to_what_enough_replicas_have(cluster: FakeCluster) -> None:
    cluster.log.index.start_offset = Offset(2)
    for offset, deleted in ((2, []), (0, []), (3, [3]), (8, [8]), (-1, [8]), (9, None), (-2, None)):
        cluster.broker.deleted.clear()
        assert await delete_until(cluster, offset) == (OUT_OF_RANGE if deleted is None else NONE)
        assert cluster.broker.deleted == [(cluster.log, each) for each in deleted or ()]


# Failures

BAD, GOOD = "bad", "t"


@pytest.fixture
def failing_cluster(cluster: FakeCluster) -> FakeCluster:
    """A cluster with another topic: the storage fails for its log."""
    cluster.broker.log_table.add_topic(Topic(BAD, "e" * 32))
    (log,) = cluster.broker.logs(BAD)
    log.leadership, log.epochs = cluster.log.leadership, cluster.log.epochs
    log.index.append("native", FIRST_SEQUENCE, 10, is_open=True)
    log.high_watermark = Offset(8)
    return cluster


def failing(value: Any = None) -> Callable[..., Any]:
    """Return a part of the storage, which returns a value, and fails for one topic."""

    async def work(of: Log | str, *_: object, **_options: object) -> Any:
        await trio.lowlevel.checkpoint()
        if BAD in {of, getattr(of, "topic", None)}:
            raise StorageError("the disk is broken")
        return value

    return work


async def test_a_storage_that_fails_for_a_log_does_not_affect_others(failing_cluster: FakeCluster) -> None:
    broker = failing_cluster.broker
    broker.reader = SimpleNamespace(
        read_joined=failing(LogRecords(encode_batch(3, [b"x"], timestamps=1), Offset(4))),
        find_offset_by_time=failing((3, 1000)),
        find_latest_time=failing((3, 1000)),
    )
    broker.deletion = SimpleNamespace(delete_before=failing())
    for topics in ((BAD, GOOD), (GOOD, BAD)):
        for api, version, part in (
            (ApiKey.FETCH, 11, {"fetch_offset": 3}),
            (ApiKey.LIST_OFFSETS, 5, {"timestamp": 1000}),
            (ApiKey.LIST_OFFSETS, 7, {"timestamp": -3}),
            (ApiKey.DELETE_RECORDS, 1, {"offset": 3}),
        ):
            found = await failing_cluster.ask_logs(api, version, {(topic, 0): part for topic in topics})
            assert [found[BAD, 0]["error_code"], found[GOOD, 0]["error_code"]] == [FAILED, NONE]
            assert [bool(found[each, 0].get("records")) for each in (BAD, GOOD)] == [False, api is ApiKey.FETCH]


async def test_a_topic_that_cannot_be_deleted_does_not_affect_others(failing_cluster: FakeCluster) -> None:
    broker: Any = failing_cluster.listener.broker
    broker.delete_topic = failing()
    errors = {BAD: FAILED, GOOD: NONE, "unknown": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    for names in ([BAD, GOOD], [GOOD, BAD], ["unknown", BAD, GOOD]):
        found = (await failing_cluster.ask(ApiKey.DELETE_TOPICS, 5, topic_names=names, timeout_ms=1000))["responses"]
        assert [(each["name"], each["error_code"]) for each in found] == [(each, errors[each]) for each in names]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StorageError("the disk is broken"), FAILED),
        (RefusedChangeError("there are too many logs", ErrorCode.INVALID_PARTITIONS), ErrorCode.INVALID_PARTITIONS),
        (NoControllerError("the cluster has no controller"), ErrorCode.NOT_CONTROLLER),
    ],
)
async def test_topics_that_cannot_be_stored_have_an_error_and_a_reason(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, error: Exception, code: ErrorCode
) -> None:
    async def fail(*_: object, **_others: object) -> None:
        raise error

    for name in ("create_topic", "change_topic"):
        monkeypatch.setattr(cluster.broker, name, fail)
    new = {"name": "new", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    more = {"name": "t", "count": 2, "assignments": None}
    setting = {"resource_type": 2, "resource_name": "t", "configs": [{"name": "retention.ms", "value": "7"}]}
    for api, version, values, answers in (
        (ApiKey.CREATE_TOPICS, 5, {"topics": [new]}, "topics"),
        (ApiKey.CREATE_PARTITIONS, 3, {"topics": [more], "timeout_ms": 1, "validate_only": False}, "results"),
        (ApiKey.ALTER_CONFIGS, 1, {"resources": [setting], "validate_only": False}, "responses"),
    ):
        (found,) = (await cluster.ask(api, version, **values))[answers]
        assert (found["error_code"], found["error_message"]) == (code, str(error))


async def test_what_the_storage_does_not_do_has_an_error(cluster: FakeCluster) -> None:
    async def is_deleted(*_: object) -> None:
        raise TopicDeletedError("it was deleted")

    broker = cluster.broker
    broker.deletion = SimpleNamespace(delete_before=is_deleted)
    assert await delete_until(cluster, 3) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    broker.storage.wait_capacity = partial(failing(), BAD)
    part = await produce(cluster)
    assert (part["error_code"], part["error_message"]) == (FAILED, "the disk is broken")
    cast(Any, broker).inventory = SimpleNamespace(log_bytes=partial(failing(), BAD))
    (result,) = (await cluster.ask(ApiKey.DESCRIBE_LOG_DIRS, 3, topics=None))["results"]
    assert (result["error_code"], result["topics"]) == (FAILED, [])


async def test_records_beyond_the_memory_of_answers_are_asked_for_again(cluster: FakeCluster) -> None:
    """The first batch may be larger than what was granted, and not larger than what is left."""
    left, answers = 100_000, cluster.listener.answers
    answers.take_now(answers.left_bytes - left)
    for size, is_read in ((left, True), (left + 1, False)):
        cluster.broker.reader = SimpleNamespace(read_joined=failing(LogRecords(bytes(size), Offset(1))))
        assert len((await read(cluster))["records"]) == (size if is_read else 0)
        assert answers.left_bytes == left


async def test_a_topic_that_cannot_be_created_by_asking_is_asked_for_again(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_name: str, **_options: object) -> None:
        raise StorageError("the disk is broken")

    monkeypatch.setattr(cluster.broker, "create_topic", fail)
    topics = [{"name": "new"}, {"name": GOOD}]
    found = await cluster.ask(ApiKey.METADATA, 4, topics=topics, allow_auto_topic_creation=True)
    assert [each["error_code"] for each in found["topics"]] == [ErrorCode.LEADER_NOT_AVAILABLE, NONE]


async def test_records_that_are_lost_or_deleted_affect_no_others(failing_cluster: FakeCluster) -> None:
    outcomes: list[Exception | int] = []

    async def wait(_all_replicas: bool) -> int:
        await trio.lowlevel.checkpoint()
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    failing_cluster.broker.appended = wait
    for error, code in (
        (TopicDeletedError("it was deleted"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (OutcomeUnknownError("the leader has changed"), ErrorCode.REQUEST_TIMED_OUT),
    ):
        outcomes += [error, 5]
        found = await failing_cluster.ask_logs(ApiKey.PRODUCE, 10, {(BAD, 0): RECORDS, (GOOD, 0): RECORDS})
        assert [(each["error_code"], each["base_offset"]) for each in found.values()] == [(code, -1), (NONE, 5)]
