"""The replicated logs of one broker: what it fetches, keeps and acknowledges, and which control records count.

And what no scenario shows of when a replica requests votes, serves readers and counts as heard.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import combinations, permutations, product
from math import inf

import attrs

from dafka.broker.core.log.entries import NextStartEntry, encode_entries
from dafka.broker.core.log.log import LEADER
from dafka.broker.core.metadata.leader_and_isr import next_epoch
from dafka.broker.core.metadata.log_replicas import RECOVERY_STEP
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.positions import Offset, RecordSequence
from dafka.broker.core.replication.checkpoints import Checkpoint
from dafka.broker.core.replication.effects import Acknowledge, Lead, StepDown, WriteControl
from dafka.broker.core.replication.records import (
    RECOVERY_EPOCHS,
    ControlRecord,
    EpochStart,
    LeaderAndEpoch,
    Vote,
    VoteRequest,
)
from dafka.broker.core.replication.replica import Replica
from dafka.broker.core.replication.replicated_logs import (
    OBSERVED_IN_SYNC_S,
    FetchRecords,
    LogAction,
    ReplicatedLog,
    ReplicatedLogs,
)
from dafka.broker.core.replication.settings import Availability, ReplicaSettings
from dafka.broker.core.replication.states import Starting
from dafka.broker.core.replication.transitions import Transition
from dafka.protocol.rendezvous import rank_nodes
from dafka.records import Partition, RecordBatch
from tests.broker.core.entries import epoch_end, run_entry

REPLICAS = ("a", "b", "c")
FIRST = LeaderAndEpoch(0, "a")
SECOND = LeaderAndEpoch(next_epoch(0, 1), "b")
RECORDS = 10


class Kept:
    """A log that the broker c keeps, if it is a replica."""

    def __init__(self, replicas: tuple[str, ...] = REPLICAS, forgotten: tuple[str, ...] = ()) -> None:
        self.ends: defaultdict[Partition, int] = defaultdict(int)
        self.logs = ReplicatedLogs("c", lambda: 2, self.ends.__getitem__, ReplicaSettings(), forgotten=forgotten)
        self.log: ReplicatedLog = self.logs.add(Topic("orders", "f" * 32), 0, replicas, [])
        self.row = EpochStart(self.log.name, SECOND, epoch_end(FIRST, RECORDS), replicas)

    def store(self, batch: RecordBatch) -> list[FetchRecords]:
        self.ends[batch.partition] = batch.end_sequence
        return fetched(self.logs.stored([batch])[1])

    def store_index(self) -> list[FetchRecords]:
        """Store the index of the first branch, which names ten records of its leader's clients."""
        index = RecordBatch(self.log.index_partition(FIRST), 0, [encode_entries([run_entry(0, LEADER, 0, RECORDS)])])
        return self.store(index)

    def store_records(self) -> list[FetchRecords]:
        return self.store(RecordBatch(self.log.leader_partition(FIRST), 0, [b"x"] * RECORDS))


def fetched(actions: Iterable[LogAction]) -> list[FetchRecords]:
    return [each.action for each in actions if isinstance(each.action, FetchRecords)]


def test_a_replica_fetches_what_is_before_a_branch_that_begins() -> None:
    kept = Kept()
    index, records = kept.log.index_partition(FIRST), kept.log.leader_partition(FIRST)
    assert fetched(kept.logs.record_control("b", kept.row)) == [FetchRecords(index)]
    assert kept.store_index() == [FetchRecords(records, RecordSequence(RECORDS))]
    assert fetched(kept.logs.repeat_fetches()) == [FetchRecords(records, RecordSequence(RECORDS))]
    assert kept.store_records() == []
    assert fetched(kept.logs.repeat_fetches()) == []


def test_records_that_are_on_their_way_are_fetched_only_after_a_while() -> None:
    kept = Kept()
    assert kept.store_index() == []
    assert fetched(kept.logs.repeat_fetches()) == [
        FetchRecords(kept.log.leader_partition(FIRST), RecordSequence(RECORDS))
    ]


def test_a_broker_that_does_not_keep_a_log_fetches_nothing_of_it() -> None:
    kept = Kept(("a", "b"))
    assert fetched(kept.logs.record_control("b", kept.row)) == []
    assert fetched(kept.logs.repeat_fetches()) == []


THIRD = LeaderAndEpoch(next_epoch(next_epoch(0, 1), 0), "a")


def controls(actions: Iterable[LogAction]) -> list[ControlRecord]:
    return [each.action.record for each in actions if isinstance(each.action, WriteControl)]


