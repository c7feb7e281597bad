"""Rules of one member of a group, without stores: what it does, and when."""

from __future__ import annotations

import pytest

from dafka.protocol.groups import (
    Append,
    Assign,
    GroupAction,
    GroupMember,
    GroupSettings,
    GroupView,
    Lose,
    Revoke,
)
from dafka.protocol.groups.assignment import assign_partitions, rank_members
from dafka.protocol.groups.member import Survey
from dafka.protocol.groups.records import MemberRecord, Position, decode_member_record, encode_member_record
from dafka.records import Partition

TOPIC = "orders"
ONE = Partition(TOPIC, "p")
LEASE_S = 4.0
FIRST = assign_partitions({ONE: rank_members(ONE, "ab")})[ONE]
SECOND = "b" if FIRST == "a" else "a"
"""The members in the partition's order."""


class Bench:
    """A member whose records one store confirms when it is told to."""

    def __init__(self, address: str, stores: int = 1) -> None:
        self.view = GroupView()
        settings = GroupSettings(topics=(TOPIC,), lease_s=LEASE_S, handover_s=1.0, stores=stores)
        self.member = GroupMember(address, settings, self.view, lambda partition: 7)
        self.records: list[MemberRecord] = []
        self._others: dict[str, int] = {}

    def note(self, actions: list[GroupAction]) -> list[GroupAction]:
        """Keep what is published, and return the other actions."""
        self.records += [decode_member_record(each.value) for each in actions if isinstance(each, Append)]
        return [each for each in actions if not isinstance(each, Append)]

    def confirm(self, now: float, store: str = "s") -> list[GroupAction]:
        """Confirm everything."""
        return self.note(self.member.acknowledged({store: self.member.end_sequence}, now))

    def survey(self, now: float) -> list[GroupAction]:
        """Complete the survey."""
        return self.note(self.member.survey_done(1, now))

    def hear(self, address: str, record: MemberRecord, now: float) -> list[GroupAction]:
        """Read a record of another member."""
        sequence = self._others.get(address, 0)
        self._others[address] = sequence + 1
        self.view.receive(address, sequence, [encode_member_record(record)], now)
        return self.note(self.member.view_changed(now))

    def join(self) -> None:
        """Get a lease, and claim the partition."""
        assert self.note(self.member.start(0.0)) == [Survey()]
        self.note(self.member.partitions_known([ONE], 0.0))
        self.survey(0.0)
        self.confirm(0.0)
        assert self.records[-1].claimed == {ONE}

    def hold(self) -> None:
        """Hold the partition at 0.1 s."""
        self.join()
        assert self.confirm(0.1) == [Survey()]
        self.survey(0.1)
        assert self.records[-1].positions == {ONE: Position(1, 7)}
        assert self.confirm(0.1) == [Assign(ONE, 7)]


def claim_of(address: str) -> MemberRecord:
    return MemberRecord(lease_ms=4000, topics=(TOPIC,), is_full=True, claimed=frozenset((ONE,)))


def test_a_partition_is_handed_out_after_claim_survey_and_position_are_durable() -> None:
    bench = Bench(FIRST)
    bench.hold()
    assert bench.member.may_hand_out(ONE, 0.1)


def test_a_survey_that_began_before_the_claim_was_durable_does_not_count() -> None:
    bench = Bench(FIRST)
    bench.join()
    assert bench.note(bench.member.tick(1.0)) == [Survey()]
    bench.confirm(1.1)
    assert bench.survey(1.2) == [Survey()]
    assert ONE not in bench.records[-1].positions
    bench.survey(1.3)
    assert ONE in bench.records[-1].positions


def test_the_lease_counts_from_when_the_confirmed_record_was_sent() -> None:
    bench = Bench(FIRST)
    bench.hold()
    bench.note(bench.member.tick(2.0))
    bench.confirm(3.9)
    assert bench.member.has_lease(5.9)
    assert not bench.member.has_lease(6.1)


def test_a_confirmation_after_the_end_of_the_lease_does_not_count() -> None:
    bench = Bench(FIRST)
    bench.hold()
    bench.note(bench.member.tick(3.9))
    assert bench.confirm(4.2) == [Lose((ONE,))]
    assert bench.member.is_over
    assert not bench.member.has_lease(4.2)


@pytest.mark.parametrize("own", range(8))
@pytest.mark.parametrize("seen", range(8))
def test_any_two_quorums_overlap_and_no_more_stores_are_needed_than_there_are(own: int, seen: int) -> None:
    bench = Bench(FIRST, stores=0)
    bench.view.own_stores = own
    bench.hear(SECOND, MemberRecord(lease_ms=4000, stores=seen), 0.0)
    stores = max(own, seen, 1)
    assert stores < 2 * bench.member.quorum <= stores + 2
    assert Bench(FIRST, stores=5).member.quorum == 5


def test_without_a_setting_more_than_half_of_the_stores_seen_must_confirm() -> None:
    bench = Bench(FIRST, stores=0)
    assert bench.member.quorum == 1
    bench.note(bench.member.record_stores(2, 0.0))
    assert bench.member.quorum == 2
    bench.hear(SECOND, MemberRecord(lease_ms=1000, stores=5, is_full=True), 0.0)
    assert bench.member.quorum == 3


