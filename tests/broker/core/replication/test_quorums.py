"""Who counts for what: quorums, votes, leases and commits, against sets that are counted one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, combinations, permutations, product

import pytest

from dafka.broker.core.metadata.leader_and_isr import LeaderAndIsr
from dafka.broker.core.positions import Offset, RecordSequence
from dafka.broker.core.replication.divergence import DivergentRule, LateVotes, MajorityRule, Rule
from dafka.broker.core.replication.election import Election, VoteRecord
from dafka.broker.core.replication.epoch_tree import EpochTree, LocalEpochs
from dafka.broker.core.replication.high_watermark import FollowerProgress, HighWatermark
from dafka.broker.core.replication.peers import Peers
from dafka.broker.core.replication.records import NO_EPOCH_END, EpochEnd, EpochStart, LeaderAndEpoch, Vote, VoteRequest
from dafka.broker.core.replication.states import Leader
from tests.broker.core.entries import epoch_end

NAMES = "abcdefg"
STRANGER = "z"
FIRST = LeaderAndEpoch(0, "a")
EPOCH = LeaderAndEpoch(1024, "a")
LATER = 2048
NEVER = float("-inf")


def subsets(names: Iterable[str]) -> Iterator[frozenset[str]]:
    found = list(names)
    return (frozenset(each) for each in chain.from_iterable(combinations(found, n) for n in range(len(found) + 1)))


def are_most(some: Iterable[str], voters: Iterable[str]) -> bool:
    """Return whether some brokers are more of the voters than are left out. Two halves are not."""
    inside, all_voters = set(some).intersection(voters), set(voters)
    return len(inside) > len(all_voters - inside)


def sets_of_replicas(count_max: int) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yield replicas, the leader `a` first, and the learners among them: everybody but the leader can be one."""
    for count in range(1, count_max + 1):
        for learners in subsets(NAMES[1:count]):
            yield tuple(NAMES[:count]), tuple(sorted(learners))


def voters_of(replicas: tuple[str, ...], learners: tuple[str, ...]) -> list[str]:
    return [each for each in replicas if each not in learners]


def make_peers(
    replicas: tuple[str, ...], learners: tuple[str, ...] = (), broker: str = "a", *, can_diverge: bool = False
) -> tuple[Peers, VoteRecord]:
    """Return what a broker knows of a log in its second epoch, which `a` leads and has begun at the offset 10."""
    first = EpochStart("log", FIRST, NO_EPOCH_END, replicas)
    tree = EpochTree([first, EpochStart("log", EPOCH, epoch_end(FIRST, 10), replicas, learners)])
    local, votes = LocalEpochs(tree, FIRST), VoteRecord()
    rule = DivergentRule() if can_diverge else MajorityRule()
    return Peers("log", broker, first, tree, local, votes, rule), votes


def vote_of(log_end: EpochEnd = NO_EPOCH_END, *replica_sets: tuple[str, ...]) -> Vote:
    return Vote("log", LeaderAndEpoch(LATER, "a"), log_end, replica_sets)


def elect(replicas: tuple[str, ...], learners: tuple[str, ...], voted: Iterable[str], rule: Rule) -> Election:
    election = Election(VoteRequest("log", LeaderAndEpoch(LATER, "a"), replicas, learners), rule)
    election.votes.update((each, vote_of()) for each in voted)
    return election


def test_more_than_half_of_the_voters_decide_and_learners_and_strangers_count_for_nothing() -> None:
    for replicas, learners in sets_of_replicas(5):
        voters = voters_of(replicas, learners)
        assert EpochStart("log", EPOCH, NO_EPOCH_END, replicas, learners).voters == tuple(voters)
        assert LeaderAndIsr("a", replicas=replicas, learners=learners).voters == tuple(voters)
        for some in subsets([*replicas, STRANGER]):
            election = elect(replicas, learners, some, MajorityRule())
            assert election.has_quorum(frozenset()) == are_most({"a", *some}, voters), "its leader votes for itself"
            assert election.has_own_vote == ("a" in some)
            peers, _ = make_peers(replicas, learners)
            peers.alive = peers.writable = some
            peers.progress.begin(EPOCH)
            for each in some:
                peers.progress.add(each, EPOCH, Offset(0))
            assert (peers.is_quorum_active, peers.can_elect) == (are_most(some, voters),) * 2
            have_latest = bool(some) and are_most({EPOCH.leader, *some}, voters)
            assert peers.have_acknowledged_latest() == have_latest, "what others acknowledge is durable at its leader"
            assert sorted(peers.rank_writable()) == sorted(some.intersection(voters))
            peers.progress.leader_epoch = FIRST
            assert not peers.have_acknowledged_latest()