def test_control_records_of_epochs_that_have_begun_are_forgotten_and_later_ones_stay() -> None:
    """They are restored when the log is loaded later: a vote must count, also if an earlier epoch has begun since."""
    for begun, is_kept in ((FIRST, True), (SECOND, True), (THIRD, False)):
        logs = ReplicatedLogs("c", lambda: 2, defaultdict[Partition, int](int).__getitem__, ReplicaSettings())
        topic = Topic("orders", "f" * 32)
        name = f"{topic.topic_id}/0"
        vote = Vote(name, SECOND, epoch_end(FIRST, 0), (REPLICAS,), FIRST)
        logs.record_control("c", vote)
        logs.record_control("a", EpochStart(name, begun, epoch_end(FIRST, 0), REPLICAS))
        assert logs.has_control(name)
        log = logs.add(topic, 0, REPLICAS, [])
        assert (log.replica.elections.votes.own_epoch == SECOND.epoch) == is_kept
        assert [each.leader_epoch for each in logs.epoch_starts(name)] == sorted({FIRST, begun})
        logs.remove(name)
        assert logs.find(name) is None
        assert logs.has_control(name)
        logs.forget_control(name)
        assert not logs.has_control(name)


def test_partitions_belong_to_their_logs_and_learners_keep_them() -> None:
    kept = Kept(("a", "b"))
    index, records = kept.log.index_partition(FIRST), kept.log.leader_partition(FIRST)
    assert kept.logs.find_partition(index) == kept.logs.find_partition(records) == (kept.log, FIRST)
    assert kept.logs.keeps(records) is False
    for other in (
        Partition("other", records.address),
        Partition("orders", "a"),
        Partition("orders", f"a/{'e' * 32}/0"),
    ):
        assert kept.logs.find_partition(other) is None
        assert kept.logs.keeps(other) is None
    row = EpochStart(kept.log.name, SECOND, epoch_end(FIRST, RECORDS), (*REPLICAS,), ("c",))
    kept.logs.record_control("b", row)
    assert kept.logs.keeps(records) is True
    kept.logs.set_alive(REPLICAS, 1.0)
    assert kept.logs.is_joining(records)


def lead(end: int) -> tuple[ReplicatedLogs, ReplicatedLog]:
    """Return a log that the broker `a` leads, and stores up to an offset."""
    ends: defaultdict[Partition, int] = defaultdict(lambda: 100)
    logs = ReplicatedLogs("a", lambda: 0, ends.__getitem__, ReplicaSettings())
    log = logs.add(Topic("orders", "f" * 32), 0, REPLICAS, [])
    logs.resume(log, 0.0)
    logs.set_alive(REPLICAS, 0.0)
    values = [encode_entries([run_entry(number, LEADER, number, 1)]) for number in range(end)]
    logs.stored([RecordBatch(log.index_partition(FIRST), 0, values)])
    return logs, log


def test_acknowledged_index_records_stand_for_the_offsets_after_what_they_name() -> None:
    logs, log = lead(5)
    for broker, index_end, mark in (("z", 5, 0), ("b", 0, 0), ("b", 3, 3), ("c", 2, 3), ("b", 4, 4), ("c", 5, 5)):
        logs.acknowledged(broker, log.index_partition(FIRST), RecordSequence(index_end))
        assert log.replica.high_watermark == mark
    assert logs.acknowledged("b", log.index_partition(THIRD), RecordSequence(9)) == []
    assert logs.acknowledged("b", Partition("$logs", f"a/{'e' * 32}/0"), RecordSequence(9)) == []


def test_an_acknowledgement_of_unknown_index_records_stands_for_the_start_of_their_epoch() -> None:
    kept = Kept()
    kept.store_index()
    kept.store_records()
    kept.logs.record_control("b", kept.row)
    kept.logs.acknowledged("a", kept.log.index_partition(SECOND), RecordSequence(1))
    assert kept.log.replica._peers.progress.ends == {"a": RECORDS}


def test_acknowledgements_are_repeated_for_a_leader_that_is_back_and_for_the_index_that_it_announces() -> None:
    kept = Kept()
    kept.store_index()
    kept.store_records()
    acknowledge = [Acknowledge(FIRST, Offset(RECORDS))]
    assert [each.action for each in kept.logs.set_alive(REPLICAS, 1.0)] == acknowledge
    assert kept.logs.set_alive({"a", "c"}, 2.0) == []
    assert kept.logs.set_alive(REPLICAS, 3.0) == [], "only b is back"
    assert [each.action for each in kept.logs.repeat_acknowledgement(kept.log.index_partition(FIRST))] == acknowledge
    assert kept.logs.repeat_acknowledgement(kept.log.index_partition(SECOND)) == []


def test_settled_logs_rest_until_something_happens() -> None:
    logs, log = lead(1)
    assert logs.active == [log]
    for broker in "bc":
        logs.acknowledged(broker, log.index_partition(FIRST), RecordSequence(1))
    logs.advance(1.0)
    logs.advance(2.0)
    assert logs.active == []
    logs.take_changed()
    assert logs.take_changed() == []
    logs.set_preferences(log, ("b",), frozenset())
    assert logs.active == logs.take_changed() == [log]
    logs.advance(3.0)
    logs.set_preferences(log, ("b",), frozenset())
    assert logs.active == [], "nothing has changed"
    assert controls(logs.change_replicas(log, ("a", "b"), 1)) != []
    logs.remove(log.name)
    assert (len(logs), list(logs), logs.active, logs.take_changed()) == (0, [], [], [])
    logs.transfer_leadership(log)
    assert logs.active == [], "it stays removed"


