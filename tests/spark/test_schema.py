"""Records as Arrow, and the columns that a user may ask for."""

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
from tests.spark.store_helpers import A, batch


@pytest.mark.parametrize("contents", [[b"one", b"", b"three"], [b"", b"", b""], [b"abc", b"def", b"ghi"]])
def test_packed_contents_are_as_others(contents: list[bytes]) -> None:
    plain = batch("orders", A, 5, 8, contents=contents)
    packed = batch("orders", A, 5, 8, contents=pack(contents))
    found = to_arrow(packed, COLUMNS.names)
    found.validate(full=True)
    assert found.equals(to_arrow(plain, COLUMNS.names))
    assert found["value"].to_pylist() == contents
    assert found["offset"].to_pylist() == [5, 6, 7]


def test_columns_come_in_the_order_asked_for() -> None:
    columns = ["value", "offset"]
    assert to_arrow(batch("orders", A, 0, 2), columns).schema.equals(arrow_schema(columns))


def test_a_time_out_of_reach_is_refused() -> None:
    with pytest.raises(pa.ArrowInvalid):
        to_arrow(batch("orders", A, 0, 2, step_ms=2**62), COLUMNS.names)


@pytest.mark.parametrize(
    ("octets", "text"), [(b"plain", "plain"), ("naïve".encode(), "naïve"), (b"caf\xe9", "caf\\xe9"), (b"", "")]
)
def test_names_as_spark_shows_them(octets: bytes, text: str) -> None:
    assert escape_name(octets.decode("utf-8", "surrogateescape")) == text


def test_columns_of_a_users_schema() -> None:
    assert check_columns(COLUMNS) == tuple(COLUMNS.names)
    some = StructType([StructField("value", BinaryType()), StructField("offset", LongType(), nullable=False)])
    assert check_columns(some) == ("value", "offset")


@pytest.mark.parametrize(
    ("name", "kind", "sentence"),
    [
        ("key", BinaryType(), "there is no column 'key'; a record has topic, partition, offset, timestamp, value"),
        ("Value", BinaryType(), "there is no column 'Value'; a record has "),
        ("value", StringType(), "the column value is of type binary, not string"),
        ("offset", IntegerType(), "the column offset is of type bigint, not int"),
        ("timestamp", TimestampNTZType(), "the column timestamp is of type timestamp, not timestamp_ntz"),
    ],
)
def test_columns_that_no_record_has(name: str, kind: DataType, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_columns(StructType([StructField(name, kind)]))
    assert str(caught.value).startswith(f"schema: {sentence}")


def test_no_column_at_all() -> None:
    with pytest.raises(ConfigError, match=r"^schema: it names no column; a record has topic, "):
        check_columns(StructType([]))