def test_a_leader_that_cannot_write_is_replaced_if_others_can_elect_one() -> None:
    for (replicas, learners), can_diverge in product(sets_of_replicas(4), (False, True)):
        voters = voters_of(replicas, learners)
        for alive in subsets([*replicas, STRANGER]):
            peers, _ = make_peers(replicas, learners, can_diverge=can_diverge)
            for writable in subsets(alive):
                peers.alive, peers.writable = alive, writable
                can_elect = bool(writable.intersection(voters)) if can_diverge else are_most(writable, voters)
                assert peers.can_elect == peers.can_elect_without(alive - writable) == can_elect


def test_all_writable_voters_elect_a_leader_of_a_log_that_can_diverge() -> None:
    for replicas, learners in sets_of_replicas(4):
        needed = set(voters_of(replicas, learners))
        for voted, writable in product(subsets([*replicas[1:], STRANGER]), subsets([*replicas, STRANGER])):
            missing = (needed & writable) - {"a", *voted}
            assert elect(replicas, learners, voted, DivergentRule()).has_quorum(writable) == (not missing)


SETS = [("a", "b", "c"), ("a", "b", "c", "d"), ("c", "d"), ("e",)]


def former(votes: dict[str, Vote], rule: Rule, *rows: EpochStart) -> tuple[Election, EpochTree]:
    election = elect(("a", "b", "c"), (), (), rule)
    election.votes.update(votes)
    return election, EpochTree(rows)


@pytest.mark.parametrize("others", [(), (2,), (3,), (2, 3)])
def test_more_than_half_of_every_set_that_can_have_begun_must_have_voted(others: tuple[int, ...]) -> None:
    """The sets are those that votes name, and those of the epochs that no voter's log has reached."""
    rows = [EpochStart("log", FIRST, NO_EPOCH_END, SETS[0])]
    for number, replicas in enumerate(SETS[1:3], 1):
        before = EpochEnd(rows[-1].leader_epoch, Offset(number))
        rows.append(EpochStart("log", LeaderAndEpoch(number * 1024, "a"), before, replicas))
    named = tuple(SETS[each] for each in others)
    for voted in subsets("abcde"):
        for reached in range(3):
            if not voted:
                continue
            votes = {
                each: vote_of(NO_EPOCH_END if each != min(voted) else epoch_end(rows[reached].leader_epoch, 5), *named)
                for each in voted
            }
            asked = {SETS[number] for number in range(reached, 3)} | set(named)
            election, tree = former(votes, MajorityRule(), *rows)
            assert election.has_quorum_of_former_voters(tree) == all(are_most(voted, each) for each in asked)
            election, tree = former(votes, DivergentRule(), *rows)
            assert election.has_quorum_of_former_voters(tree), "each side of a split goes on"


def test_the_voters_of_the_latest_epoch_are_asked_also_if_an_earlier_one_has_newer_replicas() -> None:
    first = EpochStart("log", FIRST, NO_EPOCH_END, SETS[0])
    latest = EpochStart("log", EPOCH, epoch_end(FIRST, 5), SETS[1])
    newest = EpochStart("log", LeaderAndEpoch(512, "e"), epoch_end(FIRST, 5), SETS[3], (), 1)
    for rows in permutations((first, latest, newest)):
        for reached, sets in ((FIRST, {SETS[0], SETS[1]}), (EPOCH, {SETS[1]})):
            election, tree = former({"b": vote_of(epoch_end(reached, 5))}, MajorityRule(), *rows)
            assert (tree.latest, tree.newest) == (latest, newest)
            assert election.former_replica_sets(tree) == sets


def test_an_epoch_begins_only_when_all_epochs_are_known_that_votes_name() -> None:
    known = [EpochStart("log", FIRST, NO_EPOCH_END, ("a", "b"))]
    unknown = LeaderAndEpoch(512, "b")
    for log_end, latest, is_known in [
        (epoch_end(FIRST, 3), FIRST, True),
        (epoch_end(unknown, 3), FIRST, False),
        (epoch_end(FIRST, 3), unknown, False),
        (NO_EPOCH_END, LeaderAndEpoch(-1, ""), True),
    ]:
        vote = Vote("log", EPOCH, log_end, (), latest)
        election, tree = former({"b": vote}, MajorityRule(), *known)
        assert election.knows_epoch_starts(tree, election.log_ends({})) == is_known


