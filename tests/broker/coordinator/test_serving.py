"""When a broker serves the shards of the coordinators, and what requests get while it does not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from dafka.broker.coordinator.coordinator_shard import CoordinatorError, CoordinatorShard
from dafka.broker.coordinator.coordinators import Coordinators
from dafka.broker.coordinator.groups import SYNC_S, GroupCoordinators
from dafka.broker.coordinator.participants import participants_of
from dafka.broker.coordinator.transaction_joins import TransactionJoins
from dafka.broker.coordinator.transactions import TransactionCoordinators
from dafka.broker.core.coordination.effects import WriteMarkers, WriteState
from dafka.broker.core.coordination.state_records import (
    COORDINATORS_TOPIC,
    OFFSETS_TOPIC,
    SHARDS,
    StateRecord,
    shard_of,
)
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.consumer.results import ConsumerHeartbeatRequest
from dafka.broker.core.groups.results import CommitRequest, JoinRequest, LeavingMember, OffsetToCommit, SyncRequest
from dafka.broker.core.groups.share.members import ShareHeartbeatRequest
from dafka.broker.core.log.log import Log
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.log.producer_state import Producer
from dafka.broker.core.metadata.brokers import BrokerRegistration, Brokers
from dafka.broker.core.metadata.leader_and_isr import LeaderAndIsr
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.topic_partition import TopicPartition
from dafka.broker.interbroker.messenger import BrokerMessenger
from dafka.broker.log.durable_waits import DURABLE_S, FAILING_S, DurableWaits
from dafka.errors import BatchError, NotLeaderError, StorageError
from dafka.steady_clock import steady_now_ms
from tests.broker.coordinator.shards import Records, Shard

PLACE, OWN = TopicPartition("orders", 0), Producer(1, 0)
COMMIT = CommitRequest(group_id="g", offsets={PLACE: OffsetToCommit(7)})
JOIN = JoinRequest(
    group_id="g",
    session_timeout_ms=60_000,
    rebalance_timeout_ms=70_000,
    protocol_type="consumer",
    protocols=(("range", b""),),
)
UNSETTLED = WriteState((StateRecord(OFFSETS_TOPIC, b"{}", b"{}"),))
CONSUMER = ConsumerHeartbeatRequest(group_id="g", member_id="m", member_epoch=5)
SHARE = ShareHeartbeatRequest(group_id="g", member_id="m", member_epoch=5)
READS = {
    "fetch_offsets",
    "describe_groups",
    "describe_consumer_groups",
    "describe_share_groups",
    "share_states",
    "describe_transaction",
}
TRANSACTIONS = {"init_producer_id", "add_partitions", "add_offsets", "end_transaction"}
"""The calls whose answers can be former state."""


class Serving:
    """The coordinators of a broker. The test leads the log of the group and transactional id "g"."""

    def __init__(self) -> None:
        self.table = LogTable("here")
        self.table.add_topic(Topic(COORDINATORS_TOPIC, "id", SHARDS))
        self.table.add_topic(Topic("orders", "1D", 1))
        for log in self.table.logs(COORDINATORS_TOPIC):
            log.leadership = LeaderAndIsr("there", 0, is_led=False)
        self.log = self.table.logs(COORDINATORS_TOPIC)[shard_of("g")]
        self.shards: list[Shard] = []
        self.loads = True
        self.failure: Exception | None = None
        self.waits = DurableWaits()
        self.brokers = Brokers(BrokerRegistration(address="here"), 1.0)
        self.brokers.record_registration(BrokerRegistration(address="there"))
        self.brokers.record_heartbeat("there", 0.0)
        self.brokers.check_alive(0.0)
        self.changed = trio.Event()
        led_logs: Any = SimpleNamespace(wait_leadership=lambda _log: self.changed.wait())
        tables: Any = SimpleNamespace(
            log_table=self.table,
            brokers=self.brokers,
            logs=SimpleNamespace(find=lambda _name: None),
            topics=SimpleNamespace(deleted_ids=set()),
        )
        self.begun: list[Any] = []
        self.refused = ErrorCode.NONE
        participants: Any = SimpleNamespace(
            check_group=lambda *_: self.refused,
            begin=lambda *begun: self.begun.append(begun),
        )
        self.coordinators = Coordinators(tables, led_logs, self._make_shard)
        messenger = BrokerMessenger("here", lambda *_: None)
        joins = TransactionJoins(self.coordinators, participants, messenger, lambda: False)
        self.groups = GroupCoordinators(tables, self.coordinators, participants, joins)
        self.has_own_epochs = False
        self.transactions = TransactionCoordinators(
            self.coordinators, participants, messenger, lambda: self.has_own_epochs
        )

    def _make_shard(self, log: Log) -> CoordinatorShard:
        shard = Shard(Records(), epoch=log.leadership.epoch, log=log, waits=self.waits)
        shard.records.failure = self.failure
        if self.loads:
            shard.records.loads.set()
        self.shards.append(shard)
        return shard.shard

    async def lead(self, epoch: int, *others: Log, is_led: bool = True) -> None:
        for log in (self.log, *others):
            log.leadership = LeaderAndIsr("here" if is_led else "there", epoch, is_led=is_led)
        changed, self.changed = self.changed, trio.Event()
        changed.set()
        await wait_all_tasks_blocked()

    def find(self) -> CoordinatorShard | ErrorCode:
        try:
            return self.coordinators.find("g")
        except CoordinatorError as error:
            return error.error_code

    def requests(self) -> dict[str, tuple[float, Callable[[], Awaitable[object]]]]:
        """Return all requests, each with the longest time that it waits."""
        groups, transactions = self.groups, self.transactions
        sync = SyncRequest(group_id="g", generation_id=1, member_id="m")
        return {
            "consumer_heartbeat": (DURABLE_S, lambda: groups.consumer_heartbeat(CONSUMER)),
            "share_heartbeat": (DURABLE_S, lambda: groups.share_heartbeat(SHARE)),
            "join_group": (DURABLE_S + 70, lambda: groups.join_group(JOIN)),
            "sync_group": (DURABLE_S + SYNC_S, lambda: groups.sync_group(sync)),
            "heartbeat": (DURABLE_S, lambda: groups.heartbeat("g", 1, "m", None)),
            "leave_group": (DURABLE_S, lambda: groups.leave_group("g", (LeavingMember("m"),))),
            "commit_offsets": (DURABLE_S, lambda: groups.commit_offsets(COMMIT)),
            "commit_transaction_offsets": (DURABLE_S, lambda: groups.commit_transaction_offsets(COMMIT, "g", OWN)),
            "fetch_offsets": (DURABLE_S, lambda: groups.fetch_offsets("g")),
            "delete_offsets": (DURABLE_S, lambda: groups.delete_offsets("g", [PLACE])),
            "describe_groups": (DURABLE_S, lambda: groups.describe_groups(["g"])),
            "describe_consumer_groups": (DURABLE_S, lambda: groups.describe_consumer_groups(["g"])),
            "describe_share_groups": (DURABLE_S, lambda: groups.describe_share_groups(["g"])),
            "share_states": (DURABLE_S, lambda: groups.share_states("g")),
            "create_share_group": (DURABLE_S, lambda: groups.create_share_group("g", {})),
            "set_share_starts": (DURABLE_S, lambda: groups.set_share_starts("g", {})),
            "delete_share_states": (DURABLE_S, lambda: groups.delete_share_states("g", set())),
            "delete_groups": (DURABLE_S, lambda: groups.delete_groups(["g"])),
            "init_producer_id": (DURABLE_S, lambda: transactions.init_producer_id("g", 60_000)),
            "add_partitions": (DURABLE_S, lambda: transactions.add_partitions("g", OWN, [PLACE])),
            "add_offsets": (DURABLE_S, lambda: transactions.add_offsets("g", OWN, "g")),
            "end_transaction": (DURABLE_S, lambda: transactions.end_transaction("g", OWN, is_commit=True)),
            "describe_transaction": (DURABLE_S, lambda: transactions.describe_transaction("g")),
        }

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[dict[str, tuple[Any, float]]]:
        """Send all requests, and note the error that each gets, or the result of a read, and how long it took."""
        found: dict[str, tuple[Any, float]] = {}
        began = trio.current_time()

        async def ask(name: str, call: Callable[[], Awaitable[Any]]) -> None:
            try:
                result = await call()
                (each,) = result.values() if isinstance(result, dict) and result else (result,)
                error = each if isinstance(each, ErrorCode) else getattr(each, "error_code", None)
            except CoordinatorError as refused:
                error = refused.error_code
            found[name] = error, trio.current_time() - began

        async with trio.open_nursery() as nursery:
            for name, (_, call) in self.requests().items():
                nursery.start_soon(ask, name, call)
            await wait_all_tasks_blocked()
            yield found


@asynccontextmanager
async def serve(serving: Serving) -> AsyncIterator[Serving]:
    async with trio.open_nursery() as nursery:
        await nursery.start(serving.coordinators.run)
        yield serving
        nursery.cancel_scope.cancel()


async def test_requests_get_the_error_of_a_shard_that_is_elsewhere_loading_or_lost(autojump_clock: MockClock) -> None:
    async with serve(Serving()) as serving:
        serving.loads = False
        for error in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
            async with serving.asking() as found:
                assert found == dict.fromkeys(serving.requests(), (error, 0))
            is_loading = error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            with pytest.raises(CoordinatorError) as none:
                serving.coordinators.any()
            assert none.value.error_code is (error if is_loading else ErrorCode.COORDINATOR_NOT_AVAILABLE)
            await serving.lead(1)
        serving.shards[-1].records.loads.set()
        await wait_all_tasks_blocked()
        shard = serving.coordinators.any()
        assert shard is serving.find()
        shard.execute([UNSETTLED])
        async with serving.asking() as found:
            assert found == {}
            await serving.lead(2, is_led=False)
            assert found == dict.fromkeys(serving.requests(), (ErrorCode.NOT_COORDINATOR, 0))


async def test_requests_wait_for_durability_as_long_as_each_may_and_reads_check_the_lease_last(
    autojump_clock: MockClock,
) -> None:
    async with serve(Serving()) as serving:
        await serving.lead(0)
        shard = serving.shards[-1]
        shard.shard.execute([UNSETTLED])
        for serving.refused in (ErrorCode.INVALID_TXN_STATE, ErrorCode.NONE):  # by participants
            async with serving.asking() as found:
                pass
            assert {name: error for name, (error, _) in found.items()} == dict.fromkeys(
                serving.requests(), ErrorCode.COORDINATOR_NOT_AVAILABLE
            )
            assert {name: after for name, (_, after) in found.items()} == pytest.approx(
                {name: wait_s for name, (wait_s, _) in serving.requests().items()}
            )
        shard.shard.execute([UNSETTLED])
        async with serving.asking() as found:
            shard.holds_lease = False
            await shard.commit()
            await shard.commit()
            refused = {name for name, (error, _) in found.items() if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
            assert refused == READS | TRANSACTIONS
        for _ in range(2):
            serving.waits.record_failure("disk full")
            await trio.sleep(FAILING_S)
        async with serving.asking() as found:
            refused = {name for name, (error, _) in found.items() if error is ErrorCode.COORDINATOR_NOT_AVAILABLE}
            assert refused == serving.requests().keys() - READS - {"heartbeat"}


async def test_requests_about_many_groups_wait_for_all_shards_at_once_and_none_is_answered_in_part(
    autojump_clock: MockClock,
) -> None:
    names = [f"g{number}" for number in range(200)]
    async with serve(Serving()) as serving:
        groups, transactions = serving.groups, serving.transactions
        await serving.lead(0, *serving.table.logs(COORDINATORS_TOPIC))
        first, found = serving.shards[0], dict[str, Any]()
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "list groups": groups.list_groups,
            "list transactions": transactions.list_transactions,
            "wait": groups.wait_committed,
            "describe": lambda: groups.describe_groups(names),
            "delete": lambda: groups.delete_groups(names),
        }

        async def call(name: str) -> None:
            try:
                found[name] = await calls[name]()
            except CoordinatorError as refused:
                found[name] = refused.error_code

        for lost in (False, True):
            found.clear()
            for each in serving.shards:
                each.shard.execute([UNSETTLED])
            async with trio.open_nursery() as nursery:
                for name in calls:
                    nursery.start_soon(call, name)
                await wait_all_tasks_blocked()
                for each in serving.shards[1:]:
                    await each.commit()
                    assert found == {}
                if lost:
                    first.shard.close()
                else:
                    await trio.sleep(DURABLE_S)
                    await first.commit()
            error = ErrorCode.NOT_COORDINATOR if lost else ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert found["list groups"] == found["list transactions"] == ([] if lost else error)
            assert (
                {name for name in names if found["describe"][name].error_code is error}
                == {name for name, each in found["delete"].items() if each is error}
                == {name for name in names if shard_of(name) == first.log.number}
            )


async def test_a_shard_is_served_in_each_epoch_of_its_log_and_loaded_again_a_second_after_it_has_failed(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve(Serving()) as serving:
        await serving.lead(0)
        for epoch in (1, 2):
            await serving.lead(epoch)
            found = serving.find()
            assert isinstance(found, CoordinatorShard)
            assert (found.epoch, found, len(serving.shards)) == (epoch, serving.shards[-1].shard, epoch + 1)
        await serving.lead(2)
        assert serving.find() is found, "nothing has changed"
        failures = (StorageError("disk"), BatchError("record", "too large", 0), NotLeaderError("lost", ""))
        for epoch, failure in enumerate(failures, 3):
            caplog.clear()
            serving.failure, count = failure, len(serving.shards)
            await serving.lead(epoch)
            await trio.sleep(2.5)
            assert len(serving.shards) == count + 3
            assert serving.find() is ErrorCode.NOT_COORDINATOR
            assert str(failure) in caplog.text or isinstance(failure, NotLeaderError)
            serving.failure = None
            await trio.sleep(1)
            assert isinstance(serving.find(), CoordinatorShard)
            serving.failure = failure
            await serving.lead(epoch, is_led=False)
            assert serving.find() is ErrorCode.NOT_COORDINATOR


async def test_a_broker_starts_when_its_shards_are_loaded_and_ends_if_one_cannot_be() -> None:
    serving, started = Serving(), trio.Event()
    await serving.lead(0)
    serving.loads = False

    async def start(nursery: trio.Nursery) -> None:
        await nursery.start(serving.coordinators.run)
        started.set()

    with pytest.RaisesGroup(StorageError, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(start, nursery)
            await wait_all_tasks_blocked()
            (shard,) = serving.shards
            shard.records.failure = StorageError("written by a newer version")
            shard.records.loads.set()
            await started.wait()
    serving = Serving()
    await serving.lead(0)
    async with serve(serving):
        assert isinstance(serving.find(), CoordinatorShard)


async def test_a_group_is_coordinated_by_the_living_leader_of_its_log() -> None:
    """Other requests go to any leader."""
    serving, found = Serving(), list[tuple[str | None, str]]()

    def note() -> None:
        broker = serving.coordinators.broker_of("g")
        found.append((None if broker is None else broker.address, serving.coordinators.any_leader()))

    note()
    await serving.lead(0)
    note()
    await serving.lead(1, is_led=False)
    note()
    serving.brokers.check_alive(9.0)
    note()
    await serving.lead(2)
    note()
    serving.table.remove_topic(COORDINATORS_TOPIC)
    note()
    assert found == [
        ("there", "there"),
        ("here", "there"),
        ("there", "there"),
        (None, ""),
        ("here", "here"),
        (None, ""),
    ]


async def test_participants_are_told_of_a_transaction_when_it_is_durable_unless_it_is_refused() -> None:
    async with serve(Serving()) as serving, trio.open_nursery() as nursery:
        await serving.lead(0)
        results: list[Any] = []

        async def ask(call: Callable[[], Awaitable[Any]]) -> Any:
            async def note() -> None:
                results.append(await call())

            nursery.start_soon(note)
            await wait_all_tasks_blocked()
            told = len(serving.begun)
            await serving.shards[-1].commit()
            return results.pop(), len(serving.begun) - told

        transactions = serving.transactions
        (initialized, _) = await ask(lambda: transactions.init_producer_id("g", 60_000))
        own, former = initialized.producer, initialized.producer._replace(producer_epoch=-1)
        none, fenced = (ErrorCode.NONE, 1), (ErrorCode.PRODUCER_FENCED, 0)
        for producer, expected in ((own, none), (former, fenced)):
            assert await ask(partial(transactions.add_partitions, "g", producer, [PLACE])) == expected
            assert await ask(partial(transactions.add_offsets, "g", producer, "h")) == expected
        assert serving.begun == [(serving.find(), own, participants_of(*each)) for each in ([[PLACE]], [[], ["h"]])]


@pytest.mark.parametrize("has_own_epochs", [True, False])
async def test_the_next_transaction_has_a_later_epoch_only_at_a_level_with_that(has_own_epochs: bool) -> None:
    async with serve(Serving()) as serving, trio.open_nursery() as nursery:
        serving.has_own_epochs = has_own_epochs
        await serving.lead(0)
        shard, results = serving.shards[-1], list[Any]()

        async def note(call: Callable[[], Awaitable[Any]]) -> None:
            results.append(await call())

        async def ask(call: Callable[[], Awaitable[Any]]) -> Any:
            nursery.start_soon(note, call)
            await wait_all_tasks_blocked()
            for _ in range(2):
                await shard.commit()
            return results.pop()

        async def complete(found: CoordinatorShard, ending: WriteMarkers) -> None:
            await trio.lowlevel.checkpoint()
            found.execute(found.transactions.markers_written(ending.transactional_id, steady_now_ms()))

        shard.end = complete

        transactions = serving.transactions
        producer = (await ask(lambda: transactions.init_producer_id("g", 60_000))).producer
        assert await ask(lambda: transactions.add_partitions("g", producer, [PLACE])) is ErrorCode.NONE
        ended = await ask(partial(transactions.end_transaction, "g", producer, is_commit=True, raises_epoch=True))
        assert ended.error_code is ErrorCode.NONE
        assert ended.producer.producer_epoch == producer.producer_epoch + has_own_epochs


@pytest.mark.parametrize("logs", [[PLACE], None])
async def test_offsets_that_an_open_transaction_changes_are_refused_only_to_those_who_ask_for_stable_ones(
    logs: list[TopicPartition] | None,
) -> None:
    async with serve(Serving()) as serving, trio.open_nursery() as nursery:
        await serving.lead(0)
        nursery.start_soon(serving.groups.commit_offsets, COMMIT)
        nursery.start_soon(serving.groups.commit_transaction_offsets, COMMIT, "g", OWN)
        await wait_all_tasks_blocked()
        await serving.shards[-1].commit()
        for is_stable in (False, True):
            found = await serving.groups.fetch_offsets("g", logs, require_stable=is_stable)
            assert found[PLACE].error_code is (ErrorCode.UNSTABLE_OFFSET_COMMIT if is_stable else ErrorCode.NONE)


async def test_offsets_of_a_topic_are_deleted_with_it() -> None:
    async with serve(Serving()) as serving, trio.open_nursery() as nursery:
        await serving.lead(0)
        nursery.start_soon(serving.groups.commit_offsets, COMMIT)
        await wait_all_tasks_blocked()
        await serving.shards[-1].commit()
        assert list(await serving.groups.fetch_offsets("g")) == [PLACE]
        for topic_id in ("another", "1D"):
            await serving.groups.forget_topics(_once(Topic("orders", topic_id, 1)))
            await serving.shards[-1].commit()
            is_kept = topic_id != "1D"
            assert list(await serving.groups.fetch_offsets("g")) == [PLACE] * is_kept


async def _once(topic: Topic) -> AsyncIterator[Topic]:
    yield topic
