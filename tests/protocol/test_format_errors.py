"""Whatever is wrong in JSON of a peer is one sentence, which names what was decoded."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from dafka.errors import StorageFormatError
from dafka.protocol.format_errors import UnknownFieldError, format_errors

WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: json.loads("{"), "it is malformed: expected JSON"),
    (lambda: json.loads(b"\xff"), "it is malformed: expected JSON"),
    (lambda: dict[str, int]()["name"], "it is malformed: the field 'name' is missing"),
    (lambda: dict[int, int]()[7], "it is malformed: a value is not as expected"),
    (lambda: [0].pop(1), "it is malformed: a value is not as expected"),
    (lambda: int("x"), "it is malformed: a value is not as expected"),
    (lambda: len(7), "it is malformed: a value is not as expected"),  # type: ignore[arg-type]
    (lambda: "x".none, "it is malformed: a value is not as expected"),  # type: ignore[attr-defined]
    (lambda: 1 // 0, "it is malformed: a value is not as expected"),
    (lambda: json.loads("[" * 100_000), "it is malformed: a value is not as expected"),
]


def refuse() -> None:
    raise UnknownFieldError("'news'")


def test_wrong_values_are_one_sentence() -> None:
    newer = "it has the field 'news', which this version of dafka does not know: update dafka"
    for decode, expected in (*WRONG, (refuse, newer)):
        with pytest.raises(StorageFormatError) as caught, format_errors("it"):
            decode()
        assert str(caught.value) == expected
    with pytest.raises(OSError, match="disk"), format_errors("it"):
        raise OSError("disk")
    with format_errors("it"):
        json.loads("{}")
