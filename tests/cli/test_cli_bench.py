from __future__ import annotations

import json
import signal
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from rich.console import Console

from dafka.bench.client import Pace, ReceivedRecords, Task, parse_sequence, parse_timestamp
from dafka.bench.jobs import JOBS
from dafka.bench.report import notes, to_json, to_svg, to_table
from dafka.bench.results import Failure, Measurement, Results, Sample, percentiles
from dafka.bench.systems import Libdafka
from dafka.cli import main
from tests.cli.harness import Dafka, Running, wait_until

OURS = ("--system", "dafka", "--storage", "memory", "--wire", "libdafka", "--accelerator", "off", "--rounds", "1")
NAME = "dafka memory libdafka pure"


def test_two_jobs_give_a_table_json_and_a_plot(dafka: Dafka, tmp_path: Path) -> None:
    written, drawn = tmp_path / "out.json", tmp_path / "out.svg"
    files = ("--json", str(written), "--plot", str(drawn))
    ended = dafka.run("bench", "produce", "catch-up", "--system", "c", *OURS, "--records", "2000", *files)
    assert (ended.status, ended.errors) == (
        0,
        "left out: C libdafka: its tools are not given: name their folder with --c-tools\n",
    )
    table = ended.output.decode()
    assert table.index("produce: acknowledged by 1 store [records/s]") < table.index("catch-up: from a store")
    assert table.count(NAME) == 3  # the title's, and one a figure
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


def test_interrupted_it_leaves_nothing(dafka: Dafka, tmp_path: Path) -> None:
    running: Running = dafka.start("bench", "produce", *OURS)
    wait_until(
        lambda: any("dafka.bench.run_client" in line for line in dafka.processes().values()) or None,
        lambda: running.errors,
    )
    assert running.end(signal.SIGINT).status == 1
    assert dafka.processes() == {}
    assert list(tmp_path.glob("dafka-bench-*")) == []


def test_a_system_that_fails_is_named_and_the_others_go_on(dafka: Dafka, tmp_path: Path) -> None:
    for name in ("dafka_towerd", "dafka_stored", "dafka_perf_store", "dafka_perf_consumer", "libdafka.so"):
        (tmp_path / name).write_text("#!/bin/sh\necho no towers today >&2\n")
        (tmp_path / name).chmod(0o755)
    command = ("bench", "start", "--system", "c", "--system", "raw", "--c-tools", str(tmp_path), "--rounds", "1")
    ended = dafka.run(*command)
    assert (ended.status, ended.errors) == (
        1,
        "failed in round 1: start, C libdafka: dafka_towerd ended early: no towers today\n",
    )
    assert "raw pyzmq" in ended.output.decode()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["swim"], "'swim' is not one of 'produce', 'live'"),
        (["--system", "kafka"], "'kafka' is not one of 'dafka', 'raw', 'c', 'nats', 'redis'"),
        (["--rounds", "0"], "0 is not in the range x>=1"),
        (["--records", "many"], "'many' is not a valid integer"),
        (["--folder", "/no/such/folder"], "Directory '/no/such/folder' does not exist"),
        (["--json", "/no/such/folder/out.json"], "Error: cannot write /no/such/folder/out.json: there is no folder"),
        (["--plot", "/"], "File '/' is a directory"),
        (["--base", "tea", *OURS], f"Error: --base: expected one of '{NAME}', not 'tea'\n"),
    ],
)
def test_wrong_arguments_are_refused_with_what_is_right(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, ["bench", *arguments])
    assert result.exit_code == 2
    assert message in result.stderr


def test_alone_a_system_that_is_missing_is_an_error() -> None:
    result = CliRunner().invoke(main, ["bench", "--system", "c"])
    assert result.exit_code == 1
    assert result.stderr == (
        "Error: none of the systems can run: C libdafka: its tools are not given: name their folder with --c-tools\n"
    )


