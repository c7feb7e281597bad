"""The log lines of nodes, as JSON objects and as sentences."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import attrs
import pytest
import trio
import trio.testing

from dafka import Partition
from dafka.endpoints import PeerEndpoint
from dafka.operations.logs import SentenceFormatter, add_event, json_formatter
from dafka.protocol import Event, FetchUnanswered, PeerJoined, RecordsCompacted, RecordsDropped, StorageFailed
from dafka.roles import logging_events
from dafka.roles.events import DISCARDS_REPEAT_S, ROUTINE, DiscardLog, NodeLog, log_discards
from dafka.roles.logging_events import LogEvent, MessagesDiscarded, Started, event_fields, event_name
from dafka.testing import open_cluster

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "operate.md"
PARTITION = Partition("orders", "A" * 32)
FORGED = Partition('o"r\nd\x1b[31mers\u2028\x00', "B" * 32)
LOG_EVENTS = [kind for kind in vars(logging_events).values() if isinstance(kind, type) and LogEvent in kind.__bases__]
EVENTS = [*get_args(Event), *LOG_EVENTS]


@attrs.frozen
class Written:
    """A logger, and the text of its lines."""

    logger: logging.Logger
    text: io.StringIO

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.getvalue().splitlines()]


@pytest.fixture
def written() -> Iterator[Written]:
    logger, text = logging.getLogger("dafka.store"), io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(json_formatter())
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    yield Written(logger, text)
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)
    logger.propagate = True


def dafka_lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [record.dafka for record in caplog.records if hasattr(record, "dafka")]


OF_ORDERS = {"topic": "orders", "partition": "A" * 32}
NOTICES: list[tuple[Event | LogEvent, dict[str, Any]]] = [
    (PeerJoined("A", PeerEndpoint("tcp://a:1")), {"event": "peer_joined", "peer": "A", "endpoint": "tcp://a:1"}),
    (FetchUnanswered(PARTITION, 7, 3), {"event": "fetch_unanswered", "first_sequence": 7, "attempts": 3, **OF_ORDERS}),
    (RecordsCompacted(PARTITION, 5, 20), {"event": "records_compacted", "records": 5, "bytes": 20, **OF_ORDERS}),
    (RecordsDropped(5, 2), {"event": "records_dropped", "records": 5, "partitions": 2}),
    (StorageFailed("the disk is full"), {"event": "storage_failed", "reason": "the disk is full"}),
    (Started(("tcp://a:1", "tcp://a:2")), {"event": "started", "endpoints": ["tcp://a:1", "tcp://a:2"]}),
]


@pytest.mark.parametrize(("notice", "fields"), NOTICES, ids=lambda value: type(value).__name__)
def test_a_line_is_an_object_with_the_name_and_fields_of_the_event(
    written: Written, notice: Event | LogEvent, fields: dict[str, Any]
) -> None:
    NodeLog(written.logger, "F" * 32).write(notice, logging.WARNING)
    (line,) = written.objects
    moment = datetime.fromisoformat(line.pop("timestamp"))
    assert moment.utcoffset() == timedelta(0)
    common = {"level": "warning", "logger": "dafka.store", "role": "store", "node": "F" * 32, "message": str(notice)}
    assert line == common | fields


def test_names_chosen_by_peers_cannot_break_a_line(written: Written) -> None:
    event = FetchUnanswered(FORGED, 7, 3)
    NodeLog(written.logger).write(event)
    (line,) = written.objects
    assert (line["topic"], line["message"]) == (FORGED.topic, str(event))
    assert "\x1b" not in written.text.getvalue()
    record = logging.LogRecord("dafka.store", logging.INFO, "", 0, "%s", (event,), None)
    text = SentenceFormatter("%(levelname)s %(message)s").format(record)
    assert text.isprintable()
    assert text.startswith('INFO No node sends the records of o"r\\nd\\x1b[31mers\\u2028\\x00/BBB')


def test_lines_of_other_libraries_and_exceptions_are_objects_too(written: Written) -> None:
    try:
        raise ValueError("of another library")
    except ValueError:
        written.logger.exception("it %s", "failed")
    (line,) = written.objects
    assert (line["event"], line["message"], line["level"]) == ("log", "it failed", "error")
    assert line["exception"].endswith("ValueError: of another library")


def test_a_program_can_use_the_processor_in_its_own_chain() -> None:
    record = logging.LogRecord("dafka.store", logging.INFO, "", 0, "%s", ("sentence",), None)
    record.dafka = {"event": "started"}
    assert add_event(None, "info", {"event": "sentence", "_record": record, "more": 1}) == {
        "event": "started",
        "message": "sentence",
        "_record": record,
        "more": 1,
    }


def test_embedded_nodes_do_not_configure_logging(capfd: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before = (list(root.handlers), root.level, logging.getLogger("dafka").handlers)

    async def run() -> None:
        async with open_cluster():
            pass

    trio.run(run)
    assert (root.handlers, root.level, logging.getLogger("dafka").handlers) == before
    assert capfd.readouterr() == ("", "")


async def test_the_events_of_a_store_are_logged_from_start_to_stop(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "dafka"):
        async with open_cluster() as cluster, cluster.producer("t") as producer:
            await producer.send_many([b"0", b"1"])
    lines = {(line["role"], line["event"]): line for line in dafka_lines(caplog)}
    assert lines["store", "storage_opened"]["records"] == 0
    assert len(lines["tower", "started"]["endpoints"]) == 2
    store, peer = lines["store", "started"]["node"], lines["store", "peer_joined"]["peer"]
    assert peer == lines["producer", "started"]["node"] != store
    for role in ("tower", "store", "producer"):
        assert (role, "stopped") in lines
    order = [line["event"] for line in dafka_lines(caplog) if line["role"] == "store"]
    assert (order[0], order[-1]) == ("storage_opened", "stopped")


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
                await trio.sleep(0.01)
    lines = dafka_lines(caplog)
    assert [line["event"] for line in lines] == ["messages_discarded"] * 2
    assert lines[1]["count"] + lines[0]["count"] == lines[1]["total"]