def test_late_log_ends_replace_those_of_votes_only_where_logs_can_diverge() -> None:
    votes = {each: vote_of(epoch_end(FIRST, number)) for number, each in enumerate("abc")}
    late = {"b": epoch_end(EPOCH, 9), "z": epoch_end(EPOCH, 99)}
    for rule, ends in ((MajorityRule(), [0, 1, 2]), (DivergentRule(), [0, 9, 2])):
        election, _ = former(votes, rule)
        assert [each.end_offset for each in election.log_ends(late)] == ends


def test_late_votes_are_those_for_the_last_epoch() -> None:
    late = LateVotes()
    for broker, epoch, number, known in (("b", FIRST, 1, "b"), ("c", FIRST, 2, "bc"), ("d", EPOCH, 3, "d")):
        late.add(broker, epoch, epoch_end(FIRST, number))
        assert (late.leader_epoch, "".join(late.log_ends)) == (epoch, known)
        assert late.log_ends[broker] == epoch_end(FIRST, number)
    late.clear()
    assert (late.leader_epoch, late.log_ends) == (EPOCH, {})


def test_voters_of_the_newest_replicas_request_votes_and_those_that_have_ordered_newer_ones() -> None:
    for (replicas, learners), known, asked, candidate in product(
        sets_of_replicas(3), range(3), range(3), [*NAMES[:3], STRANGER]
    ):
        peers, _ = make_peers(replicas, learners)
        peers._epoch_tree.add(EpochStart("log", EPOCH, epoch_end(FIRST, 10), replicas, learners, known))
        request = VoteRequest("log", LeaderAndEpoch(LATER, candidate), replicas, learners, asked)
        is_newest = asked == known and candidate in voters_of(replicas, learners)
        assert peers.may_request(request) == (asked > known or is_newest)


def test_a_leader_leads_until_it_or_a_follower_has_voted_for_a_later_epoch() -> None:
    """A vote for the next epoch of the same leader leaves it followed."""
    for epoch, is_leader in ((1023, True), (1024, True), (1025, False)):
        peers, votes = make_peers(("a", "b", "c"))
        votes.record_vote("a", epoch)
        votes.record_vote("b", LATER)
        assert peers.leader == ("a" if is_leader else "")
        votes.add_own(VoteRequest("log", LeaderAndEpoch(epoch, "b"), ("a", "b", "c")))
        assert peers.is_leader == is_leader
        assert not make_peers(("a", "b", "c"), broker="b")[0].is_leader
    leader = Leader(EPOCH, elect(("a", "b"), (), (), MajorityRule()))
    assert [leader.is_superseded_by(each) for each in (1023, 1024, 1025, LATER, LATER + 1)] == [0, 0, 1, 0, 1]
    assert Leader(EPOCH).is_superseded_by(LATER)


def list_histories(epoch: int) -> list[list[tuple[str, int]]]:
    """Return what a candidate can write after it has requested votes for an epoch, in three records at most.

    It can start the epoch as long as it has voted for no later one.
    """
    records = [("vote", epoch), ("start", epoch), ("vote", epoch + 1), ("vote", epoch - 1)]
    return [
        list(found)
        for count in range(4)
        for found in product(records, repeat=count)
        if all(
            each[0] == "vote" or max((0, *(n for _, n in found[:place]))) <= epoch for place, each in enumerate(found)
        )
    ]


def test_a_vote_counts_as_long_as_its_candidate_can_begin_the_epoch_or_has_begun_it_unheard() -> None:
    epoch, voters = 5, ("a", "b", "c")
    histories = list_histories(epoch)
    for heard in histories:
        votes = VoteRecord()
        votes.add_own(VoteRequest("log", LeaderAndEpoch(epoch, "b"), voters))
        for kind, number in heard:
            if kind == "vote":
                votes.record_vote("b", number)
        latest = max([3, *(number for kind, number in heard if kind == "start")])
        unheard = [each[len(heard) :] for each in histories if each[: len(heard)] == heard]
        can_begin = latest < epoch and any(("start", epoch) in each for each in unheard)
        if len(heard) < 3:  # so that the histories go on
            assert votes.pending_voters(latest) == ([voters] if can_begin else []), heard
            assert votes.pending_replicas() == (set(voters) if can_begin else set())


