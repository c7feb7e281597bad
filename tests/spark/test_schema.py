"""Records as Arrow batches, and the columns that a query may select."""

from __future__ import annotations

import pyarrow as pa
import pytest
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

from dafka.contents import pack
from dafka.errors import ConfigError
from dafka.spark.schema import COLUMNS, arrow_schema, check_columns, escape_name, to_arrow
from tests.spark.stores import A, batch


@pytest.mark.parametrize("contents", [[b"one", b"", b"three"], [b"", b"", b""], [b"abc", b"def", b"ghi"]])
def test_packed_contents_equal_plain_ones(contents: list[bytes]) -> None:
    plain = batch("orders", A, 5, 8, contents=contents)
    packed = batch("orders", A, 5, 8, contents=pack(contents))
    found = to_arrow(packed, COLUMNS.names)
    found.validate(full=True)
    assert found.equals(to_arrow(plain, COLUMNS.names))
    assert found["value"].to_pylist() == contents
    assert found["offset"].to_pylist() == [5, 6, 7]


def test_columns_are_in_the_requested_order() -> None:
    columns = ["value", "offset"]
    assert to_arrow(batch("orders", A, 0, 2), columns).schema.equals(arrow_schema(columns))


def test_a_time_out_of_range_is_refused() -> None:
    with pytest.raises(pa.ArrowInvalid):
        to_arrow(batch("orders", A, 0, 2, step_ms=2**62), COLUMNS.names)


@pytest.mark.parametrize(
    ("name", "text"), [(b"plain", "plain"), ("naïve".encode(), "naïve"), (b"caf\xe9", "caf\\xe9"), (b"", "")]
)
def test_names_are_escaped(name: bytes, text: str) -> None:
    assert escape_name(name.decode("utf-8", "surrogateescape")) == text


def test_columns_of_a_schema() -> None:
    assert check_columns(COLUMNS) == tuple(COLUMNS.names)
    some = StructType([StructField("value", BinaryType()), StructField("offset", LongType(), nullable=False)])
    assert check_columns(some) == ("value", "offset")


@pytest.mark.parametrize(
    ("name", "kind", "sentence"),
    [
        ("key", BinaryType(), "expected columns of topic, partition, offset, timestamp, value, not 'key'"),
        ("Value", BinaryType(), "expected columns of topic, partition, offset, timestamp, value, not 'Value'"),
        ("value", StringType(), "expected type binary for column value, not string"),
        ("offset", IntegerType(), "expected type bigint for column offset, not int"),
        ("timestamp", TimestampNTZType(), "expected type timestamp for column timestamp, not timestamp_ntz"),
    ],
)
def test_invalid_columns(name: str, kind: DataType, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_columns(StructType([StructField(name, kind)]))
    assert str(caught.value).startswith(f"schema: {sentence}")


def test_no_column_at_all() -> None:
    with pytest.raises(ConfigError, match=r"^schema: expected at least one column, of topic, "):
        check_columns(StructType([]))