def test_a_preferred_leader_rests_until_it_takes_the_leadership_back() -> None:
    """It stores all that the leader has. How long it waits depends on the log, between once and twice the setting."""
    kept = Kept()
    kept.store_index()
    kept.store_records()
    kept.logs.set_preferences(kept.log, ("c", "a", "b"), frozenset())
    kept.logs.set_alive(REPLICAS, 0.0)
    kept.logs.advance(0.5)
    until, least = kept.log.replica.settled_until, ReplicaSettings().preferred_leader_after_s
    assert least <= until <= 2 * least
    for now in (1.0, until / 2, until - 0.01):
        assert kept.logs.active == []
        assert kept.logs.advance(now) == []
    (request,) = controls(kept.logs.advance(until))
    assert isinstance(request, VoteRequest)
    assert request.is_transfer
    kept.logs.set_preferences(kept.log, ("a", "b", "c"), frozenset())
    assert kept.logs.advance(until + 60.0) == []
    assert kept.log.replica.settled_until == inf
    kept.logs.set_preferences(kept.log, ("c", "a", "b"), frozenset())
    kept.logs.advance(until + 61.0)
    kept.logs.remove(kept.log.name)
    assert kept.logs.advance(kept.log.replica.settled_until) == []
    assert kept.logs.active == [], "nothing is left of it"


def test_a_log_that_is_dropped_is_empty_and_waits_for_nothing() -> None:
    kept = Kept()
    kept.store_index()
    kept.logs.take_changed()
    kept.logs.drop(kept.log)
    assert kept.logs.take_changed() == [kept.log]
    assert kept.log.local_log.ends() == {}
    assert kept.store_records() == []
    assert kept.log.replica.local_epochs.log_end() == epoch_end(FIRST, 0)


def test_nothing_is_fetched_for_a_log_that_is_removed_and_nothing_wakes_it_up() -> None:
    for is_index_stored in (True, False):
        kept = Kept()
        kept.logs.record_control("b", kept.row)
        if is_index_stored:
            kept.store_index()
        kept.logs.remove(kept.log.name)
        assert kept.logs.repeat_fetches() == []
        kept.ends[kept.log.leader_partition(FIRST)] = RECORDS
        records = RecordBatch(kept.log.leader_partition(FIRST), 0, [b"x"] * RECORDS)
        assert (*kept.logs.stored([records])[0],) == ()


def test_a_log_is_restored_from_its_checkpoints_and_the_index_records_after_them() -> None:
    """Records that arrive later than their index count when they do, and the start of the log is as decided."""
    values = [encode_entries([run_entry(number, LEADER, number, 1)]) for number in range(RECORDS)]
    values[3] = encode_entries([NextStartEntry(Offset(2)), run_entry(3, LEADER, 3, 1)])
    for first, stored_end, availability in product(range(RECORDS), (6, RECORDS), Availability):
        kept = Kept()
        index, records = kept.log.index_partition(FIRST), kept.log.leader_partition(FIRST)
        topic = Topic("orders", "f" * 32, settings={"availability": availability.value})
        known = Checkpoint(RecordSequence(first), Offset(first), Offset(0), Offset(1), None, {records.address: first})
        other = Partition(index.topic, f"a/{'e' * 32}/0")
        kept.ends[records] = stored_end
        checkpoints = {index: known, other: attrs.evolve(known, end_offset=Offset(99))}
        log = kept.logs.add(topic, 0, REPLICAS, [RecordBatch(index, first, values[first:])], checkpoints)
        assert log.replica.availability is availability
        assert log.local_log.ends() == {FIRST: max(first, stored_end)}
        assert log.replica.local_epochs.log_end() == epoch_end(FIRST, max(first, stored_end))
        assert log.replica.local_epochs.log_start == (2 if first <= 3 else 1)
        kept.ends[records] = RECORDS
        changed, _ = kept.logs.stored([RecordBatch(records, stored_end, [b"x"] * (RECORDS - stored_end))])
        assert list(changed) == [log] * (max(first, stored_end) < RECORDS)
        assert log.local_log.ends() == {FIRST: RECORDS}


def test_index_records_without_records_are_acknowledged_and_move_the_start_of_the_log() -> None:
    """Their leader waits until enough replicas have them, before it deletes records."""
    kept = Kept()
    kept.store_index()
    kept.store_records()
    batch = RecordBatch(kept.log.index_partition(FIRST), 1, [encode_entries([NextStartEntry(Offset(4))])])
    assert [each.action for each in kept.logs.stored([batch])[1]] == [Acknowledge(FIRST, Offset(RECORDS))]
    assert kept.log.local_log.acknowledged_end(FIRST) == 2
    assert kept.log.replica.local_epochs.log_start == 4
    kept.logs.drop(kept.log)
    assert kept.log.replica.local_epochs.log_start == 0


