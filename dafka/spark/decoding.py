"""Decodes the values of records into columns: JSON with Spark's own parser, Avro with fastavro in an Arrow UDF."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import functions as sql
from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]  # not in its stubs
from pyspark.sql.types import StringType, StructField, StructType

from dafka.errors import ConfigError
from dafka.spark.avro import AvroDecoder, is_avro_schema
from dafka.spark.errors import summarize_error

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

VALUE_COLUMN = "value"
CORRUPT_COLUMN = "_corrupt"
MODES = ("permissive", "dropmalformed", "failfast")
"""The modes of `decode` for values that it cannot decode, named as in Spark's own JSON source."""

_DECODED = "_dafka_decoded"


def decode(
    frame: DataFrame,
    schema: StructType | str | dict[str, object] | list[object],
    *,
    into: str | None = None,
    mode: str = "permissive",
    writer_schemas: Sequence[object] = (),
) -> DataFrame:
    """Decode the column `value` of a DataFrame as JSON or Avro, and keep the other columns.

    Args:
        frame: A DataFrame with a binary column `value`, from Dafka or elsewhere.
        schema: The fields. For JSON a `StructType` or its text (`"name STRING, delay INT"`), for Avro a schema as JSON
            text or as a dictionary.
        into: The name of one struct column for all fields; by default each field becomes a column.
        mode: How to handle a value that cannot be decoded. `permissive`: its fields are null, and the column
            `_corrupt`, which is null in all other rows, has the value. `dropmalformed`: drop the row. `failfast`: the
            query fails with an error that names the record.
        writer_schemas: For Avro, other schemas that values may be written with. They are recognized by the fingerprint
            at the start of the single-object encoding, and resolved to `schema`.

    Returns:
        The columns of `frame` other than `value`, then those of the decoded values.

    Raises:
        ConfigError: If the schema or the mode is not valid, or a field has the name of another column.
    """
    if mode.lower() not in MODES:
        raise ConfigError(f"mode: expected one of {', '.join(MODES)}, not {mode!r}")
    if VALUE_COLUMN not in frame.columns:
        raise ConfigError(f"frame: expected a column {VALUE_COLUMN!r} among {', '.join(frame.columns)}")
    kept = [name for name in frame.columns if name != VALUE_COLUMN]
    if is_avro_schema(schema):
        encoding = "Avro"
        fields, decoded, is_corrupt = _decode_avro(AvroDecoder(schema, writer_schemas))
    else:
        encoding = "JSON"
        fields, decoded, is_corrupt = _decode_json(_parse_schema(schema))
        if writer_schemas:
            raise ConfigError("writer_schemas: these are for Avro, and the schema is one for JSON")
    added = [into] if into is not None else fields.names
    _check_names([*added, *([CORRUPT_COLUMN] if mode.lower() == "permissive" else [])], kept)
    frame = frame.withColumn(_DECODED, decoded)
    if mode.lower() == "failfast":
        failure = sql.raise_error(_failure_message(kept, encoding)).cast(frame.schema[_DECODED].dataType)
        frame = frame.withColumn(_DECODED, sql.when(is_corrupt, failure).otherwise(sql.col(_DECODED)))
    elif mode.lower() == "dropmalformed":
        frame = frame.where(~is_corrupt)
    columns = [_field(name).alias(name) for name in fields.names]
    if into is not None:
        whole = sql.when(sql.col(_DECODED).isNotNull(), sql.struct(*columns))
        columns = [whole.alias(into)]
    if mode.lower() == "permissive":
        columns.append(sql.when(is_corrupt, sql.col(VALUE_COLUMN)).alias(CORRUPT_COLUMN))
    return frame.select(*(sql.col(_quoted(name)) for name in kept), *columns)


def _decode_json(schema: StructType) -> tuple[StructType, Column, Column]:
    """Return the fields, a column with the decoded struct, and a column that is true for corrupt values."""
    if CORRUPT_COLUMN in schema.names:
        raise ConfigError(
            f"schema: {CORRUPT_COLUMN} is the column of values that cannot be decoded; name the field otherwise"
        )
    whole = StructType([*schema.fields, StructField(CORRUPT_COLUMN, StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT_COLUMN}
    decoded = sql.from_json(sql.col(VALUE_COLUMN).cast("string"), whole, options)
    is_corrupt = sql.col(VALUE_COLUMN).isNotNull() & (sql.col(_DECODED).isNull() | _field(CORRUPT_COLUMN).isNotNull())
    return schema, decoded, is_corrupt


def _decode_avro(decoder: AvroDecoder) -> tuple[StructType, Column, Column]:
    def decode_values(values: pa.Array) -> pa.Array:
        return decoder(values)

    # Spark evaluates the annotations, for which pyarrow must be imported.
    import pyarrow  # noqa: PLC0415

    decode_values.__annotations__ = {"values": pyarrow.Array, "return": pyarrow.Array}
    decoded = arrow_udf(decode_values, returnType=decoder.spark_type)(sql.col(VALUE_COLUMN))
    return decoder.spark_type, decoded, sql.col(VALUE_COLUMN).isNotNull() & sql.col(_DECODED).isNull()


def _parse_schema(schema: object) -> StructType:
    if isinstance(schema, StructType):
        return schema
    expected = 'schema: expected fields such as "name STRING, delay INT", a StructType, or an Avro schema'
    if not isinstance(schema, str):
        raise ConfigError(f"{expected}, not {type(schema).__name__}")
    try:
        parsed = StructType.fromDDL(schema)
    except PySparkException as error:
        raise ConfigError(f"{expected}, not {schema!r} ({summarize_error(error)})") from None
    if not isinstance(parsed, StructType):  # "int" alone is a type
        raise ConfigError(f"{expected}, not {schema!r}")
    return parsed


def _check_names(added: Sequence[str], kept: Sequence[str]) -> None:
    """Raise `ConfigError` if two columns have the same name; Spark ignores case."""
    taken = {name.lower(): name for name in kept}
    for name in added:
        if name.lower() in taken:
            raise ConfigError(
                f"schema: there is already a column {taken[name.lower()]!r}; "
                "use into='data' to keep the fields apart from a record's own columns"
            )
        taken[name.lower()] = name


def _failure_message(kept: Sequence[str], encoding: str) -> Column:
    """Return a column with the error for a record that cannot be decoded."""
    names = [name for name in ("topic", "partition", "offset") if name in kept]
    parts = [part for name in names for part in (sql.lit(f"{name} "), sql.col(name).cast("string"), sql.lit(", "))]
    return sql.concat(*parts, sql.lit(f"{VALUE_COLUMN}: expected {encoding} of the schema"))


def _field(name: str) -> Column:
    return sql.col(_DECODED).getField(name)


def _quoted(name: str) -> str:
    """Return a column's name quoted for SQL."""
    return "`" + name.replace("`", "``") + "`"
