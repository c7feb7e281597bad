from __future__ import annotations

import json
import signal
from pathlib import Path
from xml.etree import ElementTree

import attrs
import pytest
from rich.console import Console

from dafka_bench.client import Pace, ReceivedRecords, Task, parse_sequence, parse_timestamp
from dafka_bench.report import notes, to_json, to_svg, to_table
from dafka_bench.results import Failure, Measurement, Results, Sample, percentiles
from tests.cli.harness import Dafka, Running, wait_for

OURS = ("--system", "dafka", "--storage", "memory", "--wire", "libdafka", "--accelerator", "off", "--rounds", "1")
NAME = "dafka memory libdafka pure"


def test_two_jobs_give_a_table_json_and_a_plot(dafka: Dafka, tmp_path: Path) -> None:
    written, drawn = tmp_path / "out.json", tmp_path / "out.svg"
    files = ("--json", str(written), "--plot", str(drawn))
    ended = dafka.run("bench", "produce", "catch-up", "--system", "c", *OURS, "--records", "2000", *files)
    assert (ended.status, ended.errors) == (
        0,
        "left out: C libdafka: expected the folder of its tools: use --c-tools FOLDER\n",
    )
    table = ended.output.decode()
    assert table.index("produce: acknowledged by 1 store [records/s]") < table.index("catch-up: from a store")
    assert table.count(NAME) == 3  # in the title, and once per figure
    document = json.loads(written.read_text())
    assert (document["version"], document["systems"], document["base"]) == (1, [NAME], NAME)
    assert document["settings"] == {"jobs": ["produce", "catch-up"], "records": 2000, "rounds": 1}
    assert document["machine"]["processors"] >= 1
    assert list(document["left_out"]) == ["C libdafka"]
    assert [(row["job"], row["figure"]) for row in document["summary"]] == [
        ("produce", "acknowledged by 1 store"),
        ("catch-up", "from a store"),
    ]
    for row, sample in zip(document["summary"], document["samples"], strict=True):
        assert row["value"] == dict.fromkeys(("median", "low", "high"), sample["value"])
        assert row["ratio"] == {"median": 1.0, "low": 1.0, "high": 1.0}
        assert (row["unit"], row["is_higher_better"], row["records"]) == ("records/s", True, 2000)
        assert sample["value"] > 0
    assert ElementTree.parse(drawn).getroot().tag.endswith("svg")
    assert dafka.processes() == {}
    assert list(tmp_path.glob("dafka-bench-*")) == []


@pytest.mark.long
def test_nodes_of_several_processes_store_their_first_records(dafka: Dafka, tmp_path: Path) -> None:
    written = tmp_path / "out.json"
    sizes = ("--producers", "3", "--per-process", "2", "--rest", "100ms", "--idle", "500ms", "--observe", "500ms")
    ended = dafka.run("bench", "nodes", *OURS, *sizes, "--json", str(written))
    assert (ended.status, ended.errors) == (0, "")
    document = json.loads(written.read_text())
    assert document["settings"]["nodes"]["producers"] == [3]
    values = {(row["figure"], row["unit"]): row["value"]["median"] for row in document["summary"]}
    assert values["3 producers, every first record stored", "s"] > 0
    assert values["3 producers, a further producer's first record stored", "ms"] > 0
    assert values["3 producers, at 10/s each, stored", "records/s"] > 0
    for process in ("producer", "store", "tower"):
        assert values[f"3 producers, idle, each {process}", "% of a core"] >= 0
        assert values[f"3 producers, idle, each {process}", "MiB"] > 1
    assert values["3 producers, idle, each store", "descriptors"] > 10
    assert dafka.processes() == {}


def test_an_interrupt_leaves_no_process_and_no_folder(dafka: Dafka, tmp_path: Path) -> None:
    running: Running = dafka.start("bench", "produce", *OURS)
    wait_for(
        lambda: any("dafka_bench.run_client" in line for line in dafka.processes().values()) or None,
        lambda: running.errors,
    )
    assert running.end(signal.SIGINT).status == 130
    assert dafka.processes() == {}
    assert list(tmp_path.glob("dafka-bench-*")) == []


def test_a_failing_system_is_reported(dafka: Dafka, tmp_path: Path) -> None:
    for name in ("dafka_towerd", "dafka_stored", "dafka_perf_store", "dafka_perf_consumer", "libdafka.so"):
        (tmp_path / name).write_text("#!/bin/sh\necho no towers today >&2\n")
        (tmp_path / name).chmod(0o755)
    command = ("bench", "start", "--system", "c", "--c-tools", str(tmp_path), "--rounds", "1")
    ended = dafka.run(*command)
    assert (ended.status, ended.errors) == (
        1,
        "failed in round 1: start, C libdafka: dafka_towerd ended early: no towers today\n",
    )


