"""The log lines, errors and tables of commands: what is left out, what is added, and in which form."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator

import click
import pytest
import trio
from click.testing import CliRunner
from rich.logging import RichHandler

from dafka.cli import main, terminal
from dafka.cli.status_output import BrokerView, Shown, print_survey
from dafka.cli.storage import common
from dafka.cli.terminal import (
    COMMAND_LOG,
    UsageMistake,
    log_silent_towers,
    print_table,
    report,
    report_error,
    start_logging,
)
from dafka.config import LogConfig
from dafka.config.settings import LogFormat, LogLevel
from dafka.operations import SentenceFormatter
from dafka.operations.http import Answer, open_server
from dafka.protocol import ClusterSurvey, LoopbackOnly, NodeView, PartitionView, TowersHeard, TowersSilent
from dafka.protocol.observer.cluster_survey import HolderView, NodeState, TopicView
from dafka.records import Partition
from dafka.roles.logging_events import Interrupted
from dafka.text import counted
from tests.cli.programs import NotingBar

SILENT = TowersSilent(5.0, ("tcp://10.0.0.1:5557",))
EXPOSED = LoopbackOnly("tcp://127.0.0.1:1", "tcp://10.0.0.1:5557")


@pytest.fixture(autouse=True)
def former_level(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore the level of the root logger, and forget what an earlier test has configured."""
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(terminal, "_handlers", [])
    monkeypatch.setattr(terminal, "_formats", [])
    level = root.level
    yield
    root.setLevel(level)


def start(level: LogLevel, form: LogFormat = "text") -> None:
    """Start logging as a command does: pytest adds handlers of its own to the root logger before each test."""
    if not terminal._handlers:
        logging.getLogger().handlers.clear()
    start_logging(LogConfig(level=level, format=form))


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.partition(" ")[2].partition(" ")[2] for line in capsys.readouterr().err.splitlines()]


def test_lines_below_the_level_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("library")
    cases: tuple[tuple[LogLevel, list[str]], ...] = (
        ("info", ["INFO", "WARNING", "ERROR"]),
        ("warning", ["WARNING", "ERROR"]),
    )
    for level, expected in cases:
        start(level)
        logger.debug("one")
        logger.info("two")
        logger.warning("%s", "three")
        logger.error("four %s %s", 1, 2)
        found = [line.split(maxsplit=2) for line in lines(capsys)]
        assert [words[0] for words in found] == expected
        assert [words[1] for words in found] == ["library:"] * len(expected)
        assert found[-1][2] == "four 1 2"


def test_a_line_of_a_library_may_have_named_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    start("warning")
    logging.getLogger("library").warning("%(count)d of %(total)d", {"count": 1, "total": 2})
    assert lines(capsys) == ["WARNING library: 1 of 2"]


def test_the_silence_of_towers_is_logged_after_one_was_heard(capsys: pytest.CaptureFixture[str]) -> None:
    """Before, it ends the command with an error that says the same."""
    start("warning")
    COMMAND_LOG.write(SILENT, logging.WARNING)
    COMMAND_LOG.write(TowersHeard())
    assert lines(capsys) == []
    COMMAND_LOG.write(SILENT, logging.WARNING)
    line = f"WARNING dafka.command: {SILENT}; start one with `dafka tower`, or name another with --tower"
    assert lines(capsys) == [line]
    start("warning")
    log_silent_towers()
    COMMAND_LOG.write(SILENT, logging.WARNING)
    assert lines(capsys) == [line]


def test_a_line_ends_with_advice_if_there_is_any(capsys: pytest.CaptureFixture[str]) -> None:
    start("info")
    COMMAND_LOG.write(EXPOSED)
    COMMAND_LOG.write(TowersHeard())
    assert lines(capsys) == [
        f"INFO dafka.command: {EXPOSED}; to listen on all network interfaces, use --bind 'tcp://*:*'",
        "INFO dafka.command: Tower heard",
    ]


def test_errors_and_reports_have_the_form_of_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    report_error("before logging")
    start("error")
    report_error("no tower")
    report(Interrupted(3, 2))
    sentence = str(Interrupted(3, 2))
    assert capsys.readouterr() == ("", f"Error: before logging\nError: no tower\n{sentence}\n")
    start("warning", "json")
    report_error("no tower")
    report(Interrupted(3, 2))
    failed, interrupted = map(json.loads, capsys.readouterr().err.splitlines())
    assert (failed["event"], failed["level"], failed["reason"]) == ("failed", "error", "no tower")
    assert (interrupted["event"], interrupted["level"]) == ("interrupted", "warning")
    start("warning")
    report_error("in sentences again")
    assert capsys.readouterr().err == "Error: in sentences again\n"


def test_a_command_without_standard_output_prints_no_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", None)
        print_table(("name",), (), [("a",)])
        assert not terminal.output_has_colour()
    assert capsys.readouterr() == ("", "")