def test_votes_that_can_have_begun_are_kept_until_their_epoch_has() -> None:
    votes = VoteRecord()
    assert votes.own_epoch == votes.epoch_of("b") == -1
    requests = [VoteRequest("log", LeaderAndEpoch(n, "b"), ("b", "c", NAMES[n]), (NAMES[n],)) for n in (3, 4, 5)]
    for each in requests:
        votes.add_own(each)
    votes.add_own(VoteRequest("log", LeaderAndEpoch(6, "a"), ()))
    assert votes.own_epoch == 6
    assert votes.pending_replicas() == {"b", "c", *(NAMES[n] for n in (3, 4, 5))}
    assert votes.pending_voters(3) == [("b", "c"), ("b", "c")], (
        "of 4 and 5; learners and resignations count for nothing"
    )
    assert votes.pending_replicas() == {"b", "c", NAMES[4], NAMES[5]}
    assert votes.pending_voters(5) == []
    for epoch in (7, 5, 9, 8):
        votes.record_vote("b", epoch)
    assert votes.epoch_of("b") == 9, "a vote that comes late changes nothing"
    votes.record_request(requests[0])
    assert votes.find_vote_request(requests[0].leader_epoch) == requests[0]
    assert votes.find_vote_request(EPOCH) is None


# Commits


def test_a_majority_commits_what_more_than_half_of_the_voters_have() -> None:
    ends: tuple[int | None, ...] = (None, 0, 3, 7)
    for count in range(1, 6):
        voters = NAMES[:count]
        for found in product(ends, repeat=count):
            acks = {each: Offset(end) for each, end in zip(voters, found, strict=True) if end is not None}
            acks[STRANGER] = Offset(99)
            stored = [end for end in (0, 3, 7) if are_most([each for each in acks if acks[each] >= end], voters)]
            assert MajorityRule().committed_end(acks, "a", tuple(voters), frozenset()) == max(stored, default=-1)


def test_a_log_that_can_diverge_commits_what_its_leader_and_all_living_voters_have() -> None:
    for count, found in product(range(1, 5), product((0, 3, 7), repeat=4)):
        voters = tuple(NAMES[:count])
        acks = {each: Offset(end) for each, end in zip(NAMES, found, strict=False)}
        for writable in subsets(voters):
            counted = {"a", *writable}
            end = min(acks[each] for each in counted)
            assert DivergentRule().committed_end(acks, "a", voters, writable) == end


def test_the_high_watermark_follows_the_voters_of_the_epoch_as_far_as_records_are_stored_here() -> None:
    for learners, own, b, c in product([(), ("c",)], (None, 0, 4, 8), (None, 4, 8), (None, 8)):
        tree = EpochTree([EpochStart("log", EPOCH, NO_EPOCH_END, ("a", "b", "c"), learners)])
        progress = FollowerProgress()
        progress.begin(EPOCH)
        for name, end in (("b", b), ("c", c)):
            if end is not None:
                progress.add(name, EPOCH, Offset(end))
        acked = NO_EPOCH_END if own is None else epoch_end(EPOCH, own)
        for stored in (0, 4, 6, 8):
            mark = HighWatermark("a", tree, progress, MajorityRule())
            has_moved = mark.move(epoch_end(EPOCH, stored), acked, frozenset("abc"))
            voters = [each for each in "abc" if each not in learners]
            ends = {"a": own, "b": b, "c": c}
            committed = [
                end
                for end in (4, 8)
                if own is not None
                and are_most([v for v in voters if (-1 if (found := ends[v]) is None else found) >= end], voters)
            ]
            expected = min(max(committed, default=0), stored)
            assert (mark.offset, has_moved) == (expected, expected > 0), (learners, own, b, c, stored)
            assert not mark.move(epoch_end(EPOCH, stored), acked, frozenset("abc")), "it has moved already"
            assert not mark.move(epoch_end(FIRST, 99), acked, frozenset("abc")), "of another epoch"