def results_of(values: dict[str, list[float]], unit: str, failures: tuple[Failure, ...] = ()) -> Results:
    samples = [
        Sample("swim", system, number, Measurement("far <out>", unit, value, 7))
        for system, found in values.items()
        for number, value in enumerate(found, 1)
    ]
    return Results({}, {}, list(values), next(iter(values)), {"boat": "it leaks"}, samples, failures)


def test_ratios_are_computed_within_each_round() -> None:
    ours, theirs = results_of({"ours": [10, 100, 1000], "theirs": [5, 25, 1000]}, "records/s").rows()
    assert (ours.value.median, ours.value.low, ours.value.high) == (100, 10, 1000)
    assert theirs.ratio is not None
    assert (theirs.ratio.median, theirs.ratio.low, theirs.ratio.high) == (0.5, 0.25, 1.0)


def test_a_round_that_the_base_failed_has_no_ratio() -> None:
    results = results_of({"ours": [], "theirs": [5]}, "ms", (Failure("swim", "ours", 1, "cold"),))
    (theirs,) = results.rows()
    assert theirs.ratio is None
    assert list(notes(results)) == ["left out: boat: it leaks", "failed in round 1: swim, ours: cold"]
    assert json.loads(to_json(results))["summary"][0]["ratio"] is None


def test_reports_note_units_for_which_lower_is_better() -> None:
    results = results_of({"ours": [3], "theirs": [6]}, "ms")
    console = Console(width=100)
    with console.capture() as captured:
        console.print(to_table(results))
    assert "swim: far <out> [ms, lower is better]" in captured.get()
    texts = [element.text for element in ElementTree.fromstring(to_svg(results)).iter() if element.text]
    assert "swim: far <out> (ms, lower is better)" in texts
    assert "6.00  (2.00 of base)" in texts


def test_a_plot_names_the_systems_the_settings_the_machine_and_the_date() -> None:
    settings = {"jobs": ["swim"], "records": 5000, "nodes": {"producers": (10, 1000)}}
    results = attrs.evolve(
        results_of({"ours": [3], "theirs": [6]}, "ms"),
        settings=settings,
        machine={"processors": 2, "memory_mib": 4096},
        date="2026-01-02 03:04 UTC",
    )
    texts = [element.text for element in ElementTree.fromstring(to_svg(results)).iter() if element.text]
    assert "Benchmark of ours and theirs" in texts
    assert "2026-01-02 03:04 UTC: jobs swim; records 5,000; producers 10, 1,000" in texts
    assert "machine: processors 2; memory mib 4,096" in texts


def test_percentiles_are_measured_values() -> None:
    assert percentiles(range(1000), [0.5, 0.99, 0.999]) == [500, 990, 999]
    assert percentiles([4], [0.5, 0.999]) == [4, 4]


@pytest.mark.parametrize("size", [10, 100, 2**20])
def test_contents_hold_their_sequence_and_have_the_requested_size(size: int) -> None:
    contents = Task(records=12, size=size).make_contents(10, 5)
    assert [parse_sequence(content) for content in contents] == [10, 11]
    assert {len(content) for content in contents} == {size}


def test_contents_sent_at_a_rate_hold_their_time() -> None:
    (content,) = Task(records=5).make_timestamped_contents(4, 3, 123456789)
    assert (parse_sequence(content), parse_timestamp(content), len(content)) == (4, 123456789, 100)


def test_a_pace_returns_every_record_once() -> None:
    pace = Pace(Task(records=1000, rate=1_000_000))
    given: list[bytes] = []
    while not pace.is_over:
        given += pace.take_due()
    assert [parse_sequence(content) for content in given] == list(range(1000))


@pytest.mark.parametrize("wrong", [1, 3])
def test_a_missing_or_repeated_record_is_an_error(wrong: int) -> None:
    task = Task(records=10)
    received = ReceivedRecords(task, 0)
    received.add_contents(task.make_contents(0, 2))
    with pytest.raises(ValueError, match=rf"expected record 2, not {wrong}"):
        received.add_contents(task.make_contents(wrong, 2))


def test_a_task_is_the_same_after_json() -> None:
    task = Task(records=3, rate=5, settings={"sub": "tcp://127.0.0.1:1"})
    assert Task.from_json(task.to_json()) == task
