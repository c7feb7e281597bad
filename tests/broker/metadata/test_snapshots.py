"""The log of metadata stays short, brokers start from snapshots of it, and a state that differs is noticed."""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import product
from random import Random
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.metadata import snapshots
from dafka.broker.core.metadata.cluster_state import METADATA_TOPIC
from dafka.broker.core.metadata.commands import SNAPSHOTS_KEPT, AlterSettings, SnapshotTaken
from dafka.broker.core.metadata.history import Change
from dafka.broker.core.metadata.snapshots import Snapshot, Snapshots, compress_snapshot
from dafka.broker.core.metadata.store_record import CLUSTER_TOPIC
from dafka.broker.core.positions import Offset
from dafka.broker.core.typed_json import encode_json
from dafka.broker.interbroker.messenger import BrokerMessenger, Message
from dafka.broker.metadata import snapshot_exchange
from dafka.broker.metadata.snapshot_exchange import (
    ASK_AGAIN_S,
    ASKED_MAX,
    PartAnswer,
    PartRequest,
    SnapshotExchange,
)
from dafka.broker.node import BrokerNode
from dafka.errors import RefusedChangeError, StateDiffersError, StorageError
from dafka.exceptions import unwrap_group
from dafka.records import Partition, RecordBatch
from tests.broker.replication.virtual_cluster import VirtualCluster, open_virtual_cluster, wait_for

EVERY = 3
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "SNAPSHOT_OFFSETS", EVERY)


def start_of(broker: BrokerNode) -> int:
    assert broker.metadata.log is not None
    return broker.metadata.log.index.start_offset


def agree(cluster: VirtualCluster) -> bool:
    """Return whether all brokers have applied the same commands, and have the same state."""
    found = [each.tables.state for each in cluster.brokers.values()]
    return all((each.applied, each.records) == (found[0].applied, found[0].records) for each in found)


async def change_often(broker: BrokerNode, topic: str = "orders") -> None:
    """Change a topic until the log of metadata is shortened."""
    topic_id, before = broker.log_table.topics[topic].topic_id, start_of(broker)
    for number in range((SNAPSHOTS_KEPT + 2) * EVERY):
        await broker.changes.change(AlterSettings(topic_id, {"retention.ms": str(number)}))
    await wait_for(lambda: start_of(broker) > before)


@asynccontextmanager
async def open_changed(names: str, **settings: Any) -> AsyncIterator[VirtualCluster]:
    """Run brokers whose log of metadata was shortened, and that do not have the first commands any more."""
    async with open_virtual_cluster(names, names, store_retention_interval_ms=1000, **settings) as cluster:
        await change_often(cluster.brokers[names[0]])
        await trio.sleep(10)  # until no change is on its way any more
        await cluster.brokers[names[0]].admin.create_topic("last")
        await wait_for(lambda: all(has_dropped(cluster, each) for each in names))
        yield cluster


def has_dropped(cluster: VirtualCluster, name: str) -> bool:
    """Return whether a broker does not have the first commands any more."""
    log = cluster.brokers[name].tables.find_metadata()
    assert log is not None
    led = log.leader_partition(log.replica.latest.leader_epoch)
    return cluster.earliest(name, led) > [0]


async def test_the_log_is_shortened_to_the_snapshots_that_stay(autojump_clock: MockClock) -> None:
    async with open_changed("ABC") as cluster:
        controller = next(each for each in cluster.brokers.values() if each.controller.is_active)
        state = controller.tables.state
        await wait_for(lambda: agree(cluster) and start_of(controller) == state.snapshots[0].offset)
        assert len(state.snapshots) == SNAPSHOTS_KEPT
        for broker in cluster.brokers.values():
            kept = broker.metadata.snapshots
            assert [kept.checksum(each.offset) for each in state.snapshots] == [
                each.checksum for each in state.snapshots
            ]
            assert 0 < start_of(broker) <= start_of(controller)  # a follower learns it with the next command


