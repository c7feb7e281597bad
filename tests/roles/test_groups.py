"""Members of a group, with a tower, a store and producers that run; and the tools for groups."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

import dafka.blocking
from dafka import Config, Consumer, Partition, Producer
from dafka.errors import ConfigError, UnansweredError
from dafka.events import PartitionsAssigned, PartitionsLost, PartitionsRevoked
from dafka.protocol.groups import GROUP_PREFIX
from dafka.roles import GroupDescription, MemberDescription, describe_group, group_tools, list_groups, reset_group
from dafka.roles.group import Group, check_group
from dafka.testing import Cluster
from tests.roles.helpers import DEADLINE_S, wait_event
from tests.waiting import wait_until

LEASE_MS = 5000
"""So long that no member loses its lease on a busy machine."""

SHORT_LEASE_MS = 1000
PRODUCERS = 6


@pytest.fixture
def dafka_config() -> Config:
    return Config().with_beacon(interval_ms=100).with_consumer(group_lease_ms=LEASE_MS, offset_reset="earliest")


@pytest.fixture
async def producers(dafka_cluster: Cluster) -> AsyncIterator[list[Producer]]:
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(dafka_cluster.producer("orders")) for _ in range(PRODUCERS)]
        for producer in opened:
            await producer.send_many([b"%d" % number for number in range(10)])
            await producer.wait_stored()
        yield opened


def check_saved(consumer: Consumer) -> None:
    """Check that enough stores have what the consumer's member has written."""
    assert consumer._group is not None
    member = consumer._group._member
    assert member is not None
    assert member.confirmed_end >= member.end_sequence or member.is_over


