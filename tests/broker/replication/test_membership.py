"""Brokers of a cluster: their numbers, who is alive, and leases, also after a process was stopped."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from dafka.broker.core.metadata.brokers import BROKERS_TOPIC, BrokerRegistration, Brokers, decode_broker
from dafka.broker.replication.membership import SETTLE_S, Membership
from dafka.config.settings import BrokerConfig
from dafka.errors import ConfigError
from dafka.wire import Head
from tests.broker.replication.virtual_cluster import PATIENCE_S, VirtualCluster, open_virtual_cluster, wait_for


def numbers(cluster: VirtualCluster) -> dict[str, int]:
    return {name: each.brokers.own.number for name, each in cluster.brokers.items()}


async def test_a_broker_with_the_number_of_another_one_is_refused(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster() as cluster:
        await cluster.start("A", number=1)
        found = f"the broker {'A' * 32} has the number 1; start this broker with another number"
        with trio.fail_after(PATIENCE_S), pytest.raises(ConfigError, match=found):
            await cluster.run("C", {"number": 1})
        await wait_for(lambda: [each.number for each in cluster.brokers["A"].brokers.all()] == [1])
        await cluster.start("B", number=2)
        await cluster.stop("B")
        with trio.fail_after(PATIENCE_S), pytest.raises(ConfigError, match="has the number 2 in its cluster, not 3"):
            await cluster.run("B", {"number": 3})


@pytest.mark.parametrize("has_peers", [True, False])
@pytest.mark.parametrize("settles_after_s", [0.5, 10**6])
async def test_a_broker_that_starts_waits_as_long_as_others_can_be_there(
    autojump_clock: MockClock, settles_after_s: float, has_peers: bool
) -> None:
    begun = trio.current_time()
    node: Any = SimpleNamespace(peers=[1] * has_peers, wait_settled=lambda: trio.sleep_until(begun + settles_after_s))
    brokers = SimpleNamespace(own=BrokerRegistration(address="A" * 32))
    tables: Any = SimpleNamespace(brokers=brokers, logs=None, state=None)
    unused: Any = None
    config = BrokerConfig(leader_timeout_ms=5000, heartbeat_ms=500)
    membership = Membership(tables, unused, unused, node, config)
    assert membership.has_peers == has_peers
    await membership.wait_others()
    assert trio.current_time() - begun == pytest.approx(min(settles_after_s + has_peers, SETTLE_S))


def make_membership(own: BrokerRegistration, **parts: Any) -> tuple[Any, list[Any]]:
    """Return the membership of the broker `a` in a cluster with `b` and `c`, and what it sends and subscribes to."""
    made: list[Any] = []
    registered = {each: SimpleNamespace(store_id=each, number=n, is_draining=False) for n, each in enumerate("abc")}
    state = SimpleNamespace(brokers=registered, forgotten_ids=set())
    tables: Any = SimpleNamespace(brokers=Brokers(own, 1.0), state=state, logs=None)
    mesh: Any = SimpleNamespace(address="a", publish=made.extend, subscribe_acknowledgements=made.append)
    unused: Any = None
    storage: Any = SimpleNamespace(**parts)
    return Membership(tables, storage, mesh, unused, BrokerConfig(leader_timeout_ms=1000, heartbeat_ms=500)), made


async def test_heartbeats_are_sent_when_they_are_due_once_the_registration_is_durable(
    autojump_clock: MockClock,
) -> None:
    ends = [0]
    membership, made = make_membership(BrokerRegistration(address="a"), durable_end=lambda _: ends[0])
    for wait_s, end, is_due in ((0, 0, True), (0, 1, False), (0.45, 1, False), (0.05, 1, True), (0.4, 5, False)):
        await trio.sleep(wait_s)
        ends[0] = end
        sent_at = membership._heartbeat_sent_at
        membership.send_heartbeat_if_due()
        assert (membership._heartbeat_sent_at != sent_at) == is_due
        assert made == ([Head("a", BROKERS_TOPIC, end - 1)] if is_due and end else [])
        made.clear()
    assert membership.make_heartbeat() == [Head("a", BROKERS_TOPIC, 4)]
    await trio.sleep(0.4)
    membership.send_heartbeat_if_due()
    assert made == [], "the last one was sent a moment ago"


@pytest.mark.parametrize("own", ["", "own"])
async def test_brokers_of_other_clusters_are_seen_and_warned_of_once(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, own: str
) -> None:
    membership, made = make_membership(BrokerRegistration(address="a", cluster_id=own, rack="r"))
    clusters = {"a": own, "b": own, "c": own, "x": "other", "y": "other", "z": "third", "n": ""}
    for address, cluster in clusters.items():
        membership.learn(BrokerRegistration(address=address, cluster_id=cluster))
    for _ in range(2):
        membership.record_heartbeats([*clusters, "unknown"])
    warned = [each.getMessage().split(",")[1].partition(";")[0].strip() for each in caplog.records]
    assert warned == (["other", "third"] if own else [])
    assert made == ["b", "c"], "only brokers of this cluster, for readers of its rack"
    for each in "bcxy":
        membership._brokers.record_heartbeat(each, trio.current_time())
    assert {each.address for each in membership.seen()} == set("bcxy")
    await trio.sleep(1.5)
    assert membership.seen() == []


async def test_what_the_cluster_has_agreed_about_a_broker_wins_over_what_it_says_itself() -> None:
    membership, _ = make_membership(BrokerRegistration(address="a", number=0))
    for is_draining in (False, True, False):
        membership._state.brokers["b"] = SimpleNamespace(store_id="b", number=4, is_draining=is_draining)
        for change in (lambda: membership.learn(BrokerRegistration(address="b", rack="x")), membership.apply_state):
            change()
            found = membership._brokers.find("b")
            assert (found.number, found.is_draining, found.rack) == (4, is_draining, "x")
    membership._state.forgotten_ids.add("b")
    del membership._state.brokers["b"]
    membership.apply_state()
    assert membership._brokers.find("b") is None


async def test_the_registration_of_a_broker_is_stored_and_reaches_the_others(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster() as cluster:
        first, other = await cluster.start("A", "B", rack="here")
        await first.admin.set_draining(first.address, is_draining=True)
        await wait_for(lambda: other.brokers.find("A" * 32) == first.brokers.own)
        stored = first.storage.state(BROKERS_TOPIC)[b"A" * 32]
        assert decode_broker("A" * 32, stored) == first.brokers.own
        assert (first.brokers.own.rack, first.brokers.own.is_draining) == ("here", True)
        await cluster.stop("A")
        await wait_for(lambda: not other.brokers.is_alive("A" * 32))
        (again,) = await cluster.start("A")
        assert again.brokers.own.is_draining, "until it is told otherwise"
        assert again.brokers.own.rack == ""
        for _ in range(2):
            await again.admin.set_draining(again.address, is_draining=False)
            assert not again.brokers.own.is_draining


@pytest.mark.parametrize("stalled_s", [0.76, 0.9, 0.99, 5.0, 3600.0])
async def test_a_broker_that_was_stopped_takes_nobody_for_dead(
    autojump_clock: MockClock, stalled_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heartbeats that wait to be read show that the others are alive."""
    async with open_virtual_cluster("ABC", "ABC", leader_timeout_ms=1000, heartbeat_ms=250) as cluster:
        brokers = list(cluster.brokers.values())
        await cluster.append("A", b"a")
        await trio.sleep(3)
        dead: list[str] = []

        def check_and_note(brokers: Brokers, check: Callable[..., bool], *arguments: float) -> bool:
            changed = check(*arguments)
            dead.extend({"A" * 32, "B" * 32, "C" * 32} - brokers.alive)
            return changed

        for each in brokers:
            checked = partial(check_and_note, each.brokers, each.brokers.check_alive)
            monkeypatch.setattr(each.brokers, "check_alive", checked)
        for _ in range(3):
            autojump_clock.jump(stalled_s)
            await trio.sleep(2)
        assert dead == []
        assert cluster.leader() == "A"
        assert cluster.log("A").leadership.epoch == 0


async def test_the_only_broker_has_the_leases_of_its_logs(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster() as cluster:
        (broker,) = await cluster.start("A")
        await cluster.create("orders", "A")
        assert broker.leases.holds_lease(cluster.log("A"))
        with trio.fail_after(PATIENCE_S):
            await broker.leases.wait_lease(cluster.log("A"))
        autojump_clock.jump(3600)
        assert broker.leases.holds_lease(cluster.log("A"))