def test_brokers_that_cannot_write_or_cannot_read_a_log_do_not_vote_there() -> None:
    subsets = [frozenset(each) for count in range(3) for each in combinations("abc", count)]
    for unwritable, unreadable, later in product(subsets, repeat=3):
        kept, name = Kept(), f"{'f' * 32}/0"
        kept.logs.set_alive(REPLICAS, 1.0, unwritable)
        for found in (unreadable, later, None):
            kept.logs.set_unreadable({} if found is None else {name: found, "other/0": frozenset("abc")}, 2.0)
            usable = frozenset(REPLICAS) - unwritable - (found or frozenset())
            assert kept.log.replica._peers.writable == usable
            kept.logs.resume(kept.log, 3.0)
            assert kept.log.replica._peers.writable == usable


def test_a_log_that_is_dropped_and_copied_again_can_be_read_only_as_far_as_it_is_stored() -> None:
    kept = Kept()
    index, marks = kept.log.index_partition(FIRST), list[int]()
    for _ in range(2):
        for count in range(1, RECORDS + 1):
            entry = encode_entries([run_entry(count - 1, LEADER, count - 1, 1)])
            kept.ends[kept.log.leader_partition(FIRST)] = count
            kept.store(RecordBatch(index, count - 1, [entry]))
            kept.logs.acknowledged("a", index, RecordSequence(count))
            marks.append(kept.log.replica.high_watermark)
        kept.ends.clear()
        kept.logs.drop(kept.log)
        marks.append(kept.log.replica.high_watermark)
    assert marks == [*range(1, RECORDS + 1), 0] * 2


def test_forgotten_brokers_neither_vote_nor_acknowledge_and_the_epochs_that_they_began_go_on() -> None:
    vote = Vote(f"{'f' * 32}/0", SECOND, epoch_end(FIRST, 0), (REPLICAS,), FIRST)
    request = VoteRequest(vote.log, SECOND, REPLICAS)
    for forgotten in ((), ("b",)):
        for record in (vote, request, EpochStart(vote.log, SECOND, epoch_end(FIRST, 0), REPLICAS)):
            kept = Kept(forgotten=forgotten)
            voted = controls(kept.logs.record_control("b", record))
            counts = not forgotten or isinstance(record, EpochStart)
            assert bool(voted) == (counts and not isinstance(record, Vote))
            assert kept.log.replica.has_voted("b", SECOND.epoch) == (counts and isinstance(record, Vote))
            assert kept.logs.has_control(kept.log.name) == counts
        kept.store_index()
        kept.store_records()
        kept.logs.acknowledged("b", kept.log.index_partition(SECOND), RecordSequence(1))
        assert kept.log.replica._peers.progress.ends == ({} if forgotten else {"b": 0})


def test_the_latest_start_of_a_log_is_known_before_it_is_loaded() -> None:
    starts = [EpochStart("f/0", each, epoch_end(FIRST, 0), REPLICAS) for each in (FIRST, SECOND, THIRD)]
    for order in permutations(starts, 2):
        kept = Kept()
        assert (kept.logs.known_start("f/0"), kept.logs.known_epoch("f/0")) == (None, -1)
        kept.logs.record_control("a", Vote("f/0", LeaderAndEpoch(9999, "a"), epoch_end(FIRST, 0), ()))
        assert kept.logs.known_epoch("f/0") == -1, "a vote starts nothing"
        for each in order:
            kept.logs.record_control(each.leader_epoch.leader, each)
        latest = max(order, key=starts.index)
        assert (kept.logs.known_start("f/0"), kept.logs.known_epoch("f/0")) == (latest, latest.leader_epoch.epoch)


def test_all_brokers_keep_the_logs_that_they_observe_and_their_learners_become_voters_soon() -> None:
    start = EpochStart(f"{'f' * 32}/0", THIRD, epoch_end(FIRST, 0), REPLICAS, ("c",))
    for is_observed, first_epoch, number in product((True, False), (0, 7), (0, 3)):
        topic = Topic("orders", "f" * 32, first_epoch=first_epoch)
        observed = frozenset({"orders"} if is_observed else ())
        logs = ReplicatedLogs("z", lambda: 0, lambda _: 0, ReplicaSettings(), observed_topics=observed)
        log = logs.add(topic, 0, REPLICAS, [])
        assert log.replica.latest.leader_epoch == LeaderAndEpoch(first_epoch, "a")
        assert logs.keeps_log(log) == logs.keeps(log.index_partition(FIRST)) == is_observed
        logs = ReplicatedLogs("a", lambda: 9, lambda _: 9, ReplicaSettings(), observed_topics=observed)
        logs.record_control("a", start)
        index = RecordBatch(log.index_partition(THIRD), 0, [encode_entries([run_entry(0, LEADER, 0, 1)])])
        log = logs.add(attrs.evolve(topic, first_epoch=0), 0, REPLICAS, [index])
        logs.renumber(number)
        logs.resume(log, 0.0)
        logs.set_alive(REPLICAS, 0.0)
        for broker in "bc":
            logs.acknowledged(broker, log.index_partition(THIRD), RecordSequence(1))
        times = (each / 10 for each in range(1, 100))
        at, (request,) = next((now, made) for now in times if (made := controls(logs.advance(now))))
        assert isinstance(request, VoteRequest)
        assert (request.replicas, request.learners) == (REPLICAS, ())
        assert request.leader_epoch == LeaderAndEpoch(next_epoch(THIRD.epoch, number), "a")
        wait_s = OBSERVED_IN_SYNC_S if is_observed else ReplicaSettings().learners_in_sync_s
        assert wait_s <= at <= wait_s + 0.2