def test_the_high_watermark_goes_back_to_where_logs_diverge() -> None:
    other = LeaderAndEpoch(2048, "b")
    tree = EpochTree(
        [
            EpochStart("log", FIRST, NO_EPOCH_END, ("a", "b")),
            EpochStart("log", EPOCH, epoch_end(FIRST, 5), ("a", "b")),
            EpochStart("log", other, epoch_end(FIRST, 7), ("a", "b")),
        ]
    )
    progress = FollowerProgress()
    mark = HighWatermark("a", tree, progress, DivergentRule())
    for epoch, end in ((FIRST, 3), (EPOCH, 9), (other, 8)):
        progress.begin(epoch)
        assert mark.move(epoch_end(epoch, end), epoch_end(epoch, end), frozenset("a"))
        assert mark.offset == end
    progress.begin(EPOCH)
    assert not mark.move(epoch_end(EPOCH, 9), epoch_end(EPOCH, 4), frozenset("a"))
    assert mark.offset == 5, "what both epochs have"
    mark.reset()
    assert mark.offset == 0


def test_a_follower_shows_what_the_leader_of_the_latest_epoch_has_announced() -> None:
    tree = EpochTree([EpochStart("log", FIRST, NO_EPOCH_END, ("a", "b"))])
    tree.add(EpochStart("log", EPOCH, epoch_end(FIRST, 4), ("a", "b")))
    for announced in permutations([(FIRST, 9), (EPOCH, 5), (EPOCH, 7)]):
        mark = HighWatermark("b", tree, FollowerProgress(), MajorityRule())
        for leader_epoch, offset in announced:
            mark.announced(leader_epoch, Offset(offset))
        assert [mark.move(epoch_end(each, 8), NO_EPOCH_END, frozenset()) for each in (FIRST, EPOCH)] == [False, True]
        assert mark.offset == 7


def test_acknowledgements_grow_within_an_epoch_and_begin_anew_with_another() -> None:
    progress = FollowerProgress()
    for end in (3, 9, 5):
        progress.add("b", FIRST, Offset(end))
    progress.add("c", FIRST, Offset(1), RecordSequence(4))
    progress.add("c", FIRST, Offset(1), RecordSequence(2))
    assert (progress.ends, progress.index_ends) == ({"b": 9, "c": 1}, {"b": 0, "c": 4})
    progress.record_end(Offset(9), 10.0)
    assert progress.caught_up_at("b") == progress.caught_up_at("c") == 10.0, "the log had no end before"
    progress.record_end(Offset(12), 11.0)
    assert (progress.caught_up_at("b"), progress.caught_up_at("c")) == (11.0, 10.0)
    progress.record_end(Offset(12), 12.0)
    assert progress.caught_up_at("b") == 11.0
    assert progress.caught_up_at("z") == NEVER
    progress.set_back(2.0)
    assert (progress.caught_up_at("b"), progress.caught_up_at("z")) == (2.0, NEVER)
    progress.add("d", EPOCH, Offset(0))
    assert (progress.ends, progress.index_ends, progress.caught_up_at("b")) == ({"d": 0}, {"d": 0}, NEVER)


# What a broker hears


def test_a_leader_refuses_a_candidate_while_more_than_half_of_the_voters_hear_and_follow_it() -> None:
    leader = Leader(EPOCH)
    for replicas, learners in sets_of_replicas(5):
        voters = voters_of(replicas, learners)
        for alive, gone in product(subsets(replicas), subsets(replicas[1:])):
            peers, votes = make_peers(replicas, learners)
            peers.alive = alive
            for each in gone:
                votes.record_vote(each, LATER)
            followers = alive - gone
            assert peers.is_superseded(leader) == bool(gone)
            for candidate in replicas[1:2]:
                assert peers.has_quorum_without(leader, candidate) == are_most(followers - {candidate}, voters)


@pytest.mark.parametrize("end", [0, 11])
def test_a_leader_is_followed_since_the_latest_time_from_which_more_than_half_of_the_voters_hear_it(end: int) -> None:
    """Only voters count that have acknowledged its epoch, and have voted for no later one."""
    leader, times = Leader(EPOCH), {"a": float("inf"), "b": 5.0, "c": 3.0, "d": 9.0, "e": NEVER}
    for replicas, learners in sets_of_replicas(5):
        voters = voters_of(replicas, learners)
        for acked, gone in product(subsets(replicas[1:]), subsets(replicas[1:3])):
            peers, votes = make_peers(replicas, learners)
            peers.progress.begin(EPOCH)
            for each in acked:
                peers.progress.add(each, EPOCH, Offset(end))
            for each in gone:
                votes.record_vote(each, LATER)
            known = {each: times[each] for each in voters if each == "a" or each in acked - gone}
            since = [at for at in known.values() if are_most([each for each in known if known[each] >= at], voters)]
            assert peers.followed_since(leader, times.__getitem__) == max(since, default=NEVER)


