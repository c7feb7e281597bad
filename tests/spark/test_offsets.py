"""Offsets in options and checkpoints, and the errors for invalid ones."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka.errors import ConfigError
from dafka.spark.offsets import EARLIEST, LATEST, flatten_offsets, nest_offsets
from dafka.spark.options import Options, RequestedOffsets, parse_offsets

OPTION = "startingOffsets"


def requested(text: str) -> RequestedOffsets:
    return parse_offsets(Options({OPTION: text}, [OPTION], "reading stores"), OPTION, LATEST)


def test_words() -> None:
    assert requested(" Earliest ").for_partition(("orders", "A")) == EARLIEST
    assert requested("latest").for_partition(("orders", "A")) == LATEST
    assert (
        parse_offsets(Options({}, [OPTION], "reading stores"), OPTION, EARLIEST).for_partition(("orders", "A"))
        == EARLIEST
    )


def test_partitions_that_json_does_not_name_have_the_default() -> None:
    found = requested(f'{{"orders": {{"A": 5, "B": -2, "C": -1, "D": {2**70}}}, "empty": {{}}}}')
    assert [found.for_partition(("orders", name)) for name in "ABCDE"] == [5, EARLIEST, LATEST, 2**70, LATEST]
    assert requested("{}").for_partition(("orders", "A")) == LATEST


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Expecting value"),
        ("newest", "Expecting value"),
        ('{"orders": {"A": 5}', "Expecting ',' delimiter"),
        ("[1]", "expected an object of topics"),
        ("7", "expected an object of topics"),
        ('{"orders": 5}', "orders: expected an object of partitions"),
        ('{"orders": [5]}', "orders: expected an object of partitions"),
        ('{"orders": {"A": "5"}}', "orders/A: expected a whole number, -2 for earliest or -1 for latest, not '5'"),
        ('{"orders": {"A": 5.0}}', "not 5.0"),
        ('{"orders": {"A": true}}', "not True"),
        ('{"orders": {"A": null}}', "not None"),
        ('{"orders": {"A": -3}}', "not -3"),
        ('{"orders": {"A": NaN}}', "not nan"),
        ("[" * 100_000, ""),
        ('{"orders": {"A": ' + "9" * 5000 + "}}", "limit"),
    ],
)
def test_invalid_offsets(text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        requested(text)
    message = str(caught.value)
    assert message.startswith('option startingOffsets: expected "earliest", "latest", or JSON such as {"orders": ')
    assert reason in message
    assert len(message) < 500


@given(st.dictionaries(st.tuples(st.text(), st.text()), st.integers(0, 2**63)))
def test_offsets_survive_a_checkpoint(found: dict[tuple[str, str], int]) -> None:
    assert flatten_offsets(json.loads(json.dumps(nest_offsets(found)))) == found
    assert json.dumps(nest_offsets(found)) == json.dumps(nest_offsets(dict(reversed(found.items()))))
