"""What a broker does with the effects of its replicas, its first view of a cluster, and orders of its operators."""

from __future__ import annotations

from functools import partial
from itertools import product
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.metadata.cluster_state import METADATA_TOPIC
from dafka.broker.core.metadata.leader_and_isr import LeaderAndIsr
from dafka.broker.core.metadata.log_replicas import RECOVERY_STEP
from dafka.broker.core.metadata.store_record import StoreRecord
from dafka.broker.core.positions import Offset, RecordSequence
from dafka.broker.core.replication.effects import Acknowledge, AdvanceHighWatermark, Lead, StepDown, WriteControl
from dafka.broker.core.replication.records import NO_EPOCH_END, EpochStart, LeaderAndEpoch
from dafka.broker.core.replication.replicated_logs import FetchRecords, LogAction
from dafka.broker.replication.preferred_leader import ASK_AGAIN_S, PreferredLeaderElections, TransferLeadership
from dafka.broker.replication.replicator import Replicator
from dafka.records import Partition
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
            brokers=SimpleNamespace(alive=frozenset(alive)),
            _met=set(met),
            _recover_at=10.0,
            _identity=SimpleNamespace(
                record=record, update=lambda _record, updates=updates, **changes: updates.append(changes)
            ),
            logs=SimpleNamespace(recover=lambda log, generation: [("recover", log.name, generation)]),
        )
        acted: list[Any] = []
        replicator._find_metadata, replicator.act = lambda log=log: log, acted.extend
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
        found = make_log("1D/0", rank_replicas=lambda first=preferred: [first, "c"], may_lead=lambda _, it=may_lead: it)
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
