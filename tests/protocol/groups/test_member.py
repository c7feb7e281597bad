"""Rules of one member of a group, without stores: what it does, and when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka.config import Config
from dafka.protocol.groups import Append, GroupAction, GroupMember, GroupSettings, GroupView
from dafka.protocol.groups.assignment import assign_partitions, rank_members
from dafka.protocol.groups.member import SURVEY_PAUSE_S, Survey
from dafka.protocol.groups.records import MemberRecord, Position, decode_member_record, encode_member_record
from dafka.records import Partition
from tests.protocol.scripts import Player, play, scripts_of, text

TOPIC = "hello"
ONE = Partition(TOPIC, "P")


class Member(Player, kinds=("member",)):
    """A member whose records stores confirm when a script says so. It comes first for the partition P if it is `b`."""

    def make(self, kind: str, config: Config, named: dict[str, Any], ranges: dict[Partition, range]) -> GroupMember:
        self.view = GroupView()
        self.records: list[MemberRecord] = []
        self.ends: dict[str, int] = {}
        (address,) = named.keys() & {"a", "b"}
        settings = GroupSettings(topics=(TOPIC,), lease_s=4.0, handover_s=1.0, stores=named.get("needs", 1))
        return GroupMember(address, settings, self.view, lambda _: 7)

    def _set_up(self, name: str, value: str) -> None:
        """Get a lease and claim the partition; `holding`, hold it at 0.1 s."""
        for line in ("start", "partitions_known P", "survey_done 1", "confirm s"):
            self.play(line)
        assert self.records[-1].claimed == {ONE}
        if name == "holding":
            assert self.play("0.1 confirm s") == "Survey"
            assert self.play("survey_done 1") == "record positions P=1:7"
            assert self.play("confirm s") == "Assign P 7"

    def _result(self, result: object) -> list[str]:
        if not isinstance(result, list) or not all(attrs.has(type(each)) for each in result):
            return super()._result(result)
        return [self._text(each) for each in result]

    def _text(self, action: GroupAction) -> str:
        if not isinstance(action, Append):
            return text(action)
        record = decode_member_record(action.value)
        self.records.append(record)
        positions = [f"{text(each)}={epoch}:{sequence}" for each, (epoch, sequence) in record.positions.items()]
        parts = {"claimed": record.claimed, "released": record.released, "positions": positions, "over": record.over}
        flags = ["full"] * record.is_full + ["leaving"] * record.is_leaving
        return " ".join(["record", *flags, *(f"{name} {text(each)}" for name, each in parts.items() if each)])

    def confirm(self, store: str) -> list[GroupAction]:
        """Confirm all records."""
        actions: list[GroupAction] = self.machine.acknowledged({store: self.machine.end_sequence}, self.now)
        return actions

    def hear(self, address: str, words: str) -> list[GroupAction]:
        """Read a record of another member: `claims`, `releases` at a position, or says that a member is over."""
        verb, _, value = words.partition("=")
        record = MemberRecord(lease_ms=4000, topics=(TOPIC,), is_full=verb in {"claims", "stores"})
        if verb == "claims":
            record = attrs.evolve(record, claimed=frozenset([ONE]))
        elif verb == "releases":
            record = attrs.evolve(record, released=frozenset([ONE]), positions={ONE: Position(4, 90)})
        elif verb == "over":
            record = attrs.evolve(record, over=frozenset([value]))
        else:
            record = attrs.evolve(record, stores=int(value))
        return self.read(address, record)

    def read(self, address: str, record: MemberRecord) -> list[GroupAction]:
        sequence = self.ends.get(address, 0)
        self.ends[address] = sequence + 1
        self.view.receive(address, sequence, [encode_member_record(record)], self.now)
        actions: list[GroupAction] = self.machine.view_changed(self.now)
        return actions

    def commit(self, partition: Partition, sequence: int) -> list[GroupAction]:
        actions: list[GroupAction] = self.machine.commit({partition: sequence}, self.now)
        return actions


SCRIPTS = """
# A partition is handed out after claim, survey and position are durable
member b
start => record full, Survey
partitions_known P
survey_done 1
confirm s => record claimed P
0.1 confirm s => Survey
survey_done 1 => record positions P=1:7
confirm s => Assign P 7
may_hand_out P => = True
has_lease => = True
# A partition that becomes known later is claimed at once
member b
start => record full, Survey
confirm s
survey_done 1
0.1 partitions_known P => record claimed P
0.2 partitions_known P other/P
# A survey that began before the claim was durable does not count
member b claiming
1 tick => record, Survey
1.1 confirm s
1.2 survey_done 1 => Survey
1.3 survey_done 1 => record positions P=1:7
# A confirmation after the end of the lease does not count
member b holding
3.9 tick => record, Survey
4.2 confirm s => Lose P
is_over => = True
has_lease => = False
# Without a setting, more than half of the stores seen must confirm
member b needs=0
quorum => = 1
record_stores 2 => record full, Survey
quorum => = 2
hear a stores=5
quorum => = 3
# A member gives way when its program has saved
member a holding
0.2 hear b claims => Revoke P
handed_out P 12
0.5 tick
0.6 commit P 12 => record released P positions P=1:12, Survey
0.7 confirm s
# A member gives way after a while if its program does not save
member a holding
0.2 hear b claims => Revoke P
handed_out P 12
deadline => = 0.6
1.25 tick => record released P, Survey
# A partition is taken in the next epoch when the rival has released it
member b claiming
0.1 confirm s => Survey
hear a claims
survey_done 1
0.2 hear a releases => record positions P=5:90
# A silent rival is over after its lease and a survey
member b claiming
0.1 confirm s => Survey
hear a claims
survey_done 1
2 tick => record, Survey
confirm s
survey_done 1
4 tick => record, Survey
confirm s
survey_done 1
5 tick => record, Survey
confirm s
survey_done 1
5.7 tick => Survey
survey_done 1 => record positions P=1:7 over a
# A member that reads that it is over stops
member b holding
0.2 hear a over=b => Lose P
has_lease => = False
# The last record releases everything
member b holding
0.2 commit P 30 => record positions P=1:30
0.3 leave => record full leaving positions P=1:30, Lose P
# Records of a member that is over are read before its partition is taken
member b claiming
hear a claims
0.1 confirm s => Survey
survey_done 1
0.2 hear third over=a => record released P over a
0.3 survey_done 1
# Positions of partitions that are not handled are not saved
member b claiming
commit P 50
commit Q 3
1.1 tick => record, Survey
# A survey of too few stores does not count
member b needs=2
start => record full, Survey
partitions_known P
0.1 confirm s
confirm t
0.2 survey_done 1
1 tick => record, Survey
1.1 survey_done 2 => record claimed P
"""


@scripts_of(SCRIPTS)
def test_member(script: Sequence[str]) -> None:
    play(script)


@given(
    quorum=st.integers(1, 2),
    steps=st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0, 2.5]), st.sampled_from("st"), st.integers(0, 20))),
)
def test_a_lease_lasts_from_the_last_record_that_enough_stores_have_confirmed_in_time(
    quorum: int, steps: list[tuple[float, str, int]]
) -> None:
    member = Member(f"member b needs={quorum}")
    sent_at: list[float] = []
    ends = {"s": 0, "t": 0}
    now, confirmed, lease_end = 0.0, 0, 0.0
    for wait_s, store, end in [(0.0, "s", 0), *steps]:
        now += wait_s
        actions = member.machine.tick(now)
        if member.machine.is_over:
            break
        sent_at += [now for each in actions if isinstance(each, Append)]
        ends[store] = max(ends[store], min(end, len(sent_at)))
        member.machine.acknowledged({store: ends[store]}, now)
        while confirmed < sorted(ends.values())[-quorum]:
            lease_end = sent_at[confirmed] + 4.0 if sent_at[confirmed] + 4.0 > now else lease_end
            confirmed += 1
        sent_at += [now] * (member.machine.end_sequence - len(sent_at))
        assert member.machine.has_lease(now) == (now < lease_end)
        assert member.machine.confirmed_end == confirmed
        assert not lease_end or member.machine.deadline() <= lease_end
    assert member.machine.is_over == (0 < lease_end <= now)


def test_the_member_b_comes_first() -> None:
    assert assign_partitions({ONE: rank_members(ONE, "ab")}) == {ONE: "b"}
    assert Member("member b needs=5").machine.quorum == 5


@pytest.mark.parametrize("own", range(8))
@pytest.mark.parametrize("seen", range(8))
def test_any_two_quorums_overlap_and_no_more_stores_are_needed_than_there_are(own: int, seen: int) -> None:
    member = Member("member a needs=0")
    member.view.own_stores = own
    member.read("b", MemberRecord(lease_ms=4000, stores=seen))
    stores = max(own, seen, 1)
    assert stores < 2 * member.machine.quorum <= stores + 2


def test_members_hold_equal_shares_of_what_any_of_them_knows() -> None:
    """A member counts partitions that others claim, and topics that it does not consume."""
    member = Member("member a")
    member.machine.start(0.0)
    known = [Partition(TOPIC, f"p{number}") for number in range(4)]
    foreign = [Partition("events", f"e{number}") for number in range(2)]
    theirs = MemberRecord(
        lease_ms=4000, topics=(TOPIC, "events"), is_full=True, claimed=frozenset([*known[2:], *foreign])
    )
    member.read("b", theirs)
    member.machine.partitions_known(known[:2], 0.0)
    member.play("survey_done 1")
    member.play("confirm s")
    rankings = {each: rank_members(each, "ab") for each in known} | {each: rank_members(each, "b") for each in foreign}
    expected = assign_partitions(rankings)
    assert [*expected.values()].count("a") == 2
    assert member.records[-1].claimed == {each for each in known[:2] if expected[each] == "a"}


def test_a_survey_that_is_needed_at_once_comes_a_moment_after_the_last_one() -> None:
    member = Member("member b claiming")
    for line in ("0.1 hear a claims", "confirm s", "survey_done 1"):
        member.play(line)
    member.now = 0.11
    assert Survey() not in member.read("x", MemberRecord(lease_ms=4000, over=frozenset("a")))
    assert member.play("until 0.2") == f"Survey at {round(0.1 + SURVEY_PAUSE_S, 3)}"


def test_a_partition_that_is_being_handed_over_is_released_although_the_other_member_has_left() -> None:
    member = Member("member a holding")
    assert member.play("0.2 hear b claims") == "Revoke P"
    member.play("handed_out P 12")
    member.read("x", MemberRecord(lease_ms=4000, over=frozenset("b")))
    assert member.play("0.4 commit P 12") == "record released P positions P=1:12"
