"""Assignors, in random groups: each log has one reader, the shares are fair, and few logs move."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from random import Random

import attrs

from dafka.broker.core.groups.consumer.assignors import (
    DEFAULT_ASSIGNORS,
    RangeAssignor,
    Subscriber,
    UniformAssignor,
    choose_assignor,
    find_assignment_problem,
)
from dafka.broker.core.groups.consumer.members import Assignment
from dafka.broker.core.metadata.log_replicas import LogKey

Members = dict[str, Subscriber]


def draw_group(draw: Random) -> tuple[Members, dict[str, int]]:
    counts = {f"t{number}": draw.randint(0, 8) for number in range(draw.randint(0, 4))}
    is_same = draw.random() < 0.5
    members = {
        f"m{number}": Subscriber(frozenset(each for each in counts if is_same or draw.random() < 0.6))
        for number in range(draw.randint(0, 5))
    }
    return members, counts


def check_readers(found: dict[str, Assignment], members: Members, counts: dict[str, int]) -> None:
    assert found.keys() == members.keys()
    assert is_possible(found, members, counts)
    assert not find_assignment_problem(found, members, counts)


def is_possible(found: Mapping[str, Collection[LogKey]], members: Members, counts: dict[str, int]) -> bool:
    """Return whether each log has one reader, of those that read its topic."""
    read = {topic for each in members.values() for topic in each.topic_ids}
    wanted = Counter(LogKey(topic, number) for topic in read for number in range(counts[topic]))
    return (
        Counter(log for logs in found.values() for log in logs) == wanted
        and found.keys() <= members.keys()
        and all(log.topic_id in members[each].topic_ids for each, logs in found.items() for log in logs)
    )


def test_what_is_wrong_in_an_assignment_is_found() -> None:
    outcomes = set()
    for seed in range(400):
        draw = Random(seed)
        members, counts = draw_group(draw)
        found: dict[str, set[LogKey]] = {
            each: set(logs) for each, logs in UniformAssignor().assign(members, counts).items()
        }
        for _ in range(draw.randint(0, 2)):
            member = draw.choice([*members, "stranger"])
            log = LogKey(draw.choice([*counts, "t9"]), draw.randint(-1, 8))
            change = draw.choice([set.add, set.discard])
            change(found.setdefault(member, set()), log)
        problem = find_assignment_problem(found, members, counts)
        is_known = "stranger" not in found
        assert (not problem) == (is_known and is_possible(found, members, counts)), (seed, problem)
        outcomes.add(re.sub(r"'[^']*'|-?[0-9]+", "", problem))
    assert len(outcomes) == 6, "each problem is found"


def test_uniform_shares_are_fair_and_stay() -> None:
    assignor = UniformAssignor()
    for seed in range(400):
        draw = Random(seed)
        members, counts = draw_group(draw)
        for _ in range(4):
            found = assignor.assign(members, counts)
            check_readers(found, members, counts)
            for logs in found.values():
                for other in members:
                    could_get = any(log.topic_id in members[other].topic_ids for log in logs)
                    assert not could_get or len(found[other]) >= len(logs) - 1, seed
            members = {each: attrs.evolve(members[each], current=logs) for each, logs in found.items()}
            assert assignor.assign(members, counts) == found, "logs move without a reason"
            if draw.random() < 0.5 and members:
                del members[draw.choice(sorted(members))]
            else:
                members[f"n{draw.random()}"] = Subscriber(frozenset(counts))


def test_uniform_moves_no_more_logs_than_a_new_member_gets() -> None:
    for count, size in ((12, 3), (7, 2), (30, 7), (3, 3), (2, 5)):
        members = {f"m{number}": Subscriber(frozenset("t")) for number in range(size)}
        before = UniformAssignor().assign(members, {"t": count})
        grown = {each: attrs.evolve(members[each], current=logs) for each, logs in before.items()}
        after = UniformAssignor().assign({**grown, "new": Subscriber(frozenset("t"))}, {"t": count})
        moved = sum(len(before[each] - after[each]) for each in before)
        assert moved == len(after["new"]) == count // (size + 1)


def test_ranges_are_neighbors_and_the_same_in_topics_of_one_size() -> None:
    for seed in range(200):
        members, counts = draw_group(Random(seed))
        found = RangeAssignor().assign(members, counts)
        check_readers(found, members, counts)
        for logs in found.values():
            for topic in counts:
                numbers = sorted(log.number for log in logs if log.topic_id == topic)
                assert numbers == list(range(numbers[0], numbers[-1] + 1)) if numbers else True
    members = {each: Subscriber(frozenset("ab"), instance_id=f"i{9 - ord(each) % 9}") for each in "xyz"}
    found = RangeAssignor().assign(members, {"a": 5, "b": 5})
    for topic in "ab":
        shares = {each: sorted(log.number for log in found[each] if log.topic_id == topic) for each in found}
        assert shares == {"z": [0, 1], "y": [2, 3], "x": [4]}


def test_the_assignor_that_most_members_prefer_is_used() -> None:
    for preferred, expected in (
        ([], "uniform"),
        (["", "range"], "range"),
        (["range", "uniform"], "uniform"),
        (["range", "unknown", "unknown"], "range"),
        (["uniform", "range", "range"], "range"),
    ):
        assert choose_assignor(preferred, DEFAULT_ASSIGNORS) == expected