# One replica by itself


def make_replica(broker: str, replicas: tuple[str, ...] = REPLICAS) -> Replica:
    replica = Replica(
        "log",
        broker,
        REPLICAS.index(broker),
        replicas,
        ReplicaSettings(election_timeout_s=0.5, preferred_leader_after_s=30.0),
    )
    replica.elections.restore([], [])
    replica.restore_local({})
    return replica


def lead_followed_by_one() -> Replica:
    """Return a leader whose log reaches to 10, as one of its two followers has acknowledged."""
    leader = make_replica("a")
    leader.resume()
    leader.set_alive(REPLICAS, 0.0)
    leader.stored(FIRST, Offset(10))
    leader.acknowledged("b", FIRST, Offset(10))
    return leader


def test_a_leader_that_cannot_write_serves_only_while_others_cannot_either() -> None:
    leader = make_replica("a")
    leader.resume()
    leader.set_alive(REPLICAS, 0.0)
    assert [leader.may_serve(each) for each in ("", "a", "ab", "bc")] == [True, False, True, True]


def test_a_leader_knows_who_is_in_sync_by_lag_or_time_and_serves_with_most_replicas_or_as_a_branch() -> None:
    for alive, lag in product((REPLICAS, ("a", "b"), ("a", "c"), ("a",)), range(12)):
        leader = lead_followed_by_one()
        leader.acknowledged("c", FIRST, Offset(8))
        leader.set_alive(alive, 5.0)
        assert leader.in_sync(lag) == tuple(each for each in alive if each != "c" or lag >= 2)
        within_s = float(lag)  # c was caught up at 0, before there were records
        assert leader.in_sync(1, within_s) == tuple(each for each in alive if each != "c" or within_s >= 5)
        assert leader.may_serve(()) == (len(alive) > 1)
        assert [each for each in REPLICAS if leader.may_lead(each)] == list(alive)
    assert make_replica("b").in_sync(9) == ()
    branch = Replica("log", "a", 0, REPLICAS, ReplicaSettings(availability=Availability.BRANCH))
    branch.resume()
    branch.set_alive(("a",), 0.0)
    assert (branch.may_serve(()), branch.has_voted("b", 1024)) == (True, False)
    branch.receive("b", Vote("log", LeaderAndEpoch(2048, "b"), epoch_end(FIRST, 7), (), FIRST))
    assert [branch.has_voted("b", epoch) for epoch in (1024, 2048, 2049)] == [True, True, False]


def test_a_leader_is_heard_since_most_replicas_that_follow_it_were_asked() -> None:
    leader = lead_followed_by_one()
    asked = {"b": 7.0, "c": 9.0}
    assert leader.heard_since(asked.__getitem__) == 9.0
    assert leader.heard_since({"b": 7.0, "c": float("-inf")}.__getitem__) == 7.0
    assert leader.heard_since(lambda _broker: float("-inf")) == float("-inf")
    leader.receive("c", Vote("log", LeaderAndEpoch(2048, "b"), epoch_end(FIRST, 7), (), FIRST))
    assert leader.heard_since(asked.__getitem__) == 7.0, "b2 may follow another leader"
    leader.receive("b", Vote("log", LeaderAndEpoch(2048, "b"), epoch_end(FIRST, 7), (), FIRST))
    assert leader.heard_since(asked.__getitem__) == float("-inf")
    branch = Replica("log", "a", 0, REPLICAS, ReplicaSettings(availability=Availability.BRANCH))
    branch.resume()
    assert branch.heard_since(lambda _broker: float("-inf")) == float("inf")
    assert make_replica("b").heard_since(asked.__getitem__) == float("-inf"), "it leads nothing"


def test_a_replica_that_joins_claims_nothing_and_leads_nothing() -> None:
    learners = make_replica("c")
    row = EpochStart("log", LeaderAndEpoch(next_epoch(0, 0), "a"), epoch_end(FIRST, 0), REPLICAS, ("c",))
    learners.receive("a", row)
    learners.stored(row.leader_epoch, Offset(5))
    for now in range(60):
        assert not any(
            isinstance(each, WriteControl) and isinstance(each.record, VoteRequest)
            for each in learners.set_alive(("b", "c"), float(now))
        )
    assert learners.rank_replicas() == rank_nodes("log", ("a", "b"))


