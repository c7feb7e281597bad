from __future__ import annotations

import io
import json
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pytest

from dafka.errors import ConfigError
from dafka.spark.avro import AvroDecoder
from dafka.spark.decoding import decode
from dafka.spark.errors import summarize_error

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "item", "type": "string"}, {"name": "count", "type": ["null", "int"]}],
}


def avro(schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def single_object(schema: Any, value: Any) -> bytes:
    form = fastavro.schema.to_parsing_canonical_form(fastavro.parse_schema(schema))
    return b"\xc3\x01" + bytes.fromhex(fastavro.schema.fingerprint(form, "CRC-64-AVRO")) + avro(schema, value)


def one_field(kind: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": "x", "type": kind}]}


def logical(kind: str, name: str, **more: int) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


DAY = datetime(2013, 1, 1, 10, tzinfo=UTC)


def records(spark: SparkSession, values: Sequence[bytes | None]) -> DataFrame:
    rows = [("orders", "P", offset, value) for offset, value in enumerate(values)]
    return spark.createDataFrame(rows, "topic STRING, partition STRING, offset LONG, value BINARY")


def rows_of(frame: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in columns) for row in frame.orderBy("offset").collect()]


def test_json_becomes_columns_and_malformed_values_are_kept(spark: SparkSession) -> None:
    from pyspark.sql.types import ArrayType, IntegerType, StructField, StructType

    values = [
        b'{"item": "tea", "count": 2}',
        b'{"item": "tea"',
        b'{"item": "x", "count": "two"}',
        b"",
        b"[1]",
        b"\xff",
        b"{}",
    ]
    frame = decode(records(spark, [*values, None]), "item STRING, count INT")
    assert frame.columns == ["topic", "partition", "offset", "item", "count", "_corrupt"]
    found = rows_of(frame, "item", "count", "_corrupt")
    assert found[0] == ("tea", 2, None)
    assert [corrupt for _, _, corrupt in found] == [None, *values[1:6], None, None]
    assert all(count is None for _, count, _ in found[1:])
    assert found[6:] == [(None, None, None), (None, None, None)]
    schema = StructType([StructField("lines", ArrayType(StructType([StructField("n", IntegerType())])))])
    nested = decode(records(spark, [b'{"lines": [{"n": 1}, {"n": 2}]}']), schema)
    assert [row.n for row in nested.first().lines] == [1, 2]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ("item STRING", b'{"item": "tea"}', b"tea"),
        (json.dumps(ORDER), avro(ORDER, {"item": "tea", "count": 1}), b"\xff"),
    ],
    ids=["json", "avro"],
)
def test_the_modes(spark: SparkSession, schema: str, good: bytes, bad: bytes) -> None:
    frame = records(spark, [good, bad, good])
    assert rows_of(decode(frame, schema), "item", "_corrupt") == [("tea", None), (None, bad), ("tea", None)]
    dropped = decode(frame, schema, mode="DROPMALFORMED")
    assert ("_corrupt" in dropped.columns, rows_of(dropped, "offset", "item")) == (False, [(0, "tea"), (2, "tea")])
    failing = decode(frame, schema, mode="failfast").select("offset", "item")
    assert rows_of(failing.where("offset <> 1"), "item") == [("tea",), ("tea",)]
    with pytest.raises(Exception, match="offset 1") as caught:
        failing.collect()
    encoding = "JSON" if "STRING" in schema else "Avro"
    expected = f"topic orders, partition P, offset 1, value: expected {encoding} of the schema"
    assert summarize_error(caught.value) == expected


def test_fields_can_be_kept_together(spark: SparkSession) -> None:
    frame = decode(records(spark, [b'{"topic": "own", "offset": 7}', b"no"]), "topic STRING, offset INT", into="data")
    assert frame.columns == ["topic", "partition", "offset", "data", "_corrupt"]
    first, second = rows_of(frame, "data")
    assert (first[0].topic, first[0].offset, second[0].topic) == ("own", 7, None)


def test_mistakes(spark: SparkSession) -> None:
    frame = records(spark, [b""])
    mistakes: list[tuple[Any, dict[str, Any], str]] = [
        ("item STRIN", {}, "not 'item STRIN'"),
        ("int", {}, "schema: expected fields such as"),
        (3, {}, "an Avro schema, not int"),
        ("Topic STRING", {}, "there is already a column 'topic'; use into='data' to keep"),
        ("a INT, A INT", {}, "there is already a column 'a'"),
        ("a INT", {"into": "offset"}, "there is already a column 'offset'"),
        ("_corrupt STRING", {}, "_corrupt is the column of values that cannot be decoded"),
        ("a INT", {"mode": "strict"}, "mode: expected one of permissive, dropmalformed, failfast, not 'strict'"),
        ("a INT", {"writer_schemas": [ORDER]}, "writer_schemas: these are for Avro"),
        ('{"type": "record"}', {}, "expected an Avro schema"),
        ("{", {}, "expected an Avro schema"),
        ('"string"', {}, "expected an Avro record"),
    ]
    for schema, options, error in mistakes:
        with pytest.raises(ConfigError) as caught:
            decode(frame, schema, **options)
        assert error in str(caught.value)
        assert "\n" not in str(caught.value)
    corrupt = frame.withColumnRenamed("offset", "_Corrupt")
    with pytest.raises(ConfigError, match="there is already a column '_Corrupt'"):
        decode(corrupt, "a INT")
    kept = decode(corrupt.withColumnRenamed("topic", "a.b`c"), "a INT", mode="dropmalformed")
    assert kept.columns == ["a.b`c", "partition", "_Corrupt", "a"], "only one mode adds a column of this name"
    with pytest.raises(ConfigError, match="frame: expected a column 'value' among id"):
        decode(spark.range(1), "a INT")