def test_a_folder_without_the_tools_is_named(tmp_path: Path) -> None:
    assert Libdafka(tmp_path).missing() == f"there is no dafka_towerd in {tmp_path}"


def test_help_names_every_job() -> None:
    result = CliRunner().invoke(main, ["bench", "--help"])
    words = result.output.replace(",", " ").replace(".", " ").split()
    assert [name for name in JOBS if name not in words] == []


def results_of(values: dict[str, list[float]], unit: str, failures: tuple[Failure, ...] = ()) -> Results:
    samples = [
        Sample("swim", system, number, Measurement("far <out>", unit, value, 7))
        for system, found in values.items()
        for number, value in enumerate(found, 1)
    ]
    return Results({}, {}, list(values), next(iter(values)), {"boat": "it leaks"}, samples, failures)


def test_ratios_are_taken_round_by_round() -> None:
    ours, theirs = results_of({"ours": [10, 100, 1000], "theirs": [5, 25, 1000]}, "records/s").rows()
    assert (ours.value.median, ours.value.low, ours.value.high) == (100, 10, 1000)
    assert theirs.ratio is not None
    assert (theirs.ratio.median, theirs.ratio.low, theirs.ratio.high) == (0.5, 0.25, 1.0)


def test_a_round_that_the_base_did_not_finish_has_no_ratio() -> None:
    results = results_of({"ours": [], "theirs": [5]}, "ms", (Failure("swim", "ours", 1, "cold"),))
    (theirs,) = results.rows()
    assert theirs.ratio is None
    assert list(notes(results)) == ["left out: boat: it leaks", "failed in round 1: swim, ours: cold"]
    assert json.loads(to_json(results))["summary"][0]["ratio"] is None


def test_where_less_is_better_the_reports_say_so() -> None:
    results = results_of({"ours": [3], "theirs": [6]}, "ms")
    console = Console(width=100)
    with console.capture() as captured:
        console.print(to_table(results))
    assert "swim: far <out> [ms, less is better]" in captured.get()
    texts = [element.text for element in ElementTree.fromstring(to_svg(results)).iter() if element.text]
    assert "swim: far <out> (ms, less is better)" in texts
    assert "6.00  (2.00 of base)" in texts


def test_percentiles_are_values_that_were_there() -> None:
    assert percentiles(range(1000), [0.5, 0.99, 0.999]) == [500, 990, 999]
    assert percentiles([4], [0.5, 0.999]) == [4, 4]


@pytest.mark.parametrize("size", [10, 100, 2**20])
def test_contents_tell_their_sequence_and_have_their_size(size: int) -> None:
    contents = Task(records=12, size=size).contents(10, 5)
    assert [parse_sequence(content) for content in contents] == [10, 11]
    assert {len(content) for content in contents} == {size}


def test_paced_contents_tell_when_they_were_made() -> None:
    (content,) = Task(records=5).stamped_contents(4, 3, 123456789)
    assert (parse_sequence(content), parse_timestamp(content), len(content)) == (4, 123456789, 100)


def test_a_pace_gives_every_record_once() -> None:
    pace = Pace(Task(records=1000, rate=1_000_000))
    given: list[bytes] = []
    while not pace.is_over:
        given += pace.due()
    assert [parse_sequence(content) for content in given] == list(range(1000))


@pytest.mark.parametrize("wrong", [1, 3])
def test_a_missing_or_doubled_record_is_noticed(wrong: int) -> None:
    task = Task(records=10)
    received = ReceivedRecords(task, 0)
    received.take(task.contents(0, 2))
    with pytest.raises(ValueError, match=rf"record 2 was expected, and {wrong} came"):
        received.take(task.contents(wrong, 2))


def test_a_task_survives_its_way_to_a_process() -> None:
    task = Task(records=3, rate=5, settings={"sub": "tcp://127.0.0.1:1"})
    assert Task.from_json(task.to_json()) == task
