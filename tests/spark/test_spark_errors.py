from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dafka.errors import ConfigError, DafkaError, DiscoveryError, StorageError
from dafka.spark.errors import RowError, find_dafka_error, find_worker_traceback, summarize_error
from tests.spark.queries import finish_query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IN_STREAM = """[STREAM_FAILED] Query [id = 6] terminated with exception: [PYTHON_DATA_SOURCE_ERROR] Failed to \
plan Python data source initialize source: Traceback (most recent call last):
  File "/lib/pyspark/datasource_internal.py", line 50, in _streamReader
    return datasource.streamReader(schema=schema)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
dafka.errors.StorageError: path /none: there is nothing here

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/lib/pyspark/python_streaming_source_runner.py", line 295, in main
UnboundLocalError: cannot access local variable 'reader' where it is not associated with a value
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: [id = 6, runId = 1]"""

IN_SQL = """
[PARSE_SYNTAX_ERROR] Syntax error at or near 'selec'. SQLSTATE: 42601 (line 1, pos 0)

== SQL ==
selec 1
^^^
"""

IN_WORKER = """[X] thrown:
Traceback (most recent call last):
  File "a", line 1
    1 // 0
ZeroDivisionError: zero
 SQLSTATE: 1"""

IN_JAVA = """An error occurred while calling o37.collectToPython.
: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed).
\tat org.apache.spark.sql.execution.python.PythonPlannerRunner.runInPython(PythonPlannerRunner.scala:165)
\tat org.apache.spark.sql.execution.SparkPlan.execute(SparkPlan.scala:197)"""

IN_GROUP = """[PYTHON_EXCEPTION] An exception was thrown from the Python worker:
  + Exception Group Traceback (most recent call last):
  | ExceptionGroup: unhandled (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    | dafka.errors.DiscoveryError: no tower answers
    +------------------------------------
 SQLSTATE: 38000"""


TRACE = "Traceback (most recent call last):\n"


def test_a_dafka_error_is_found() -> None:
    cases: list[tuple[str, type[DafkaError], str]] = [
        (IN_STREAM, StorageError, "path /none: there is nothing here"),
        (IN_GROUP, DiscoveryError, "no tower answers"),
        (f"{TRACE}dafka.errors.ConfigError: a\nX\ndafka.errors.StorageError: b", StorageError, "b"),
        (f"{TRACE}dafka.errors.ConfigError: a SQLSTATE: 38000", ConfigError, "a"),
        (f"{TRACE}dafka.spark.errors.RowError: column value: a", RowError, "column value: a"),
    ]
    for text, kind, sentence in cases:
        assert find_dafka_error(Exception(text)) == (kind, sentence)
        assert summarize_error(Exception(text)) == sentence
        assert find_worker_traceback(Exception(text)) is None
    assert find_dafka_error(ConfigError("option path: no")) == (ConfigError, "option path: no")


def test_other_errors_become_a_sentence_without_java() -> None:
    for text, sentence in [
        (IN_JAVA, "Python worker exited unexpectedly (crashed)."),
        ("[PATH_NOT_FOUND] Path does not exist: file:/none. SQLSTATE: 42K03", "Path does not exist: file:/none."),
        (IN_SQL, "Syntax error at or near 'selec'."),
        (IN_WORKER, "ZeroDivisionError: zero"),
        ("", "Exception"),
    ]:
        assert find_dafka_error(Exception(text)) is None
        assert summarize_error(Exception(text)) == sentence


def test_errors_that_spark_raises(spark: SparkSession) -> None:
    from pyspark.sql.functions import udf

    def fail(kind: type[Exception]) -> BaseException:
        def function(_):  # type: ignore[no-untyped-def]  # with type hints Spark would make an Arrow UDF of it
            raise kind("what is wrong")

        with pytest.raises(Exception, match="what is wrong") as caught:
            spark.range(1).select(udf(function, "int")("id")).collect()
        return caught.value

    assert find_dafka_error(fail(DiscoveryError)) == (DiscoveryError, "what is wrong")
    other = fail(LookupError)
    assert (find_dafka_error(other), summarize_error(other)) == (None, "LookupError: what is wrong")
    lines = (find_worker_traceback(other) or "").splitlines()
    assert (lines[0], lines[-1]) == ("Traceback (most recent call last):", "LookupError: what is wrong")
    stream = spark.readStream.format("dafka").load("/none")
    with pytest.raises(Exception, match="STREAM_FAILED") as caught:
        finish_query(stream.writeStream.format("noop").start)
    assert find_dafka_error(caught.value) == (StorageError, "path /none: there is nothing here")
