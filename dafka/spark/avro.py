"""Decode Avro values into Arrow arrays, and map Avro schemas to Spark's types.

A value is one datum in Avro's binary encoding without a schema. The ten bytes of the single-object encoding (`C3 01`
and the schema's fingerprint) may come before it.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import fastavro
import pyarrow as pa
from fastavro.schema import SchemaParseException, fingerprint, to_parsing_canonical_form
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from dafka.errors import ConfigError

SINGLE_OBJECT_MARK = b"\xc3\x01"
"""The first two bytes of Avro's single-object encoding."""

DECIMAL_DIGITS_MAX = 38
"""The largest precision of a decimal in Spark, in digits."""

_PRIMITIVES: dict[str, DataType] = {
    "null": StringType(),
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "fixed": BinaryType(),
    "string": StringType(),
    "enum": StringType(),
}
_LOGICAL: dict[tuple[str, str], tuple[DataType, str]] = {
    ("int", "date"): (DateType(), ""),
    ("long", "timestamp-millis"): (TimestampType(), "ms"),
    ("long", "timestamp-micros"): (TimestampType(), "us"),
    ("long", "local-timestamp-millis"): (TimestampNTZType(), "ms"),
    ("long", "local-timestamp-micros"): (TimestampNTZType(), "us"),
}
"""Spark's type for each logical type, and the unit of its numbers if Arrow needs one."""

_RECORDS = ("record", "error")
_WIDENED = ({"int", "long"}, LongType()), ({"float", "double"}, DoubleType())
"""Unions of two types that one column type can hold."""

_Column = tuple[DataType, pa.DataType]
"""A Spark type, and the Arrow type of fastavro's values before they are cast to it."""


class AvroDecoder:
    """A decoder of the values of one Avro schema, a record, which runs in Spark's workers.

    All its columns, `spark_type`, are nullable, because a value that cannot be decoded is null. Values may be written
    with other schemas, recognized by their fingerprints. Raise `ConfigError` if a schema is not valid, or has types
    that no column can hold.
    """

    def __init__(self, schema: object, writer_schemas: Sequence[object] = ()) -> None:
        parsed = _parse(schema)
        self.spark_type: StructType
        self.spark_type, loose = _record(fastavro.schema.expand_schema(parsed), "")
        self._loose = [loose.field(index) for index in range(loose.num_fields)]
        self._fields = list(to_arrow_type(self.spark_type, timezone="UTC"))
        self._reader = _plain(parsed)
        writers = {_header(each): _plain(each) for each in map(_parse, writer_schemas)}
        self._writers = {**writers, _header(parsed): None}

    def __call__(self, values: pa.Array) -> pa.Array:
        """Decode an array of binary values to structs; null for each value that is not one datum of the schema."""
        rows = [None if value is None else self._decode(value) for value in values.to_pylist()]
        try:
            return self._to_arrow(rows)
        except (pa.ArrowException, OverflowError):
            return self._to_arrow([row if self._fits(row) else None for row in rows])

    def _decode(self, value: bytes) -> dict[str, Any] | None:
        header = value[: len(SINGLE_OBJECT_MARK) + 8]
        is_marked = header in self._writers
        stream = io.BytesIO(value[len(header) :] if is_marked else value)
        writer = self._writers[header] if is_marked else None
        try:
            if writer is None:
                row = fastavro.schemaless_reader(stream, self._reader, None)
            else:
                row = fastavro.schemaless_reader(stream, writer, self._reader)
        except Exception:  # fastavro raises many kinds of errors for malformed bytes
            return None
        return None if stream.read(1) or not isinstance(row, dict) else row

    def _to_arrow(self, rows: list[dict[str, Any] | None]) -> pa.Array:
        # Converting column by column is five times faster than converting a list of dictionaries.
        columns = [
            pa.array([None if row is None else row[loose.name] for row in rows], loose.type).cast(field.type)
            for loose, field in zip(self._loose, self._fields, strict=True)
        ]
        return pa.StructArray.from_arrays(columns, fields=self._fields, mask=pa.array([row is None for row in rows]))

    def _fits(self, row: dict[str, Any] | None) -> bool:
        """Return whether Spark's types can hold a row; times can be out of range."""
        try:
            self._to_arrow([row])
        except (pa.ArrowException, OverflowError):
            return False
        return True


