"""`check_assignor` gives an assignor groups of every kind, and names the group in which the contract is broken."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest

from dafka.assignors import Assignment, LogKey, Subscriber
from dafka.testing import check_assignor


class First:
    """Has the first member that reads a topic read all of its logs, and notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[dict[str, Subscriber], dict[str, int], Any]] = []

    def assign(self, members: Mapping[str, Subscriber], log_counts: Mapping[str, int]) -> dict[str, Assignment]:
        found: dict[str, Assignment] = {}
        for topic, count in log_counts.items():
            readers = [name for name, member in sorted(members.items()) if topic in member.topic_ids]
            if readers and count:
                logs = frozenset(LogKey(topic, number) for number in range(count))
                found[readers[0]] = found.get(readers[0], frozenset()) | logs
        self.asked.append((dict(members), dict(log_counts), found))
        return found


class Forgetful(First):
    def assign(self, members: Mapping[str, Subscriber], log_counts: Mapping[str, int]) -> dict[str, Assignment]:
        found = super().assign(members, log_counts)
        return {name: frozenset(each for each in logs if each.number != 7) for name, logs in found.items()}


def test_each_group_changes_its_members_and_remembers_what_they_read() -> None:
    one, other = First(), First()
    check_assignor(one)
    check_assignor(other, groups=3)
    assert other.asked == one.asked[:15], "they are the same in each call"
    assert len(one.asked) == 200 * 5
    changes = [one.asked[start : start + 5] for start in range(0, 1000, 5)]
    for group in changes:
        assert group[0][1] == group[-1][1], "the topics of a group do not change"
        before: dict[str, Any] = {}
        known: set[str] = set()
        for members, counts, found in group:
            for name, member in members.items():
                assert member.topic_ids <= counts.keys()
                assert member.current == (frozenset(before.get(name, ())) if name in known else frozenset())
            before, known = found, {*members}
    assert {len(counts) for _, counts, _ in one.asked} == set(range(5))
    assert {count for _, counts, _ in one.asked for count in counts.values()} == set(range(9))
    left = [len({*former} - {*later}) for group in changes for (former, *_), (later, *_) in itertools.pairwise(group)]
    joined = [len({*later} - {*former}) for group in changes for (former, *_), (later, *_) in itertools.pairwise(group)]
    assert ({*left}, max(joined)) == ({0, 1, 2}, 3)
    drawn = [member for members, _, _ in one.asked for member in members.values()]
    assert {each.rack for each in drawn} == {"", "east", "west"}
    assert 0.4 < sum(bool(each.instance_id) for each in drawn) / len(drawn) < 0.6
    assert any(len(members) > 4 for members, _, _ in one.asked)


def test_a_fault_is_named_with_its_group() -> None:
    broken = Forgetful()
    with pytest.raises(AssertionError) as caught:
        check_assignor(broken)
    members, counts, _ = broken.asked[-1]
    problem, _, group = str(caught.value).partition(": ")
    assert problem.startswith("log 7 of the topic 'topic-")
    assert group.startswith(f"topics {counts!r}, members {members!r}, assigned {{")
