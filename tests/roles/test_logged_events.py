"""Which events a node logs, at which level, under which names, and how often."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any, get_args

import attrs
import pytest
import trio
import trio.testing

from dafka import Partition
from dafka.endpoints import PeerEndpoint
from dafka.protocol import Event, FetchUnanswered, PeerJoined, RecordsDropped
from dafka.protocol.trust import AddressConflict
from dafka.roles import logging_events
from dafka.roles.events import DISCARDS_REPEAT_S, ROUTINE, DiscardLog, NodeLog, log_discards
from dafka.roles.logging_events import LogEvent, MessagesDiscarded, Started, event_fields, event_name

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "operate.md"
PARTITION = Partition("orders", "A" * 32)
LOG_EVENTS = [kind for kind in vars(logging_events).values() if isinstance(kind, type) and LogEvent in kind.__bases__]
EVENTS = [*get_args(Event), *LOG_EVENTS]


def dafka_lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [record.dafka for record in caplog.records if hasattr(record, "dafka")]


PEER, KEYED = PeerEndpoint("tcp://a:1"), PeerEndpoint("tcp://a:1", "k")
OF_ORDERS = {"topic": "orders", "partition": "A" * 32}
NOTICES: list[tuple[Event | LogEvent, dict[str, Any]]] = [
    (PeerJoined("A", PEER), {"event": "peer_joined", "peer": "A", "endpoint": "tcp://a:1"}),
    (PeerJoined("A", KEYED), {"event": "peer_joined", "peer": "A", "endpoint": "tcp://a:1", "key": "k"}),
    (AddressConflict("A", "tcp://a:1"), {"event": "address_conflict", "peer": "A", "endpoint": "tcp://a:1"}),
    (FetchUnanswered(PARTITION, 7, 3), {"event": "fetch_unanswered", "first_sequence": 7, "attempts": 3, **OF_ORDERS}),
    (RecordsDropped(5, 2), {"event": "records_dropped", "records": 5, "partitions": 2}),
    (Started(("tcp://a:1", "tcp://a:2")), {"event": "started", "endpoints": ["tcp://a:1", "tcp://a:2"]}),
]


def test_a_line_has_the_name_and_fields_of_its_event_and_its_node(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("dafka.store")
    for node, common in (("F" * 32, {"role": "store", "node": "F" * 32}), ("", {"role": "store"})):
        for notice, fields in NOTICES:
            caplog.clear()
            with caplog.at_level(logging.INFO, "dafka"):
                NodeLog(logger, node).write(notice)
            assert dafka_lines(caplog) == [{**common, **fields}]
            assert [(each.levelno, each.getMessage()) for each in caplog.records] == [(logging.INFO, str(notice))]
            caplog.clear()
            with caplog.at_level(logging.WARNING, "dafka"):
                NodeLog(logger, node).write(notice)
            assert not caplog.records


def test_event_names_are_distinct_lower_case_words() -> None:
    names = {event_name(kind) for kind in EVENTS}
    assert len(names) == len(EVENTS)
    assert all(name.replace("_", "").isalpha() and name.islower() for name in names)


def test_the_page_lists_every_event_with_its_fields() -> None:
    rows = re.findall(r"^\| `([a-z_]+)` \| (?:info|warning|error) \| ([^|]*)\|", PAGE.read_text("utf-8"), re.MULTILINE)
    documented = {
        name: set(re.findall(r"\w+", fields.replace("*partition*", "topic, partition"))) for name, fields in rows
    }
    assert documented == {event_name(kind): fields_of(kind) for kind in EVENTS}


def test_the_page_lists_the_level_of_every_event() -> None:
    levels = dict(re.findall(r"^\| `([a-z_]+)` \| (info|warning|error) \|", PAGE.read_text("utf-8"), re.MULTILINE))
    assert {kind: levels[event_name(kind)] for kind in get_args(Event)} == {
        kind: "info" if kind in ROUTINE else "warning" for kind in get_args(Event)
    }


def fields_of(kind: type[Any]) -> set[str]:
    """Return the names of the fields of an event class, from an event with placeholder values."""
    values = {attribute.name: PARTITION if attribute.type == "Partition" else "" for attribute in attrs.fields(kind)}
    return set(event_fields(kind(**values)))


def test_discards_are_logged_at_once_and_then_once_a_minute() -> None:
    discards = DiscardLog()
    assert discards.due_events({}, 0) == []
    assert discards.due_events({"frames": 1}, 1) == [MessagesDiscarded("frames", 1, 1)]
    assert discards.due_events({"frames": 900}, DISCARDS_REPEAT_S) == []
    assert discards.due_events({"frames": 900, "uuid": 2}, DISCARDS_REPEAT_S) == [MessagesDiscarded("uuid", 2, 2)]
    assert discards.due_events({"frames": 1000, "uuid": 2}, 1 + DISCARDS_REPEAT_S) == [
        MessagesDiscarded("frames", 999, 1000)
    ]
    assert discards.due_events({"frames": 1000, "uuid": 2}, 10 * DISCARDS_REPEAT_S) == []


async def test_a_flood_of_discards_causes_two_lines_in_a_minute(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    counts = {"frames": 0}
    with caplog.at_level(logging.INFO, "dafka.test"), trio.move_on_after(DISCARDS_REPEAT_S + 10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(log_discards, lambda: counts, NodeLog(logging.getLogger("dafka.test")))
            while True:
                counts["frames"] += 1000
                await trio.sleep(0.1)
    lines = dafka_lines(caplog)
    assert [line["event"] for line in lines] == ["messages_discarded"] * 2
    assert lines[1]["count"] + lines[0]["count"] == lines[1]["total"]
