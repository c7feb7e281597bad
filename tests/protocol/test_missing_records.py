"""A store reports again and again that it lacks records which other nodes have announced."""

from __future__ import annotations

from itertools import pairwise

from dafka import wire
from dafka.config import Config
from dafka.protocol import RecordsMissing, StoreMachine
from dafka.protocol.actions import Notify
from dafka.protocol.ordering.reassembler import MISSING_FIRST_S, MISSING_INTERVAL_S
from dafka.records import Partition
from tests.protocol.helpers import HELLO, direct, direct_head

ME = "STORE"
OTHER = Partition("other", "GONE")


def reports(store: StoreMachine, begin: float, end: float) -> list[tuple[float, RecordsMissing]]:
    """Run what is due from one time to another, and return the reports, each with its time."""
    found: list[tuple[float, RecordsMissing]] = []
    now = begin
    while (now := max(store.deadline(), now)) <= end:
        events = [action.event for action in store.tick(now) if isinstance(action, Notify)]
        found += [(now, event) for event in events if isinstance(event, RecordsMissing)]
    return found


def test_missing_records_are_reported_once_a_minute_until_they_come() -> None:
    store = StoreMachine(ME, Config(), {HELLO: 10})
    store.start(0.0)
    store.receive([direct_head(99, ME), wire.DirectHead(ME, OTHER.address, OTHER.topic, 4)], 0.0)
    assert store.missing.count() == 0
    times, events = zip(*reports(store, 0.0, 300.0), strict=True)
    assert set(events) == {RecordsMissing(95, 2, HELLO)}
    assert 4 <= len(times) <= 5
    assert times[0] >= MISSING_FIRST_S
    assert {later - earlier for earlier, later in pairwise(times)} == {MISSING_INTERVAL_S}
    assert store.missing.count() == 95
    store.receive([direct(0, 5, ME, OTHER)], 300.0)
    assert {event for _, event in reports(store, 300.0, 400.0)} == {RecordsMissing(90, 1, HELLO)}
    store.receive([direct(10, 100, ME)], 400.0)
    assert store.missing.count() == 0
    assert reports(store, 400.0, 1000.0) == []
    store.receive([direct_head(199, ME)], 1000.0)
    assert [event for _, event in reports(store, 1000.0, 1060.0)] == [RecordsMissing(100, 1, HELLO)]


def test_records_that_come_soon_are_not_reported() -> None:
    store = StoreMachine(ME, Config(), {HELLO: 10})
    store.start(0.0)
    store.receive([direct_head(99, ME)], 0.0)
    assert reports(store, 0.0, MISSING_FIRST_S) == []
    store.receive([direct(10, 100, ME)], MISSING_FIRST_S)
    assert reports(store, MISSING_FIRST_S, 500.0) == []


def test_a_report_is_a_sentence() -> None:
    assert str(RecordsMissing(1, 1, HELLO)) == (
        f"No node sends 1 record of {HELLO}, which this store lacks and other nodes have announced; retrying"
    )
    assert f"95 records of 2 partitions, such as {HELLO}, which" in str(RecordsMissing(95, 2, HELLO))
