"""A streaming application that a test kills: it publishes text files to a cluster, one in each micro-batch.

Attempt N of a task stops after its first rows until a file `go-N` exists, so that it can be killed halfway.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext

from dafka.spark.session import make_session
from tests.spark.fixtures import SETTINGS

HEAD_ROWS = 1000
"""The number of rows that a task publishes before it stops."""


def main(folder: Path, towers: str, topic: str) -> None:
    def halt(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        go = folder / f"go-{context.attemptNumber()}"
        count = 0
        for batch in batches:
            count += batch.num_rows
            while count > HEAD_ROWS and not go.exists():
                time.sleep(0.05)
            yield batch

    # By default Spark would gather larger batches before the first rows are published, and split a file in two tasks.
    settings = {"spark.sql.execution.arrow.maxRecordsPerBatch": "200", "spark.sql.files.openCostInBytes": "128m"}
    session = make_session("killed", "local[2,4]", {**SETTINGS, **settings, "spark.log.level": "ERROR"})
    lines = session.readStream.format("text").option("maxFilesPerTrigger", "1").load(str(folder / "source"))
    writer = lines.mapInArrow(halt, lines.schema).writeStream.format("dafka").option("towers", towers)
    writer = writer.option("topic", topic).option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
