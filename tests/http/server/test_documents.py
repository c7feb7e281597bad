"""JSON documents: what is refused, and texts that are encoded in pieces."""

from __future__ import annotations

import json
from typing import Annotated, Any

import pytest
from msgspec import Meta

from dafka.http.server.documents import (
    PIECE_CHARACTERS,
    Count,
    Document,
    decode_document,
    encode_document,
    iter_document,
    parse_document,
)
from dafka.http.server.errors import WebError


class Order(Document):
    """An order."""

    name: Annotated[str, Meta(max_length=3)]
    count: Count = 0
    more: dict[str, Count] | None = None


REFUSED: list[tuple[object, str]] = [
    ({"name": "a", "x": 1}, ": object contains unknown field `x`; expected name, count, more"),
    ({}, ": object missing required field `name`; expected name, count, more"),
    ([], ": expected `object`, got `array`; expected name, count, more"),
    ({"name": 5}, ".name: expected `str`, got `int`"),
    ({"name": "long"}, ".name: expected `str` of length <= 3"),
    ({"name": "a", "count": -1}, ".count: expected `int` >= 0"),
    ({"name": "a", "count": 1.5}, ".count: expected `int`, got `float`"),
    ({"name": "a", "count": True}, ".count: expected `int`, got `bool`"),
    ({"name": "a", "count": "1"}, ".count: expected `int`, got `str`"),
    ({"name": "a", "count": None}, ".count: expected `int`, got `null`"),
    ({"name": "a", "more": {"b": -1}}, ".more[...]: expected `int` >= 0"),
]
NO_JSON: list[str | bytes] = [b"\xff\xfe{\x00}\x00", b'"\xff"', '{"name":' * 50_000, "9" * 5000]
NO_JSON += ["", "{", "NaN", "Infinity", "[1,]", "01", "1e999", '"\\ud800"', "\ufeff{}", "{'a': 1}", "[" * 2000, '"a\n"']


def test_an_error_names_the_field_and_what_is_expected() -> None:
    for given, message in REFUSED:
        with pytest.raises(WebError) as refused:
            parse_document(given, Order)
        assert (refused.value.code, refused.value.message) == ("bad_request", f"the body{message}")
    for text in NO_JSON:
        with pytest.raises(WebError, match="expected JSON") as refused:
            decode_document(text)
        assert refused.value.code == "bad_request"


def test_the_largest_values_are_accepted() -> None:
    assert parse_document({"name": "abc", "count": 2**63 - 1, "more": {}}, Order) == Order("abc", 2**63 - 1, {})
    assert Order.of(Order("a", 1), count=2) == Order("a", 2)


def test_anything_is_encoded() -> None:
    assert encode_document({"a": Order("b")}) == b'{"a":{"name":"b","count":0,"more":null}}'
    assert encode_document(["a\ud800", {"\udfff": 2}]) == b'["a?",{"?":2}]'
    assert json.loads(encode_document("<\u2028\0>")) == "<\u2028\0>"


def test_a_document_in_pieces_is_the_same_text() -> None:
    for size in (0, 1, PIECE_CHARACTERS - 1, PIECE_CHARACTERS, PIECE_CHARACTERS + 1, 2 * PIECE_CHARACTERS):
        for character in ("a", '"', "\\", "\0", "€", "\U0001f600", "\ud800"):
            text = character * size
            values: list[Any] = [text, {}, [], (), [text], [None, 1, text], {"a": {}, text[:9]: [text, {"b": text}]}]
            for value in values:
                pieces = list(iter_document(value))
                assert b"".join(pieces) == encode_document(value)
                assert max(map(len, pieces)) <= 6 * PIECE_CHARACTERS + 2
