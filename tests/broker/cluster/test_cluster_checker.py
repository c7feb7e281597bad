"""The checker: a history without faults has no findings, and one with a planted fault has those of its kind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.broker.cluster.checker import check, summarize
from tests.broker.cluster.histories import AGAIN_S, Log, load
from tests.broker.cluster.history import HistoryWriter, Runs, pack, unpack

Events = list[list[Any]]

LOG = 3
BURST = 10
BURSTS = 8
END = 2 * BURSTS * BURST


def good_history() -> Events:
    """Return a history of two producers, one member of a group, and a reader, without any fault."""
    events: Events = []
    for burst in range(BURSTS):
        for producer in (1, 2):
            time, first, offset = burst + producer / 10, burst * BURST, (2 * burst + producer - 1) * BURST
            events.append(["send", time, producer, LOG, first, BURST])
            events.append(["ok", time + 0.05, producer, LOG, first, BURST, offset])
            events.append(["end", time + 0.06, time + 0.07, "reader", LOG, offset + BURST])
            events.append(["read", time + 0.08, "reader", LOG, offset, producer, first, BURST])
            events.append(["read", 100.0, "contents", LOG, offset, producer, first, BURST])
    events.append(["assign", 0.0, 0.01, "g", "g-1", LOG, -1])
    half = END // 2
    for burst in range(BURSTS):
        for producer in (1, 2):
            offset = (2 * burst + producer - 1) * BURST
            if offset == half:
                events.append(["commit", 30.0, 30.1, "g", "g-1", LOG, True, half])
                events.append(["assign", 31.0, 31.1, "g", "g-2", LOG, half])
            member = "g-1" if offset < half else "g-2"
            events.append(["read", 30.0 + burst, member, LOG, offset, producer, burst * BURST, BURST])
    events.append(["commit", 60.0, 60.1, "g", "g-2", LOG, True, END])
    events.append(["end", 100.0, 101.0, "contents", LOG, END])
    return events


def find(events: Events, *, is_majority: bool = True) -> set[str]:
    """Return the kinds of what is found."""
    return {each.kind for each in check([(LOG, Log(events))], is_majority=is_majority)}


def of(events: Events, kind: str, reader: object = None) -> Events:
    """Return the events of a kind, and perhaps of a reader or producer."""
    return [each for each in events if each[0] == kind and (reader is None or reader in each[1:5])]


def lose_record(events: Events) -> None:
    """The last burst is acknowledged, read, and not there in the end."""
    events.remove(of(events, "read", "contents")[-1])
    of(events, "end", "contents")[0][5] -= BURST


def lose_records_within(events: Events) -> None:
    """Three records of a burst are not there, and what follows has other offsets."""
    contents = of(events, "read", "contents")
    contents[5][7] -= 3
    for each in contents[6:]:
        each[4] -= 3
    of(events, "end", "contents")[0][5] -= 3


def duplicate_burst(events: Events) -> None:
    """A burst is there once more at the end."""
    again = list(of(events, "read", "contents")[4])
    again[4] = END
    events.append(again)
    events.append(["read", 90.0, "g-2", *again[3:]])
    of(events, "end", "contents")[0][5] += BURST


def duplicate_part(events: Events) -> None:
    """Two records of a burst are there once more at the end."""
    duplicate_burst(events)
    for each in (events[-1], events[-2]):
        each[6] += 4
        each[7] = 2
    of(events, "end", "contents")[0][5] += 2 - BURST


def exchange_bursts(events: Events) -> None:
    """Two bursts of one producer have changed their places."""
    for kind in ("contents", "reader", "g-1"):
        first, _, second = of(events, "read", kind)[:3]
        first[6], second[6] = second[6], first[6]
    first, _, second = of(events, "ok")[:3]
    first[4], second[4] = second[4], first[4]


def add_phantom(events: Events) -> None:
    """There are records that nobody has sent."""
    events.append(["read", 100.0, "contents", LOG, END, 7, 0, 2])
    events.append(["read", 90.0, "g-2", LOG, END, 7, 0, 2])
    of(events, "end", "contents")[0][5] += 2


def send_beyond(events: Events) -> None:
    """A producer's records go on behind the last one that it has sent."""
    add_phantom(events)
    for each in events[-2:]:
        each[5:7] = [1, BURSTS * BURST]


