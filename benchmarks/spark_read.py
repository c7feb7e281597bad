"""Spark over an SQLite store: through dafka, and by what a user would do without it, side by side.

    python benchmarks/spark_read.py [--records 5000000] [--bytes 100] [--rounds 3] [--jdbc JAR] [--json FILE]

Two stores are made, one with a sixteenth of the records; then each way takes its turn, round by round, in a process of
its own, with as many cores as there are. Three queries, on the small store, then on the large one: all records counted,
the octets of all values added up, and those of a tenth of the records, chosen by offset. The first of them pays for
what a session's first query loads, and has a column of its own. "Columns named" reads no more columns than the query
needs; dafka then has `pushFilters`, too. To pandas and to the UDF the tenth is given in their SQL.

Printed are medians of the seconds, their ratio to dafka's with the same columns, and the peak of memory of the process
with all its children, Java and Python, shared pages counted once: while the small store was read, and in all. With
`--json`, what a run finds is added to what stands in the file of an earlier run of the same size, so that rounds can be
spread over several runs; `--keep` keeps the stores for them.

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
"""The small store has this fraction of the records."""
LOOK_S = 0.1
"""How often memory is looked at."""
COMPARED = {"dafka": "dafka", "pandas": "dafka"}
"""With which route a route is compared; the others with the one that names columns, as they do."""

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


def measure(route: str, stores: dict[Path, int], size: int, jar: str) -> dict[str, float]:
    """Seconds by query, and memory. An answer that is wrong, or a process that fails, ends the program."""
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
        sys.exit(f"{route} answers {said}, expected {expected}")


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
    """What earlier runs found."""
    if report is None or not report.exists():
        return {}
    said = json.loads(report.read_text())
    if {name: said.get(name) for name in about} != about:
        raise click.UsageError(f"{report} is of another size: name another file")
    found: Rounds = said["found"]
    return found


def show(found: Rounds, records: int, size: int) -> None:
    """Prints medians."""
    table = Table("", title=f"{records:,} records of {size} octets: seconds, and how many times dafka's")
    for heading in ("first query", *QUERIES, f"MiB, 1/{SMALL}", "MiB, all", "of it Python", "rounds"):
        table.add_column(heading, justify="right")
    for route, rounds in found.items():
        compared = found.get(COMPARED.get(route, "dafka, columns named"))
        cells = [against(rounds, compared, query) for query in ("first", *QUERIES)]
        memory = [f"{median(rounds, name):,.0f}" for name in ("small", "memory", "python")]
        table.add_row(route, *cells, *memory, str(len(rounds)))
    Console().print(table)


def against(rounds: list[dict[str, float]], compared: list[dict[str, float]] | None, query: str) -> str:
    """Seconds, and the ratio: the median of the rounds' ratios."""
    seconds = f"{median(rounds, query):.2f}"
    if compared is None or compared is rounds:
        return seconds
    ratio = statistics.median(a[query] / b[query] for a, b in zip(rounds, compared, strict=False))
    return f"{seconds} ({ratio:.1f}x)"


def median(found: list[dict[str, float]], name: str) -> float:
    return statistics.median(each[name] for each in found)


if __name__ == "__main__":
    main()
