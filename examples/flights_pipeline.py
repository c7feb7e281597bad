"""A pipeline on real data: 336,776 flights through producers and a store to Spark, as a stream and as a table.

1. A tower and a store run in this process. Each of New York's three airports is a producer. It publishes its flights of
   2013 day by day, in the order of their scheduled departures.
2. Meanwhile a streaming query follows the store, decodes the records, and adds up delays by airport and hour, with a
   watermark on the scheduled departure, into Parquet files.
3. Older records move to a cold tier meanwhile: Parquet objects in a folder, which could be a bucket. The stream and the
   batch job read both tiers as one, and Spark's own Parquet reader finds the same records in the objects.
4. A batch job on the same store compares the airlines.
5. All numbers are compared with those of pandas on the raw data, and drawn into a picture.

python examples/flights_pipeline.py [--flights N] [--folder FOLDER] [--picture FILE]
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

import attrs
import pandas as pd
import trio
from matplotlib import dates
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from pyspark.sql import DataFrame, GroupedData, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.table import Table

import dafka.spark
from dafka.cli.demo import load_flights
from dafka.config import Config
from dafka.testing import Cluster, open_cluster

TOPIC = "flights"
SCHEMA = "scheduled TIMESTAMP, origin STRING, carrier STRING, dep_delay INT"
AIRPORTS = {"EWR": "Newark", "JFK": "JFK", "LGA": "LaGuardia"}
FIELDS = ["scheduled", "origin", "dest", "carrier", "flight", "dep_delay", "arr_delay", "distance"]
LATENESS = "2 days"
"""The delay of the watermark. The airports publish a day at a time, so none is more than a day behind another."""

TIMETABLE_END = b'{"scheduled": "2014-02-01T00:00:00Z"}'
"""The last record, which moves the watermark past all hours with flights, so that their sums are final."""

AGGREGATES = {
    "flights": "count(*)",
    "cancelled": "count_if(dep_delay IS NULL)",
    "delay": "sum(dep_delay)",
}
"""The columns of the results. A flight that was cancelled has no delay."""


@attrs.frozen
class Step:
    """A step of the pipeline.

    Attributes:
        name: A description of the step.
        count: The number of records.
        seconds: The duration.
        outcome: The result.
    """

    name: str
    count: int
    seconds: float
    outcome: str


@attrs.frozen
class Results:
    """The results of the pipeline.

    Attributes:
        hours: The delays by hour and airport, from the stream.
        carriers: The delays by carrier, from the batch job.
        steps: The steps, with the outcome of each comparison.
    """

    hours: pd.DataFrame
    carriers: pd.DataFrame
    steps: list[Step]

    @property
    def is_right(self) -> bool:
        """Whether all numbers are equal to those of pandas."""
        return all(step.outcome != "DIFFERENT" for step in self.steps)


def load(count: int | None = None) -> pd.DataFrame:
    """Return the first flights of 2013 in the order of their scheduled departures; all of them by default."""
    raw = pd.read_csv(io.BytesIO(load_flights()))
    raw["scheduled"] = pd.to_datetime(raw["time_hour"], utc=True) + pd.to_timedelta(raw["minute"], unit="min")
    numbers = dict.fromkeys(("dep_delay", "arr_delay", "distance"), "Int64")
    return raw[FIELDS].astype(numbers).sort_values("scheduled", kind="stable").head(count or len(raw))


async def run(session: SparkSession, flights: pd.DataFrame, folder: Path) -> Results:
    """Run the whole pipeline, which writes its files under `folder`."""
    store = folder / "flights.db"
    steps = []
    async with open_cluster(tiered(folder), storage=f"sqlite:{store}") as cluster:
        query = await trio.to_thread.run_sync(start_stream, session, store, folder)
        try:
            started = time.perf_counter()
            await publish(cluster, flights)
            seconds = time.perf_counter() - started
            steps.append(Step("3 producers, 1 store", len(flights), seconds, "every record stored"))
            await trio.to_thread.run_sync(query.processAllAvailable)
            async with cluster.producer(TOPIC) as producer:
                await producer.send(TIMETABLE_END)
            await trio.to_thread.run_sync(query.processAllAvailable)
            seconds = time.perf_counter() - started
        finally:
            await trio.to_thread.run_sync(query.stop)
        hours = await trio.to_thread.run_sync(read_hours, session, folder)
        outcome = compare(hours, expected_hours(flights))
        batches = [progress for progress in query.recentProgress if progress.numInputRows]
        steps.append(Step(f"stream, {len(batches)} micro-batches", len(flights), seconds, outcome))
        started = time.perf_counter()
        carriers = await trio.to_thread.run_sync(compare_carriers, session, store)
        seconds = time.perf_counter() - started
        steps.append(Step("batch job", len(flights), seconds, compare(carriers, expected_carriers(flights))))
    started = time.perf_counter()
    count, outcome = await trio.to_thread.run_sync(compare_tiers, session, store, folder)
    steps.append(Step("cold tier, as Parquet", count, time.perf_counter() - started, outcome))
    return Results(hours, carriers, steps)


def tiered(folder: Path) -> Config:
    """Return the settings of a store that keeps the last 128 KiB of each airport, and moves the rest to a folder."""
    return Config().with_cold(
        storage=f"file://{folder}/cold", local_retention_bytes="128KiB", segment_bytes="512KiB", interval_ms=100
    )


async def publish(cluster: Cluster, flights: pd.DataFrame) -> None:
    """Publish the flights day by day; the next day starts when the store has all flights of the day."""
    days = flights.groupby([flights["scheduled"].dt.floor("D"), "origin"], sort=True)
    lines = {
        key: group.to_json(orient="records", lines=True, date_format="iso", date_unit="s").encode().splitlines()
        for key, group in days
    }
    async with AsyncExitStack() as stack:
        producers = {
            airport: await stack.enter_async_context(cluster.producer(TOPIC)) for airport in flights["origin"].unique()
        }
        for day in dict.fromkeys(day for day, _ in lines):
            for airport, producer in producers.items():
                await producer.send_many(lines.get((day, airport), []))
            for producer in producers.values():
                await producer.wait_stored()


def start_stream(session: SparkSession, store: Path, folder: Path) -> StreamingQuery:
    """Start the query that adds up delays by airport and hour of the scheduled departure.

    The sums of an hour are written when the watermark has passed it.
    """
    given = {"subscribePattern": TOPIC, "startingOffsets": "earliest"}  # a pattern may match no topic yet
    departures = dafka.spark.read_stream(session, store, schema=SCHEMA, columns=["partition"], **given)
    groups = departures.withWatermark("scheduled", LATENESS).groupBy(sql.window("scheduled", "1 hour"), "origin")
    hours = add_up(groups).select(sql.col("window.start").alias("hour"), "origin", *AGGREGATES)
    return (
        hours.writeStream.format("parquet")
        .option("path", str(folder / "hours"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )


def read_hours(session: SparkSession, folder: Path) -> pd.DataFrame:
    """Return what the stream wrote."""
    return to_pandas(session.read.parquet(str(folder / "hours")), ["hour", "origin"])


def compare_carriers(session: SparkSession, store: Path) -> pd.DataFrame:
    """Return the delays by carrier, from all records in the store."""
    departures = dafka.spark.read(session, store, topic=TOPIC, schema=SCHEMA, columns=["partition"])
    return to_pandas(add_up(departures.where("carrier IS NOT NULL").groupBy("carrier")), ["carrier"])


def compare_tiers(session: SparkSession, store: Path, folder: Path) -> tuple[int, str]:
    """Return how many records the objects of the cold tier have, and whether the store has the same ones."""
    columns = ["partition", "offset", "value"]
    files = session.read.option("recursiveFileLookup", "true").option("pathGlobFilter", "*.parquet")
    objects = files.parquet(str(folder / "cold")).select(columns)
    both = session.read.format("dafka").schema("partition STRING, offset BIGINT, value BINARY").load(str(store))
    count = objects.count()
    is_same = count == objects.distinct().count() and objects.exceptAll(both).isEmpty()
    return count, "equal to the store" if count and is_same else "DIFFERENT"


def add_up(groups: GroupedData) -> DataFrame:
    """Return the aggregates of each group."""
    return groups.agg(*(sql.expr(text).alias(name) for name, text in AGGREGATES.items()))


def to_pandas(frame: DataFrame, keys: list[str]) -> pd.DataFrame:
    """Return a result sorted by its keys."""
    return frame.toPandas().sort_values(keys).reset_index(drop=True)


def expected_hours(flights: pd.DataFrame) -> pd.DataFrame:
    """Return what the stream should have found."""
    hours = flights["scheduled"].dt.tz_convert(None).dt.floor("h").rename("hour")
    return aggregate(flights, [hours, flights["origin"]])


def expected_carriers(flights: pd.DataFrame) -> pd.DataFrame:
    """Return what the batch job should have found."""
    return aggregate(flights, [flights["carrier"]])


def aggregate(flights: pd.DataFrame, keys: list[pd.Series]) -> pd.DataFrame:
    """Return the `AGGREGATES` of each group, computed by pandas."""
    delays = flights["dep_delay"]
    found = delays.groupby(keys).agg(flights="size", known="count", delay=lambda group: group.sum(min_count=1))
    found["cancelled"] = found["flights"] - found["known"]
    return found[["flights", "cancelled", "delay"]].reset_index()


def compare(found: pd.DataFrame, expected: pd.DataFrame) -> str:
    """Return the outcome of comparing two tables."""
    numbers = {"flights": "Int64", "cancelled": "Int64", "delay": "Int64"}
    keys = [name for name in expected.columns if name not in numbers]
    tables = [table.astype({**dict.fromkeys(keys, str), **numbers}) for table in (found, expected)]
    return "equal to pandas" if tables[0].equals(tables[1]) else "DIFFERENT"


def draw(results: Results, path: Path) -> None:
    """Draw the mean delays of all days by airport, and of all hours of the year."""
    hours = results.hours.assign(local=results.hours["hour"].dt.tz_localize("UTC").dt.tz_convert("America/New_York"))
    hours["day"] = hours["local"].dt.tz_localize(None).dt.normalize()
    hours["departed"] = hours["flights"] - hours["cancelled"]
    layout = ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.15)
    figure = Figure(figsize=(12, 7.6), layout=layout, facecolor="white")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[1, 1.35])
    for (airport, name), color in zip(AIRPORTS.items(), ("#0b7285", "#e8590c", "#862e9c"), strict=True):
        sums = hours[hours["origin"] == airport].groupby("day")[["delay", "departed"]].sum().rolling("7D").sum()
        top.plot(sums.index, sums["delay"] / sums["departed"], color=color, linewidth=1.8, label=name)
    top.axhline(0, color="#adb5bd", linewidth=0.8)
    top.set_ylabel("minutes late, mean of a week")
    top.legend(frameon=False, ncols=3, loc="upper right")
    title = "Flights from New York in 2013: how late they left"
    top.set_title(title, loc="left", pad=18, fontsize=15, fontweight="bold")

    cells = hours.assign(clock=hours["local"].dt.hour).groupby(["clock", "day"])[["delay", "departed"]].sum()
    mean = (cells["delay"].astype(float) / cells["departed"]).unstack("day").dropna(how="all")
    clock = range(mean.index.min(), mean.index.max() + 1)
    mean = mean.reindex(index=clock, columns=pd.date_range(mean.columns.min(), mean.columns.max()))
    edges = pd.date_range(mean.columns.min(), periods=len(mean.columns) + 1).to_numpy()
    colors = TwoSlopeNorm(vmin=-30, vcenter=0, vmax=90)
    mesh = bottom.pcolormesh(edges, [*clock, clock.stop], mean.to_numpy(), cmap="RdBu_r", norm=colors)
    bottom.set_yticks(range(clock.start + -clock.start % 3, clock.stop, 3))
    bottom.invert_yaxis()
    bottom.yaxis.set_major_formatter("{x:02.0f}:00")
    bottom.set_ylabel("scheduled departure")
    bottom.set_facecolor("#f1f3f5")
    bar = figure.colorbar(mesh, ax=bottom, pad=0.01, extend="both", ticks=[-30, 0, 30, 60, 90])
    bar.set_label("minutes late, mean")
    bar.outline.set_visible(False)
    for axes in (top, bottom):
        axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
        axes.tick_params(length=0)
    top.grid(axis="y", color="#e9ecef")
    locator = dates.AutoDateLocator()  # type: ignore[no-untyped-call]
    bottom.xaxis.set_major_locator(locator)
    bottom.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    top.margins(x=0)
    figure.savefig(path, dpi=110)


def to_tables(results: Results) -> list[Table]:
    """Return a table of the steps and one of the largest airlines."""
    steps = Table("step", title="The pipeline")
    for name in ("records", "seconds", "records/s"):
        steps.add_column(name, justify="right")
    steps.add_column("outcome")
    for step in results.steps:
        rate = f"{step.count / step.seconds:,.0f}"
        steps.add_row(step.name, f"{step.count:,}", f"{step.seconds:.1f}", rate, step.outcome)
    carriers = Table("airline", title="The five largest airlines")
    for name in ("flights", "cancelled", "mean delay (min)"):
        carriers.add_column(name, justify="right")
    for row in results.carriers.nlargest(5, "flights").to_dict("records"):
        flights, cancelled, delay = (int(row[name]) for name in AGGREGATES)
        mean = delay / (flights - cancelled)
        carriers.add_row(str(row["carrier"]), f"{flights:,}", f"{cancelled / flights:.1%}", f"{mean:.1f}")
    return [steps, carriers]


def main() -> int:
    """Run the pipeline with a session of its own, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--flights", type=int, metavar="N", help="only the first N flights")
    parser.add_argument("--folder", type=Path, help="keep the store and the Parquet files here")
    parser.add_argument("--picture", type=Path, default=Path("flights.png"), help="write the picture here")
    given = parser.parse_args()
    settings = {"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}
    session = dafka.spark.make_session("flights", settings=settings)
    try:
        with tempfile.TemporaryDirectory() as temporary:
            folder = given.folder or Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            results = trio.run(run, session, load(given.flights), folder)
    finally:
        session.stop()
    Console().print(*to_tables(results))
    if not results.is_right:
        return 1
    draw(results, given.picture)
    print(f"The picture is {given.picture.absolute()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
