"""A record's value as columns: JSON by Spark's own parser, Avro by fastavro in an Arrow function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import functions as sql
from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]  # its stubs lack it
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

_DECODED = "_dafka_decoded"


def decode(
    frame: DataFrame,
    schema: StructType | str | dict[str, object] | list[object],
    *,
    into: str | None = None,
    mode: str = "permissive",
    writer_schemas: Sequence[object] = (),
) -> DataFrame:
    """The columns of `frame` other than `value`, and what is in `value`, decoded.

    Arguments:
        frame: has a binary column `value`: Dafka's records, or anybody's.
        schema: for JSON a `StructType`, or its text (`"name STRING, delay INT"`); for Avro a schema, as its JSON text
            or as a dictionary.
        into: the name of one struct column for all fields; by default each field is a column.
        mode: what becomes of a value that cannot be decoded. `permissive`: what could not be read is null, and the
            column `_corrupt` has the value itself, which is null in all other rows. `dropmalformed`: the row is left
            out. `failfast`: the query fails, and says which record it was.
        writer_schemas: for Avro, older or newer schemas that values may be written in. They are told by the
            fingerprint that the single-object encoding begins with, and resolved to `schema`.

    Raises `ConfigError` for a schema that is none, a mode that there is not, and a field named as another column is.
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
    """The fields, the value as a struct of them and of what is corrupt, and whether it is."""
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

    # Spark reads the types, which are not there while the module is loaded.
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
    """Spark does not tell names apart by upper and lower case."""
    taken = {name.lower(): name for name in kept}
    for name in added:
        if name.lower() in taken:
            raise ConfigError(
                f"schema: there is a column {taken[name.lower()]!r} already; "
                "into='data' keeps the fields apart from a record's own columns"
            )
        taken[name.lower()] = name


def _failure_message(kept: Sequence[str], encoding: str) -> Column:
    """The sentence for one record that is not as it should be."""
    place = [name for name in ("topic", "partition", "offset") if name in kept]
    said = [part for name in place for part in (sql.lit(f"{name} "), sql.col(name).cast("string"), sql.lit(", "))]
    return sql.concat(*said, sql.lit(f"{VALUE_COLUMN}: this is not {encoding} of the schema"))


def _field(name: str) -> Column:
    return sql.col(_DECODED).getField(name)


def _quoted(name: str) -> str:
    """A column's name as SQL has it, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"