def test_a_member_gives_way_when_its_program_has_saved() -> None:
    bench = Bench(SECOND)
    bench.hold()
    assert bench.hear(FIRST, claim_of(FIRST), 0.2) == [Revoke(ONE)]
    bench.note(bench.member.handed_out(ONE, 12, 0.2))
    bench.note(bench.member.tick(0.5))
    assert ONE not in bench.records[-1].released
    bench.note(bench.member.commit({ONE: 12}, 0.6))
    released = [each for each in bench.records if ONE in each.released]
    assert released
    assert bench.view.position(ONE) is None
    assert [each.positions[ONE] for each in bench.records if ONE in each.positions][-1] == Position(1, 12)


def test_a_member_gives_way_after_a_while_if_its_program_does_not_save() -> None:
    bench = Bench(SECOND)
    bench.hold()
    bench.hear(FIRST, claim_of(FIRST), 0.2)
    bench.note(bench.member.handed_out(ONE, 12, 0.2))
    assert bench.member.deadline() <= 1.2
    bench.note(bench.member.tick(1.25))
    assert any(ONE in each.released for each in bench.records)


def test_a_partition_is_taken_in_the_next_epoch_when_the_rival_has_released_it() -> None:
    bench = Bench(FIRST)
    bench.join()
    bench.confirm(0.1)
    bench.hear(SECOND, claim_of(SECOND), 0.1)
    bench.survey(0.1)
    assert ONE not in bench.records[-1].positions
    release = MemberRecord(lease_ms=4000, topics=(TOPIC,), released=frozenset((ONE,)), positions={ONE: Position(4, 90)})
    bench.hear(SECOND, release, 0.2)
    assert bench.records[-1].positions == {ONE: Position(5, 90)}


def test_a_silent_rival_is_over_after_its_lease_and_a_survey() -> None:
    bench = Bench(FIRST)
    bench.join()
    bench.confirm(0.1)
    bench.hear(SECOND, claim_of(SECOND), 0.1)
    bench.survey(0.1)
    now = 0.1
    while now < 4.8:
        now += 0.25
        bench.note(bench.member.tick(now))
        bench.confirm(now)
        bench.survey(now)
    assert ONE not in {each for record in bench.records for each in record.positions}
    bench.note(bench.member.tick(5.7))
    bench.survey(5.7)
    assert bench.records[-1].over == {SECOND}
    assert bench.records[-1].positions == {ONE: Position(1, 7)}


def test_who_reads_that_it_is_over_stops() -> None:
    bench = Bench(FIRST)
    bench.hold()
    assert bench.hear(SECOND, MemberRecord(lease_ms=4000, over=frozenset((FIRST,))), 0.2) == [Lose((ONE,))]
    assert not bench.member.has_lease(0.2)


def test_the_last_record_releases_everything() -> None:
    bench = Bench(FIRST)
    bench.hold()
    bench.note(bench.member.commit({ONE: 30}, 0.2))
    assert bench.note(bench.member.leave(0.3)) == [Lose((ONE,))]
    assert bench.records[-1].is_leaving
    assert bench.records[-1].claimed == frozenset()
    assert bench.records[-1].positions == {ONE: Position(1, 30)}


def test_members_hold_equal_shares_of_what_any_of_them_knows() -> None:
    """A member counts partitions that others claim, and topics that it does not consume."""
    bench = Bench("a")
    bench.note(bench.member.start(0.0))
    known = [Partition(TOPIC, f"p{number}") for number in range(4)]
    foreign = [Partition("events", f"e{number}") for number in range(2)]
    theirs = MemberRecord(
        lease_ms=4000, topics=(TOPIC, "events"), is_full=True, claimed=frozenset([*known[2:], *foreign])
    )
    bench.hear("b", theirs, 0.0)
    bench.note(bench.member.partitions_known(known[:2], 0.0))
    bench.survey(0.0)
    bench.confirm(0.0)
    rankings = {each: rank_members(each, "ab") for each in known} | {each: rank_members(each, "b") for each in foreign}
    expected = assign_partitions(rankings)
    assert [*expected.values()].count("a") == 2
    assert bench.records[-1].claimed == {each for each in known[:2] if expected[each] == "a"}


def test_records_of_a_member_that_is_over_are_read_before_its_partition_is_taken() -> None:
    bench = Bench(FIRST)
    bench.join()
    bench.hear(SECOND, claim_of(SECOND), 0.0)
    bench.confirm(0.1)
    bench.survey(0.1)
    assert all(ONE not in record.positions for record in bench.records), "the other member may handle it"
    news = MemberRecord(lease_ms=4000, topics=(TOPIC,), is_full=True, over=frozenset([SECOND]))
    assert bench.hear("third", news, 0.2) == [Survey()]
    assert all(ONE not in record.positions for record in bench.records), "its last positions may be unread"
    bench.survey(0.3)
    assert bench.records[-1].positions == {ONE: Position(1, 7)}


def test_positions_of_partitions_that_are_not_handled_are_not_saved() -> None:
    bench = Bench(FIRST)
    bench.join()
    bench.note(bench.member.commit({ONE: 50, Partition(TOPIC, "other"): 3}, 0.0))
    assert all(not record.positions for record in bench.records)


def test_a_survey_of_too_few_stores_does_not_count() -> None:
    bench = Bench(FIRST, stores=2)
    bench.note(bench.member.start(0.0))
    bench.note(bench.member.partitions_known([ONE], 0.0))
    for store in ("s", "t"):
        bench.confirm(0.1, store)
    bench.note(bench.member.survey_done(1, 0.2))
    assert all(ONE not in record.claimed for record in bench.records)
    assert bench.note(bench.member.tick(1.0)) == [Survey()]
    bench.note(bench.member.survey_done(2, 1.1))
    assert bench.records[-1].claimed == {ONE}