def test_avro_is_decoded_by_one_function_in_spark(spark: SparkSession) -> None:
    values = [avro(ORDER, {"item": f"tea {n}", "count": None if n % 2 else n}) for n in range(100)]
    frame = decode(records(spark, values), ORDER)
    assert rows_of(frame, "item", "count", "_corrupt") == [(f"tea {n}", None if n % 2 else n, None) for n in range(100)]
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert plan.count("decode_values(") == 1


def test_types_of_avro() -> None:
    cases: list[tuple[Any, Any, str, Any]] = [
        ("boolean", True, "boolean", True),
        ("int", -3, "int", -3),
        ("long", 2**40, "bigint", 2**40),
        ("float", 0.5, "float", 0.5),
        ("double", 0.1, "double", 0.1),
        ("bytes", b"\xff", "binary", b"\xff"),
        ("string", "ü", "string", "ü"),
        (["null", "long"], None, "bigint", None),
        (["int", "long"], 7, "bigint", 7),
        (["null", "float", "double"], 0.5, "double", 0.5),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "string", "B"),
        ({"type": "fixed", "name": "F", "size": 2}, b"ab", "binary", b"ab"),
        ({"type": "array", "items": ["null", "int"]}, [1, None], "array<int>", [1, None]),
        ({"type": "map", "values": "long"}, {"a": 1}, "map<string,bigint>", [("a", 1)]),
        ({**one_field("int"), "name": "Inner"}, {"x": 1}, "struct<x:int>", {"x": 1}),
        (logical("int", "date"), date(2013, 1, 1), "date", date(2013, 1, 1)),
        (logical("long", "timestamp-millis"), DAY, "timestamp", DAY),
        ({"type": "array", "items": logical("long", "timestamp-micros")}, [DAY], "array<timestamp>", [DAY]),
        (logical("long", "timestamp-micros"), DAY, "timestamp", DAY),
        *(
            (logical("long", f"local-timestamp-{unit}"), datetime(2013, 1, 1), "timestamp_ntz", datetime(2013, 1, 1))
            for unit in ("millis", "micros")
        ),
        (logical("bytes", "decimal", precision=6, scale=2), Decimal("12.34"), "decimal(6,2)", Decimal("12.34")),
    ]
    for kind, given, spark_type, found in cases:
        decoder = AvroDecoder(one_field(kind))
        assert decoder.spark_type["x"].dataType.simpleString() == spark_type
        decoded = decoder(pa.array([avro(one_field(kind), {"x": given})], pa.binary()))
        assert decoded.to_pylist() == [{"x": found}]


def test_types_that_fit_no_column() -> None:
    cases: list[tuple[Any, str]] = [
        (["int", "string"], "schema: expected types that fit one column, not the union of int, string of x"),
        ({"type": "array", "items": ["long", "boolean"]}, "not the union of boolean, long of x"),
        ({"type": "record", "name": "T", "fields": [{"name": "n", "type": ["null", "T"]}]}, "not 'T' of x.n"),
        ([logical("int", "date"), "long"], "not the union of int, long of x"),
        (logical("bytes", "decimal", precision=40), "expected decimals of at most 38 digits, not"),
    ]
    for kind, error in cases:
        with pytest.raises(ConfigError, match=error):
            AvroDecoder(one_field(kind))


def test_named_types_may_be_reused() -> None:
    enum = {"type": "enum", "name": "E", "symbols": ["X", "Y"]}
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": enum}, {"name": "b", "type": "E"}]}
    assert AvroDecoder(schema)(pa.array([avro(schema, {"a": "X", "b": "Y"})])).to_pylist() == [{"a": "X", "b": "Y"}]


def test_malformed_avro_is_null_and_the_rest_is_read() -> None:
    good = avro(ORDER, {"item": "tea", "count": 3})
    values = [good, b"", good[:-1], good + b"\0", b"\x06\xff\xfe\xfd\0", b"\x80" * 12, None, good]
    row = {"item": "tea", "count": 3}
    assert AvroDecoder(ORDER)(pa.array(values, pa.binary())).to_pylist() == [row, *[None] * 6, row]
    schema = one_field(logical("long", "timestamp-millis"))
    values = [avro(one_field("long"), {"x": number}) for number in (0, 2**62, 1000)]
    found = AvroDecoder(schema)(pa.array(values)).to_pylist()
    assert [row and row["x"].second for row in found] == [0, None, 1]


def test_single_object_encoding_and_other_writer_schemas() -> None:
    first = {"type": "record", "name": "Order", "fields": [{"name": "item", "type": "string"}]}
    default = {**ORDER, "fields": [ORDER["fields"][0], {"name": "count", "type": "int", "default": 1}]}
    values = [
        single_object(default, {"item": "tea", "count": 2}),
        single_object(first, {"item": "coffee"}),
        avro(default, {"item": "plain", "count": 3}),
    ]
    found = AvroDecoder(default, [first])(pa.array(values)).to_pylist()
    assert [(row["item"], row["count"]) for row in found] == [("tea", 2), ("coffee", 1), ("plain", 3)]
    assert AvroDecoder(default)(pa.array(values)).to_pylist()[1] is None
