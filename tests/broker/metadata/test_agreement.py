"""Brokers of a cluster agree on its topics: commands take effect once, in one order, if most voters have them."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.metadata.cluster_state import METADATA_TOPIC
from dafka.broker.core.metadata.commands import Command, DrainBroker, RegisterBroker
from dafka.broker.metadata import controller as controllers
from dafka.broker.metadata.changes import CONTROLLER_S, ClusterChanges
from dafka.broker.metadata.controller import VOTER_AFTER_S, OrderRequest
from dafka.broker.node import BrokerNode
from dafka.errors import ConfigError, NoControllerError, RefusedChangeError, StorageFormatError
from dafka.records import Partition, RecordBatch
from tests.broker.replication.virtual_cluster import PATIENCE_S, Disk, VirtualCluster, open_virtual_cluster, wait_for


def states(cluster: VirtualCluster) -> list[object]:
    """Return the topics and brokers of the cluster, as each broker has them."""
    return [(each.tables.state.topics, each.tables.state.brokers) for each in cluster.brokers.values()]


def controller(cluster: VirtualCluster) -> str:
    """Return the name of the controller; empty if there is none, or more than one."""
    found = [name for name, each in cluster.brokers.items() if each.controller.is_active]
    return found[0] if len(found) == 1 else ""


def voters(broker: BrokerNode) -> str:
    found = broker.replicator.logs.find(f"{broker.cluster_id}/0")
    assert found is not None
    return "".join(sorted(each[0] for each in found.replica.latest.voters))


async def agree(cluster: VirtualCluster) -> None:
    await wait_for(lambda: all(each == states(cluster)[0] for each in states(cluster)))


async def test_another_broker_becomes_the_controller_and_makes_the_next_changes(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("ABC") as cluster:
        await cluster.brokers["C"].admin.create_topic("first", 2)
        former = controller(cluster)
        await cluster.stop(former)
        begun = trio.current_time()
        await wait_for(lambda: controller(cluster) != "")
        assert trio.current_time() - begun < 2
        for name in sorted(cluster.brokers):
            await cluster.brokers[name].admin.create_topic(f"by-{name}")
        await cluster.start(former)
        await agree(cluster)
        assert len(cluster.brokers[former].topics) == 3
        assert len({each.controller_address for each in cluster.brokers.values()}) == 1


async def test_a_request_is_appended_once_however_often_it_is_repeated(autojump_clock: MockClock) -> None:
    """Brokers repeat requests until their commands are applied, because messages can be lost."""
    async with open_virtual_cluster("ABC") as cluster:
        name = controller(cluster)
        log = cluster.log(name, METADATA_TOPIC)
        before = log.index.end_offset
        for each in cluster.brokers.values():
            each.messenger.send(name * 32, OrderRequest("malformed"))
        for disk in cluster.disks.values():
            disk.append_s = 2.0
        async with trio.open_nursery() as nursery:
            for name, each in cluster.brokers.items():
                nursery.start_soon(each.admin.create_topic, f"by-{name}")
        assert log.index.end_offset == before + 3


async def test_a_later_request_is_made_once_until_it_is_applied(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("AB", replicas=1) as cluster:
        name = controller(cluster)
        other, log = cluster.brokers["AB".replace(name, "")], cluster.log(name, METADATA_TOPIC)
        ends = [log.index.end_offset]
        for is_draining in (True, False, True):
            for _ in range(3):
                other.changes.request_later(DrainBroker("X" * 32, is_draining))  # which is refused
            await wait_for(lambda: log.index.end_offset > ends[-1])
            await trio.sleep(10)
            ends.append(log.index.end_offset)
        assert ends == [ends[0] + number for number in range(4)]


async def test_a_command_that_was_not_committed_never_takes_effect(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("ABC") as cluster:
        name = controller(cluster)
        others = "ABC".replace(name, "")
        cluster.cut(name, others)
        with trio.fail_after(PATIENCE_S), pytest.raises(NoControllerError, match="look whether it was made"):
            await cluster.brokers[name].admin.create_topic("lost")
        await cluster.brokers[others[0]].admin.create_topic("kept")
        cluster.heal()
        await agree(cluster)
        await trio.sleep(5)
        assert list(cluster.brokers[name].topics) == ["kept"]
        await cluster.brokers[name].admin.create_topic("lost")


async def test_a_name_is_taken_once_whoever_asks_at_the_same_time(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("ABC") as cluster:
        outcomes: list[ErrorCode] = []

        async def create(name: str) -> None:
            try:
                await cluster.brokers[name].admin.create_topic("orders", replica_count=1)
                outcomes.append(ErrorCode.NONE)
            except RefusedChangeError as error:
                outcomes.append(ErrorCode(error.error_code))

        async with trio.open_nursery() as nursery:
            for name in "ABCABC":
                nursery.start_soon(create, name)
        assert sorted(outcomes) == [ErrorCode.NONE, *[ErrorCode.TOPIC_ALREADY_EXISTS] * 5]
        await agree(cluster)


async def test_a_broker_that_was_killed_before_it_stored_the_state_applies_the_commands_again(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_virtual_cluster("AB", replicas=1) as cluster:
        await cluster.brokers["A"].admin.create_topic("kept", placement=[["B" * 32]])
        await wait_for(lambda: "kept" in cluster.brokers["B"].topics)
        monkeypatch.setattr(cluster.brokers["B"].metadata, "_store", trio.Event)
        unreadable = cluster.disks["B"].unreadable
        unreadable.add(cluster.log("A", METADATA_TOPIC).leader_partition)
        await cluster.brokers["A"].admin.create_topic("again", placement=[["B" * 32]])
        await trio.sleep(1)
        assert "again" not in cluster.brokers["B"].topics
        unreadable.clear()
        await wait_for(lambda: "again" in cluster.brokers["B"].topics)
        expected = states(cluster)[0]
        await cluster.stop("B")
        (again,) = await cluster.start("B")
        await wait_for(lambda: states(cluster) == [expected, expected])
        assert again.tables.state.applied == cluster.brokers["A"].tables.state.applied


async def test_brokers_that_come_later_become_voters_when_they_have_lived_for_a_while(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert VOTER_AFTER_S == 60
    monkeypatch.setattr(controllers, "VOTER_AFTER_S", 12.0)
    async with open_virtual_cluster("A") as cluster:
        await cluster.start("B")
        await trio.sleep(20)
        assert voters(cluster.brokers["A"]) == "A", "two voters would need both"
        await cluster.start("C")
        await trio.sleep(10)
        assert voters(cluster.brokers["A"]) == "A"
        await wait_for(lambda: {voters(each) for each in cluster.brokers.values()} == {"ABC"})
        await trio.sleep(1)  # until then, only the former voter is known to have everything
        await cluster.stop("A")
        await cluster.brokers["B"].admin.create_topic("orders")
        await wait_for(lambda: "orders" in cluster.brokers["C"].topics)


async def test_a_forgotten_voter_is_replaced_soon(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("ABCD") as cluster:
        await wait_for(lambda: len(voters(cluster.brokers["A"])) == 3 and cluster.leader(METADATA_TOPIC) != "")
        name = cluster.leader(METADATA_TOPIC)
        controller = cluster.brokers[name]
        lost, *_ = {*voters(controller)} - {name}
        await cluster.stop(lost)
        await wait_for(lambda: not controller.brokers.is_alive(lost * 32))
        await controller.admin.forget_broker(lost * 32)
        forgotten_at = trio.current_time()
        await wait_for(lambda: voters(controller) == "".join(sorted({*"ABCD"} - {lost})))
        assert trio.current_time() - forgotten_at < VOTER_AFTER_S / 2


async def test_without_a_controller_changes_are_refused_and_logs_go_on(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("AB") as cluster:
        await cluster.create("orders", "B")
        await cluster.stop("A")
        broker, begun = cluster.brokers["B"], trio.current_time()
        with pytest.raises(NoControllerError, match=r"0 of the 1 brokers .* are heard, 1 are needed\)"):
            await broker.admin.create_topic("other")
        assert trio.current_time() - begun == pytest.approx(CONTROLLER_S, abs=30)
        assert await cluster.append("B", b"x") == 0


# Joining


async def test_brokers_wait_for_as_many_as_the_cluster_begins_with(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster() as cluster:
        await cluster.start("C", "B", are_cut=True, initial_brokers=3)
        await trio.sleep(20)
        assert [each.cluster_id for each in cluster.brokers.values()] == ["", ""]
        sentence = "it waits for 1 of 3 brokers to form a cluster"
        assert [each.joining.waits_for for each in cluster.brokers.values()] == [sentence, sentence]
        await cluster.start("A", initial_brokers=3)
        assert len({each.cluster_id for each in cluster.brokers.values()}) == 1
        assert {each.joining.waits_for for each in cluster.brokers.values()} == {""}
        assert voters(cluster.brokers["B"]) == "ABC"
        record = cluster.brokers["A"].identity.record
        assert record is not None
        assert record.first_voters == ("A" * 32,), "the smallest one has formed it"


async def test_a_broker_says_that_it_waits_for_the_controller(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("AB") as cluster:
        cluster.cut("A", "BC")
        (third,) = await cluster.start("C", are_cut=True)
        await wait_for(lambda: third.cluster_id != "")
        expected = f"it waits until the controller registers it in the cluster {third.cluster_id} (0 of the 1 brokers"
        await trio.sleep(10)
        assert third.joining.waits_for.startswith(expected)
        cluster.heal()
        await wait_for(lambda: third.joining.waits_for == "")


@pytest.mark.parametrize("was_registered", [True, False])
async def test_a_broker_serves_before_its_start_is_accepted_only_if_it_was_registered(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, was_registered: bool
) -> None:
    change, is_reached = ClusterChanges.change, trio.Event()

    async def change_late(changes: ClusterChanges, command: Command, ordered_by: str = "") -> None:
        if isinstance(command, RegisterBroker):
            await is_reached.wait()
        await change(changes, command, ordered_by)

    async with open_virtual_cluster("ABC") as cluster:
        await cluster.stop("C")
        monkeypatch.setattr(ClusterChanges, "change", change_late)
        (broker,) = await cluster.start("C" if was_registered else "D", are_cut=True)
        await wait_for(lambda: broker.tables.state.is_open)
        await trio.sleep(10)
        assert broker.joining.has_joined.is_set() is was_registered
        is_reached.set()
        await wait_for(broker.joining.has_joined.is_set)


async def test_a_broker_with_another_number_of_initial_brokers_ends_and_the_others_wait(
    autojump_clock: MockClock,
) -> None:
    async with open_virtual_cluster() as cluster:
        await cluster.start("A", are_cut=True, initial_brokers=3)
        await trio.sleep(5)
        with pytest.raises(ConfigError, match="different numbers of initial brokers, 2 and 3"):
            await cluster.run("B", {"initial_brokers": 2})
        await cluster.start("C", "D", initial_brokers=3)


@pytest.mark.parametrize("wrong", ["w" * 32, ""])
async def test_a_broker_that_does_not_have_the_secret_of_most_others_ends(
    wrong: str, tmp_path: Path, autojump_clock: MockClock
) -> None:
    (tmp_path / "right").write_text("r" * 32)
    (tmp_path / "wrong").write_text(wrong)
    right, other = str(tmp_path / "right"), str(tmp_path / "wrong") if wrong else ""
    async with open_virtual_cluster("ABC", secret_file=right) as cluster:
        for name in "ABCD":
            if name in cluster.brokers:
                await cluster.stop(name)
            with pytest.raises(ConfigError, match=r"this broker has another secret than the brokers of its cluster \("):
                await cluster.run(name, {"secret_file": other})
            await cluster.start(name, secret_file=right)
            await cluster.brokers[name].admin.create_topic(f"at-{name}")


async def test_a_store_stays_in_its_cluster(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    async with open_virtual_cluster() as cluster:
        cluster.cut("A", "B")
        for name in "AB":
            await cluster.start(name, are_cut=True)
        await wait_for(lambda: all(each.joining.has_joined.is_set() for each in cluster.brokers.values()))
        ids = {name: each.cluster_id for name, each in cluster.brokers.items()}
        cluster.heal()
        await trio.sleep(10)
        assert {name: each.cluster_id for name, each in cluster.brokers.items()} == ids
        assert [len(each.brokers.all()) for each in cluster.brokers.values()] == [1, 1]
        for own, other in (ids.values(), reversed(ids.values())):
            assert caplog.text.count(f"there are brokers of another cluster, {other}; this broker stays in {own}") == 1
        with pytest.raises(ConfigError, match=r"there are several clusters, .*: choose one with --cluster"):
            await cluster.run("C", {})
        with pytest.raises(ConfigError, match=f"no broker of the cluster {'0' * 32} is seen, but brokers of"):
            await cluster.run("D", {"cluster": "0" * 32})
        (third,) = await cluster.start("C", are_cut=True, cluster=ids["B"])
        await wait_for(third.joining.has_joined.is_set)
        assert third.cluster_id == ids["B"]
        await cluster.stop("C")
        with pytest.raises(ConfigError, match=f"belongs to the cluster {ids['B']}, not to {ids['A']}"):
            await cluster.run("C", {"cluster": ids["A"]})


async def test_a_storage_of_a_broker_before_the_first_release_is_refused(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster() as cluster:
        disk = cluster.disks["A"] = Disk("A")
        await disk.append([RecordBatch(Partition("$topics", "A" * 32), 0, [b"{}"], keys=[b"t"], timestamps=[1])])
        with pytest.raises(
            StorageFormatError, match="`dafka storage copy --topic NAME` and `dafka storage export` read"
        ):
            await cluster.run("A", {})


async def test_topics_of_records_that_were_stored_before_are_created_once(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("AB") as cluster:
        cluster.cut("A", "B")
        for number in range(20):
            cluster.produce(number, b"%d" % number, topic="new")
        await trio.sleep(1)
        cluster.heal()
        await wait_for(lambda: all(list(each.topics) == ["new"] for each in cluster.brokers.values()))
        await wait_for(
            lambda: cluster.leader("new") != "" and cluster.log(cluster.leader("new"), "new").high_watermark == 20
        )
        assert await cluster.read(cluster.leader("new"), "new") == [b"%d" % each for each in range(20)]
