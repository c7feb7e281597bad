"""Several brokers as operators see them: who leads and keeps which log, leader epochs, moves, and draining."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock
from unittest.mock import call as mock_call

import attrs
import msgspec
import pytest
import trio
import trio.testing

from dafka.broker.core.cluster_status import MetadataQuorum
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.metadata.brokers import BrokerRegistration, Brokers
from dafka.broker.core.metadata.cluster_state import ClusterState
from dafka.broker.core.metadata.commands import CreateAcls, Order
from dafka.broker.core.metadata.history import Change
from dafka.broker.core.metadata.leader_and_isr import LeaderAndIsr
from dafka.broker.core.metadata.outcome import Outcome
from dafka.broker.core.positions import Offset
from dafka.broker.core.replication.records import NO_EPOCH_END, EpochStart, LeaderAndEpoch
from dafka.errors import ConfigError, NoControllerError, RefusedChangeError
from dafka.http.api import brokers as routes
from dafka.http.api import cluster, removal
from dafka.text import counted
from tests.broker.core.entries import epoch_end
from tests.http.running import STEADY, RunningWeb, SharedWeb, make_log, open_webs, outcome, run_webs
from tests.http.websocket.clients import open_client
from tests.waiting import poll_until, wait_until

FAST = STEADY.with_broker(heartbeat_ms=50, rack="r")
"""In racks, clients also read logs that another broker leads: each log counts once all the same."""

KILLED = FAST.with_broker(leader_timeout_ms=4000)
"""For tests that kill a broker: the others soon take it for lost, and none that only stops for a moment."""


@pytest.fixture(scope="module")
def webs() -> Iterator[Sequence[SharedWeb]]:
    with run_webs(3, FAST) as running:
        yield running


def know_leaders(webs: Sequence[RunningWeb], topic: str, log_count: int) -> bool:
    """Return whether all brokers know who leads each log of a topic."""
    logs = [web.broker.node.find_log(topic, number) for web in webs for number in range(log_count)]
    return all(log is not None and log.leadership.leader for log in logs)


async def create(webs: Sequence[RunningWeb], topic: str, log_count: int) -> None:
    """Create a topic, and wait until all brokers know who leads its logs."""
    answer = await webs[0].request("POST", "/topics", document={"name": topic, "log_count": log_count})
    assert answer.status == 201, answer.body
    await wait_until(lambda: know_leaders(webs, topic, log_count))


def create_shared(webs: Sequence[SharedWeb], topic: str, log_count: int, replica_count: int = 3) -> None:
    """Create a topic at brokers in a thread, as `create` does."""
    webs[0].create(topic, log_count, replica_count)
    poll_until(lambda: know_leaders(webs, topic, log_count))


def test_every_broker_says_the_same(webs: Sequence[SharedWeb]) -> None:
    create_shared(webs, "orders", 4)
    for number in range(4):
        answer = webs[0].ask("POST", f"/topics/orders/records?log={number}", b"x" * (number + 1))
        assert answer.status == 200, answer.body
    logs_here = [log for web in webs for log in web.broker.node.logs("orders")]
    poll_until(lambda: all(log.high_watermark == 1 for log in logs_here))
    described = [web.ask("GET", "/topics/orders").document["logs"] for web in webs]
    for web, logs in zip(webs, described, strict=True):
        assert [each["end_offset"] for each in logs] == [1, 1, 1, 1]
        assert all(sorted(each["replicas"]) == [0, 1, 2] for each in logs)
        assert all(each["leader"] in each["in_sync"] for each in logs)
        assert [each["leader"] for each in logs] == [each["leader"] for each in described[0]]
        (listed,) = web.ask("GET", "/topics?prefix=orders").document["topics"]
        assert (listed["record_count"], listed["end_offset"]) == (4, 4)
        brokers = web.ask("GET", "/brokers").document["brokers"]
        assert [each["number"] for each in brokers] == [0, 1, 2]
        assert [each["number"] for each in brokers if each["is_self"]] == [web.broker.node.brokers.own.number]
        assert {each["http_url"] for each in brokers} == {other.broker.url for other in webs}
        assert all(each["is_alive"] and not each["is_draining"] for each in brokers)
    epochs = [web.ask("GET", "/topics/orders/epochs").document["logs"] for web in webs]
    assert epochs[0] == epochs[1] == epochs[2]
    (epoch,) = epochs[0][0]["epochs"]
    assert (epoch["epoch"], epoch["start_offset"], epoch["parent_epoch"]) == (0, 0, None)
    assert (epoch["flags"], sorted(epoch["replicas"])) == (["first", "latest"], [0, 1, 2])


def moves(web: SharedWeb, topic: str) -> list[dict[str, Any]]:
    """Return the logs of a topic that are getting other replicas."""
    return [each for each in web.ask("GET", "/moves").document["moves"] if each["topic"] == topic]


@contextmanager
def storing_held(web: SharedWeb) -> Iterator[None]:
    """Have a broker store nothing during the block, so that no log moves to it."""
    storage: Any = web.broker.node.storage.storage
    append, may_append = storage.append, trio.Event()

    async def append_later(batches: Any) -> None:
        await may_append.wait()
        await append(batches)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "append", append_later)
        yield
    web.call_sync(may_append.set)


def test_logs_that_move_are_listed_with_the_reason(webs: Sequence[SharedWeb]) -> None:
    create_shared(webs, "moving", 1, replica_count=1)
    assert webs[2].ask("POST", "/topics/moving/records", b"v").status == 200
    assert not moves(webs[0], "moving")
    (log,) = webs[0].ask("GET", "/topics/moving").document["logs"]
    assert log["replicas"] == [log["leader"]]
    by_number = {web.broker.node.brokers.own.number: web for web in webs}
    controllers = {web.broker.node.controller_address for web in webs}
    wanted, gaining = next(
        (number, web)
        for number, web in by_number.items()
        if number != log["leader"] and web.broker.node.address not in controllers
    )
    with storing_held(gaining):
        path, document = "/topics/moving/logs/0/replicas", {"replicas": [wanted]}
        answer = by_number[log["leader"]].ask("PUT", path, document=document)
        assert answer.status < 300
        (move,) = moves(by_number[log["leader"]], "moving")
        assert (move["log"], move["reason"]) == (0, "an operator has named the brokers that keep it")
    poll_until(lambda: not any(moves(each, "moving") for each in webs))
    poll_until(lambda: webs[0].ask("GET", "/topics/moving").document["logs"][0]["replicas"] == [wanted])
    for web in webs:
        assert web.ask("GET", "/topics/moving/records").document["value"] == "v"


async def test_streams_go_on_when_the_leader_dies() -> None:
    async with open_webs(3, KILLED.with_broker(replicas=3)) as webs:
        await create(webs, "orders", 1)
        leader = next(web for web in webs if web.broker.node.logs("orders")[0].leadership.is_led)
        others = [web for web in webs if web is not leader]
        async with open_client(others[0]) as subscriber, open_client(others[1]) as publisher:
            producer = await publisher.ask("init_producer")
            ids = {each: producer[each] for each in ("producer_id", "producer_epoch")}
            await subscriber.subscribe("orders")
            await publisher.publish("orders", "a", **ids, base_sequence=0)
            assert await subscriber.values(1) == ["a"]
            leader.kill()
            found = await publisher.publish("orders", "b", **ids, base_sequence=1)
            assert found == [{"log": 0, "offset": 1, "count": 1}]
            assert await subscriber.values(1) == ["b"]


async def test_a_topic_has_no_counts_while_one_of_its_leaders_does_not_answer() -> None:
    async with open_webs(2, KILLED) as webs:
        document = {"name": "orders", "log_count": 1, "replica_count": 1}
        assert (await webs[0].request("POST", "/topics", document=document)).status == 201
        await wait_until(lambda: know_leaders(webs, "orders", 1))
        leader, other = sorted(webs, key=lambda web: not web.broker.node.logs("orders")[0].leadership.is_led)
        assert (await leader.request("POST", "/topics/orders/records", b"x")).status == 200

        async def counts() -> tuple[int | None, int | None]:
            (topic,) = (await other.get("/topics?prefix=orders")).document["topics"]
            return topic["record_count"], topic["end_offset"]

        assert await counts() == (1, 1)
        leader.kill()
        assert await counts() == (None, None)
        await wait_until(lambda: not other.broker.node.logs("orders")[0].leadership.leader)
        assert await counts() == (None, None)


# Any state of a cluster, as the first of its brokers sees it


ADDRESSES = [letter * 32 for letter in "abcd"]


def make_request(
    states: Sequence[str],
    leaderships: Sequence[LeaderAndIsr],
    voters: Sequence[str] = (),
    ordered: Sequence[str] = (),
    **fields: Any,
) -> Any:
    """Return a request to a broker that knows others and the logs of a topic, of which each wants two replicas.

    The first log gets the replicas that are ordered.
    """
    known: Brokers
    for number, (address, state) in enumerate(zip(ADDRESSES, states, strict=False)):
        broker = BrokerRegistration(address=address, number=10 + number, rack=f"rack {number}", free_bytes=number)
        broker = attrs.evolve(broker, http_url=f"http://{number}", is_draining=state == "draining")
        if number == 0:
            known = Brokers(broker, 5)
        known.record_registration(broker)
        known.record_heartbeat(address, 0 if state == "dead" else 100)
    known.check_alive(101)
    logs = [make_log(number) for number in range(len(leaderships))]
    for log, leadership in zip(logs, leaderships, strict=True):
        log.leadership = leadership
    node = SimpleNamespace(
        admin=SimpleNamespace(),
        address=ADDRESSES[0],
        brokers=known,
        tables=SimpleNamespace(state=ClusterState()),
        quorum=MetadataQuorum(ADDRESSES[0], dict.fromkeys(voters, True)),
        replica_changes=lambda: {logs[0]: SimpleNamespace(replicas=ordered)} if ordered else {},
        inventory=SimpleNamespace(orphans=lambda: {"gone": 3, "lost": 4}),
        all_logs=lambda: logs,
        logs=lambda _topic: logs,
        replicator=SimpleNamespace(
            reassigner=SimpleNamespace(under_replicated=lambda: logs[:1], wanted_count=lambda _log: 2)
        ),
    )
    context = {"broker": SimpleNamespace(node=node), "requester": "anne", "is_forwarded": False}
    return SimpleNamespace(**context, **fields)


def test_a_broker_is_drained_when_the_others_go_on_without_it() -> None:
    for seed in range(200):
        random = Random(seed)
        states = [random.choice(["up", "draining"]), *random.choices(["up", "draining", "dead"], k=3)]
        kept = [tuple(random.sample(ADDRESSES, random.randrange(1, 4))) for _ in range(random.randrange(1, 4))]
        led = [random.choice(["", *each]) for each in kept]
        pairs = zip(led, kept, strict=True)
        voters, ordered = (random.sample(ADDRESSES, random.choice([0, 0, 1, 3])) for _ in range(2))
        leaderships = [LeaderAndIsr(leader, replicas=each) for leader, each in pairs]
        request = make_request(states, leaderships, voters, ordered)
        says = [{"address": each, "is_self": each == ADDRESSES[2], "under_replicated_logs": 7} for each in ADDRESSES]
        get_all = AsyncMock(return_value={ADDRESSES[2]: {"brokers": says}})
        request.web = SimpleNamespace(other_brokers=SimpleNamespace(get_all=get_all))
        found = trio.run(routes.list_brokers, request)
        assert (found.log_count, found.leaderless_logs) == (len(kept), led.count(""))
        up = {address for address, state in zip(ADDRESSES, states, strict=True) if state == "up"}
        for number, (address, state) in enumerate(zip(ADDRESSES, states, strict=True)):
            is_needed_voter = address in voters and 2 * len(up & {*voters}) <= len(voters)
            is_needed = address in ordered or is_needed_voter
            is_needed |= any(address in each and len(up & {*each}) < min(2, len(up)) for each in kept)
            is_draining, each = state == "draining", found.brokers[number]
            assert (each.number, each.address, each.is_self) == (10 + number, address, not number)
            assert (each.rack, each.free_bytes) == (f"rack {number}", number)
            assert (each.is_alive, each.is_draining) == (state != "dead", is_draining)
            assert each.is_drained == (is_draining and address not in led and not is_needed), seed
            assert each.is_needed_voter == is_needed_voter, seed
            assert (each.logs_led, each.replicas) == (led.count(address), sum(address in each for each in kept))
            assert each.under_replicated_logs == [1, None, 7, None][number]
        problems = ["too few living brokers keep 1 log that this broker leads, such as log 0 of orders"]
        problems += [f"nobody can publish to {counted(led.count(''), 'log')} without a leader at present"] * ("" in led)
        problems += ["nobody reads 2 partitions with 7 records of no topic that this broker knows, such as gone"]
        dead = [f"broker 1{n} at http://{n} is not heard" for n, state in enumerate(states) if state == "dead"]
        found_problems = routes.find_broker_problems(request.broker.node)
        assert [*found_problems] == dead + problems


async def test_each_broker_of_the_cluster_can_be_drained_at_any_broker() -> None:
    for text, expected in (
        *((each, "broker_not_found") for each in ("7", "x", "-1", "", "²", "000010")),
        *(("10", ADDRESSES[0]), ("11", ADDRESSES[1]), ("12", ADDRESSES[2])),
    ):
        for action, call in (("drain", routes.drain_broker), ("undrain", routes.undrain_broker)):
            request = make_request(["up", "up", "dead"], [], arguments={"number": text})
            drain = request.broker.node.admin.set_draining = AsyncMock()
            found: Any = await outcome(call(request))
            assert (found if isinstance(found, str) else found.address) == expected, text
            asked = mock_call(expected, is_draining=action == "drain", ordered_by="anne")
            assert drain.mock_calls == ([] if isinstance(found, str) else [asked])


async def test_a_number_is_drained_that_another_store_gets_meanwhile() -> None:
    gone = RefusedChangeError("there is no such broker", ErrorCode.BROKER_ID_NOT_REGISTERED)
    for successor, expected in ((ADDRESSES[2], None), (ADDRESSES[1], gone)):
        request = make_request(["up"] * 3, [], arguments={"number": "11"})
        node, asked = request.broker.node, list[str]()
        after = attrs.evolve(node.brokers.find_number(11), address=successor)

        async def drain(
            address: str, *, node: Any = node, asked: list[str] = asked, after: Any = after, **_: object
        ) -> None:
            await trio.lowlevel.checkpoint()
            asked.append(address)
            if len(asked) == 1:
                node.brokers.find_number = lambda _: after
                raise gone

        node.admin.set_draining = drain
        if expected is None:
            await routes.drain_broker(request)
            assert asked == [ADDRESSES[1], successor]
        else:
            with pytest.raises(RefusedChangeError):
                await routes.drain_broker(request)
            assert asked == [ADDRESSES[1]]


async def test_the_replicas_of_a_log_become_the_named_brokers_in_their_order() -> None:
    led = [LeaderAndIsr(ADDRESSES[0]), LeaderAndIsr(ADDRESSES[1], 5, False, ("x", ADDRESSES[1]), learners=("x",))]
    cases: list[tuple[str, list[int], str | list[int]]] = [
        *((each, [10], "bad_request") for each in ("x", "-1", "", "²", "0" * 10)),
        *(("2", [10], "log_not_found"), ("1", [10, 13], "broker_not_found"), ("1", [], []), ("01", [12, 10], [2, 0])),
    ]
    for text, numbers, expected in cases:
        request = make_request(["up"] * 3, led, arguments={"topic": "orders", "log": text})
        change = request.broker.node.admin.change_replicas = AsyncMock()
        found = await outcome(routes.change_replicas(request, routes.NewReplicas(numbers)))
        if isinstance(expected, str):
            assert (found, change.mock_calls) == (expected, [])
            continue
        addresses = [ADDRESSES[each] for each in expected]
        change.assert_called_once_with(request.broker.node.logs("")[1], addresses, ordered_by="anne")
        assert found == routes.Replicas(11, 5, [11], None), "it is led elsewhere, and a replica is not known"
    with pytest.raises(ConfigError, match="each broker once"):
        await routes.change_replicas(request, routes.NewReplicas([11, 11]))


async def test_leader_epochs_with_the_same_parent_are_divergent() -> None:
    epochs = [LeaderAndEpoch(5 + place, leader) for place, leader in enumerate([*ADDRESSES[:2], "gone", "gone"])]
    parents = [NO_EPOCH_END, epoch_end(epochs[0], 3), epoch_end(epochs[0], 4), epoch_end(epochs[2], 9)]
    starts = [EpochStart("", *each, ("gone", ADDRESSES[1])) for each in zip(epochs, parents, strict=True)]
    request = make_request(["up"] * 2, [LeaderAndIsr("")], arguments={"topic": "orders"})
    request.broker.node.epoch_starts = lambda _topic: [starts]
    (log,) = (await routes.list_epochs(request)).logs
    assert [msgspec.structs.astuple(each) for each in log.epochs] == [
        (5, 10, ADDRESSES[0], None, None, "", 0, [11], ["first"]),
        (6, 11, ADDRESSES[1], 5, 10, ADDRESSES[0], 3, [11], ["divergent"]),
        (7, None, "gone", 5, 10, ADDRESSES[0], 4, [11], ["divergent"]),
        (8, None, "gone", 7, None, "gone", 9, [11], ["latest"]),
    ]


# The cluster as a whole, and brokers that are lost


async def test_the_cluster_is_described_with_what_each_leader_says_of_its_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "LOGS_SHOWN", 1)
    monkeypatch.setattr(cluster, "explain_leaderless", lambda log, _tables: f"why {log.number}")
    first, second, dead, unknown = ADDRESSES
    own = LeaderAndIsr(first, 5, True, (first, dead), in_sync=(first,))
    request = make_request(["up", "up", "dead"], [own, LeaderAndIsr(""), LeaderAndIsr(""), LeaderAndIsr(second)])
    node, get_all, logs = request.broker.node, AsyncMock(), request.broker.node.all_logs()
    request.web = SimpleNamespace(other_brokers=SimpleNamespace(get_all=get_all))
    node.cluster_id, node.quorum = (
        "x",
        MetadataQuorum(second, {unknown: False, second: True, first: False}, Offset(9), Offset(8)),
    )
    node.log_table = SimpleNamespace(topics={"orders": SimpleNamespace(topic_id="id")})
    members = SimpleNamespace(feature_level=3, levels=SimpleNamespace(highest=4))
    node.tables.state = SimpleNamespace(is_open=True, members=members, brokers={})
    ordered = SimpleNamespace(replicas=[second], reason=SimpleNamespace(sentence="ordered"))
    node.replica_changes = lambda: dict.fromkeys(logs[:2], ordered)
    node.replicator.reassigner.under_replicated = lambda: [logs[0], logs[3]]
    elsewhere = cluster.UnderReplicatedLog(11, 1, [], [], "billing", 3, "slow")
    said = {"under_replicated_logs": 20, "under_replicated": [msgspec.to_builtins(elsewhere)]}
    get_all.return_value = {second: said, dead: {"under_replicated_logs": 300, "under_replicated": []}}
    found = await cluster.describe_cluster(request)
    assert (found.cluster_id, found.is_open, found.feature_level, found.feature_level_max) == ("x", True, 3, 4)
    assert (found.controller, found.voters_needed, found.metadata_committed, found.metadata_applied) == (11, 2, 9, 8)
    voters = [(10, first, False), (11, second, True), (None, unknown, False)]
    assert [msgspec.structs.astuple(each) for each in found.voters] == voters
    assert [each.under_replicated_logs for each in found.brokers] == [2, 20, 300]
    assert (found.log_count, found.leaderless_logs, found.move_count) == (4, 2, 2)
    assert [msgspec.structs.astuple(each) for each in found.leaderless] == [("orders", 1, "why 1")]
    assert [msgspec.structs.astuple(each) for each in found.moves] == [("orders", 0, [10, 12], [], [11], "ordered")]
    assert found.under_replicated_logs == 22, "what a broker has said that is not alive does not count"
    here = cluster.UnderReplicatedLog(10, 5, [10, 12], [10], "orders", 0, "broker 12 is not heard")
    assert found.under_replicated == [elsewhere, here]
    request.is_forwarded = True
    assert (await cluster.describe_cluster(request)).under_replicated == [here]
    get_all.assert_awaited_once_with("/cluster")


@pytest.mark.parametrize("is_dry_run", [False, True])
@pytest.mark.parametrize("is_other", [False, True])
async def test_operators_orders_reach_the_controller_as_they_are(is_dry_run: bool, is_other: bool) -> None:
    leaderships = [LeaderAndIsr(ADDRESSES[0]), LeaderAndIsr(ADDRESSES[1], 5, False)]
    arguments = {"number": "12", "topic": "orders", "log": "1"}
    request = make_request(["up", "up", "dead"], leaderships, arguments=arguments)
    node, logs = request.broker.node, request.broker.node.all_logs()
    node.log_table = SimpleNamespace(find_log=lambda topic, number: logs[number] if topic == "orders" else None)
    node.tables.state = SimpleNamespace(members=SimpleNamespace(feature_level=6))
    admin = node.admin
    admin.forget_broker, admin.recover_log, admin.set_feature_level = AsyncMock(), AsyncMock(), AsyncMock()
    forgotten = await removal.forget_broker(request, removal.Forgetting(is_other, is_dry_run))
    assert msgspec.structs.astuple(forgotten) == (12, ADDRESSES[2])
    options = {"is_dry_run": is_dry_run, "ordered_by": "anne"}
    admin.forget_broker.assert_awaited_once_with(ADDRESSES[2], accepts_loss=is_other, **options)
    recovered = await removal.recover_log(request, removal.Recovery(10 + is_other, is_dry_run))
    assert recovered == routes.Replicas(11, 5, [], None)
    admin.recover_log.assert_awaited_once_with(logs[1], ADDRESSES[is_other], **options)
    assert (await cluster.raise_feature_level(request, cluster.NewFeatureLevel(7, is_dry_run))).feature_level == 6
    admin.set_feature_level.assert_awaited_once_with(7, **options)
    lost = SimpleNamespace(log=logs[1], is_led=is_other, others=[ADDRESSES[1], "gone"], has_quorum=is_dry_run)
    admin.describe_removal = Mock(return_value=[lost])
    (listed,) = (await removal.list_broker_logs(request)).logs
    assert msgspec.structs.astuple(listed) == ("orders", 1, is_other, [11], is_dry_run)
    admin.describe_removal.assert_called_once_with(ADDRESSES[2])


RESTORED = [cluster.SnapshotRecord(f"group/{each}", {"group_id": each, "settings": {}}) for each in "ab"]


async def test_records_of_a_snapshot_are_restored_in_stages_until_one_fails(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    monkeypatch.setattr(cluster, "list_stages", lambda _records: [["a", "b"], ["c"]])
    for failing, expected in (("", [*"abABcC"]), ("a", [*"abB"]), ("b", [*"abA"]), ("c", [*"abABc"])):
        done: list[str] = []

        async def change(command: str, requester: str, failing: str = failing, done: list[str] = done) -> None:
            assert requester == "anne"
            done.append(command)
            await trio.sleep(1 + (command == "b"))
            if command == failing:
                raise NoControllerError("no")
            done.append(command.upper())

        request = make_request(["up"], [])
        request.broker.node.admin.change = change
        call = cluster.restore_records(request, cluster.SnapshotRecords(RESTORED))
        if failing:
            with pytest.raises(NoControllerError):
                await call
        else:
            assert (await call).restored == len(RESTORED)
        assert sorted(done[:2]) + done[2:] == expected
    for records in ([*RESTORED, RESTORED[0]], [cluster.SnapshotRecord("topic/a", {})]):
        done.clear()
        assert await outcome(cluster.restore_records(request, cluster.SnapshotRecords(records))) == "bad_request"
        assert not done


async def test_changes_of_the_cluster_are_listed_with_their_outcome() -> None:
    order = Order(CreateAcls(()), ordered_by="anne", ordered_at=5, controller_epoch=6)
    outcomes = Outcome(), Outcome(ErrorCode.INVALID_REQUEST, "no")
    changes = [Change(Offset(7 + place), order, "words", each) for place, each in enumerate(outcomes)]
    request = make_request(["up"], [], query={"before": 9, "limit": 3})
    request.broker.node.history = SimpleNamespace(read=AsyncMock(return_value=(changes, 4)))
    found = await cluster.list_changes(request)
    request.broker.node.history.read.assert_awaited_once_with(9, 3)
    assert (found.next_before, [msgspec.structs.astuple(each) for each in found.changes]) == (
        4,
        [
            (7, 5, "anne", 6, "create-acls", "words", True, ""),
            (8, 5, "anne", 6, "create-acls", "words", False, "no"),
        ],
    )
