"""Records as Arrow batches, and the columns that a query may select."""

from __future__ import annotations

import attrs
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

from dafka.batches import pack_headers
from dafka.errors import ConfigError
from dafka.spark.schema import COLUMNS, check_columns, default_columns
from dafka.storage.arrow import ARROW_TYPES, TIMESTAMP_MAX, arrow_schema, to_arrow
from tests.spark.stores import TIME, A, batch


def test_the_arrow_types_are_those_that_spark_requires() -> None:
    assert {field.name: to_arrow_type(field.dataType, timezone="UTC") for field in COLUMNS} == ARROW_TYPES
    assert [field.name for field in COLUMNS] == list(ARROW_TYPES)


def test_times_that_spark_cannot_represent() -> None:
    with pytest.raises(pa.ArrowInvalid):
        to_arrow(batch("orders", A, 0, 2, step_ms=2**62), COLUMNS.names)
    # Timestamps are what producers say: one of them must not end a query.
    stored = batch("orders", A, 0, 5)
    found = to_arrow(attrs.evolve(stored, timestamps=[5, -1, 2**62, -(2**63), TIMESTAMP_MAX]), COLUMNS.names)
    own = found["timestamp"].cast(pa.timestamp("ms", tz="UTC")).view(pa.int64()).to_pylist()
    assert own == [5, TIME + 1, TIME + 2, TIME + 3, TIMESTAMP_MAX]
    assert found["timestampType"].to_pylist() == [0, 1, 1, 1, 0]
    assert found["stored_at"].equals(to_arrow(stored, ["timestamp"])["timestamp"])


def test_keys_headers_and_nulls() -> None:
    headers = ((), (("a", b"1"), ("a", None)), (("\udcff", b""),))
    whole = attrs.evolve(batch("orders", A, 0, 3), values=[b"v", None, b""], keys=[None, b"", b"k"], headers=headers)
    for each in (whole, attrs.evolve(whole, headers=pack_headers(headers))):
        found = to_arrow(each, COLUMNS.names)
        found.validate(full=True)
        assert found["value"].to_pylist() == [b"v", None, b""]
        assert found["key"].to_pylist() == [None, b"", b"k"]
        assert found["headers"].to_pylist() == [
            None,
            [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
            [{"key": "\\xff", "value": b""}],
        ]


def test_headers_are_a_default_column_if_asked_for() -> None:
    plain = [name for name in COLUMNS.names if name != "headers"]
    assert default_columns({}).names == default_columns({"includeHeaders": " False"}).names == plain
    assert default_columns({"INCLUDEHEADERS": "true"}) == COLUMNS
    with pytest.raises(ConfigError, match=r"^option includeHeaders: expected true or false, not 'yes'$"):
        default_columns({"includeHeaders": "yes"})


def test_columns_of_a_schema() -> None:
    assert check_columns(COLUMNS) == tuple(COLUMNS.names)
    some = StructType([StructField("value", BinaryType()), StructField("offset", LongType(), nullable=False)])
    assert check_columns(some) == ("value", "offset")
    assert to_arrow(batch("orders", A, 0, 2), check_columns(some)).schema.equals(arrow_schema(["value", "offset"]))
    with pytest.raises(ConfigError, match=r"^schema: expected at least one column, of topic, "):
        check_columns(StructType([]))
    cases: list[tuple[str, DataType, str]] = [
        ("time", BinaryType(), f"expected columns of {', '.join(COLUMNS.names)}, not 'time'"),
        ("Value", BinaryType(), f"expected columns of {', '.join(COLUMNS.names)}, not 'Value'"),
        ("value", StringType(), "expected type binary for column value, not string"),
        ("offset", IntegerType(), "expected type bigint for column offset, not int"),
        ("timestamp", TimestampNTZType(), "expected type timestamp for column timestamp, not timestamp_ntz"),
    ]
    for name, kind, sentence in cases:
        with pytest.raises(ConfigError) as caught:
            check_columns(StructType([StructField(name, kind)]))
        assert str(caught.value).startswith(f"schema: {sentence}")