def lead_second(replicas: tuple[str, ...], learners: tuple[str, ...] = ()) -> tuple[Replica, LeaderAndEpoch]:
    """Return a leader of an epoch after the first one, which begins at 10."""
    leader, epoch = make_replica("a"), LeaderAndEpoch(next_epoch(0, 0), "a")
    leader.epoch_tree.add(EpochStart("log", epoch, epoch_end(FIRST, 10), replicas, learners))
    leader.restore_local({FIRST: Offset(10), epoch: Offset(10)})
    leader.resume()
    return leader, epoch


def test_an_index_is_committed_as_far_as_its_leader_and_more_than_half_of_the_voters_store_it() -> None:
    for learners, own, b, c in product(((), ("c",)), range(4), (None, *range(4)), (None, *range(4))):
        leader, epoch = lead_second(REPLICAS, learners)
        for name, end in (("b", b), ("c", c)):
            if end is not None:
                leader.acknowledged(name, epoch, Offset(10 + end * 10), RecordSequence(end))
        ends = sorted([own, -1 if b is None else b, *([-1 if c is None else c] if not learners else [])])
        for index_end in range(4):
            is_committed = leader.has_committed_index(RecordSequence(own), RecordSequence(index_end))
            assert is_committed == (ends[len(ends) // 2 - (len(ends) == 2)] >= index_end)
        shared = min(10, *(0 if each is None else 10 + each * 10 for each in (b, c)))
        assert leader.shared_end == shared
    assert not make_replica("b").has_committed_index(RecordSequence(9), RecordSequence(0)), "it leads nothing"


def test_a_leader_hands_over_to_the_most_preferred_replica_that_has_all_and_can_be_elected() -> None:
    for alive, is_writable, preferred, ineligible, lag_s in product(
        (REPLICAS, ("a", "b"), ("a", "c"), ("a",)), (True, False), permutations("abc"), ("", "b", "c"), (0.0, 4.9, 5.0)
    ):
        leader = lead_followed_by_one()
        leader.acknowledged("c", FIRST, Offset(8))
        leader.preference.set(tuple(preferred), frozenset(ineligible))
        leader.set_alive(alive, 5.0, frozenset("c" if not is_writable else ""))
        leader.elections.advance(5.0)
        assert [leader.behind_s(each) for each in "bc"] == [0.0, 5.0]
        writable = [each for each in preferred if each in alive and (each != "c" or is_writable)]
        ranked = sorted(writable, key=ineligible.count)
        for candidates in (REPLICAS, ("b", "c"), ("c",), ()):
            suitable = [each for each in ranked if each in candidates and (each != "c" or lag_s >= 5)]
            found = suitable[0] if suitable and len(writable) > 1 else ""
            assert leader.choose_successor(frozenset(candidates), lag_s) == found


def test_a_leader_has_a_successor_when_it_has_acknowledged_the_epoch_of_another_leader() -> None:
    replica, found = lead_followed_by_one(), list[bool]()
    for event in (
        lambda: None,
        lambda: replica.receive("b", EpochStart("log", SECOND, epoch_end(FIRST, 10), REPLICAS)),
        lambda: replica.stored(SECOND, Offset(10)),
        lambda: replica.receive("b", Vote("log", THIRD, epoch_end(SECOND, 10), (REPLICAS,), SECOND)),
    ):
        event()
        found.append(replica.has_successor)
    assert found == [False, False, True, False]


def test_only_the_leader_decides_what_is_committed_in_its_epoch() -> None:
    leader = make_replica("a")
    leader.resume()
    leader.set_alive(REPLICAS, 0.0)
    leader.stored(FIRST, Offset(10))
    for offset, end, mark in ((10, None, 0), (9, 4, 4)):
        leader.announced(FIRST, Offset(offset))
        if end is not None:
            leader.acknowledged("b", FIRST, Offset(end))
        assert leader.high_watermark == mark


def test_a_follower_acknowledges_what_it_stores_when_it_learns_of_the_epoch_and_nothing_after_a_later_vote() -> None:
    replica = make_replica("c")
    replica.stored(FIRST, Offset(10))
    assert replica.stored(SECOND, Offset(12)) == []
    made = replica.receive("b", EpochStart("log", SECOND, epoch_end(FIRST, 10), REPLICAS))
    assert made[-1] == Acknowledge(SECOND, Offset(12))
    assert [replica.acknowledged_end(each) for each in REPLICAS] == [-1, -1, 12]
    assert replica.repeat_acknowledgement() == [Acknowledge(SECOND, Offset(12))]
    replica.receive("a", VoteRequest("log", THIRD, REPLICAS))
    assert replica.repeat_acknowledgement() == []
    assert replica.acknowledged_log_end == epoch_end(SECOND, 12), "it has acknowledged that"


def test_a_leader_that_others_hear_votes_only_for_a_replica_that_it_hears_and_that_asks_for_a_transfer() -> None:
    request = VoteRequest("log", LeaderAndEpoch(next_epoch(0, 2), "c"), REPLICAS)
    for alive, is_transfer, relayed_by in product((REPLICAS, ("a", "b"), ("a", "c"), ("a",)), (True, False), "cb"):
        leader = lead_followed_by_one()
        leader.set_alive(alive, 0.0)
        made = leader.receive("c", attrs.evolve(request, is_transfer=is_transfer))
        if relayed_by == "b":  # its vote for a request shows that it can be right
            made += leader.receive("b", Vote("log", request.leader_epoch, epoch_end(FIRST, 10), (REPLICAS,), FIRST))
        is_heard = "b" in alive and relayed_by == "c"
        assert bool(made) == (not is_heard or (is_transfer and "c" in alive))


def test_a_vote_tells_what_its_replica_stores_and_its_next_epoch_is_later_than_all_that_it_knows() -> None:
    """It votes for no epoch before the ones that it has acknowledged or stores, even after its votes are forgotten."""
    for log_start, known in product((0, 4), (SECOND, THIRD)):
        replica = make_replica("c")
        replica.restore_local({FIRST: Offset(10)})
        replica.local_epochs.log_start = Offset(log_start)
        (made,) = replica.receive("b", VoteRequest("log", SECOND, REPLICAS))
        assert made == WriteControl(Vote("log", SECOND, epoch_end(FIRST, 10), (REPLICAS,), FIRST, Offset(log_start)))
        replica = make_replica("c")
        replica.restore_local({FIRST: Offset(10), known: Offset(12)})
        replica.epoch_tree.add(EpochStart("log", known, epoch_end(FIRST, 10), REPLICAS))
        assert replica.receive("b", VoteRequest("log", SECOND, REPLICAS)) == []
        times = map(float, range(99))
        made_later = next(found for now in times if (found := replica.set_alive(("b", "c"), now)))
        (request,) = [each.record for each in made_later if isinstance(each, WriteControl)]
        assert request.leader_epoch == LeaderAndEpoch(next_epoch(known.epoch, 2), "c")


def test_an_epoch_starts_the_log_where_the_votes_say_that_it_does() -> None:
    replica = make_replica("b")
    replica.stored(FIRST, Offset(9))
    times = map(float, range(99))
    made = next(found for now in times if (found := replica.set_alive(("b", "c"), now)))
    (request,) = [each.record for each in made if isinstance(each, WriteControl)]
    vote = Vote("log", request.leader_epoch, epoch_end(FIRST, 9), (REPLICAS,), FIRST, Offset(5))
    (own,) = [each.record for each in replica.receive("c", vote) if isinstance(each, WriteControl)]
    (begun,) = replica.elections.written(own)
    expected = EpochStart("log", request.leader_epoch, epoch_end(FIRST, 9), REPLICAS, log_start=Offset(5))
    assert begun == WriteControl(expected)


def test_a_follower_was_caught_up_for_no_longer_when_the_clock_is_set_back() -> None:
    for back_to in (99.0, 5.0):
        leader = lead_followed_by_one()
        for now in (100.0, 101.0):
            leader.elections.advance(now)
        leader.stored(FIRST, Offset(11))
        for now in (102.0, 103.0, back_to, back_to + 2):
            leader.elections.advance(now)
        assert leader.behind_s("b") == 2


def test_a_copy_may_go_when_no_replica_set_that_counts_can_need_it() -> None:
    """It is needed to elect a leader of an epoch that can begin, and after a recovery that gave it up."""
    for availability, was_one, is_one, is_newest, has_voted, is_established, is_recovered in product(
        tuple(Availability), *[(True, False)] * 6
    ):
        assert isinstance(availability, Availability)
        others = ("b", "c", "d")
        first = ("b", "c", "a") if was_one else others
        replica = Replica("log", "a", 0, first, ReplicaSettings(availability=availability))
        generation = RECOVERY_STEP if is_recovered else 1
        replica.epoch_tree.add(
            EpochStart("log", SECOND, epoch_end(FIRST, 0), ("b", "a") if is_one else others, (), generation)
        )
        if is_newest:
            newest = EpochStart("log", LeaderAndEpoch(1, "c"), epoch_end(FIRST, 0), ("c", "a"), (), generation + 1)
            replica.epoch_tree.add(newest)
        if has_voted:
            replica.elections.votes.add_own(VoteRequest("log", THIRD, ("a", "b")))
        if is_established:
            replica.acknowledged("b", SECOND, Offset(0))
            replica.acknowledged("c", SECOND, Offset(0))
        assert replica.is_needed == (is_one or is_newest)
        is_kept = availability is Availability.BRANCH or is_one or is_newest or has_voted or not is_established
        assert replica.may_drop == (not is_kept and was_one and not is_recovered)


def test_votes_and_epochs_count_after_a_restart_as_before() -> None:
    """Also epochs that have begun while it was down, and requests that it does not know any more."""
    voted = Vote("log", SECOND, epoch_end(FIRST, 0), (REPLICAS,), FIRST)
    request = VoteRequest("log", SECOND, ("a", "b", "c", "d"), ("d",))
    for has_request, has_voted, has_start in product((True, False), repeat=3):
        replica = Replica("log", "c", 2, REPLICAS, ReplicaSettings())
        start = EpochStart("log", SECOND, epoch_end(FIRST, 0), REPLICAS)
        others = [("b", request)] * has_request + [("b", start)] * has_start
        replica.elections.restore([voted] * has_voted, others)
        replica.restore_local({})
        votes = replica.elections.votes
        assert votes.own_epoch == (SECOND.epoch if has_voted else -1)
        assert votes.pending_replicas() == (set(request.replicas) if has_request and has_voted else set())
        made = [each.record for each in replica.resume() if isinstance(each, WriteControl)]
        assert [each.leader_epoch for each in made] == [SECOND] * (has_start and not has_voted)
        assert replica.latest.leader_epoch == (SECOND if has_start else FIRST)


def test_a_recovered_log_continues_with_one_replica_that_follows_no_other_one_any_more() -> None:
    for leads, generation in product((True, False), (RECOVERY_STEP, 2 * RECOVERY_STEP)):
        replica = make_replica("a" if leads else "c")
        replica.resume()
        replica.set_alive(REPLICAS, 0.0)
        replica.stored(FIRST, Offset(10))
        *stepped, begin = replica.elections.recover(generation)
        assert stepped == [StepDown(FIRST)] * leads
        assert isinstance(begin, WriteControl)
        (start,) = [begin.record]
        assert isinstance(start, EpochStart)
        own = "a" if leads else "c"
        assert start == EpochStart("log", start.leader_epoch, epoch_end(FIRST, 10), (own,), (), generation)
        assert (start.leader_epoch.leader, replica.led_epoch) == (own, None)
        assert start.leader_epoch.epoch > RECOVERY_EPOCHS, "later than what others can have begun"
        assert replica.receive("b", VoteRequest("log", THIRD, REPLICAS)) == []
        assert not any(isinstance(each, Acknowledge) for each in replica.stored(FIRST, Offset(12)))
        assert replica.elections.written(start) == [Lead(start)]


def test_a_replica_requests_votes_sooner_again_when_brokers_come_or_go() -> None:
    def list_requests(changes_at: float) -> list[float]:
        replica = make_replica("b")
        times = [each / 8 for each in range(200)]
        return [at for at in times if controls_of(replica.set_alive("bcz"[: 2 + (at == changes_at)], at))]

    def controls_of(actions: Iterable[object]) -> list[object]:
        return [each for each in actions if isinstance(each, WriteControl)]

    waiting = list_requests(-1.0)
    changed = list_requests(waiting[3] + 0.125)
    assert changed[:4] == waiting[:4]
    assert changed[4] < waiting[4]


def test_an_elected_replica_begins_its_epoch_as_soon_as_it_knows_all_epochs_that_votes_name() -> None:
    """It also waits for the epochs that known ones continue."""
    between, end = LeaderAndEpoch(512, "c"), epoch_end(FIRST, 5)
    start = EpochStart("log", between, epoch_end(FIRST, 4), REPLICAS)
    for is_first in (True, False):
        replica = make_replica("b")
        replica.stored(FIRST, Offset(5))
        made = next(found for now in range(9) if (found := replica.set_alive(("b", "c"), float(now))))
        (request,) = [each.record for each in made if isinstance(each, WriteControl)]
        child = EpochStart("log", LeaderAndEpoch(600, "c"), epoch_end(between, 6), REPLICAS)
        made = replica.receive("c", Vote("log", request.leader_epoch, end, (REPLICAS,), FIRST))
        (own,) = [each.record for each in made if isinstance(each, WriteControl)]
        for each in (start, child) if is_first else (child,):
            replica.receive("c", each)
        assert bool(replica.elections.written(own)) == is_first
    for is_first in (True, False):
        replica = make_replica("b")
        replica.preference.set(("b", "c"), frozenset())
        replica.stored(FIRST, Offset(5))
        asked_at, made = next(
            (float(now), found) for now in range(9) if (found := replica.set_alive(("b", "c"), float(now)))
        )
        (request,) = [each.record for each in made if isinstance(each, WriteControl)]
        if is_first:
            replica.receive("c", start)
        vote = Vote("log", request.leader_epoch, epoch_end(between, 7), (REPLICAS,), between)
        (own,) = [each.record for each in replica.receive("c", vote) if isinstance(each, WriteControl)]
        begun = replica.elections.written(own)
        assert bool(begun) == is_first
        (begin,) = begun or replica.receive("c", start)
        expected = EpochStart("log", request.leader_epoch, epoch_end(between, 7), REPLICAS)
        assert begin == WriteControl(expected)
        assert replica.elections.advance(asked_at + 0.5) == []
        assert replica.elections.written(expected) == [Lead(expected)]
        waits = (each / 8 for each in range(100))
        waited_s = next(each for each in waits if replica.elections.advance(asked_at + 0.5 + each))
        assert waited_s == (2.0 if is_first else 1.0), "it gets a whole wait to read what is before its epoch"
        replica.elections.take(Transition.START, Starting(request.leader_epoch))
        assert not any(replica.elections.advance(asked_at + each) for each in range(2, 60))
        replica.elections.take(Transition.START, Starting(THIRD))
        assert replica.elections.written(expected) == [], "it begins another one by now"