async def test_the_log_keeps_its_begin_until_as_many_snapshots_are_agreed_on(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("A", "A") as cluster:
        broker, count = cluster.brokers["A"], 0
        while start_of(broker) == 0:
            count += 1
            known = len(broker.tables.state.snapshots)
            await broker.admin.change_topic("orders", settings={"retention.ms": str(count)})
            await trio.sleep(5)
        assert known >= SNAPSHOTS_KEPT - 1


async def test_a_new_broker_starts_from_a_snapshot(autojump_clock: MockClock) -> None:
    async with open_changed("ABC") as cluster:
        (joined,) = await cluster.start("D")
        await wait_for(lambda: agree(cluster))
        begun = joined.metadata.recent.begin
        assert begun > 0
        assert joined.metadata.snapshots.checksum(begun), "it has the state before the first change that it knows"
        assert has_dropped(cluster, "D")
        assert joined.log_table.topics["orders"] == cluster.brokers["A"].log_table.topics["orders"]
        await joined.admin.create_topic("more")
        await wait_for(lambda: agree(cluster))
        for name in "DACB":
            await cluster.stop(name)
            await cluster.start(name)
            await cluster.brokers["D"].admin.create_topic(f"after-{name}")
            await wait_for(lambda: agree(cluster))


def is_loaded(broker: BrokerNode) -> bool:
    """Return whether a broker can read all commands that it has applied."""
    log = broker.metadata.log
    return log is not None and min(log.high_watermark, log.index.end_offset) >= broker.tables.state.applied


async def read_history(broker: BrokerNode, count: int) -> list[Change]:
    """Return all changes that a broker can read, page by page."""
    found, before = await broker.history.read(None, count)
    while before is not None:
        page, before = await broker.history.read(before, count)
        assert page, "there are more before an offset only if it says so"
        found = page + found
    return found


async def test_the_last_changes_can_be_read_at_each_broker_page_by_page(autojump_clock: MockClock) -> None:
    async with open_changed("ABC") as cluster:
        await cluster.start("D")
        await cluster.brokers["D"].admin.set_draining("A" * 32, is_draining=True, ordered_by="anne at 10.0.0.7")
        with pytest.raises(RefusedChangeError):
            await cluster.brokers["D"].changes.change(AlterSettings("unknown", {}))
        await wait_for(lambda: agree(cluster))
        pages = {name: await read_history(each, 7) for name, each in cluster.brokers.items()}
        assert pages["A"] == await read_history(cluster.brokers["A"], 1000)
        for name, broker in cluster.brokers.items():
            assert pages[name]
            assert pages["A"][-len(pages[name]) :] == pages[name]
            assert pages[name][0].offset >= broker.metadata.snapshots.offsets[0]
        first, kept = start_of(cluster.brokers["A"]), cluster.brokers["A"].metadata.snapshots.offsets
        assert pages["A"][0].offset == min(each for each in kept if each >= first)
        drained, refused = [each for each in pages["D"] if not isinstance(each.order.command, SnapshotTaken)][-2:]
        assert (drained.description, drained.order.ordered_by) == ("drain broker 0", "anne at 10.0.0.7")
        assert (refused.outcome.error, refused.order.ordered_by) == (UNKNOWN, "broker 3")
        assert await cluster.brokers["A"].history.read(0, 5) == ([], None)
        await cluster.stop("A")
        (again,) = await cluster.start("A")
        if not is_loaded(again):
            with pytest.raises(StorageError, match="try again"):
                await again.history.read(None, 7)
        await wait_for(lambda: agree(cluster) and is_loaded(again))
        for count in (7, 1000):  # the broker reads them again, and then remembers them
            changes = await read_history(again, count)
            known = {each.offset: each for each in pages["A"]}
            assert [known.get(each.offset, each) for each in changes] == changes
            assert pages["A"][-1] in changes
            assert [each.offset for each in changes] == sorted({each.offset for each in changes})


async def test_a_broker_that_was_away_learns_from_a_snapshot_what_was_deleted(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("ABC", "ABC", store_retention_interval_ms=1000) as cluster:
        await cluster.create("visits", "ABC")
        await cluster.append(cluster.leader("visits"), b"x", topic="visits")
        await wait_for(lambda: bool(cluster.brokers["C"].storage.ends("visits")))
        await cluster.stop("C")
        await cluster.brokers["A"].admin.delete_topic("visits")
        await cluster.create("later", "AB")
        await change_often(cluster.brokers["A"])
        await wait_for(lambda: has_dropped(cluster, "A") and has_dropped(cluster, "B"))
        assert await cluster.disks["C"].partitions("visits")
        (behind,) = await cluster.start("C")
        await wait_for(lambda: agree(cluster))
        assert sorted(behind.topics) == ["later", "orders"]
        await wait_for(lambda: not behind.storage.ends("visits"))
        await wait_for(lambda: cluster.in_sync(METADATA_TOPIC) == "ABC")


async def test_a_snapshot_that_the_voters_have_not_agreed_on_is_not_used(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_changed("ABC") as cluster:
        owners = {id(each.metadata.snapshots): name for name, each in cluster.brokers.items()}

        def find(own: Snapshots, offset: int) -> bytes | None:
            wrong = {"A": b"damaged", "B": compress_snapshot(Snapshot(Offset(offset), {}))}
            return wrong.get(owners[id(own)])

        with monkeypatch.context() as patch:
            patch.setattr(Snapshots, "find", find)
            (joined,) = await cluster.start("D", are_cut=True)
            await trio.sleep(10)
            assert joined.tables.state.applied == 0
        await wait_for(lambda: agree(cluster))


async def test_a_broker_whose_state_differs_stops_and_keeps_everything(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("ABC", "ABC") as cluster:
        await cluster.append(cluster.leader(), b"kept")
        await wait_for(lambda: all(each.storage.ends("orders") for each in cluster.brokers.values()))
        name = next(name for name, each in cluster.brokers.items() if not each.controller.is_active)
        topic = attrs.evolve(cluster.brokers[name].log_table.topics["orders"], replica_count=7)
        await cluster.stop(name)
        disk, state = cluster.disks[name], Partition(CLUSTER_TOPIC, name * 32)
        found = await disk.find_partition(state)
        assert found is not None
        keys, values = [f"topic/{topic.topic_id}".encode()], [encode_json(topic)]
        await disk.append([RecordBatch(state, found.end_sequence, values, keys=keys, timestamps=[1])])
        before = {partition: info.count for partition, info in (await disk.partitions("orders")).items()}
        others = next(iter(cluster.brokers.values()))

        async def run_again() -> None:
            with unwrap_group():
                async with trio.open_nursery() as nursery:
                    await nursery.start(cluster.run, name, {})
                    await change_often(others)
                    await trio.sleep(60)

        with pytest.raises(StateDiffersError, match="nothing is deleted: start this broker with an empty storage"):
            await run_again()
        assert {each: info.count for each, info in (await disk.partitions("orders")).items()} == before
        await others.admin.create_topic("more")


class Exchanges:
    """The exchanges of brokers A, B and C, and the messages between them."""

    def __init__(self, *states: str) -> None:
        self.messengers = {each: BrokerMessenger(each, partial(self._send_bytes, each)) for each in "ABC"}
        self.all: dict[str, SnapshotExchange] = {}
        self.sent: list[tuple[str, str, bytes]] = []
        for (name, messenger), state in zip(self.messengers.items(), states, strict=True):
            own = Snapshots()
            if state:
                own.add(Snapshot(Offset(EVERY), {b"cluster": state.encode()}))
            self.all[name] = SnapshotExchange(own, messenger)

    def _send_bytes(self, sender: str, receiver: str, data: bytes) -> None:
        self.sent.append((sender, receiver, data))

    def find_agreed(self, last_offset: int = 0, now: float = 0.0, voters: str = "ABC") -> SnapshotTaken | None:
        """Return what broker A finds when the others have answered."""
        self.all["A"].find_agreed(voters, last_offset, now)
        while self.sent:
            sender, receiver, data = self.sent.pop(0)
            self.messengers[receiver].receive(sender, data)
        return self.all["A"].find_agreed(voters, last_offset, now)


@pytest.mark.parametrize("voters", ["A", "AB", "ABC", "BC"])
def test_most_voters_must_have_stored_the_same_snapshot(voters: str) -> None:
    for states in product(["", "1", "2"], repeat=3):
        stored = dict(zip("ABC", states, strict=True))
        most = [state for state in "12" if 2 * sum(stored[each] == state for each in voters) > len(voters)]
        assert Exchanges(*states).find_agreed(EVERY, voters=voters) is None
        if not stored["A"] or not most:
            assert Exchanges(*states).find_agreed(voters=voters) is None
        elif most == [stored["A"]]:
            agreed = Exchanges(*states).find_agreed(voters=voters)
            assert agreed is not None
            assert agreed.offset == EVERY
        else:
            with pytest.raises(StateDiffersError):
                Exchanges(*states).find_agreed(voters=voters)


def test_a_snapshot_that_is_not_durable_does_not_count() -> None:
    exchanges, written = Exchanges("1", "1", ""), trio.Event()
    exchanges.all["B"].record_write(Offset(EVERY), written)
    assert exchanges.find_agreed() is None
    assert exchanges.all["A"].find_agreed("ABC", 0, ASK_AGAIN_S / 2) is None
    assert exchanges.sent == [], "they were asked a moment ago"
    written.set()
    assert exchanges.find_agreed(now=ASK_AGAIN_S) is not None


class Fetching:
    """Broker A, which fetches a snapshot of others. Each message is lost with some chance, or late."""

    def __init__(self, seed: int, nursery: trio.Nursery, loss: float, stored: dict[str, list[bytes]]) -> None:
        self.draw, self._nursery, self._loss = Random(seed), nursery, loss
        self.handlers: dict[tuple[str, type[Message]], Any] = {}
        self.asked = Counter[tuple[str, int, int]]()
        for name, found in stored.items():
            own: Any = SimpleNamespace(find=lambda offset, found=found: found[offset] if offset < len(found) else None)
            SnapshotExchange(own, self.make_messenger(name))
        self.exchange = SnapshotExchange(Snapshots(), self.make_messenger("A"))

    def make_messenger(self, name: str) -> Any:
        def on(kind: type[Message], handler: Any) -> None:
            self.handlers[name, kind] = handler

        def send(to: str, message: Message) -> None:
            if isinstance(message, PartRequest):
                self.asked[to, message.offset, message.part] += 1
            if self.draw.random() >= self._loss:
                self._nursery.start_soon(deliver, to, message)

        async def deliver(to: str, message: Message) -> None:
            await trio.sleep(self.draw.choice([0.01, 0.01, 0.8]))
            self.handlers[to, type(message)](name, message)

        return SimpleNamespace(address=name, on=on, send=send)


@pytest.mark.parametrize("loss", [0.0, 0.2])
@pytest.mark.parametrize("seed", range(8))
async def test_a_snapshot_of_many_parts_is_fetched_whole_or_not_at_all(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, seed: int, loss: float
) -> None:
    draw = Random(seed)
    wanted, other = (Snapshot(Offset(1), {b"cluster": b"%d" % draw.getrandbits(10_000)}) for _ in range(2))
    data, size = compress_snapshot(wanted), draw.choice([1, 2, 7])
    part_bytes = -(-len(data) // size) if draw.random() < 0.5 else len(data) // size
    monkeypatch.setattr(snapshot_exchange, "PART_BYTES", part_bytes)
    kinds = {"right": data, "other": compress_snapshot(other), "damaged": data[:-1], "none": b""}
    stored = {name: draw.choice([*kinds, "right"]) for name in "BC"}
    async with trio.open_nursery() as nursery:
        fetching = Fetching(seed, nursery, loss, {name: [b"", kinds[kind]] for name, kind in stored.items()})
        agreed, found, attempts = SnapshotTaken(1, wanted.checksum), None, 0
        while found is None and attempts < (60 if loss else 1):
            fetching.asked.clear()
            found = await fetching.exchange.fetch(agreed, "BC")
            attempts += 1
            assert all(each <= ASKED_MAX for each in fetching.asked.values())
            assert all(offset == 1 and part * part_bytes <= len(data) for _, offset, part in fetching.asked)
        assert found == (wanted if "right" in stored.values() else None)
        nursery.cancel_scope.cancel()


async def test_a_broker_that_never_ends_a_snapshot_is_given_up(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_exchange, "SNAPSHOT_BYTES_MAX", 100)
    async with trio.open_nursery() as nursery:
        fetching = Fetching(0, nursery, 0.0, {})
        other = fetching.make_messenger("B")

        def answer(sender: str, message: PartRequest) -> None:
            part = b64encode(bytes(10)).decode() if message.part < 50 else ""
            other.send(sender, PartAnswer(message.offset, message.part, 10**9, part))

        other.on(PartRequest, answer)
        assert await fetching.exchange.fetch(SnapshotTaken(1, ""), "B") is None
        assert len(fetching.asked) < 20
        nursery.cancel_scope.cancel()


async def test_a_part_counts_only_from_the_broker_that_was_asked(autojump_clock: MockClock) -> None:
    wanted = Snapshot(Offset(1), {b"cluster": b"1"})
    async with trio.open_nursery() as nursery:
        fetching = Fetching(0, nursery, 0.0, {"B": [b"", compress_snapshot(wanted)]})
        answer = fetching.handlers["B", PartRequest]

        def answer_late(sender: str, message: PartRequest) -> None:
            forged = PartAnswer(message.offset, message.part, 1, b64encode(b"forged").decode())
            fetching.handlers["A", PartAnswer]("C", forged)
            answer(sender, message)

        fetching.handlers["B", PartRequest] = answer_late
        assert await fetching.exchange.fetch(SnapshotTaken(1, wanted.checksum), "B") == wanted
        nursery.cancel_scope.cancel()
