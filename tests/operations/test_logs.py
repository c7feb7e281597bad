"""The log lines of nodes, as JSON objects and as sentences."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import attrs
import pytest
import trio

from dafka import Partition
from dafka.operations.logs import SentenceFormatter, add_event, json_formatter
from dafka.protocol import FetchUnanswered
from dafka.roles.events import NodeLog
from dafka.roles.logging_events import Started
from dafka.testing import open_cluster

FORGED = Partition('o"r\nd\x1b[31mers\u2028\x00', "B" * 32)


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


def test_a_line_is_an_object_with_the_name_and_fields_of_the_event(written: Written) -> None:
    notice = Started(("tcp://a:1", "tcp://a:2"))
    NodeLog(written.logger, "F" * 32).write(notice, logging.WARNING)
    (line,) = written.objects
    moment = datetime.fromisoformat(line.pop("timestamp"))
    assert moment.utcoffset() == timedelta(0)
    common = {"level": "warning", "logger": "dafka.store", "role": "store", "node": "F" * 32, "message": str(notice)}
    assert line == {**common, "event": "started", "endpoints": ["tcp://a:1", "tcp://a:2"]}


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
