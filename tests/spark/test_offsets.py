"""RequestedOffsets: what options and checkpoints say, and what cannot be meant."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka.errors import ConfigError
from dafka.spark.offsets import EARLIEST, LATEST, flatten_offsets, nest_offsets
from dafka.spark.options import Options, RequestedOffsets, parse_offsets

OPTION = "startingOffsets"


def positions(text: str) -> RequestedOffsets:
    return parse_offsets(Options({OPTION: text}, [OPTION], "reading stores"), OPTION, LATEST)


def test_words() -> None:
    assert positions(" Earliest ").of(("orders", "A")) == EARLIEST
    assert positions("latest").of(("orders", "A")) == LATEST
    assert parse_offsets(Options({}, [OPTION], "reading stores"), OPTION, EARLIEST).of(("orders", "A")) == EARLIEST


def test_json_names_partitions_and_leaves_the_others() -> None:
    found = positions(f'{{"orders": {{"A": 5, "B": -2, "C": -1, "D": {2**70}}}, "empty": {{}}}}')
    assert [found.of(("orders", name)) for name in "ABCDE"] == [5, EARLIEST, LATEST, 2**70, LATEST]
    assert positions("{}").of(("orders", "A")) == LATEST


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Expecting value"),
        ("newest", "Expecting value"),
        ('{"orders": {"A": 5}', "Expecting ',' delimiter"),
        ("[1]", "it is no object"),
        ("7", "it is no object"),
        ('{"orders": 5}', "'orders' has no object of partitions"),
        ('{"orders": [5]}', "'orders' has no object of partitions"),
        ('{"orders": {"A": "5"}}', "orders/A has '5': a whole number, or -2 for earliest, -1 for latest"),
        ('{"orders": {"A": 5.0}}', "orders/A has 5.0"),
        ('{"orders": {"A": true}}', "orders/A has True"),
        ('{"orders": {"A": null}}', "orders/A has None"),
        ('{"orders": {"A": -3}}', "orders/A has -3"),
        ('{"orders": {"A": NaN}}', "orders/A has nan"),
        ("[" * 100_000, ""),
        ('{"orders": {"A": ' + "9" * 5000 + "}}", "limit"),
    ],
)
def test_what_is_no_position(text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        positions(text)
    message = str(caught.value)
    assert message.startswith('option startingOffsets: expected "earliest", "latest", or JSON such as {"orders": ')
    assert reason in message
    assert len(message) < 500


@given(st.dictionaries(st.tuples(st.text(), st.text()), st.integers(0, 2**63)))
def test_checkpoints_give_back_what_was_put_in(found: dict[tuple[str, str], int]) -> None:
    assert flatten_offsets(json.loads(json.dumps(nest_offsets(found)))) == found
    assert json.dumps(nest_offsets(found)) == json.dumps(nest_offsets(dict(reversed(found.items()))))