def test_a_table_without_a_terminal_has_a_line_for_each_row(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(
        ("topic", "partition"), ("head", "lag"), [("orders", "A", "9", "1000"), ("\x1b", "BCDEFGHIJK", "10", "-")]
    )
    assert capsys.readouterr().out.splitlines() == [
        "topic   partition   head   lag",
        "orders  A              9  1000",
        "\\x1b    BCDEFGHIJK    10     -",
    ]


def test_nouns_follow_their_number() -> None:
    assert [counted(number, "record") for number in (0, 1, 2, 1000)] == [
        "0 records",
        "1 record",
        "2 records",
        "1,000 records",
    ]


def test_colours_are_for_terminals_whose_user_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert not terminal.output_has_colour()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert terminal.output_has_colour()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not terminal.output_has_colour()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_table_on_a_terminal_has_all_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("orders", "2026-01-01T00:00:05", "10"), ("bills", "2026-01-01T00:00:06", "7")]
    for columns, is_split in (("139", True), ("140", False)):
        output = Terminal()
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stdout", output)
            patched.setenv("COLUMNS", columns)
            patched.setenv("TERM", "xterm")
            patched.delenv("NO_COLOR", raising=False)
            print_table(("topic",), ("stored", "records"), rows, ("", "red"))
        coloured = [line for line in output.getvalue().splitlines() if "\x1b[31m" in line]
        assert ["bills" in coloured[0], "orders" in "".join(coloured)] == [True, False]
        found = [line.split() for line in click.unstyle(output.getvalue()).splitlines()]
        assert found[0] == ["topic", "stored", "records"]
        assert found[1] == (["orders", "2026-01-01T", "10"] if is_split else ["orders", "2026-01-01T00:00:05", "10"])


def test_log_lines_and_progress_share_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "error_is_terminal", lambda: True)
    start("warning")
    (handler,) = terminal._handlers
    bar = terminal.make_progress_bar()
    assert isinstance(handler, RichHandler)
    assert handler.console is bar.console is terminal.error_console()
    assert bar.console.stderr
    assert not bar.live.auto_refresh, "a thread would draw it over the lines"


def test_the_bar_is_refreshed_ten_times_a_second_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    bar, now = NotingBar(), 100.0
    monkeypatch.setattr(common, "error_is_terminal", lambda: True)
    monkeypatch.setattr(common, "make_progress_bar", lambda: bar)
    monkeypatch.setattr(common.time, "perf_counter", lambda: now)  # type: ignore[attr-defined]
    meter = common.Meter()
    assert meter.done == 0
    with meter:
        for done, seconds in ((100, 0.05), (1000, 0.2), (2000, 0.05), (3000, 0.2), (4000, 0.01)):
            now += seconds
            meter(done, 4000)
            assert meter.done == done
    assert [done for done, _ in bar.shown] == [100, 1000, 3000, 4000, -1]
    assert bar.shown[:2] == [(100, "100 records, 1,000/s"), (1000, "1,000 records, 4,000/s")]
    meter(5000, None)
    assert (meter.done, bar.shown[-1]) == (5000, (-1, "closed"))


# Text that peers choose is escaped wherever the command prints it: it neither ends a line nor moves the cursor

BEYOND_ASCII = "\x80\x85\x9b\u200b\u200e\u202e\u2028\u2029\u2066\ufeff\udc80\udcff\U000e0041"
HOSTILE = "".join(map(chr, [*range(32), 127])) + BEYOND_ASCII
"""Characters that end lines, move cursors, turn text around or are no text."""


def check(text: str, lines: int) -> None:
    """Check that a text has a number of lines, all of whose characters are visible."""
    found = text.removesuffix("\n").split("\n")
    assert len(found) == lines
    assert all(line.isprintable() for line in found), [line for line in found if not line.isprintable()]


def names() -> Iterator[str]:
    """Yield names with each hostile character, and one with all of them."""
    yield from (f"a{each}b" for each in HOSTILE)
    yield HOSTILE


def test_tables_errors_and_log_lines(capsys: pytest.CaptureFixture[str]) -> None:
    formatter = SentenceFormatter("%(name)s: %(message)s")
    for name in names():
        print_table(("topic", "partition"), ("records",), [(name, name, name), ("a", "b", "1")])
        header, *rows = capsys.readouterr().out.split("\n")
        assert header.startswith("topic")
        check("\n".join(rows[-3:]), 2)
        report_error(f"the broker refuses: {name}")
        check(capsys.readouterr().err, 1)
        record = logging.LogRecord("dafka.store", logging.WARNING, "", 0, "%s said %s", (name, name), None)
        check(formatter.format(record), 1)


def test_mistakes_that_repeat_what_a_broker_said() -> None:
    @click.command()
    @click.argument("text")
    def fail(text: str) -> None:
        raise UsageMistake(f"the broker refuses: {text}")

    for name in names():
        result = CliRunner().invoke(fail, ["--", name])
        assert result.exit_code == 2
        check(result.stderr, 1)


def test_a_survey_of_hostile_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    for name in names():
        partition = Partition(name, name)
        node = NodeView(name, name, (name,), NodeState.UP, 0.0, 0.0, (), has_answered=True)
        holder = HolderView(name, 7, 3)
        partitions = (PartitionView(partition, True, 10, (holder,)),)
        survey = ClusterSurvey(5.0, (), (node,), (TopicView(name, 1, True),), partitions, (name,))
        broker = BrokerView(number=1, address=name, is_alive=True, is_draining=False, under_replicated_logs=0)
        for faults in ([f"node {name}"], None):
            print_survey(survey, faults, Shown(is_all=True, has_partitions=True), [broker])
            output = capsys.readouterr().out
            check(output, output.count("\n"))
            assert output.count("\n") < 30


async def test_the_answer_of_a_hostile_server_to_the_health_command() -> None:
    answer = Answer(503, HOSTILE.encode("utf-8", "surrogatepass"))
    async with open_server("0", {"/readyz": lambda _: answer}) as url:
        arguments = ["health", url.removeprefix("http://")]
        result = await trio.to_thread.run_sync(CliRunner().invoke, main, arguments)
    assert result.exit_code == 1
    check(result.stdout, 1)