def is_avro_schema(schema: object) -> bool:
    """Return whether a schema is an Avro schema, as JSON text or as parsed JSON, rather than one of Spark's."""
    if isinstance(schema, str):
        return schema.lstrip()[:1] in ("{", "[", '"')
    return isinstance(schema, (Mapping, list))


def _parse(schema: object) -> Any:
    try:
        document = json.loads(schema) if isinstance(schema, str) else schema
        return fastavro.parse_schema(document)  # type: ignore[arg-type]
    except (SchemaParseException, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"schema: expected an Avro schema ({type(error).__name__}: {error})") from None


def _header(parsed: Any) -> bytes:
    """Return the ten bytes that the single-object encoding of a schema starts with."""
    return SINGLE_OBJECT_MARK + bytes.fromhex(fingerprint(to_parsing_canonical_form(parsed), "CRC-64-AVRO"))


def _plain(parsed: Any) -> Any:
    """Return the schema with numbers for dates and times, which Arrow converts faster than Python objects."""
    return fastavro.parse_schema(_without_logical_types(parsed))


def _without_logical_types(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_logical_types(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if not key.startswith("__")}
    if kept.get("logicalType") != "decimal":
        kept.pop("logicalType", None)
    for key in ("type", "items", "values", "fields"):
        if key in kept:
            kept[key] = _without_logical_types(kept[key])
    return kept


def _record(schema: Any, place: str) -> tuple[StructType, pa.DataType]:
    if not isinstance(schema, dict) or schema.get("type") not in _RECORDS:
        raise ConfigError("schema: expected an Avro record, whose fields become columns")
    fields = {
        field["name"]: _column(field["type"], f"{place}.{field['name']}".lstrip(".")) for field in schema["fields"]
    }
    return (
        StructType([StructField(name, spark) for name, (spark, _) in fields.items()]),
        pa.struct([(name, loose) for name, (_, loose) in fields.items()]),
    )


def _column(schema: Any, place: str) -> _Column:  # noqa: PLR0911 (one return for each kind of type)
    """Return the types of a field in Spark and, while it is decoded, in Arrow; `place` names it in errors."""
    if isinstance(schema, list):
        return _union(schema, place)
    if isinstance(schema, dict) and isinstance(schema["type"], (dict, list)):
        return _column(schema["type"], place)
    kind, details = (schema["type"], schema) if isinstance(schema, dict) else (schema, {})
    if kind in _RECORDS:
        return _record(schema, place)
    if kind == "array":
        spark, loose = _column(details["items"], place)
        return ArrayType(spark), pa.list_(loose)
    if kind == "map":
        spark, loose = _column(details["values"], place)
        return MapType(StringType(), spark), pa.map_(pa.string(), loose)
    if kind not in _PRIMITIVES:
        raise ConfigError(f"schema: expected types that do not contain themselves, not {kind!r} of {place}")
    logical = details.get("logicalType", "")
    if logical == "decimal":
        return _same(_decimal(details, place))
    spark, unit = _LOGICAL.get((kind, logical), (_PRIMITIVES[kind], ""))
    return (spark, pa.timestamp(unit)) if unit else _same(spark)


def _union(union: Sequence[Any], place: str) -> _Column:
    branches = [branch for branch in union if branch not in ("null", {"type": "null"})]
    if len(branches) <= 1:
        return _column(branches[0] if branches else "null", place)
    kinds = {branch if isinstance(branch, str) else branch["type"] for branch in branches}
    has_logical = any(isinstance(branch, dict) and "logicalType" in branch for branch in branches)
    for widened, spark in _WIDENED:
        if kinds == widened and not has_logical:
            return _same(spark)
    raise ConfigError(
        f"schema: expected types that fit one column, not the union of {', '.join(sorted(map(str, kinds)))} of {place}"
    )


def _decimal(details: Mapping[str, Any], place: str) -> DecimalType:
    if details["precision"] > DECIMAL_DIGITS_MAX:
        raise ConfigError(
            f"schema: expected decimals of at most {DECIMAL_DIGITS_MAX} digits, not {details['precision']} of {place}"
        )
    return DecimalType(details["precision"], details.get("scale", 0))


def _same(spark: DataType) -> _Column:
    return spark, to_arrow_type(spark, timezone="UTC")
