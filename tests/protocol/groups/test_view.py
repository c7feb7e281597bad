"""A node's view of a group is what the members have published, whatever that is, and in whichever order it is read."""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

import pytest

from dafka.protocol.groups import GroupView
from dafka.protocol.groups.records import MemberRecord, Position, encode_member_record
from dafka.protocol.groups.view import Member
from dafka.records import Partition
from tests.seeds import each_seed

MEMBERS = "abc"
TOPICS = ("orders", "logs")
PARTITIONS = [Partition(topic, address) for topic in TOPICS for address in "PQ"]
FACTOR = 1.25


class Read(NamedTuple):
    """A record that was read."""

    address: str
    record: MemberRecord
    now: float
    is_after_gap: bool


def draw_record(draw: Random, address: str) -> MemberRecord:
    """Return any record. Each member saves positions of epochs of its own."""

    def some(items: Any, share: float = 0.3) -> list[Any]:
        return [each for each in items if draw.random() < share]

    if draw.random() < 0.2:
        return MemberRecord(lease_ms=1000)
    epoch = 3 * draw.randrange(4) + MEMBERS.index(address)
    return MemberRecord(
        lease_ms=draw.choice((1000, 4000)),
        topics=tuple(some(TOPICS, 0.7)),
        stores=draw.randrange(4),
        is_full=draw.random() < 0.3,
        is_leaving=draw.random() < 0.03,
        claimed=frozenset(some(PARTITIONS)),
        released=frozenset(some(PARTITIONS)),
        positions={each: Position(epoch, draw.randrange(9)) for each in some(PARTITIONS)},
        over=frozenset(some(MEMBERS, 0.02)),
    )


def shown(view: GroupView) -> object:
    """Return everything of a view that its version stands for."""
    members = view.members.items()
    return {each: (found.topics, found.stores, frozenset(found.claimed), found.is_over) for each, found in members}


def expect(view: GroupView, reads: list[Read], over: set[str]) -> None:
    """Work out what was published, from the first record on."""
    assert view.members.keys() == {each.address for each in reads}
    for address, member in view.members.items():
        own = [each for each in reads if each.address == address]
        claimed: set[Partition] = set()
        positions: dict[Partition, Position] = {}
        is_known = False
        for _, record, _, is_after_gap in own:
            if record.is_full:
                claimed, positions = set(), {}
            is_known = record.is_full or (is_known and not is_after_gap)
            claimed = (claimed | record.claimed) - record.released
            positions |= record.positions
        last = own[-1]
        assert member.claimed == (set() if address in over else claimed)
        assert (member.positions, member.is_known, member.heard_at) == (positions, is_known, last.now)
        assert (member.lease_s, member.topics) == (last.record.lease_ms / 1000, frozenset(last.record.topics))
        assert member.is_over == view.is_over(address) == (address in over)
        for each in PARTITIONS:
            assert member.may_claim(each) == (address not in over and (each in claimed or not is_known))
    living = {each: member for each, member in view.members.items() if each not in over}
    assert view.living() == [*living.values()]
    for topic in TOPICS:
        assert view.living(topic) == [each for each in living.values() if topic in each.topics]
    assert view.stores == max((each.stores for each in living.values()), default=0)
    saved = [(partition, each) for read in reads for partition, each in read.record.positions.items()]
    for partition in PARTITIONS:
        epoch = max((each.epoch for other, each in saved if other == partition), default=None)
        latest = [each for other, each in saved if other == partition and each.epoch == epoch]
        assert view.position(partition) == view.positions().get(partition) == (latest[-1] if latest else None)


@each_seed(30)
def test_a_view_is_what_the_members_have_published(seed: int) -> None:
    draw, view, now = Random(seed), GroupView(), 0.0
    reads: list[Read] = []
    over: set[str] = set()
    expired: set[str] = set()
    over_since: dict[str, float] = {}
    ends = dict.fromkeys(MEMBERS, 0)
    for _ in range(25):
        now += draw.choice((0.0, 0.5, 2.0))
        before, version = shown(view), view.version
        if draw.random() < 0.1:
            own = draw.choice(MEMBERS)
            silent = {
                each.address
                for each in view.living()
                if now - each.heard_at >= FACTOR * each.lease_s and each.address != own
            }
            assert view.mark_silent(now, FACTOR, own) == silent
            over_since |= dict.fromkeys(silent, now)
            over |= silent
            expired |= silent
        else:
            address, gap = draw.choice(MEMBERS), draw.choice((0, 0, 0, 0, 1))
            record = draw_record(draw, address)
            first = ends[address] + gap
            ends[address] = first + 1
            view.receive(address, first, [encode_member_record(record)], now)
            is_new = all(each.address != address for each in reads)
            reads.append(Read(address, record, now, is_after_gap=bool(gap) and not is_new))
            expired |= record.over - over
            over_since |= dict.fromkeys((record.over - over) & view.members.keys(), now)
            over |= record.over
            if record.is_leaving:
                over.add(address)
                expired.discard(address)
            is_quiet = not (record.is_full or record.claimed or record.released)
            assert shown(view) != before or not is_quiet or view.version == version
        expect(view, reads, over)
        assert view.expired == expired
        assert {each: member.over_since for each, member in view.members.items()} == {
            each: over_since.get(each, float("-inf")) for each in view.members
        }
        assert view.version > version or shown(view) == before


@pytest.mark.parametrize("position", [Position(3, 5), Position(4, 1), Position(2, 99)])
@pytest.mark.parametrize("other", [Position(3, 5), Position(3, 4), Position(3, 6)])
def test_of_two_members_that_save_one_epoch_the_later_position_counts(position: Position, other: Position) -> None:
    """One of them has never begun to handle the partition."""
    for order in ("ab", "ba"):
        view = GroupView()
        for address in order:
            saved = {"a": position, "b": other}[address]
            record = MemberRecord(lease_ms=1000, positions={PARTITIONS[0]: saved})
            view.receive(address, 0, [encode_member_record(record)], 1.0)
        assert view.position(PARTITIONS[0]) == max(position, other)


def test_a_member_of_which_nothing_was_read_can_be_over() -> None:
    view = GroupView()
    assert view.mark_over(["a"], 3.0) == {"a"}
    assert view.mark_over(["a"], 4.0) == frozenset()
    assert (view.is_over("a"), view.is_over("b"), view.living()) == (True, False, [])
    view.receive("a", 0, [encode_member_record(MemberRecord(lease_ms=1000, claimed=frozenset(PARTITIONS)))], 5.0)
    member: Member = view.members["a"]
    assert (member.is_over, member.claimed, member.heard_at) == (True, set(), 5.0)
