"""`dafka bench`: runs the same jobs over dafka and other systems, and prints a table, JSON or a plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs
import click
from rich.console import Console

from dafka.cli.options import DURATION
from dafka.cli.runner import run
from dafka.cli.terminal import UsageMistake, error_console
from dafka_bench import JOBS, NodesOptions, Results, run_jobs
from dafka_bench.report import notes, to_json, to_svg, to_table
from dafka_bench.systems import NATS, REDIS, STORAGES, DafkaSystem, Libdafka, RawZmq, System
from dafka_bench.systems.dafka import accelerator_unavailable_reason

FIRST_JOBS = ("produce", "live", "catch-up", "latency", "start", "memory")
"""The jobs that run by default: those that all systems support."""

FILE_WIDTH = 120
"""The width of a table that is not printed on a terminal, in columns."""

SYSTEMS = ("dafka", "raw", "c", "nats", "redis")


@click.command()
@click.argument("jobs", nargs=-1, type=click.Choice(list(JOBS)), metavar="[JOB]...")
@click.option(
    "--system",
    "systems",
    multiple=True,
    type=click.Choice(SYSTEMS),
    help="A system to measure; repeat it for several.  [default: all]",
)
@click.option(
    "--storage",
    "storages",
    multiple=True,
    type=click.Choice(list(STORAGES)),
    help="The storage of dafka's stores; repeat it for several.  [default: sqlite]",
)
@click.option(
    "--wire",
    "wires",
    multiple=True,
    type=click.Choice(["rfc46", "libdafka"]),
    help="The dialect that dafka sends; repeat it for several.  [default: rfc46]",
)
@click.option(
    "--accelerator",
    "accelerators",
    multiple=True,
    type=click.Choice(["on", "off"]),
    help="With or without dafka's transport accelerator; repeat it for both.  [default: both, if it is built]",
)
@click.option(
    "--c-tools", type=click.Path(path_type=Path), metavar="FOLDER", help="The folder of the C implementation."
)
@click.option(
    "--base", metavar="NAME", help="The system to compare with, by its name in the table.  [default: the first]"
)
@click.option(
    "--records",
    type=click.IntRange(min=1),
    default=300_000,
    show_default=True,
    metavar="N",
    help="The number of records that each job moves.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    metavar="N",
    help="How many times all jobs run.",
)
@click.option(
    "--producers",
    multiple=True,
    type=click.IntRange(min=1),
    metavar="N",
    help="The number of producers of the job nodes; repeat it for several.  [default: 10, 100, 300 and 1000]",
)
@click.option(
    "--stores",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    metavar="N",
    help="The number of stores of the job nodes.",
)
@click.option(
    "--per-process",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    metavar="N",
    help="How many producers of the job nodes share a process.",
)
@click.option(
    "--timeout",
    "timeout_ms",
    type=DURATION,
    default="120s",
    show_default=True,
    metavar="DURATION",
    help="How long the producers of the job nodes may take until all their first records are stored.",
)
@click.option(
    "--rest",
    "rest_ms",
    type=DURATION,
    default="45s",
    show_default=True,
    metavar="DURATION",
    help="How long the cluster of the job nodes rests before it counts as idle.",
)
@click.option(
    "--idle",
    "idle_ms",
    type=DURATION,
    default="60s",
    show_default=True,
    metavar="DURATION",
    help="How long the job nodes measures the idle processes.",
)
@click.option(
    "--observe",
    "observed_ms",
    type=DURATION,
    default="10s",
    show_default=True,
    metavar="DURATION",
    help="How long the job nodes measures the sending processes.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="FOLDER",
    help="A folder on the disk to measure.  [default: the folder of temporary files]",
)
@click.option(
    "--json",
    "json_path",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    metavar="FILE",
    help="Write all results to this file.",
)
@click.option(
    "--plot",
    "plot_path",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    metavar="FILE",
    help="Write a plot to this file, as SVG.",
)
def bench(
    jobs: tuple[str, ...],
    systems: tuple[str, ...],
    storages: tuple[str, ...],
    wires: tuple[str, ...],
    accelerators: tuple[str, ...],
    c_tools: Path | None,
    base: str | None,
    records: int,
    rounds: int,
    producers: tuple[int, ...],
    stores: int,
    per_process: int,
    timeout_ms: int,
    rest_ms: int,
    idle_ms: int,
    observed_ms: int,
    folder: Path | None,
    json_path: Path | None,
    plot_path: Path | None,
) -> None:
    """Run the same jobs over dafka and other systems, and compare.

    Jobs are produce, live, catch-up, latency, start, memory (these six by default), sizes, topics, partitions and
    nodes. The systems take turns, round by round. The table has the medians, and their ratios to one system. Systems
    that are not installed are skipped, and named.
    """
    for path in (json_path, plot_path):
        if path is not None and not path.parent.is_dir():
            raise UsageMistake(f"cannot write {path}: folder {path.parent} does not exist; create it first")
    chosen = _choose_systems(systems or SYSTEMS, storages or ("sqlite",), wires or ("rfc46",), accelerators, c_tools)
    if base is not None and base not in [system.name for system in chosen]:
        names = ", ".join(repr(system.name) for system in chosen)
        raise UsageMistake(f"--base: expected one of {names}, not {base!r}")

    seconds = (each / 1000 for each in (timeout_ms, rest_ms, idle_ms, observed_ms))
    options = NodesOptions(producers or NodesOptions().producers, stores, per_process, *seconds)
    settings: dict[str, object] = {"jobs": list(jobs or FIRST_JOBS), "records": records, "rounds": rounds}
    if "nodes" in jobs:
        settings["nodes"] = attrs.asdict(options)

    async def program() -> int:
        with error_console().status("") as status:
            results = await run_jobs(
                [JOBS[name] for name in dict.fromkeys(jobs or FIRST_JOBS)],
                chosen,
                records=records,
                rounds=rounds,
                base=base or "",
                folder=folder,
                nodes=options,
                settings=settings,
                report_progress=status.update,
            )
        _report(results, json_path, plot_path)
        return 1 if results.failures else 0

    run(program)


def _report(results: Results, json_path: Path | None, plot_path: Path | None) -> None:
    output = Console()
    if not output.is_terminal:
        output.width = FILE_WIDTH
    output.print(to_table(results))
    for note in notes(results):
        click.echo(note, err=True)
    if json_path is not None:
        json_path.write_text(to_json(results), "utf-8")
    if plot_path is not None:
        plot_path.write_text(to_svg(results), "utf-8")


def _choose_systems(
    names: Sequence[str], storages: Sequence[str], wires: Sequence[str], accelerators: Sequence[str], tools: Path | None
) -> list[System]:
    """Return the systems with these names, in this order."""
    if not accelerators:
        accelerators = ("off",) if accelerator_unavailable_reason() else ("on", "off")
    ours = [
        DafkaSystem(storage, wire, accelerator)
        for accelerator in dict.fromkeys(accelerators)
        for wire in dict.fromkeys(wires)
        for storage in dict.fromkeys(storages)
    ]
    found: dict[str, Sequence[System]] = {
        "dafka": ours,
        "raw": [RawZmq()],
        "c": [Libdafka(tools.absolute() if tools else None)],
        "nats": [NATS],
        "redis": [REDIS],
    }
    return [system for name in dict.fromkeys(names) for system in found[name]]