class Program:
    """Handles records, and remembers them."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.handled: dict[Partition, list[int]] = defaultdict(list)

    async def run(self) -> None:
        async for batch in self.consumer.batches():
            self.handled[batch.partition] += [record.sequence for record in batch]
            await self.consumer.save_positions()
            check_saved(self.consumer)

    @property
    def count(self) -> int:
        return sum(map(len, self.handled.values()))


async def test_members_share_partitions_and_continue_where_others_stood(
    dafka_cluster: Cluster, producers: list[Producer], nursery: trio.Nursery
) -> None:
    partitions = {producer.partition for producer in producers}
    async with dafka_cluster.consumer(["orders"], dafka_cluster.config, group="billing") as first:
        one = Program(first)
        nursery.start_soon(one.run)
        await wait_until(lambda: one.count == 10 * PRODUCERS)
        async with dafka_cluster.consumer(["orders"], dafka_cluster.config, group="billing") as second:
            two = Program(second)
            await wait_event(first.events, PartitionsRevoked)
            await wait_event(second.events, PartitionsAssigned)
            nursery.start_soon(two.run)
            await wait_until(lambda: first.positions().keys() | second.positions().keys() == partitions)
            assert not first.positions().keys() & second.positions().keys()
            assert set(second.positions().values()) == {10}
            for producer in producers:
                await producer.send(b"further")
            await wait_until(lambda: one.count + two.count == 11 * PRODUCERS)
            assert all(sequences == [10] for sequences in two.handled.values())
            nursery.cancel_scope.cancel()


async def test_a_member_that_leaves_is_followed_at_once_and_handles_nothing_more(
    dafka_cluster: Cluster, producers: list[Producer], monkeypatch: pytest.MonkeyPatch
) -> None:
    leave = Group.leave

    async def check_and_leave(self: Group) -> None:
        for consumer in (first, second):
            if consumer._group is self:
                with pytest.raises(trio.ClosedResourceError):
                    await consumer.next_batch()
        await leave(self)

    monkeypatch.setattr(Group, "leave", check_and_leave)
    monkeypatch.setattr("dafka.roles.group.LEAVE_S", 600)
    config = dafka_cluster.config.with_consumer(group_lease_ms=600_000)
    async with dafka_cluster.consumer(["orders"], config, group="billing") as second:
        async with dafka_cluster.consumer(["orders"], config, group="billing") as first:
            await wait_until(lambda: len(first.positions()) + len(second.positions()) == PRODUCERS)
        with trio.fail_after(DEADLINE_S):
            await wait_until(lambda: len(second.positions()) == PRODUCERS)


async def test_without_a_store_nothing_is_handed_out(dafka_cluster: Cluster, producers: list[Producer]) -> None:
    assert dafka_cluster.store is not None
    config = dafka_cluster.config.with_consumer(group_lease_ms=SHORT_LEASE_MS)
    async with dafka_cluster.consumer(["orders"], config, group="billing") as consumer:
        await wait_until(lambda: len(consumer.positions()) == PRODUCERS)
        sockets = dafka_cluster.store._sockets
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sockets, "publish", lambda messages: None)
            with trio.fail_after(DEADLINE_S):
                async for event in consumer.events:  # on a busy machine, it may have lost some before
                    if isinstance(event, PartitionsLost) and len(event.partitions) == PRODUCERS:
                        break
            await wait_until(lambda: consumer.positions() == {})
        await wait_until(lambda: len(consumer.positions()) == PRODUCERS)


async def test_groups_do_not_disturb_each_other(dafka_cluster: Cluster, producers: list[Producer]) -> None:
    async with (
        dafka_cluster.consumer(["orders"], dafka_cluster.config, group="bill") as one,
        dafka_cluster.consumer(["orders"], dafka_cluster.config, group="billing") as other,
    ):
        await wait_until(lambda: len(one.positions()) == len(other.positions()) == PRODUCERS)


async def test_a_member_that_was_stopped_hands_out_nothing_before_it_looks_at_its_lease(
    dafka_cluster: Cluster, producers: list[Producer], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with dafka_cluster.consumer(["orders"], dafka_cluster.config, group="billing") as consumer:
        await wait_until(lambda: len(consumer.positions()) == PRODUCERS)
        await wait_until(lambda: consumer.statistics().buffered_bytes > 0)
        with monkeypatch.context() as patch:
            patch.setattr(Group, "has_lease", lambda self: False)
            assert consumer._take_run() is None
        assert consumer._take_run() is not None


def test_settings_and_names_that_do_not_suit_groups_are_refused() -> None:
    config, longest = Config(), "b" * (255 - len(GROUP_PREFIX))
    for settings, group, message in (
        ({"name": "a"}, "b", "no `name` and no `positions`"),
        ({"positions": "memory:"}, "b", "no `name` and no `positions`"),
        ({"group_lease_ms": 600_001}, "b", "expected at most 600000, not 600001"),
        ({}, f"{longest}b", "255"),
    ):
        with pytest.raises(ConfigError, match=message):
            check_group(group, config.with_consumer(**settings))
    check_group(longest, config.with_consumer(group_lease_ms=600_000))


async def test_what_a_member_cannot_do(dafka_cluster: Cluster) -> None:
    config = dafka_cluster.config
    with pytest.raises(ConfigError, match="255"):
        async with dafka_cluster.consumer(["orders"], config, group="b" * 250):
            pytest.fail("it is open")
    async with dafka_cluster.consumer(["orders"], config, group="billing") as consumer:
        assert consumer.group == "billing"
        with pytest.raises(ConfigError, match="no group"):
            consumer.subscribe("others")
        with pytest.raises(ConfigError, match="this member"):
            consumer.seek({Partition("orders", "A"): 0})
        with pytest.raises(ConfigError, match="until"):
            consumer.batches(until={})


async def test_the_other_styles_have_groups(dafka_cluster: Cluster, producers: list[Producer]) -> None:
    config = dafka_cluster.config

    def handle_all() -> int:
        with dafka.blocking.open_consumer(["orders"], config, group="blocking") as consumer:
            seen = 0
            for batch in consumer.batches():
                seen += len(batch)
                consumer.save_positions()
                if seen == 10 * PRODUCERS:
                    return seen
        return 0

    with trio.fail_after(DEADLINE_S):
        assert await trio.to_thread.run_sync(handle_all) == 10 * PRODUCERS


@pytest.fixture
async def producer(dafka_cluster: Cluster) -> AsyncIterator[Producer]:
    async with dafka_cluster.producer("orders") as producer:
        await producer.send_many([b"%d" % number for number in range(10)])
        await producer.wait_stored()
        async with dafka_cluster.consumer(["orders"], dafka_cluster.config, group="billing") as consumer:
            with trio.fail_after(DEADLINE_S):
                await consumer.next_batch(4)
                await consumer.save_positions()
                check_saved(consumer)
        yield producer


async def test_a_group_without_members_keeps_its_positions(dafka_cluster: Cluster, producer: Producer) -> None:
    assert await list_groups(dafka_cluster.config) == ["billing"]
    found = await describe_group("billing", dafka_cluster.config)
    handled = found.positions[producer.partition]
    assert (found.members, found.ends) == ((), {producer.partition: 10})
    assert 0 < handled <= 4
    assert found.lag(producer.partition) == 10 - handled


async def test_a_partition_that_a_new_member_handles_is_not_reset(
    dafka_cluster: Cluster, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_tools, "PATIENCE_S", 0.1)
    config = dafka_cluster.config
    found = await describe_group("billing", config)
    async with dafka_cluster.consumer(["orders"], config, group="billing") as consumer:
        await wait_until(lambda: consumer.positions().keys() == {producer.partition})
        with pytest.raises(UnansweredError, match="'billing' was not reset: a member handles its partitions"):
            await reset_group(found, {producer.partition: 0}, config)
        assert consumer.positions()[producer.partition] > 0


async def test_an_unknown_group_has_nothing(dafka_cluster: Cluster) -> None:
    found = await describe_group("unknown", dafka_cluster.config)
    assert (found.members, found.positions, found.ends) == ((), {}, {})


async def test_a_group_goes_on_where_it_is_reset_to(dafka_cluster: Cluster, producer: Producer) -> None:
    config = dafka_cluster.config
    await reset_group(await describe_group("billing", config), {producer.partition: 7}, config)
    assert (await describe_group("billing", config)).positions == {producer.partition: 7}
    async with dafka_cluster.consumer(["orders"], config, group="billing") as consumer:
        with trio.fail_after(DEADLINE_S):
            assert (await consumer.next_batch()).first_sequence == 7


async def test_a_group_with_a_member_is_described_and_not_reset(dafka_cluster: Cluster, producer: Producer) -> None:
    config = dafka_cluster.config
    async with dafka_cluster.consumer(["orders"], config, group="billing") as consumer:
        await wait_until(lambda: consumer.positions().keys() == {producer.partition})
        found = await describe_group("billing", config)
        [member] = found.members
        assert (member.topics, member.partitions, member.is_silent) == (("orders",), (producer.partition,), False)
        before = consumer.positions()
        with pytest.raises(ConfigError, match="it has members that are alive"):
            await reset_group(found, {producer.partition: 0}, config)
        assert (await describe_group("billing", config)).positions == before


@pytest.mark.parametrize(
    ("leases_s", "signs_at_s", "silent", "ended_at_s"),
    [
        ((), (), set(), 0.0),
        ((10.0, 4.0), (1.2, 0.1), set(), 1.5),
        ((10.0, 4.0), (1.2, math.inf), {"1"}, 5.0),
        ((4.0, 10.0), (math.inf, math.inf), {"0", "1"}, 5.0),
        ((10.0,), (4.9,), set(), 5.0),
    ],
)
async def test_members_that_give_no_sign_for_half_of_the_longest_lease_are_silent(
    leases_s: tuple[float, ...],
    signs_at_s: tuple[float, ...],
    silent: set[str],
    ended_at_s: float,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
) -> None:
    living = [SimpleNamespace(address=str(n), lease_s=lease, next_sequence=7) for n, lease in enumerate(leases_s)]
    began = trio.current_time()

    async def survey(*_: object) -> None:
        await trio.lowlevel.checkpoint()
        for member, sign_at_s in zip(living, signs_at_s, strict=True):
            member.next_sequence = 7 + (trio.current_time() - began >= sign_at_s)

    monkeypatch.setattr(group_tools, "_survey", survey)
    reader: Any = SimpleNamespace(view=SimpleNamespace(living=lambda: living))
    with trio.fail_after(60):
        assert await group_tools._wait_signs(reader, Config()) == silent
    assert trio.current_time() - began == pytest.approx(ended_at_s)


class Claiming:
    """A group in which this program gets the partitions after a time, and whose stores keep what it saves, or not."""

    held_after_s, saves, kept_shift = 0.0, True, 0

    def __init__(self, name: str, topics: list[str], _config: Config, holder: Any) -> None:
        assert (name, topics) == ("g", ["bills", "orders"])
        self._partitions = list(holder.known_partitions())
        self._kept: dict[Partition, int] = {}
        self.log.clear()

    log: list[str] = []

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        self._began = trio.current_time()
        task_status.started()
        await trio.sleep_forever()

    def held(self) -> dict[Partition, int]:
        is_held = trio.current_time() - self._began >= self.held_after_s
        return dict.fromkeys(self._partitions, 0) | self._kept if is_held else {self._partitions[0]: 0}

    async def save(self, positions: dict[Partition, int]) -> None:
        self.log.append("save")
        if not self.saves:
            await trio.sleep_forever()
        self._kept = {partition: sequence + self.kept_shift for partition, sequence in positions.items()}

    async def leave(self) -> None:
        await trio.lowlevel.checkpoint()
        self.log.append("leave")


@pytest.mark.parametrize(
    ("has_silent", "settings", "is_reset", "ended_at_s"),
    [
        (False, {}, True, 0.0),
        (False, {"held_after_s": 9.9}, True, 9.9),
        (False, {"held_after_s": 11}, False, 10.0),
        (True, {"held_after_s": 11}, True, 11.0),
        (True, {"held_after_s": 16}, False, 15.0),
        (False, {"saves": False}, False, 10.0),
        (False, {"kept_shift": 1}, False, 0.0),
    ],
)
async def test_a_group_is_reset_once_the_leases_of_silent_members_are_over(
    has_silent: bool,
    settings: dict[str, Any],
    is_reset: bool,
    ended_at_s: float,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
) -> None:
    for name, value in settings.items():
        monkeypatch.setattr(Claiming, name, value)
    monkeypatch.setattr(group_tools, "Group", Claiming)
    members = (MemberDescription("A", (), (), is_silent=True),) if has_silent else ()
    positions = {Partition("orders", "A"): 3, Partition("bills", "B"): 0}
    config = Config().with_consumer(group_lease_ms=4000)
    began = trio.current_time()
    with nullcontext() if is_reset else pytest.raises(UnansweredError, match="group 'g' was not reset: a member"):
        await reset_group(GroupDescription("g", members, {}, {}), positions, config)
    assert trio.current_time() - began == pytest.approx(ended_at_s, abs=0.06 if is_reset else 0.001)
    assert Claiming.log[-1] == "leave"
    assert Claiming.log.count("save") == (is_reset or not settings.get("held_after_s"))
