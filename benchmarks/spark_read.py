"""Spark over an SQLite store: through dafka, and by what a user would do without it, side by side.

    python benchmarks/spark_read.py [--records 5000000] [--bytes 100] [--rounds 3] [--jdbc JAR] [--json FILE]

One store is made; then each way takes its turn, round by round, in a process of its own, with as many cores as there
are. Three queries, each asked once, the first of which pays for what a session's first query loads: all records
counted, the octets of all values added up, and those of a tenth of the records, chosen by offset. "Columns named" reads
no more columns than the query needs; dafka then has `pushFilters`, too. To pandas and to the UDF the tenth is given in
their SQL.

Printed are medians of the seconds, their ratio to dafka with the same columns, and the peak of memory of the process
with all its children, Java and Python, shared pages counted once. dafka and pandas read a store of a sixteenth of the
records as well, to show what memory grows with. With `--json`, what a run finds is added to what stands in the file
of an earlier run of the same size, so that rounds can be spread over several runs; `--keep` keeps the store for them.

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
from spark_routes import ADDRESS, QUERIES, ROUTES, TOPIC, tenth

from dafka.records import Partition, RecordBatch
from dafka.storage import open_storage

APPEND_RECORDS = 10_000
SMALL = 16
"""The store that shows what memory grows with has this fraction of the records."""
SMALL_ROUTES = ("dafka", "pandas")
LOOK_S = 0.1
"""How often memory is looked at."""
COMPARED = {"dafka": "dafka", "dafka, columns named": "dafka, columns named", "pandas": "dafka", "JDBC": "dafka"}
"""With which route a route is compared; the others with the one that names columns."""

Rounds: TypeAlias = dict[str, list[dict[str, float]]]
"""By route: what each round found, the seconds by query, and mebibytes."""


@attrs.define
class Memory:
    """The peak of a process and all below it, in MiB, shared pages counted once."""

    whole: float = 0.0
    python: float = 0.0

    def look(self, root: psutil.Process) -> None:
        whole = python = 0.0
        for process in (root, *root.children(recursive=True)):
            try:
                rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
                is_java = process.name() == "java"
            except (OSError, psutil.Error):
                continue  # it is over
            found = re.search(r"^Pss:\s+(\d+) kB", rollup, re.MULTILINE)
            mebibytes = int(found[1]) / 1024 if found else 0.0
            whole += mebibytes
            python += 0.0 if is_java else mebibytes
        self.whole = max(self.whole, whole)
        self.python = max(self.python, python)


@contextmanager
def watched(pid: int) -> Iterator[Memory]:
    """Looks at the memory of a process and its children for the length of a block."""
    memory, over = Memory(), threading.Event()

    def watch() -> None:
        root = psutil.Process(pid)
        while not over.wait(LOOK_S):
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


def measure(route: str, store: Path, records: int, size: int, jar: str) -> dict[str, float]:
    """Seconds by query, and memory. An answer that is wrong, or a process that fails, ends the program."""
    start, end = tenth(records)
    expected = {"count": records, "sum": records * size, "tenth": (end - start) * size}
    program = Path(__file__).with_name("spark_routes.py")
    command = [sys.executable, str(program), route, str(store), str(records), jar]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
        watched(process.pid) as memory,
    ):
        output, _ = process.communicate()
        errors.seek(0)
        said = errors.read()
    lines: list[dict[str, Any]] = [json.loads(line) for line in output.splitlines()]
    answers = {line["query"]: line["answer"] for line in lines}
    if process.returncode or answers != expected:
        sys.exit(f"{said}\n{route}: ended with {process.returncode}, answered {answers}, expected {expected}")
    found = {line["query"]: float(line["seconds"]) for line in lines}
    return {**found, "memory": memory.whole, "python": memory.python}


@click.command()
@click.option("--records", default=5_000_000, show_default=True)
@click.option("--bytes", "size", default=100, show_default=True, help="Of each content.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--jdbc", "jar", default="", help="The JDBC driver for SQLite.")
@click.option("--route", "routes", multiple=True, type=click.Choice(list(ROUTES)), help="Only these.")
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False), help="For the stores.")
@click.option("--keep", is_flag=True, help="Leave the stores in the folder, and use those that are there.")
@click.option("--json", "report", type=click.Path(path_type=Path, dir_okay=False), help="Add what is found to this.")
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
    whole, small = load(report, about)
    with tempfile.TemporaryDirectory(prefix="dafka-spark-", dir=folder) as place:
        stores = folder if keep and folder else Path(place)
        for count in (records, records // SMALL):
            if not (stores / f"{count}-{size}.db").exists():
                trio.run(make_store, stores / f"{count}-{size}.db", count, size)
        for _ in range(rounds):
            for route in chosen:
                found = measure(route, stores / f"{records}-{size}.db", records, size, jar)
                whole.setdefault(route, []).append(found)
            for route in set(SMALL_ROUTES) & set(chosen):
                found = measure(route, stores / f"{records // SMALL}-{size}.db", records // SMALL, size, jar)
                small.setdefault(route, []).append(found)
            if report is not None:
                report.write_text(json.dumps({**about, "whole": whole, "small": small}, indent=1))
    show(whole, small, records, size)


def load(report: Path | None, about: dict[str, int]) -> tuple[Rounds, Rounds]:
    """What earlier runs found."""
    if report is None or not report.exists():
        return {}, {}
    said = json.loads(report.read_text())
    if {name: said.get(name) for name in about} != about:
        raise click.UsageError(f"{report} is of another size: name another file")
    return said["whole"], said["small"]


def show(whole: Rounds, small: Rounds, records: int, size: int) -> None:
    """Prints medians."""
    table = Table("", title=f"{records:,} records of {size} octets: seconds, and how many times dafka's")
    for heading in (*QUERIES, "memory, MiB", "of it Python", f"memory, 1/{SMALL}", "rounds"):
        table.add_column(heading, justify="right")
    for route, found in whole.items():
        compared = whole.get(COMPARED.get(route, "dafka, columns named"))
        cells = [_against(found, compared, query) for query in QUERIES]
        memory = [f"{median(found, name):,.0f}" for name in ("memory", "python")]
        memory.append(f"{median(small[route], 'memory'):,.0f}" if route in small else "")
        table.add_row(route, *cells, *memory, str(len(found)))
    Console().print(table)


def _against(found: list[dict[str, float]], compared: list[dict[str, float]] | None, query: str) -> str:
    """Seconds, and the ratio, round by round, its median."""
    seconds = f"{median(found, query):.2f}"
    if compared is None or compared is found:
        return seconds
    ratio = statistics.median(a[query] / b[query] for a, b in zip(found, compared, strict=False))
    return f"{seconds} ({ratio:.1f}x)"


def median(found: list[dict[str, float]], name: str) -> float:
    return statistics.median(each[name] for each in found)


if __name__ == "__main__":
    main()
