"""What a broker does with the effects of its replicas, its first view of a cluster, and orders of its operators."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from itertools import product
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.metadata.brokers import BROKERS_TOPIC, BrokerRegistration, encode_broker
from dafka.broker.core.metadata.cluster_state import METADATA_TOPIC
from dafka.broker.core.metadata.leader_and_isr import LeaderAndIsr
from dafka.broker.core.metadata.log_replicas import RECOVERY_STEP
from dafka.broker.core.metadata.store_record import StoreRecord
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.partition_address import INDEX_TOPIC
from dafka.broker.core.positions import Offset, RecordSequence
from dafka.broker.core.replication.effects import Acknowledge, AdvanceHighWatermark, Lead, StepDown, WriteControl
from dafka.broker.core.replication.records import (
    BRANCHES_TOPIC,
    NO_EPOCH_END,
    EpochStart,
    LeaderAndEpoch,
    Vote,
    encode_control,
)
from dafka.broker.core.replication.replicated_logs import FetchRecords, LogAction
from dafka.broker.replication.preferred_leader import ASK_AGAIN_S, PreferredLeaderElections, TransferLeadership
from dafka.broker.replication.replicator import FETCH_AGAIN_S, RECOVER_TIMEOUTS, Replicator
from dafka.protocol.actions import ResetPosition
from dafka.records import Partition, RecordBatch
from dafka.roles.commit_pipeline import Commit
from tests.seeds import each_seed

FIRST = LeaderAndEpoch(0, "b")
EITHER = (True, False)


def make_log(name: str, topic: str = "orders", **replica: Any) -> Any:
    return SimpleNamespace(
        name=name,
        topic=topic,
        topic_id="1D",
        number=0,
        replica=SimpleNamespace(**replica),
        index_partition=lambda epoch: Partition("$logs", f"{epoch.leader}/{name}/{epoch.epoch}"),
        local_log=SimpleNamespace(acknowledged_end=lambda epoch: epoch.epoch + 5),
    )


def make_replicator(**parts: Any) -> tuple[Any, list[Any]]:
    """Return the replicator of the broker `a`, in which everything notes what it is asked for."""
    made: list[Any] = []

    def note(what: str) -> Any:
        return lambda *arguments: made.append((what, *arguments))

    replicator: Any = object.__new__(Replicator)
    vars(replicator).update(
        _address="a",
        _nursery=SimpleNamespace(start_soon=note("start")),
        _control=SimpleNamespace(write=note("write")),
        _mesh=SimpleNamespace(
            acknowledge=note("acknowledge"), fetch_records=note("fetch"), announce_high_watermark=note("announce")
        ),
        membership=SimpleNamespace(send_heartbeat_if_due=lambda: None),
        led_logs=SimpleNamespace(refresh=note("refresh"), move_high_watermark=note("move"), lead="lead"),
        _find_metadata=lambda: None,
        **parts,
    )
    return replicator, made


@each_seed(60)
def test_effects_of_replicas_are_executed_in_their_order_and_acknowledgements_and_fetches_sent_once(seed: int) -> None:
    draw, epochs = Random(seed), [LeaderAndEpoch(epoch, "b") for epoch in (0, 1024)]
    logs = [make_log("1D/0"), make_log("1D/1"), make_log("gone/0")]
    ended: list[Any] = []
    table = SimpleNamespace(
        find_log=lambda _topic, number, topic_id: f"state {topic_id}/{number}", end_epoch=ended.append
    )
    replicator, made = make_replicator(
        logs=SimpleNamespace(find={each.name: each for each in logs[:2]}.get), _log_table=table
    )
    actions: list[LogAction] = []
    expected: list[Any] = []
    acknowledged: dict[Partition, int] = {}
    missing: dict[Partition, int] = {}
    steps_down = 0
    for _ in range(12):
        log, epoch = draw.choice(logs), draw.choice(epochs)
        is_known, end = log.name != "gone/0", draw.randrange(9)
        start = EpochStart(log.name, epoch, NO_EPOCH_END, ("a", "b"))
        partition = log.index_partition(epoch)
        effect: Any = draw.choice(
            [
                FetchRecords(partition, RecordSequence(end)),
                Acknowledge(epoch, Offset(end)),
                WriteControl(start),
                AdvanceHighWatermark(Offset(end)),
                Lead(start),
                StepDown(epoch),
            ]
        )
        actions.append(LogAction(log, effect))
        if not is_known:
            continue
        match effect:
            case FetchRecords():
                missing[partition] = end
                continue
            case Acknowledge():
                acknowledged[partition] = epoch.epoch + 5
            case WriteControl():
                expected.append(("write", start))
            case AdvanceHighWatermark():
                expected.append(("move", log, end))
            case Lead():
                expected.append(("start", "lead", log, start))
            case StepDown():
                steps_down += 1
        expected.append(("refresh", log))
    expected += [("acknowledge", acknowledged)] * bool(acknowledged) + [("fetch", missing)] * bool(missing)
    replicator.act(actions)
    assert (made, len(ended)) == (expected, steps_down)
    assert set(ended) <= {"state 1D/0"}
    made.clear()
    replicator._nursery = None  # the broker stops
    replicator.act([LogAction(logs[0], Lead(EpochStart("1D/0", FIRST, NO_EPOCH_END, ("a",))))])
    assert made == [("refresh", logs[0])]


def test_the_high_watermark_of_metadata_is_announced_by_its_leader_when_it_moves() -> None:
    for topic, led_epoch in product((METADATA_TOPIC, "orders"), (FIRST, None)):
        log = make_log("1D/0", topic, led_epoch=led_epoch, high_watermark=7)
        replicator, made = make_replicator(logs=SimpleNamespace(find=lambda _, log=log: log))
        replicator._find_metadata = lambda log=log: log
        replicator.act([LogAction(log, AdvanceHighWatermark(Offset(7)))])
        announced = [("announce", log.index_partition(FIRST), 7)]
        is_announced = topic == METADATA_TOPIC and led_epoch is not None
        assert [each for each in made if each[0] == "announce"] == announced * is_announced


def test_metadata_is_recovered_alone_when_it_was_ordered_unless_enough_voters_are_heard_meanwhile() -> None:
    for pending, done, is_time, can_elect, alive, met in product(
        (0, 2), (1, 2), EITHER, EITHER, ("a", "ab"), ("", "b")
    ):
        record = StoreRecord("cluster", ("a", "b"), pending_recovery=pending)
        updates: list[Any] = []
        asked: list[Any] = []

        def can_elect_with(voters: Any, heard: Any, asked: list[Any] = asked, can_elect: bool = can_elect) -> bool:
            asked.append((voters, set(heard)))
            return can_elect

        newest = SimpleNamespace(generation=done * RECOVERY_STEP + 3, voters=("a", "b"))
        rule = SimpleNamespace(can_elect=can_elect_with)
        log = make_log("cluster/0", METADATA_TOPIC, newest=newest, elections=SimpleNamespace(rule=rule))
        replicator, _ = make_replicator(
            brokers=SimpleNamespace(alive=frozenset(alive), record_heartbeat=lambda *beat, it=asked: it.append(beat)),
            _met=set(),
            _recover_at=10.0,
            _identity=SimpleNamespace(
                record=record, update=lambda _record, updates=updates, **changes: updates.append(changes)
            ),
            logs=SimpleNamespace(recover=lambda log, generation: [("recover", log.name, generation)]),
        )
        acted: list[Any] = []
        replicator._find_metadata, replicator.act = lambda log=log: log, acted.extend
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(trio, "current_time", lambda: 9.0)
            replicator.record_heartbeats(met)
        assert asked == [(each, 9.0) for each in met]
        asked.clear()
        for _ in range(2):
            replicator._recover_metadata(10.0 if is_time else 9.9)
        is_done, is_due = done >= pending, is_time and pending > 0
        is_cancelled = is_due and not is_done and can_elect
        assert updates == [{"pending_recovery": 0}] * 2 * ((pending > 0 and is_done) or is_cancelled)
        is_recovered = is_due and not is_done and not can_elect
        assert acted == [("recover", "cluster/0", pending * RECOVERY_STEP)] * is_recovered, "once"
        assert all(each == (("a", "b"), {"a", *alive} & {"a", *met}) for each in asked)


def test_a_broker_describes_logs_as_it_has_stored_them_until_they_are_loaded() -> None:
    start = EpochStart("1D/1", LeaderAndEpoch(7, "c"), NO_EPOCH_END, ("c", "a"))
    logs = [
        SimpleNamespace(topic_id="1D", number=number, leadership=LeaderAndIsr("", 0, replicas=("b", "a")))
        for number in range(2)
    ]
    topic = SimpleNamespace(topic_id="1D", first_epoch=3)
    for number, each in enumerate(logs):
        each.number = number
    checked: list[float] = []
    replicator, _ = make_replicator(
        brokers=SimpleNamespace(check_alive=checked.append),
        _log_table=SimpleNamespace(topics={"orders": topic}, logs=lambda _name: logs),
        logs=SimpleNamespace(known_start={"1D/1": start}.get),
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(trio, "current_time", lambda: 5.0)
        replicator.describe_stored()
    assert checked == [5.0]
    found = [(each.leadership.epoch, each.leadership.replicas, each.leadership.presumed_leader) for each in logs]
    assert found == [(3, ("b", "a"), "b"), (7, ("c", "a"), "c")]
    assert [each.leadership.leader for each in logs] == ["", ""]


def expect(may_lead: bool, leads_after: float, gone_after: float | None) -> tuple[ErrorCode, float]:
    """Return the result of an election that may take two seconds, and after how many it is known."""
    if not leads_after:
        return ErrorCode.ELECTION_NOT_NEEDED, 0.0
    if not may_lead:
        return ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, 0.0
    if gone_after is not None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, gone_after
    return (ErrorCode.NONE, leads_after) if leads_after < 2 else (ErrorCode.REQUEST_TIMED_OUT, 2.0)


async def test_a_preferred_leader_is_asked_until_it_leads_the_log_is_gone_or_the_time_is_over(
    autojump_clock: MockClock,
) -> None:
    for preferred, is_shared, may_lead, leads_after, gone_after in product(
        "ab", EITHER, EITHER, (0.0, 0.7, 9.0), (None, 0.7)
    ):
        log: Any = SimpleNamespace(topic="orders", number=0, is_gone=False, leadership=LeaderAndIsr("c", is_led=False))
        found = make_log(
            "1D/0",
            rank_replicas=lambda first=preferred: [first, "c"],
            may_lead=lambda who, it=may_lead, of=preferred: it and who == of,
        )
        asked: list[float] = []
        begun, changed = trio.current_time(), [trio.Event()]

        async def wait_leadership(_log: object, changed: list[trio.Event] = changed) -> None:
            await changed[-1].wait()

        def ask(
            to: str, message: object, asked: list[float] = asked, begun: float = begun, preferred: str = preferred
        ) -> list[Any]:
            assert (to, message) == (preferred, TransferLeadership("1D/0"))
            asked.append(trio.current_time() - begun)
            return []

        def transfer(log: Any, ask: Any = ask) -> Any:
            return ask("a", TransferLeadership(log.name))

        async def change(
            after_s: float | None, log: Any = log, changed: list[trio.Event] = changed, **found: Any
        ) -> None:
            if after_s is not None:
                await trio.sleep(after_s)
                vars(log).update(found)
                changed[-1].set()

        logs = SimpleNamespace(find=lambda _, it=found if is_shared else None: it, transfer_leadership=transfer)
        replicator: Any = SimpleNamespace(
            logs=logs, act=list, led_logs=SimpleNamespace(wait_leadership=wait_leadership)
        )
        handlers: list[Any] = []
        messenger: Any = SimpleNamespace(address="a", on=lambda *handler, it=handlers: it.append(handler), send=ask)
        table: Any = SimpleNamespace(topics={"orders": SimpleNamespace(topic_id="1D")})
        elections = PreferredLeaderElections(table, replicator, messenger)
        leading = LeaderAndIsr(preferred, is_led=preferred == "a")
        async with trio.open_nursery() as nursery:
            if leads_after:
                nursery.start_soon(partial(change, leads_after, leadership=leading))
            else:
                log.leadership = leading
            nursery.start_soon(partial(change, gone_after, is_gone=True))
            result = await elections.elect_preferred(log, 2.0)
            waited_s = trio.current_time() - begun
            nursery.cancel_scope.cancel()
        expected, end_s = expect(may_lead, leads_after if is_shared else 0.0, gone_after)
        assert result is expected
        assert waited_s == pytest.approx(end_s)
        assert asked == pytest.approx([n * ASK_AGAIN_S for n in range(5) if n * ASK_AGAIN_S < end_s])
        ((kind, handler),) = handlers
        assert kind is TransferLeadership
        if preferred == "a":
            asked.clear()
            handler("b", TransferLeadership("1D/0"))
            assert len(asked) == is_shared


NAME, VOTE = "1D/0", Vote("1D/0", LeaderAndEpoch(1024, "b"), NO_EPOCH_END, (("a", "b"),))
INDEX, OWN_INDEX = Partition(INDEX_TOPIC, "b/1D/0/1"), Partition(INDEX_TOPIC, "a/1D/0/2")


def make_processing(*, is_known: bool = True, is_deleted: bool = False) -> tuple[Any, list[Any], Any]:
    """Return a replicator that processes what is stored, what it asks for in its order, and its only log."""
    log = make_log(NAME)
    found = log if is_known else None
    replicator, made = make_replicator(_state=SimpleNamespace(deleted_ids={"1D"} if is_deleted else set()))

    def note(what: str, *results: Any) -> Any:
        def noted(*arguments: Any) -> Any:
            made.append((what, *(list(each) if isinstance(each, Iterator) else each for each in arguments)))
            return results[0] if results else None

        return noted

    class Logs(SimpleNamespace):
        def __len__(self) -> int:
            return is_known

    replicator.act = note("act")
    replicator.logs = Logs(
        record_control=lambda *row: ["control", *row],
        find=lambda _name: found,
        find_partition=lambda partition: found and partition.topic in {INDEX_TOPIC, "orders"} and (found, FIRST),
        stored=lambda batches: ("changed", ["stored", *batches]),
        acknowledged=lambda *what: ["acknowledged", *what],
        announced=lambda *what: ["announced", *what],
        repeat_acknowledgement=lambda partition: [partition],
    )
    replicator.led_logs = SimpleNamespace(
        record_stored=note("woken"),
        record_index_stored=lambda log: made.append(("index", log)),
        divergent=SimpleNamespace(merge_later=note("merge")),
        update_racks=note("racks"),
    )
    replicator.leases = SimpleNamespace(record_learned=note("learned"))
    replicator.membership = SimpleNamespace(learn=lambda broker: made.append(("registered", broker.address)))
    replicator._control = SimpleNamespace(
        restore=lambda *row: made.append(("restore", *row)), begin_write=note("begin"), write_done=note("done", [VOTE])
    )
    replicator._policy = SimpleNamespace(owns=lambda partition: partition.address.startswith("a/"))
    replicator._indexes, replicator._stored = defaultdict(set), []
    return replicator, made, log


def test_control_records_count_for_logs_that_are_not_deleted_and_own_ones_are_restored() -> None:
    for is_known, is_deleted, writer in product(EITHER, EITHER, "ab"):
        replicator, made, log = make_processing(is_known=is_known, is_deleted=is_deleted)
        replicator.learn(Partition(BRANCHES_TOPIC, writer), [(b"key", encode_control(VOTE))])
        restored = [("restore", "key", VOTE)] * (writer == "a")
        woken = [("woken", [log]), ("merge", [log])] * is_known
        assert made == ([] if is_deleted else [*restored, ("act", ["control", writer, VOTE]), *woken])


def test_what_a_commit_made_durable_is_processed_in_an_order_that_no_lease_or_acknowledgement_runs_ahead() -> None:
    """A vote counts before the answers that rely on it, and own records as soon as they are durable."""
    own = RecordBatch(Partition(BRANCHES_TOPIC, "a"), 8, [encode_control(VOTE)], keys=[b"own"])
    vote = RecordBatch(Partition(BRANCHES_TOPIC, "b"), 4, [encode_control(VOTE)], keys=[b"key"])
    registration = encode_broker(BrokerRegistration(address="b"))
    broker = RecordBatch(Partition(BROKERS_TOPIC, "b"), 2, [registration], keys=[b"b"])
    records, index = RecordBatch(Partition("orders", "b/1D/0/1"), 0, [b""]), RecordBatch(INDEX, 0, [b""])
    own_index, state = RecordBatch(OWN_INDEX, 0, [b""]), RecordBatch(Partition("$state", "a"), 0, [b""])
    for is_known in EITHER:
        replicator, made, log = make_processing(is_known=is_known)
        commit = Commit([vote, broker, records, index, own], [own, own_index, state])
        replicator.prepare(commit)
        assert made == [("begin",)]
        replicator.done(commit)
        assert made[1:] == [("done",), ("act", ["control", "a", VOTE])], "a vote counts as soon as it is durable"
        made.clear()
        for _ in range(2):
            replicator.acknowledged(commit)
        woken = [("woken", [log]), ("merge", [log])] * is_known
        expected = [("act", ["control", "b", VOTE]), *woken, ("learned", vote.partition, 5)]
        expected += [("registered", "b"), ("racks",), ("learned", broker.partition, 3)]
        stored = [
            ("act", ["stored", vote, broker, records, index, own, own_index]),
            ("woken", "changed"),
            ("merge", [log]),
        ]
        again = [("act", ["stored"]), ("woken", "changed"), ("merge", [])]
        assert made == [*expected, *[*stored, *again] * is_known]
        made.clear()
        replicator.acknowledged(Commit(reset=ResetPosition(records.partition, 3)))
        (told, *_), gone = made or [("act", ["stored"])], RecordBatch(records.partition, 3, [])
        assert told == ("act", ["stored", *[gone] * is_known])
        assert replicator._indexes == {NAME: {INDEX, OWN_INDEX}}


async def test_a_loaded_log_is_led_on_or_takes_part_with_its_preferences(autojump_clock: MockClock) -> None:
    for leads in EITHER:
        replicator, made, log = make_processing()
        replicator.reassigner = SimpleNamespace(prefer_leaders=lambda log, made=made: made.append(("prefer", log)))
        replicator._log_table = SimpleNamespace(leads=lambda _state, it=leads: it)
        replicator.led_logs.refresh = lambda log, made=made: made.append(("refresh", log))
        replicator.led_logs.keep_leading = lambda *led, made=made: made.append(("keep", *led))
        replicator.logs.resume = lambda *resumed: resumed
        replicator._take_part(log, "state")
        kept = [("keep", log, "state")] * leads
        assert made == [("prefer", log), *kept, ("refresh", log), ("act", (log, trio.current_time()))]


def test_what_other_brokers_tell_of_logs_reaches_them() -> None:
    for is_known in EITHER:
        replicator, made, log = make_processing(is_known=is_known)
        replicator.record_acknowledgements({(INDEX, "b"): 5, (OWN_INDEX, "c"): 6})
        told = [("act", ["acknowledged", *each]) for each in (("b", INDEX, 5), ("c", OWN_INDEX, 6))]
        index = [("index", log)] * is_known
        assert made == [told[0], *index, told[1], *index]
        made.clear()
        replicator.record_high_watermarks({INDEX: 7})
        replicator.repeat_acknowledgements([INDEX, OWN_INDEX])
        assert made == [("act", ["announced", INDEX, 7]), ("act", [INDEX, OWN_INDEX])]


async def test_each_heartbeat_tells_of_this_broker_and_advances_the_logs_that_something_can_change(
    autojump_clock: MockClock,
) -> None:
    """All of them when the living brokers change. A stall is counted if it is longer than a heartbeat."""
    for changes, stalls, can_write in product(
        ((), (2,), (0, 3)), ({}, {1: 0.25}, {1: 0.5}, {0: 0.125, 2: 4.0}), EITHER
    ):
        replicator, _ = make_replicator(_heartbeat_s=0.25, _storage=SimpleNamespace(can_write=can_write))
        made, times = list[Any](), list[float]()

        def note(what: str, made: list[Any] = made) -> Any:
            return lambda *found: made.append((what, *found))

        def check_alive(
            now: float,
            stalled_s: float,
            made: list[Any] = made,
            times: list[float] = times,
            stalls: dict[int, float] = stalls,
            changes: tuple[int, ...] = changes,
        ) -> bool:
            made.append(("check", stalled_s))
            times.append(now)
            autojump_clock.jump(stalls.get(len(times) - 1, 0.0))
            return len(times) - 1 in changes

        replicator._identity = SimpleNamespace(count_writes=note("count"))
        replicator.membership = SimpleNamespace(make_heartbeat=lambda: "beat")
        replicator.leases = SimpleNamespace(begin_round=note("round"))
        replicator.brokers = SimpleNamespace(
            alive="alive",
            replaceable="replaceable",
            check_alive=check_alive,
            record_storage=lambda broker, can_write, made=made: made.append((broker, can_write)),
        )
        replicator.act = made.extend
        replicator.logs = SimpleNamespace(
            active="active",
            set_alive=lambda *found: [("alive", *found)],
            advance=lambda now: [("advance", now)],
            repeat_fetches=lambda: ["fetches"],
        )
        replicator.led_logs = SimpleNamespace(
            refresh_all=note("refresh"), divergent=SimpleNamespace(merge_later=note("merge"))
        )
        replicator._announce_high_watermark, replicator._recover_metadata = note("announce"), note("recover")
        with trio.move_on_after(3.1 + sum(stalls.values())):
            await replicator._run_clock()
        expected, fetched_at, all_logs = list[Any](), times[0], replicator.logs
        for number, now in enumerate(times):
            late_s = stalls.get(number - 1, 0.0)
            expected += [("count",), ("round", "beat"), ("a", can_write), ("check", late_s if late_s > 0.25 else 0.0)]
            if number in {0, *changes}:
                expected += [("alive", "alive", now, "replaceable"), ("refresh", all_logs), ("merge", all_logs)]
            else:
                expected += [("advance", now), ("refresh", "active")]
            expected += [("announce",), ("recover", now)]
            if now - fetched_at >= FETCH_AGAIN_S:
                fetched_at = now
                expected.append("fetches")
        assert made == expected
        assert len(times) == 13, "one for each quarter of a second, apart from stalls"


def test_a_broker_leads_new_logs_at_once_only_if_it_is_alone_and_has_nothing_of_them_to_load() -> None:
    """All others are loaded first: other brokers, or this one before its restart, can have begun epochs of them."""
    for placed, is_alone, first_epoch, has_control, name, is_running in product(
        (("a",), ("b",), ("a", "b"), None), EITHER, (0, 3), EITHER, ("orders", METADATA_TOPIC), EITHER
    ):
        replicator, made = make_replicator(brokers=SimpleNamespace(is_alone=is_alone), _log_table=LogTable("a"))
        replicator.logs = SimpleNamespace(has_control=lambda _name, it=has_control: it)
        replicator._storage = SimpleNamespace(ends=lambda _topic: {}, earliest=lambda _topic: {})
        replicator._loader = SimpleNamespace(put=lambda log, made=made: made.append(("load", log)))
        replicator._mesh.ask_heads = lambda topics, made=made: made.append(("heads", topics))
        replicator.led_logs.catch_up_oldest_first = "catch up"
        if not is_running:
            replicator._nursery = None
        replicas = placed or ("a",)
        is_led = replicas == ("a",) and is_alone and name == "orders" and not first_epoch and not has_control
        for count in (1, 1, 2):
            placement = () if placed is None else (placed,) * count
            known = len(replicator._log_table.logs(name))
            replicator._add_topic(Topic(name, "1D", count, placement=placement, first_epoch=first_epoch))
            for log in replicator._log_table.logs(name)[known:]:
                assert replicator._log_table.leads(log) == is_led
                leading = LeaderAndIsr("a", 0, is_led=True, replicas=("a",), in_sync=("a",))
                assert log.leadership == (leading if is_led else LeaderAndIsr("", 0, is_led=False, replicas=replicas))
                expected: list[Any] = [("start", "catch up", log)] * is_running if is_led else [("load", log)]
                expected += [("heads", (name, INDEX_TOPIC))] * (is_running and not is_alone)
                assert made == expected
            assert bool(made) == (known < count and (is_running or not is_led))
            made.clear()


async def test_a_broker_that_starts_takes_part_when_it_has_loaded_what_others_replicate(
    autojump_clock: MockClock,
) -> None:
    for is_alone in EITHER:
        replicator, made = make_replicator(brokers=SimpleNamespace(is_alone=is_alone), _timeout_s=2.0)

        def note(what: str, made: list[Any] = made) -> Any:
            return lambda: made.append(what)

        async def load_first(made: list[Any] = made) -> None:
            await trio.lowlevel.checkpoint()
            made.append("load")

        running = {"run": trio.sleep_forever}
        replicator.reassigner = SimpleNamespace(measure_space=note("space"), **running)
        replicator.membership = SimpleNamespace(start=note("membership"))
        replicator.leases = SimpleNamespace(start=note("leases"))
        replicator._own = SimpleNamespace(announce_control=note("control"))
        replicator._join_cluster = note("join")
        replicator._loader = SimpleNamespace(load_first=load_first, **running)
        replicator.led_logs = replicator.checkpoints = SimpleNamespace(**running)
        replicator._run_clock = trio.sleep_forever
        async with trio.open_nursery() as nursery:
            await nursery.start(replicator.run)
            assert made == ["space", "membership", "leases", "control", *["join", "load"] * (not is_alone)]
            assert replicator._recover_at == trio.current_time() + RECOVER_TIMEOUTS * 2.0
            assert replicator._nursery is not None
            nursery.cancel_scope.cancel()
        assert replicator._nursery is None, "it starts no tasks any more"


def test_topics_are_followed_as_they_are_created_changed_deleted_and_made_again_meanwhile() -> None:
    """What a broker has had alone is replicated as soon as another one joins."""
    former, changed, other = (Topic("orders", topic_id, count) for topic_id, count in (("1D", 1), ("1D", 2), ("2D", 1)))
    for was_alone, is_alone, is_running, known, found in product(
        EITHER, EITHER, EITHER, (None, former), (None, former, changed, other)
    ):
        brokers, table = SimpleNamespace(is_alone=was_alone), SimpleNamespace(topics={"orders": known} if known else {})
        replicator, made = make_replicator(brokers=brokers, _log_table=table, _removed={})

        def apply_members(made: list[Any] = made, brokers: Any = brokers, is_alone: bool = is_alone) -> None:
            brokers.is_alone = is_alone
            made.append("members")

        def note(what: str, result: Any = None, made: list[Any] = made) -> Any:
            def noted(*arguments: Any) -> Any:
                made.append((what, *arguments))
                return result

            return noted

        replicator.membership, replicator.reassigner = (
            SimpleNamespace(apply_state=each) for each in (apply_members, note("reassigner"))
        )
        replicator._join_cluster, replicator._add_topic = note("join"), note("add")
        replicator._remove_topic = note("remove", ["its logs"])
        replicator._control = SimpleNamespace(forget=note("forget"))
        replicator._mesh.apply_registration = note("registered")
        replicator._deletion = SimpleNamespace(drop_topic="drop")
        replicator.logs = SimpleNamespace(forget_control=note("control"))
        replicator._indexes = {"1D/0": {INDEX}, "1D/2": {INDEX}}
        deletion = SimpleNamespace(topic=changed)
        replicator._state = SimpleNamespace(
            take_changed=note("changed", ["orders"]), find=note("find", found), take_closed=note("closed", [deletion])
        )
        if not is_running:
            replicator._nursery = None
        replicator.apply_state()
        is_removed = known is not None and found in (None, other)
        expected: list[Any] = ["members", ("reassigner",), *[("join",)] * (was_alone and not is_alone and is_running)]
        expected += [("changed",), ("find", "orders")]
        expected += [("remove", known)] * is_removed + [("add", found)] * (found is not None and found != known)
        expected += [("registered",), ("closed",)]
        expected += [("control", "1D/0"), ("control", "1D/1"), ("forget", ["1D/0", "1D/1"])]
        expected += [("start", "drop", deletion, ["its logs"] if is_removed else ())] * is_running
        assert (made, replicator._indexes) == (expected, {"1D/2": {INDEX}})
