"""Records as JSON and back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dafka.batches import RecordColumns, decode_batch, encode_batch
from dafka.http.logs.records import encode_records, parse_json_lines, parse_records, record_objects
from dafka.http.server.documents import decode_document, encode_document
from dafka.http.server.errors import WebError

NOW_MS = 1_700_000_000_000

CONTENTS = st.one_of(st.none(), st.binary(max_size=30), st.text(max_size=30).map(lambda text: text.encode()))
NAMES = st.text(max_size=10)


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(
            CONTENTS,
            CONTENTS,
            st.lists(st.tuples(NAMES, CONTENTS), max_size=3).map(tuple),
            st.integers(min_value=0, max_value=2**53 - 1),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_records_come_back_as_they_were(
    rows: list[tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int]],
) -> None:
    data = encode_batch(
        7,
        [value for value, *_ in rows],
        keys=[key for _, key, *_ in rows],
        headers=[headers for _, _, headers, _ in rows],
        timestamps=[time for *_, time in rows],
    )
    objects = record_objects(decode_batch(data, bytes_max=2**20), 7)
    text = encode_document(objects)
    assert json.loads(b"[%b]" % encode_records(decode_batch(data, bytes_max=2**20), 7)) == objects
    assert [each["offset"] for each in json.loads(text)] == [*range(7, 7 + len(rows))]
    found = parse_records(decode_document(text), NOW_MS)
    again = encode_batch(7, found.values, keys=found.keys, headers=found.headers, timestamps=found.timestamps)
    assert decode_batch(again, bytes_max=2**20) == decode_batch(data, bytes_max=2**20)


def test_plain_records_have_only_values() -> None:
    found = parse_records([{"value": "a"}, {"value": "ä"}], NOW_MS)
    assert (list(found.values), found.keys, found.headers) == ([b"a", "ä".encode()], None, None)
    assert list(found.timestamps) == [NOW_MS, NOW_MS]
    assert record_objects(found, 3) == [
        {"offset": 3, "timestamp": NOW_MS, "value": "a"},
        {"offset": 4, "timestamp": NOW_MS, "value": "ä"},
    ]


def test_bytes_that_are_no_text_are_in_base64() -> None:
    columns = RecordColumns([b"\xff", b"text"], [None, b"\xfe"], [(("h", b"\xfd"), ("n", None)), ()], [5, -1])
    objects = record_objects(columns, 0)
    assert objects == [
        {"offset": 0, "timestamp": 5, "value_base64": "/w==", "headers": [["h", {"base64": "/Q=="}], ["n", None]]},
        {"offset": 1, "key_base64": "/g==", "value": "text"},
    ]
    found = parse_records(objects, NOW_MS)
    assert (list(found.values), found.keys) == ([b"\xff", b"text"], [None, b"\xfe"])


@given(
    st.lists(st.text(max_size=30) | st.sampled_from(["\x7f", '"', "\\", "\0", ""]), min_size=1, max_size=20),
    st.booleans(),
)
def test_texts_are_encoded_as_one_piece(values: list[str], has_times: bool) -> None:
    times = [*range(len(values))] if has_times else 5
    batch = decode_batch(encode_batch(0, [value.encode() for value in values], timestamps=times), bytes_max=2**20)
    assert json.loads(b"[%b]" % encode_records(batch, 7)) == [
        {"offset": 7 + number, "timestamp": number if has_times else 5, "value": value}
        for number, value in enumerate(values)
    ]


def test_a_null_value_is_a_tombstone() -> None:
    found = parse_records([{"key": "k", "value": None}], NOW_MS)
    assert (list(found.values), found.keys) == ([None], [b"k"])


def test_what_was_read_can_be_published_again() -> None:
    found = parse_records([{"offset": 9, "log": 1, "timestamp": 4, "value": "v"}], NOW_MS)
    assert (list(found.values), list(found.timestamps)) == ([b"v"], [4])


@pytest.mark.parametrize(
    ("records", "message"),
    [
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
        (
            [{"value": "a", "headers": [["a", 1]]}],
            "records[0].headers[0][1]: expected `str | object | null`, got `int`",
        ),
        ([{"value": "a", "headers": [["a", {"base64": "a"}]]}], "records[0].headers[0][1].base64: invalid base64"),
        ([{"value": "\ud800"}], "records[0].value: expected text that UTF-8 can encode"),
        ([{"value": "a", "headers": [["\ud800", "a"]]}], "records[0].headers: expected text that UTF-8"),
    ],
)
def test_error_names_the_record_and_what_is_expected(records: object, message: str) -> None:
    with pytest.raises(WebError) as caught:
        parse_records(records, NOW_MS)
    assert caught.value.code == "bad_request"
    assert caught.value.message.startswith(message)


def test_json_lines_are_records() -> None:
    found = parse_json_lines(b'{"value": "a"}\r\n\n{"value": "b"}\n  \n', NOW_MS)
    assert list(found.values) == [b"a", b"b"]


def test_error_in_json_lines_names_the_line() -> None:
    with pytest.raises(WebError, match="line 3: expected JSON"):
        parse_json_lines(b'{"value": "a"}\n\n{"value": \n', NOW_MS)
