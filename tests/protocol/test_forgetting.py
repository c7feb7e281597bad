"""A store forgets partitions that have ended: without records, without a producer, and known to no other store."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from dafka import wire
from dafka.config import Config
from dafka.protocol import CommitQueue, ForgetPartitions, PartitionHalted, StoreMachine
from dafka.protocol.actions import Action, Append, Notify, ResetPosition
from dafka.protocol.answering.head_responder import SLICE
from dafka.protocol.machines.store import FORGOTTEN_TOGETHER_MAX
from dafka.protocol.machines.stored_partitions import CROWDED_S, RESTART_GRACE_S, UNPROVEN_S, EndedPartitions
from dafka.protocol.presence.peer_limits import MANY_PARTITIONS, MANY_UNPROVEN
from dafka.protocol.store_events import PartitionsForgotten, StoreFull, StoreHasRoom
from dafka.records import Partition
from dafka.wire import Command
from tests.protocol.helpers import HELLO, asked, direct_head, events, head, live, published, run, subscription

ME = "STORE"
AFTER_S = 60.0
CONFIG = Config().with_store(forget_empty_after_ms=int(AFTER_S * 1000))


def make_store(end: int = 10, earliest: int = 10, config: Config = CONFIG, idle_s: float = 0.0) -> StoreMachine:
    """Return a store that holds HELLO, by default without records, at time 0."""
    store = StoreMachine(ME, config, {HELLO: end}, {HELLO: earliest}, {HELLO: idle_s})
    store.start(0.0)
    return store


def forget(store: StoreMachine, now: float, meanwhile: Iterable[wire.BatchedMessage] = ()) -> list[Action]:
    """Forget the partitions that may be forgotten. Messages may arrive while the storage deletes them."""
    queue = CommitQueue(store)
    queue.put_silent(store.silent_partitions(now))
    if not queue:
        return []
    work = queue.begin_work()
    assert isinstance(work, ForgetPartitions)
    during: list[Action] = []
    if work.partitions:
        during = store.receive(meanwhile, now)
    return during + queue.work_done(now)


def forgotten(actions: Iterable[Action]) -> bool:
    return Notify(PartitionsForgotten(1)) in list(actions)


def is_known(store: StoreMachine) -> bool:
    return HELLO in store.reassembler.cursors


def test_an_ended_partition_is_forgotten_after_the_wait() -> None:
    store = make_store()
    assert not forgotten(forget(store, AFTER_S - 0.1))
    assert is_known(store)
    assert forgotten(forget(store, AFTER_S))
    assert not is_known(store)
    assert (store.stored.durable_end(HELLO), store.stored.earliest, store.stored.durable) == (0, {}, {})
    assert store.receive_subscriptions(subscription(Command.ACK, "PRODUCER"), AFTER_S) == []


def test_without_a_wait_nothing_is_forgotten() -> None:
    store = make_store(config=Config().with_store(forget_empty_after_ms=0))
    assert not forgotten(forget(store, 1e9))


@pytest.mark.parametrize("message", [head(9), live(9, 10), direct_head(9, ME)], ids=["head", "record", "other store"])
def test_any_sign_of_the_partition_restarts_the_wait(message: wire.BatchedMessage) -> None:
    store = make_store()
    store.receive([message], 30.0)
    assert not forgotten(forget(store, 30.0 + AFTER_S - 0.1))
    assert forgotten(forget(store, 30.0 + AFTER_S))


def test_records_that_come_later_keep_a_partition() -> None:
    store = make_store()
    queue = CommitQueue(store)
    for action in store.receive([live(10, 12)], 0.0):
        assert isinstance(action, Append)
        queue.put_records(action.batch)
    assert queue.begin_work() == [run(10, 12)]
    queue.work_done(0.0)
    assert store.silent_partitions(10 * AFTER_S) == []
    assert store.begin_forgetting([HELLO]) == ()
    store.records_trimmed({HELLO: 12})
    assert store.silent_partitions(10 * AFTER_S) == [HELLO]


def test_nothing_of_a_forgotten_partition_is_asked_for_when_its_producer_leaves() -> None:
    store = make_store()
    forget(store, AFTER_S)
    store.peer_joined("PRODUCER", AFTER_S)
    assert published(store.peer_left("PRODUCER", AFTER_S), wire.GetHeads) == []


def test_while_too_many_producers_are_connected_to_tell_them_apart_all_partitions_are_kept() -> None:
    store = make_store(config=CONFIG.with_node(peers_max=1))
    store.receive_subscriptions(subscription(Command.ACK, "ANOTHER"), 0.0)
    assert not forgotten(forget(store, 10 * AFTER_S))


@pytest.mark.parametrize("obstacle", ["producer", "missing records"])
def test_partitions_that_must_be_kept_do_not_hold_up_others(obstacle: str) -> None:
    """They are the longest silent ones, and fill a whole turn."""
    names = [Partition("hello", f"A{number}") for number in range(FORGOTTEN_TOGETHER_MAX + 1)]
    store = StoreMachine(ME, CONFIG, dict.fromkeys(names, 5), dict.fromkeys(names, 5))
    store.start(0.0)
    for name in names[1:]:
        if obstacle == "producer":
            store.receive_subscriptions(subscription(Command.ACK, name.address), 0.0)
        else:
            store.receive([head(9, name)], 0.0)
    store.receive([head(4, names[0])], 1.0)
    assert store.silent_partitions(10 * AFTER_S) == [names[0]]


def test_the_signs_of_a_partition_are_forgotten_with_it() -> None:
    ended = EndedPartitions(CONFIG, lambda _: False, {})
    ended.start(1.0)
    ended.record_heard(HELLO, 5.0)
    assert ended.heard_at(HELLO) == 5.0
    ended.remove(HELLO)
    assert ended.heard_at(HELLO) == 1.0


def test_a_partition_whose_end_is_not_known_has_not_ended() -> None:
    """Retention may trim records in the storage before the machine notes that they are durable."""
    ended = EndedPartitions(CONFIG, lambda _: False, {})
    ended.record_range(HELLO, 5, 0)
    assert HELLO not in ended
    ended.record_range(HELLO, 5, 5)
    assert HELLO in ended


@pytest.mark.parametrize("after_s", [0.0, 10 * UNPROVEN_S])
def test_a_partition_without_any_record_is_dropped_after_an_hour(after_s: float) -> None:
    store = StoreMachine(ME, Config().with_store(forget_empty_after_ms=int(after_s * 1000)), {})
    store.start(0.0)
    store.receive([head(9)], 0.0)
    store.drop_silent_unproven(UNPROVEN_S - 1)
    assert is_known(store)
    store.drop_silent_unproven(UNPROVEN_S)
    assert not is_known(store)


def test_a_partition_without_any_record_is_kept_while_its_producer_is_there() -> None:
    store = StoreMachine(ME, CONFIG, {})
    store.start(0.0)
    store.peer_joined("PRODUCER", 0.0)
    store.receive([head(9)], 0.0)
    store.drop_silent_unproven(10 * UNPROVEN_S)
    assert is_known(store)


def test_a_restarted_store_counts_the_time_before_except_an_hour() -> None:
    config = Config().with_store(forget_empty_after_ms=10 * 3_600_000)
    store = make_store(config=config, idle_s=1e9)
    assert not forgotten(forget(store, RESTART_GRACE_S - 1))
    assert forgotten(forget(store, RESTART_GRACE_S))
    younger = make_store(config=config, idle_s=3600.0)
    assert not forgotten(forget(younger, 9 * 3600.0 - 1))
    assert forgotten(forget(younger, 9 * 3600.0))
    ahead = make_store(config=config, idle_s=-1e9)  # the clock was set back
    assert not forgotten(forget(ahead, 10 * 3600.0 - 1))
    assert forgotten(forget(ahead, 10 * 3600.0))


# While the storage deletes a partition


def test_a_producer_that_comes_back_meanwhile_continues() -> None:
    store = make_store()
    actions = forget(store, AFTER_S, [head(9)])
    assert not forgotten(actions)
    assert ResetPosition(HELLO, 10) in actions
    assert store.stored.durable_end(HELLO) == 10


def test_a_producer_that_connects_meanwhile_continues() -> None:
    store = make_store()
    assert store.begin_forgetting([HELLO]) == (HELLO,)
    store.receive_subscriptions(subscription(Command.ACK, "PRODUCER"), AFTER_S)
    assert store.partitions_deleted() == [ResetPosition(HELLO, 10)]


def test_records_that_come_meanwhile_continue_it() -> None:
    store = make_store()
    actions = forget(store, AFTER_S, [live(10, 12)])
    assert Append(run(10, 12)) in actions
    assert not any(isinstance(action, ResetPosition) for action in actions)
    assert store.stored.durable_end(HELLO) == 10


def test_records_that_wait_for_the_storage_keep_a_partition() -> None:
    store = make_store()
    queue = CommitQueue(store)
    queue.put_silent(store.silent_partitions(AFTER_S))
    for action in store.receive([live(10, 12)], AFTER_S):
        if isinstance(action, Append):
            queue.put_records(action.batch)
    assert queue.begin_work() == ForgetPartitions(())
    queue.work_done(AFTER_S)
    assert queue.begin_work() == [run(10, 12)]


@pytest.mark.parametrize("first", [head(9), live(10, 11)], ids=["head", "record ahead"])
def test_a_partition_without_any_record_is_kept_while_its_position_is_stored(first: wire.BatchedMessage) -> None:
    store = StoreMachine(ME, CONFIG, {})
    store.start(0.0)
    store.node_settled(0.0)
    store.receive_subscriptions(subscription(Command.CONSUMER_HELLO, "OTHER"), 0.0)
    store.receive_subscriptions(subscription(Command.ACK, "PRODUCER"), 0.0)
    store.receive([first], 0.0)
    actions = store.receive([wire.DirectEarliest(ME, "OTHER", "PRODUCER", "hello", 10, 10)], 0.0)
    assert ResetPosition(HELLO, 10) in actions
    store.receive_subscriptions(subscription(Command.ACK, "PRODUCER", active=False), 0.0)
    store.drop_silent_unproven(AFTER_S)  # the storage has not reset it yet
    assert is_known(store)
    store.position_reset(HELLO, 10)
    store.drop_silent_unproven(AFTER_S)
    assert is_known(store)
    end = 10
    for action in actions:
        if isinstance(action, Append):
            end = action.batch.end_sequence
            store.records_committed({HELLO: end}, AFTER_S)
    store.records_trimmed({HELLO: end})
    assert forgotten(forget(store, AFTER_S))
    assert not is_known(store)


def test_a_partition_is_kept_while_its_records_wait_for_the_storage() -> None:
    """The rest of its records is unrecoverable, and its producer is gone."""
    store = StoreMachine(ME, CONFIG.with_store(retention_records=5), {})
    store.start(0.0)
    store.node_settled(0.0)
    store.receive_subscriptions(subscription(Command.CONSUMER_HELLO, "OTHER"), 0.0)
    assert store.receive([live(0, 5)], 0.0) == [Append(run(0, 5))]
    store.receive([direct_head(9, ME)], 0.0)
    actions = store.receive([wire.DirectEarliest(ME, "OTHER", "PRODUCER", "hello", 10, 10)], 0.0)
    assert ResetPosition(HELLO, 10) in actions
    assert published(store.records_committed({HELLO: 5}, 0.0), wire.Ack) == [wire.Ack("PRODUCER", "hello", 4, ME)]
    assert published(store.position_reset(HELLO, 10), wire.Ack) == [wire.Ack("PRODUCER", "hello", 9, ME)]


# Other stores


def test_stores_are_not_told_of_ended_partitions() -> None:
    """Otherwise two stores would keep each other from forgetting them."""
    store = make_store()
    store.receive_subscriptions(subscription(Command.CONSUMER_HELLO, "OTHER STORE"), 0.0)
    question = wire.GetHeads("hello", "OTHER STORE")
    assert published(store.receive([question], 0.0), wire.DirectHead) == []
    consumer = wire.GetHeads("hello", "CONSUMER")
    assert [each.sequence for each in published(store.receive([consumer], 0.1), wire.DirectHead)] == [9]
    store.receive_subscriptions(subscription(Command.ACK, "PRODUCER"), 0.2)
    assert [each.sequence for each in published(store.receive([question], 0.2), wire.DirectHead)] == [9]


@pytest.mark.parametrize(("earliest", "named"), [(10, []), (9, [9])], ids=["ended", "with records"])
def test_when_a_producer_leaves_its_partition_is_announced_if_there_are_records(
    earliest: int, named: list[int]
) -> None:
    store = make_store(earliest=earliest)
    store.receive_subscriptions(subscription(Command.DIRECT_HEAD, "OTHER STORE"), 0.0)
    store.peer_joined("PRODUCER", 0.0)
    actions = store.peer_left("PRODUCER", 1.0)
    assert [each.sequence for each in published(actions, wire.DirectHead)] == named


def test_an_ended_partition_that_another_store_names_does_not_come_back() -> None:
    store = StoreMachine(ME, CONFIG, {})
    store.start(0.0)
    store.node_settled(0.0)
    store.receive_subscriptions(subscription(Command.CONSUMER_HELLO, "OTHER"), 0.0)
    assert asked(store.receive([direct_head(9, ME)], 1.0)) == [(0, 10)]
    actions = store.receive([wire.DirectEarliest(ME, "OTHER", "PRODUCER", "hello", 10, 10)], 1.1)
    assert not any(isinstance(action, ResetPosition) for action in actions)
    assert not is_known(store)


def test_a_producer_with_a_spool_continues_at_a_store_that_never_knew_it() -> None:
    """Another store that keeps the ended partition says where it continues."""
    store = StoreMachine(ME, CONFIG, {})
    store.start(0.0)
    store.node_settled(0.0)
    store.receive_subscriptions(subscription(Command.CONSUMER_HELLO, "OTHER"), 0.0)
    store.receive_subscriptions(subscription(Command.ACK, "PRODUCER"), 0.0)
    store.receive([head(9)], 1.0)
    actions = store.receive([wire.DirectEarliest(ME, "OTHER", "PRODUCER", "hello", 10, 10)], 1.1)
    assert ResetPosition(HELLO, 10) in actions


def test_a_late_record_of_a_forgotten_partition_is_never_stored_and_is_dropped_again() -> None:
    store = make_store()
    forget(store, AFTER_S)
    actions = store.receive([live(5, 10)], AFTER_S + 1)
    assert not any(isinstance(action, Append) for action in actions)
    store.drop_silent_unproven(2 * AFTER_S)
    assert is_known(store)
    store.drop_silent_unproven(2 * AFTER_S + 1)
    assert not is_known(store)


def test_no_head_is_left_out_while_partitions_are_forgotten() -> None:
    """Answers to GET-HEADS are sent bit by bit. A partition that goes meanwhile must not hide a later one."""
    ended = {Partition("hello", f"A{number}"): 5 for number in range(SLICE)}
    living = {Partition("hello", f"Z{number}"): 5 for number in range(SLICE)}
    store = StoreMachine(ME, CONFIG, ended | living, dict.fromkeys(ended, 5))
    store.start(0.0)
    named = {each.address for each in published(store.receive([wire.GetHeads("hello", "X")], 0.0), wire.DirectHead)}
    forget(store, AFTER_S)
    now = AFTER_S
    while (now := now + 0.01) < AFTER_S + 1:
        named |= {each.address for each in published(store.tick(now), wire.DirectHead)}
    assert named >= {partition.address for partition in living}


def test_a_topic_that_is_gone_while_its_heads_are_sent() -> None:
    ended = {Partition("hello", f"A{number}"): 5 for number in range(SLICE + 1)}
    store = StoreMachine(ME, CONFIG, ended, dict.fromkeys(ended, 5))
    store.start(0.0)
    store.receive([wire.GetHeads("hello", "X")], 0.0)
    for _ in range(2):
        forget(store, AFTER_S)
    assert store.stored.durable == {}
    assert published(store.tick(AFTER_S + 1), wire.DirectHead) == []
    assert store.deadline() == float("inf")


# The limit


SMALL = CONFIG.with_node(partitions_max=2)


def make_full(ended: int, living: int, config: Config = SMALL) -> tuple[StoreMachine, list[Action]]:
    first = {Partition("hello", f"A{number}"): 5 for number in range(ended)}
    others = {Partition("hello", f"Z{number}"): 5 for number in range(living)}
    store = StoreMachine(ME, config, first | others, dict.fromkeys(first, 5))
    return store, store.start(0.0)


def test_the_limit_counts_partitions_that_live() -> None:
    store, actions = make_full(ended=2, living=0)
    assert events(actions) == []
    assert asked(store.receive([head(0)], 0.0)) == [(0, 1)]
    assert store.capacity.full_reason == ""


def test_a_store_says_once_that_it_is_full_and_that_it_has_room_again() -> None:
    store, actions = make_full(ended=0, living=1)
    assert events(actions) == []
    actions = store.receive([live(0, 5, Partition("hello", "NEW"))], 0.0)
    assert events(actions) == [StoreFull(MANY_PARTITIONS, 2)]
    actions = store.receive([head(0), head(0, Partition("hello", "OTHER"))], 0.1)
    assert (asked(actions), events(actions)) == ([], [])
    assert store.discarded[MANY_PARTITIONS] == 2
    assert events(store.tick(1.2)) == []
    store.records_trimmed({Partition("hello", "Z0"): 5})
    assert store.deadline() <= 2.2
    assert events(store.tick(2.3)) == [StoreHasRoom()]
    assert (store.capacity.full_reason, store.deadline()) == ("", float("inf"))
    assert asked(store.receive([head(0)], 2.4)) == [(0, 1)]


def test_a_store_with_too_many_partitions_without_records_is_full_until_one_is_dropped() -> None:
    store = StoreMachine(ME, CONFIG.with_node(partitions_unproven_max=1), {})
    store.start(0.0)
    first, second = Partition("hello", "A"), Partition("hello", "B")
    assert events(store.receive([head(0, first), head(0, second)], 0.0)) == [StoreFull(MANY_UNPROVEN, 1)]
    assert not any(isinstance(event, StoreHasRoom) for event in events(store.tick(2.0)))
    assert store.capacity.full_reason
    store.drop_silent_unproven(AFTER_S)
    assert StoreHasRoom() in events(store.tick(AFTER_S))


def test_many_ended_partitions_are_forgotten_earlier() -> None:
    config = SMALL.with_store(forget_empty_after_ms=1_000_000_000)
    store, _ = make_full(ended=2, living=0, config=config)
    assert store.silent_partitions(CROWDED_S) == []
    store, _ = make_full(ended=3, living=0, config=config)
    assert store.silent_partitions(CROWDED_S - 1) == []
    assert len(store.silent_partitions(CROWDED_S + 1)) == 3


def test_empty_partitions_of_connected_producers_do_not_crowd() -> None:
    config = SMALL.with_store(forget_empty_after_ms=1_000_000_000)
    store, _ = make_full(ended=3, living=0, config=config)
    store.receive_subscriptions(subscription(Command.ACK, "A0"), 0.0)
    assert store.silent_partitions(CROWDED_S + 1) == []


def test_a_short_wait_stays_short_when_there_are_many_ended_partitions() -> None:
    store, _ = make_full(ended=3, living=0)
    assert len(store.silent_partitions(AFTER_S)) == 3


def test_a_producer_that_is_connected_counts_although_its_partition_is_empty() -> None:
    store, _ = make_full(ended=2, living=0)
    for number in range(2):
        store.receive_subscriptions(subscription(Command.ACK, f"A{number}"), 0.0)
    assert asked(store.receive([head(0)], 5.0)) == []
    assert store.capacity.full_reason


def test_a_partition_that_begins_at_a_position_without_records_has_ended() -> None:
    store = make_store(earliest=2)
    store.reassembler.reset_to(HELLO, 20)
    store.position_reset(HELLO, 20)
    assert store.silent_partitions(10 * AFTER_S) == [HELLO]


def test_a_partition_that_comes_back_after_it_was_forgotten_can_halt_again() -> None:
    store = StoreMachine(ME, CONFIG, {})
    store.start(0.0)
    store.node_settled(0.0)
    store.receive_subscriptions(subscription(Command.CONSUMER_HELLO, "OTHER"), 0.0)
    for now in (0.0, 2 * AFTER_S):
        store.receive([live(0, 5)], now)
        store.records_committed({HELLO: 5}, now)
        store.receive([head(30)], now)
        halted = events(store.receive([wire.DirectEarliest(ME, "OTHER", "PRODUCER", "hello", 20, 20)], now))
        assert halted == [PartitionHalted(HELLO, 5, 20)]
        store.forget_own(HELLO)
