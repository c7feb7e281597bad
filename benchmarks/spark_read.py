"""Compares ways to read a SQLite store with Spark: through dafka, and without it.

    python benchmarks/spark_read.py [--records 5000000] [--bytes 100] [--rounds 3] [--jdbc JAR] [--json FILE]

Two stores are created, one with a sixteenth of the records. Then the ways take turns, round by round, each in a
process of its own with all cores. Three queries run on the small store, then on the large one: counting all records,
adding up the sizes of all values, and adding up those of a tenth of the records, selected by offset. The first query
includes what a session loads for its first query, and has a column of its own. "Columns named" reads only the columns
that the query needs; dafka then also uses `pushFilters`. For pandas and the UDF, the tenth is selected in SQL.

The output has medians of the seconds, their ratios to dafka with the same columns, and the peak memory of the process
with all its children, Java and Python, with shared pages counted once: while the small store was read, and in total.
With `--json`, the results are added to a file of an earlier run of the same size, so that rounds can be spread over
several runs; `--keep` keeps the stores for them.

For the JDBC driver: `apt install libxerial-sqlite-jdbc-java libxerial-sqlite-jdbc-jni`, then
`--jdbc /usr/share/java/sqlite-jdbc.jar`.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import click
import psutil
import trio
from rich.console import Console
from rich.table import Table

from dafka.records import Partition, RecordBatch
from dafka.storage import open_storage
from spark_routes import ADDRESS, QUERIES, ROUTES, TOPIC, tenth

APPEND_RECORDS = 10_000
SMALL = 16
"""The large store has this many times the records of the small one."""

POLL_S = 0.1
"""How often memory is measured."""

COMPARED = {"dafka": "dafka", "pandas": "dafka"}
"""The route that a route is compared with; all others are compared with `dafka, columns named`."""

Rounds: TypeAlias = dict[str, list[dict[str, float]]]
"""The results of each round by route: seconds by query, and memory in MiB."""


@attrs.define
class Memory:
    """The peak memory of a process and its descendants, in MiB, with shared pages counted once."""

    whole: float = 0.0
    python: float = 0.0

    def look(self, root: psutil.Process) -> None:
        whole = python = 0.0
        for process in (root, *root.children(recursive=True)):
            try:
                rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
                is_java = process.name() == "java"
            except (OSError, psutil.Error):
                continue  # the process has ended
            found = re.search(r"^Pss:\s+(\d+) kB", rollup, re.MULTILINE)
            mebibytes = int(found[1]) / 1024 if found else 0.0
            whole += mebibytes
            python += 0.0 if is_java else mebibytes
        self.whole = max(self.whole, whole)
        self.python = max(self.python, python)


@contextmanager
def watched(pid: int) -> Iterator[Memory]:
    """Measure the memory of a process and its descendants during a block."""
    memory, over = Memory(), threading.Event()

    def watch() -> None:
        root = psutil.Process(pid)
        while not over.wait(POLL_S):
            try:
                memory.look(root)
            except psutil.NoSuchProcess:
                return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield memory
    finally:
        over.set()
        thread.join()


async def make_store(path: Path, records: int, size: int) -> None:
    partition = Partition(TOPIC, ADDRESS)
    content = b"%%0%dd" % size
    async with open_storage(f"sqlite:{path}") as storage:
        for first in range(0, records, APPEND_RECORDS):
            sequences = range(first, min(first + APPEND_RECORDS, records))
            await storage.append([RecordBatch(partition, first, [content % each for each in sequences])])


def measure(route: str, stores: dict[Path, int], size: int, jar: str) -> dict[str, float]:
    """Return the seconds by query, and the memory. A wrong answer or a failing process ends the program."""
    program = Path(__file__).with_name("spark_routes.py")
    command = [sys.executable, str(program), route, jar]
    for store, records in stores.items():
        command += [str(store), str(records)]
    found: dict[str, float] = {}
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
        watched(process.pid) as memory,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            said = json.loads(line)
            check(route, said, size)
            found.setdefault("first", said["seconds"])
            found[said["query"]] = said["seconds"]
            if said["query"] == QUERIES[-1]:
                found.setdefault("small", memory.whole)
        if process.wait():
            errors.seek(0)
            sys.exit(f"{errors.read()}\n{route}: ended with {process.returncode}")
    return {**found, "memory": memory.whole, "python": memory.python}


def check(route: str, said: dict[str, Any], size: int) -> None:
    start, end = tenth(said["records"])
    expected = {"count": said["records"], "sum": said["records"] * size, "tenth": (end - start) * size}
    if said["answer"] != expected[said["query"]]:
        sys.exit(f"{route}: expected {expected}, not {said}")


@click.command()
@click.option("--records", default=5_000_000, show_default=True)
@click.option("--bytes", "size", default=100, show_default=True, help="Size of each content.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--jdbc", "jar", default="", help="The JDBC driver for SQLite.")
@click.option("--route", "routes", multiple=True, type=click.Choice(list(ROUTES)), help="Only these routes.")
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False), help="A folder for the stores.")
@click.option("--keep", is_flag=True, help="Keep the stores in the folder, and use existing ones.")
@click.option("--json", "report", type=click.Path(path_type=Path, dir_okay=False), help="Add the results to this file.")
def main(
    records: int,
    size: int,
    rounds: int,
    jar: str,
    routes: tuple[str, ...],
    folder: Path | None,
    keep: bool,
    report: Path | None,
) -> None:
    """Measure, and print a table."""
    chosen = [route for route in routes or ROUTES if route != "JDBC" or jar]
    about = {"records": records, "bytes": size}
    found = load(report, about)
    with tempfile.TemporaryDirectory(prefix="dafka-spark-", dir=folder) as place:
        kept = folder if keep and folder else Path(place)
        stores = {kept / f"{count}-{size}.db": count for count in (records // SMALL, records)}
        for store, count in stores.items():
            if not store.exists():
                trio.run(make_store, store, count, size)
        for _ in range(rounds):
            for route in chosen:
                found.setdefault(route, []).append(measure(route, stores, size, jar))
            if report is not None:
                report.write_text(json.dumps({**about, "found": found}, indent=1))
    show(found, records, size)


def load(report: Path | None, about: dict[str, int]) -> Rounds:
    """Return the results of earlier runs."""
    if report is None or not report.exists():
        return {}
    said = json.loads(report.read_text())
    if {name: said.get(name) for name in about} != about:
        raise click.UsageError(f"{report} has results of another size; give another file")
    found: Rounds = said["found"]
    return found


def show(found: Rounds, records: int, size: int) -> None:
    """Print medians."""
    table = Table("", title=f"{records:,} records of {size} bytes: seconds, and ratio to dafka")
    for heading in ("first query", *QUERIES, f"MiB, 1/{SMALL}", "MiB, all", "of it Python", "rounds"):
        table.add_column(heading, justify="right")
    for route, rounds in found.items():
        compared = found.get(COMPARED.get(route, "dafka, columns named"))
        cells = [against(rounds, compared, query) for query in ("first", *QUERIES)]
        memory = [f"{median(rounds, name):,.0f}" for name in ("small", "memory", "python")]
        table.add_row(route, *cells, *memory, str(len(rounds)))
    Console().print(table)


def against(rounds: list[dict[str, float]], compared: list[dict[str, float]] | None, query: str) -> str:
    """Return the seconds, and the median of the ratios of the rounds."""
    seconds = f"{median(rounds, query):.2f}"
    if compared is None or compared is rounds:
        return seconds
    ratio = statistics.median(a[query] / b[query] for a, b in zip(rounds, compared, strict=False))
    return f"{seconds} ({ratio:.1f}x)"


def median(found: list[dict[str, float]], name: str) -> float:
    return statistics.median(each[name] for each in found)


if __name__ == "__main__":
    main()
