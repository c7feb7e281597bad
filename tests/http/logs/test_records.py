"""Records as JSON and back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dafka.batches import RecordColumns, decode_batch, encode_batch
from dafka.http.logs.records import encode_records, parse_json_lines, parse_records, record_objects
from dafka.http.server.documents import decode_document, encode_document
from dafka.http.server.errors import WebError

NOW_MS = 1_700_000_000_000

TEXTS = st.text(max_size=30) | st.sampled_from(["\x7f", '"', "\\", "\0", ""])
CONTENTS = st.none() | st.binary(max_size=30) | TEXTS.map(str.encode)
TIMES = st.integers(0, 2**53 - 1)
HEADERS = st.lists(st.tuples(st.text(max_size=10), CONTENTS), max_size=3).map(tuple)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(TEXTS.map(str.encode), TIMES), min_size=1, max_size=20)
    | st.lists(st.tuples(CONTENTS, TIMES, CONTENTS, HEADERS), min_size=1, max_size=8),
    st.booleans(),
)
def test_records_come_back_as_they_were(rows: list[tuple[Any, ...]], has_times: bool) -> None:
    """Texts without keys and headers take a shorter way, and so do records of the same time."""
    values, times, *more = zip(*rows, strict=True)
    keys, headers = more or (None, None)
    data = encode_batch(7, values, keys=keys, headers=headers, timestamps=times if has_times else 5)
    batch = decode_batch(data, bytes_max=2**20)
    objects = record_objects(batch, 7)
    assert json.loads(b"[%b]" % encode_records(batch, 7)) == objects
    assert [each["offset"] for each in objects] == [*range(7, 7 + len(rows))]
    assert [each["timestamp"] for each in objects] == (list(times) if has_times else [5] * len(rows))
    found = parse_records(decode_document(encode_document(objects)), NOW_MS)
    again = encode_batch(7, found.values, keys=found.keys, headers=found.headers, timestamps=found.timestamps)
    assert decode_batch(again, bytes_max=2**20) == batch


def test_plain_records_have_only_values() -> None:
    for key in (None, b"k"):
        found = parse_records([{"value": each} | ({"key": "k"} if key else {}) for each in ("a", "ä")], NOW_MS)
        assert (list(found.values), found.keys, found.headers) == ([b"a", "ä".encode()], key and [key] * 2, None)
        assert list(found.timestamps) == [NOW_MS, NOW_MS]
    tombstone = parse_records([{"key": "k", "value": None}], NOW_MS)
    assert (list(tombstone.values), tombstone.keys, list(tombstone.timestamps)) == ([None], [b"k"], [NOW_MS])


def test_bytes_that_are_no_text_are_in_base64() -> None:
    columns = RecordColumns([b"\xff", b"text"], [None, b"\xfe"], [(("h", b"\xfd"), ("n", None)), ()], [5, -1])
    objects = record_objects(columns, 0)
    assert objects == [
        {"offset": 0, "timestamp": 5, "value_base64": "/w==", "headers": [["h", {"base64": "/Q=="}], ["n", None]]},
        {"offset": 1, "key_base64": "/g==", "value": "text"},
    ]
    found = parse_records(objects, NOW_MS)
    assert (list(found.values), found.keys) == ([b"\xff", b"text"], [None, b"\xfe"])


REFUSED: list[tuple[object, str]] = [
    (None, "records: expected a list"),
    ([], "records: expected a list"),
    ({}, "records: expected a list"),
    (["text"], "records[0]: expected `object`, got `str`"),
    ([{"value": "a"}, 5], "records[1]: expected `object`, got `int`"),
    ([{"value": "a"}, {}], "records[1]: expected value or value_base64"),
    ([{"vaule": "a"}], "records[0]: object contains unknown field `vaule`"),
    ([{"value": "a"}, {"value": 5}], "records[1].value: expected `str | null`, got `int`"),
    ([{"value": True}], "records[0].value: expected `str | null`, got `bool`"),
    ([{"value": {"a": 1}}], "records[0].value: expected `str | null`, got `object`"),
    ([{"value": "a", "value_base64": "YQ=="}], "records[0]: expected value or value_base64, not both"),
    ([{"value_base64": "%%"}], "records[0].value_base64: invalid base64"),
    ([{"value_base64": 5}], "records[0].value_base64: expected `bytes`, got `int`"),
    ([{"value": "a", "key": 5}], "records[0].key: expected `str | null`, got `int`"),
    ([{"value": "a", "key_base64": "a"}], "records[0].key_base64: invalid base64"),
    ([{"value": "a", "timestamp": 1.5}], "records[0].timestamp: expected `int | null`, got `float`"),
    ([{"value": "a", "timestamp": -1}], "records[0].timestamp: expected `int` >= 0"),
    ([{"value": "a", "timestamp": 2**53}], "records[0].timestamp: expected `int` <= 9007199254740991"),
    ([{"value": "a", "timestamp": True}], "records[0].timestamp: expected `int | null`, got `bool`"),
    ([{"value": "a", "headers": {"a": "b"}}], "records[0].headers: expected `array | null`, got `object`"),
    ([{"value": "a", "headers": [["a"]]}], "records[0].headers[0]: expected `array` of length 2, got 1"),
    ([{"value": "a", "headers": [[1, "a"]]}], "records[0].headers[0][0]: expected `str`, got `int`"),
    ([{"value": "a", "headers": [["a", 1]]}], "records[0].headers[0][1]: expected `str | object | null`, got `int`"),
    ([{"value": "a", "headers": [["a", {"base64": "a"}]]}], "records[0].headers[0][1].base64: invalid base64"),
    ([{"value": "\ud800"}], "records[0].value: expected text that UTF-8 can encode"),
    ([{"value": "a", "headers": [["\ud800", "a"]]}], "records[0].headers: expected text that UTF-8"),
]


def test_error_names_the_record_and_what_is_expected() -> None:
    for records, message in REFUSED:
        with pytest.raises(WebError) as caught:
            parse_records(records, NOW_MS)
        assert caught.value.code == "bad_request"
        assert caught.value.message.startswith(message)


def test_json_lines_are_records() -> None:
    found = parse_json_lines(b'{"value": "a"}\r\n\n{"value": "b"}\n  \n', NOW_MS)
    assert list(found.values) == [b"a", b"b"]
    with pytest.raises(WebError, match="line 3: expected JSON"):
        parse_json_lines(b'{"value": "a"}\n\n{"value": \n', NOW_MS)
