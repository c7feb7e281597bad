"""Text that peers choose is escaped wherever the command prints it: it neither ends a line nor moves the cursor."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import click
import pytest
import trio
from click.testing import CliRunner

from dafka.cli import main
from dafka.cli.status_output import BrokerView, Shown, print_survey
from dafka.cli.terminal import UsageMistake, print_table, report_error
from dafka.operations import SentenceFormatter
from dafka.operations.http import Answer, open_server
from dafka.protocol import ClusterSurvey, NodeView, PartitionView
from dafka.protocol.observer.cluster_survey import HolderView, NodeState, TopicView
from dafka.records import Partition

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
