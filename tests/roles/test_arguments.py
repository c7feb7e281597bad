"""The arguments of a program: which are refused and why, and which process and event loop may use a node."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

import dafka
from dafka.config import Config
from dafka.errors import ConfigError, RecordError, WrongContextError
from dafka.records import Partition, ProducerRecord, Record, RecordBatch
from dafka.roles import arguments
from dafka.roles.arguments import (
    check_positions,
    check_record,
    check_sizes,
    check_topics,
    check_values,
    ephemeral,
    make_batch,
    to_time_ms,
)
from dafka.roles.trio_context import bind_to_process

P = Partition("t", "A" * 32)
NOW_MS = 1_700_000_000_000
RECORD_PARTS: Any = {
    "key: expected bytes or None, not str": {"key": "text"},
    "header: expected a pair of a name and a value, not 'ab'": {"headers": ["ab"]},
    "header: expected a pair of a name and a value, not ('a',)": {"headers": [("h", b""), ("a",)]},
    "header: expected a name as text and a value as bytes or None, not (b'a', b'')": {"headers": [(b"a", b"")]},
    "header: expected a name as text and a value as bytes or None, not ('a', 'b')": {"headers": [("a", "b")]},
    "header: expected a name that can be encoded as UTF-8, not '\\ud800'": {"headers": [("\ud800", None)]},
    "timestamp: expected milliseconds since 1970 as a whole number, not -1": {"timestamp": -1},
    "timestamp: expected milliseconds since 1970 as a whole number, not True": {"timestamp": True},
    f"timestamp: expected milliseconds since 1970 as a whole number, not {2**63}": {"timestamp": 2**63},
}
MIXED: Any = {
    "record: expected values only or whole records only, not bytes": [ProducerRecord(b""), b"value"],
    "value: expected bytes or None, not ProducerRecord": [b"value", ProducerRecord(b"")],
    "value: expected bytes or None, not str; encode it first": [b"value", "text"],
    "value: expected bytes or None, not bytearray": [None, bytearray(b"x")],
    "value: expected bytes or None, not int": [ProducerRecord(b""), ProducerRecord(1)],  # type: ignore[arg-type]
}


def test_each_invalid_part_of_a_record_is_named() -> None:
    refused = {message: [ProducerRecord(b""), ProducerRecord(b"", **part)] for message, part in RECORD_PARTS.items()}
    for message, records in {**refused, **MIXED}.items():
        with pytest.raises(RecordError) as caught:
            make_batch(P, records, NOW_MS, 100)
        assert str(caught.value) == message
    latest = ProducerRecord(None, None, [("", None)], 2**63 - 1)
    assert make_batch(P, [latest], NOW_MS, 100).timestamps == [2**63 - 1]


def refusal(check: Callable[..., object], *args: object) -> str:
    """Return why a check refuses its arguments; nothing if it does not."""
    try:
        check(*args)
    except RecordError as error:
        return str(error)
    return ""


def test_the_largest_record_is_exactly_as_large_as_set() -> None:
    """The limit is for all parts of one record, also where one of several is too large, or all together are."""
    limit = 30
    sizes = [None, 0, 1, 9, 10, 15, 30, 31]
    pairs = [(), (("", None),), (("ab", b"cde"),), (("é", b""), ("a", b"b"))]
    small = ProducerRecord(b"x" * 20)
    assert refusal(check_values, [], 0) == ""
    for value_size, key_size, headers in itertools.product(sizes, sizes, pairs):
        value = None if value_size is None else bytes(value_size)
        record = ProducerRecord(value, None if key_size is None else bytes(key_size), headers)
        size = (value_size or 0) + (key_size or 0)
        size += sum(10 + len(name.encode()) + len(content or b"") for name, content in headers)
        expected = f"record: expected at most {limit} bytes ([node] message_bytes_max), not {size}"
        too_large = expected if size > limit else ""
        expected = f"value: expected at most {limit} bytes ([node] message_bytes_max), not {value_size}"
        too_long = expected if (value_size or 0) > limit else ""
        assert refusal(check_record, record, limit) == too_large
        for before, after in itertools.product([[], [small]], repeat=2):
            records = [*before, record, *after]
            assert refusal(check_sizes, RecordBatch.from_records(P, 0, records, NOW_MS), limit) == too_large
            assert refusal(make_batch, P, records, NOW_MS, limit) == (too_long or too_large)
            assert refusal(make_batch, P, [each.value for each in records], NOW_MS, limit) == too_long


def test_records_are_numbered_from_0_and_have_the_present_time_unless_they_have_one() -> None:
    whole: list[ProducerRecord | Record] = [
        Record(P, 7, b"a", key=b"k", timestamp=5),
        ProducerRecord(None, None, [("h", b"")]),
    ]
    plain: list[list[bytes | None]] = [[b"a", b"b"], [b"a"], [b"a", None], []]
    for values in plain:
        batch = make_batch(P, values, NOW_MS, 1)
        assert (batch.partition, batch.first_sequence, list(batch.values)) == (P, 0, values)
        assert list(batch.timestamps or ()) == [NOW_MS] * len(values)
    batch = make_batch(P, whole, NOW_MS, 100)
    assert [(each.sequence, each.value, each.key, tuple(each.headers), each.timestamp) for each in batch] == [
        (0, b"a", b"k", (), 5),
        (1, None, None, (("h", b""),), NOW_MS),
    ]


def test_times_are_milliseconds_since_1970(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "now_ms", lambda: NOW_MS)
    east = timezone(timedelta(hours=2))
    for time, expected in (
        (0, 0),
        (-1, 0),
        (2**64 - 1, 2**64 - 1),
        (datetime(1970, 1, 1, 2, 0, 1, 999, east), 1000),
        (datetime(1969, 1, 1, tzinfo=UTC), 0),
        (timedelta(seconds=1.5), NOW_MS - 1500),
        (timedelta(seconds=-1), NOW_MS + 1000),
        (timedelta(milliseconds=NOW_MS + 1), 0),
    ):
        assert to_time_ms(time) == expected, time
    refused: Any = {
        True: "a datetime, a t",
        "now": "a datetime, a t",
        2**64: "millis",
        datetime(2020, 1, 1): "a time zone",
    }
    for time, message in refused.items():
        with pytest.raises(ConfigError, match=f"^time: expected {message}"):
            to_time_ms(time)


def test_topics_and_positions_that_are_none_are_refused() -> None:
    refused: Any = [
        ({"t": 0}, "a Partition as key"),
        ({P: -1}, "a sequence from 0 on"),
        ({P: True}, "a sequence from 0 on"),
    ]
    for positions, message in refused:
        with pytest.raises(ConfigError, match=f"^positions: expected {message}"):
            check_positions({Partition("t", "B"): 0, **positions})
    check_positions({P: 0})
    with pytest.raises(ConfigError, match="expected several, as in \\['orders'\\]"):
        check_topics("orders", Config())
    assert check_topics(("é" * 127, "\0"), Config()) == ["é" * 127, "\0"]
    for bind in ("tcp://127.0.0.1:5", "tcp://[::1]:5", "tcp://*:*"):
        assert ephemeral(Config().with_node(bind=bind)).node.bind == f"{bind.rpartition(':')[0]}:*"


def test_a_block_for_trio_names_the_alternative_elsewhere() -> None:
    async def enter() -> None:
        async with dafka.open_producer("t"):
            pass

    with pytest.raises(WrongContextError, match=r"^asyncio needs dafka\.asyncio\.open_producer;"):
        asyncio.run(enter())
    with pytest.raises(WrongContextError, match=r"^dafka\.open_producer .* dafka\.blocking\.open_producer$"):
        enter().send(None)
    block: Any = dafka.open_producer("t")
    with pytest.raises(WrongContextError, match=r"^`with` needs dafka\.blocking\.open_producer;"), block:
        pass


class Opened:
    value = 1

    def __iter__(self) -> Any:
        return iter(())

    __aiter__ = __anext__ = __iter__


def test_what_was_opened_before_a_fork_is_refused_in_the_child_and_works_in_the_parent() -> None:
    opened, other = Opened(), Opened()
    bind_to_process(opened)
    child = os.fork()
    if not child:
        status = 1
        try:
            message = f"^this node was opened in process {os.getppid()}, .* another one in process {os.getpid()}$"
            uses: list[Callable[[Any], object]] = [lambda it: it.value, iter, aiter, lambda it: it.__anext__()]
            for use in uses:
                with pytest.raises(WrongContextError, match=message):
                    use(opened)
            later = Opened()
            bind_to_process(later)
            assert (other.value, later.value, list(other)) == (1, 1, [])
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (opened.value, list(opened)) == (1, [])