def read_stale(events: Events) -> None:
    """A reader does not see the last burst that was acknowledged before it asked."""
    of(events, "end", "reader")[-1][5] -= BURST


def acknowledge_twice(events: Events) -> None:
    """Two sides acknowledge different records at the same offset, and both are there in the end."""
    last = of(events, "ok")[-1]
    last[6] -= BURST


def move_record(events: Events) -> None:
    """A burst is not where its producer was told."""
    of(events, "ok")[-1][6] += 2 * BURST


def change_offset(events: Events) -> None:
    """A reader got other records at an offset than are there in the end."""
    of(events, "read", "reader")[2][6] = 30


def skip_records(events: Events) -> None:
    """A group never gets a burst, because another member begins behind it."""
    events.remove(of(events, "read", "g-1")[-1])


def leave_gap(events: Events) -> None:
    """A member jumps back and forth, and yet gets everything."""
    reads = of(events, "read", "g-2")
    first, second = events.index(reads[0]), events.index(reads[1])
    events[first], events[second] = events[second], events[first]


def lose_commit(events: Events) -> None:
    """A member continues before what was committed."""
    events.insert(events.index(of(events, "commit")[-1]) + 1, ["assign", 61.0, 61.1, "g", "g-3", LOG, END // 2])


def forget_commits(events: Events) -> None:
    """A group that has committed begins at the start."""
    events.append(["assign", 61.0, 61.1, "g", "g-3", LOG, -1])


def invent_commit(events: Events) -> None:
    """A member continues where nobody has committed."""
    events.append(["assign", 61.0, 61.1, "g", "g-3", LOG, END + 7])


def damage(events: Events) -> None:
    events.append(["bad", 50.0, "g-1", LOG, 4, "the value is None"])


def give_up(events: Events) -> None:
    events.append(["fatal", 50.0, 1, "out of order"])


def leave_unread(events: Events) -> None:
    events.remove(of(events, "end", "contents")[0])


PLANTED: list[tuple[Callable[[Events], None], set[str], set[str]]] = [
    (lose_record, {"lost", "changed", "stale read"}, {"lost"}),
    (lose_records_within, {"lost", "moved", "changed", "stale read"}, {"lost"}),
    (duplicate_burst, {"duplicated"}, {"duplicated"}),
    (duplicate_part, {"duplicated"}, {"duplicated"}),
    (exchange_bursts, {"reordered"}, set()),
    (add_phantom, {"phantom"}, {"phantom"}),
    (send_beyond, {"phantom"}, {"phantom"}),
    (read_stale, {"stale read"}, set()),
    (acknowledge_twice, {"split acknowledgement", "moved"}, set()),
    (move_record, {"moved", "stale read"}, set()),
    (change_offset, {"changed"}, set()),
    (skip_records, {"skipped"}, {"skipped"}),
    (leave_gap, {"gap"}, set()),
    (lose_commit, {"lost commit"}, set()),
    (forget_commits, {"lost commit"}, set()),
    (invent_commit, {"phantom commit"}, {"phantom commit"}),
    (damage, {"damaged"}, {"damaged"}),
    (give_up, {"gave up"}, {"gave up"}),
    (leave_unread, {"unread"}, {"unread"}),
]


def test_a_history_without_faults_has_no_findings() -> None:
    assert check([(LOG, Log(good_history()))]) == []


@pytest.mark.parametrize(("plant", "majority", "branch"), PLANTED, ids=[each[0].__name__ for each in PLANTED])
def test_planted_fault_is_found(plant: Callable[[Events], None], majority: set[str], branch: set[str]) -> None:
    events = good_history()
    plant(events)
    assert find(events) == majority
    assert find(events, is_majority=False) == branch


def test_a_commit_without_an_answer_can_be_executed_later() -> None:
    events = good_history()
    lose_commit(events)
    assert find(events) == {"lost commit"}
    tried = ["commit", 59.0, 59.0, "g", "g-1", LOG, False, END // 2]
    assert find([*events, tried]) == set()
    assert find([*events, tried, ["commit", 59.0, 59.5, "g", "g-1", LOG, True, END // 2]]) == {"lost commit"}
    assert find([*events, ["commit", 62.0, 62.0, "g", "g-1", LOG, False, END // 2]]) == {"lost commit"}


def test_what_is_not_known_may_be_there_or_not() -> None:
    events = good_history()
    last = of(events, "ok")[-1]
    last[:] = ["unknown", *last[1:6], "it was stopped"]
    events.remove(of(events, "end", "reader")[-1])
    assert find(events) == set()
    for each in (
        *of(events, "read", "contents")[-1:],
        *of(events, "read", "reader")[-1:],
        *of(events, "read", "g-2")[-1:],
    ):
        events.remove(each)
    of(events, "end", "contents")[0][5] -= BURST
    assert find(events) == set()


@pytest.mark.parametrize(("later_s", "found"), [(AGAIN_S / 2, set()), (AGAIN_S * 2, {"gap"})])
def test_a_client_may_go_back_to_a_position_that_it_made_sure_of(later_s: float, found: set[str]) -> None:
    events = good_history()
    last = of(events, "read", "g-2")[-1]
    last[1] += 10  # nothing else is recent
    events.insert(events.index(last) + 1, [last[0], last[1] + later_s, *last[2:]])
    assert find(events) == found
    assert Log(events).groups["g"].again == (0 if found else BURST)


def test_an_acknowledgement_without_offset_is_checked_too() -> None:
    events = good_history()
    of(events, "ok")[-1][6] = -1
    assert find(events) == set()
    lose_record(events)
    assert "lost" in find(events)


def test_a_question_that_began_before_the_acknowledgement_is_no_stale_read() -> None:
    events = good_history()
    asked = of(events, "end", "reader")[-1]
    asked[1] = of(events, "ok")[-1][1] - 0.001
    asked[5] -= BURST
    assert find(events) == set()


def test_a_commit_that_was_not_confirmed_may_be_lost() -> None:
    events = good_history()
    of(events, "commit")[-1][6] = False
    events.append(["assign", 61.0, 61.1, "g", "g-3", LOG, END // 2])
    assert find(events) == set()


def test_findings_are_summarized_with_their_numbers() -> None:
    events = good_history()
    lose_record(events)
    lines = summarize(check([(LOG, Log(events))]))
    assert lines[0] == f"lost: 1 findings, of {BURST} in all"
    assert lines[1] == f"    log {LOG} lacks {BURST} of records 70 to 79 of producer 2 at 150, which were acknowledged"


def test_a_history_is_written_and_loaded_by_log(tmp_path: Path) -> None:
    writer = HistoryWriter(tmp_path, "producer-1")
    runs = Runs(lambda *run: writer.add("ok", 1.0, *run, log=run[1]))
    for number in (0, 1, 2, 4):
        for log in (0, 1):
            runs.add((1, log, number), 10 + number)
    runs.flush()
    writer.add("send", 0.5, 1, 0, 0, 5, log=0)
    writer.add("fatal", 2.0, 1, "out of order")
    writer.close()
    with (tmp_path / "producer-1.0.history").open("a") as file:
        file.write(json.dumps(["ok", 3.0])[:-1])  # a kill has cut it
    found = dict(load(tmp_path))
    assert set(found) == {-1, 0, 1}
    assert [run[:4] for run in found[0].acknowledged] == [(1, 0, 3, 10), (1, 4, 1, 14)]
    assert found[0].sent == {1: 5}
    assert found[1].sent == {}
    assert [each.kind for each in check([(-1, found[-1])])] == ["gave up"]


def test_a_damaged_value_is_noticed() -> None:
    value = pack(1, 2, 3, b"padding")
    assert unpack(value) == (1, 2, 3)
    assert unpack(None) is None
    for position in range(len(value)):
        damaged = bytearray(value)
        damaged[position] ^= 4
        assert unpack(bytes(damaged)) is None
    assert unpack(value[:-1]) is None