def test_a_replica_joins_while_others_have_a_quorum_without_it_and_it_misses_the_epoch_that_it_belongs_to() -> None:
    old, new = ("a", "b", "c"), ("a", "b", "c", "d")
    for learners, alive, has_all in product([(), ("d",)], subsets(new), (False, True)):
        first = EpochStart("log", FIRST, NO_EPOCH_END, old)
        tree = EpochTree([first, EpochStart("log", EPOCH, epoch_end(FIRST, 10), new, learners)])
        voters = [each for each in new if each not in learners]
        for broker in new:
            local = LocalEpochs(tree, FIRST)
            local.add(FIRST, Offset(10))
            if has_all:
                local.add(EPOCH, Offset(10))
            peers = Peers("log", broker, first, tree, local, VoteRecord(), MajorityRule())
            peers.alive = alive
            is_new = broker == "d" and not has_all
            assert peers.is_joining == (is_new and are_most(alive - {"d"}, voters))


def test_replicas_in_sync_are_alive_and_have_acknowledged_enough_or_were_caught_up_lately() -> None:
    leader = Leader(EPOCH)
    for alive, b, c in product(subsets("abc"), (None, 4, 5), (None, 5)):
        peers, _ = make_peers(("a", "b", "c"))
        peers.alive = alive
        peers.progress.begin(EPOCH)
        ends = {name: end for name, end in (("b", b), ("c", c)) if end is not None}
        for name, end in ends.items():
            peers.progress.add(name, EPOCH, Offset(end))
        expected = ["a", *(each for each in "bc" if each in alive and ends.get(each, -1) >= 5)]
        assert list(peers.in_sync(leader, Offset(5), 10.0, 0.0)) == expected
        peers.progress.record_end(Offset(5), 10.0)
        lately = ["a", *(each for each in "bc" if each in alive and each in ends)]
        assert list(peers.in_sync(leader, Offset(5), 12.0, 2.0)) == lately
        assert list(peers.in_sync(leader, Offset(5), 12.1, 2.0)) == expected
        assert {peers.acknowledged_end(each, leader) for each in "bc" if each not in ends} <= {-1}
        assert peers.acknowledged_end("z", Leader(FIRST)) == 0, "the first epoch has nothing to acknowledge"


def test_rivals_are_living_leaders_of_other_epochs_that_do_not_follow_the_latest_one() -> None:
    rival = LeaderAndEpoch(512, "b")
    for can_diverge, is_alive, voted in product((False, True), (False, True), (512, 1023, 1024, 4096)):
        peers, votes = make_peers(("a", "b", "c"), can_diverge=can_diverge)
        peers._epoch_tree.add(EpochStart("log", rival, epoch_end(FIRST, 5), ("a", "b", "c")))
        peers.alive = frozenset("abc" if is_alive else "ac")
        votes.record_vote("b", voted)
        assert peers.has_rival() == (can_diverge and is_alive and voted < EPOCH.epoch)


# Preferences


def test_leaders_are_preferred_as_named_then_by_rendezvous_and_ineligible_ones_come_last() -> None:
    peers, _ = make_peers(("a", "b", "c", "d"))
    ranked = peers.preference.rank(("a", "b", "c", "d"))
    assert sorted(ranked) == ["a", "b", "c", "d"]
    for named in permutations("abcz", 2):
        for ineligible in subsets("abcd"):
            peers.preference.set(named, ineligible)
            order = [*(each for each in named if each != "z"), *(each for each in ranked if each not in named)]
            assert peers.preference.rank(("a", "b", "c", "d")) == order
            for writable in subsets("abcd"):
                living = [each for each in order if each in writable]
                wanted = [e for e in living if e not in ineligible] + [e for e in living if e in ineligible]
                assert peers.preference.rank_writable(("a", "b", "c", "d"), writable) == wanted
                peers.writable = writable
                assert peers.rank() == (wanted.index("a") if "a" in wanted else len(wanted))
    assert not peers.preference.set(named, ineligible)
    assert peers.preference.set(named, frozenset())
    assert peers.preference.set((), frozenset())
