"""The command `dafka-conformance`: what it prints, writes and returns, and that it leaves nothing running."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from dafka_conformance.cli import main
from dafka_conformance.grammar import GRAMMAR_PATH
from tests.conformance.sample_targets import ATTACHED, DEAF

pytestmark = pytest.mark.usefixtures("restored_globals")

DEADLINE_S = 60.0
FACTORY = """
from dafka_conformance.targets.embedded import EmbeddedTarget

class Named(EmbeddedTarget):
    def __init__(self, name):
        self.name = name
"""


def command(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def mistake(*arguments: str) -> str:
    """Return the sentence on standard error, and check that there is no other output."""
    result = command(*arguments)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith("dafka-conformance: "), line
    return line.removeprefix("dafka-conformance: ")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with target files, and return it."""
    for name, text in {"deaf.toml": DEAF, "attached.toml": ATTACHED, "factories.py": FACTORY}.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


# run


def test_target_that_conforms() -> None:
    options = ("--role", "store", "--dialect", "libdafka", "--dialect", "libdafka")
    result = command("run", "embedded", "--scenario", "*.grammar.publish.01", "--scenario", "store.ack*ges", *options)
    assert result.exit_code == 0, result.output
    assert re.search(r"ack\.sent +SHALL +✓ conforms", result.stdout)
    assert "role producer: not selected" in result.stdout
    assert "rfc46" not in result.stdout.splitlines()[1]
    assert re.search(r"0 violated, \d+ not tested; 1 scenario in ", result.stdout.splitlines()[-1])


def test_target_that_violates_a_clause_with_a_report_of_each_kind(folder: Path) -> None:
    names = ("out.html", "out.json", "out.xml")
    options = [part for name in names for part in ("--report", name)]
    result = command("run", "deaf.toml", "--scenario", "store.acknowledges", "--patience", "0.1", *options)
    assert result.exit_code == 1
    assert "no beacon of the store arrived within 0.8 s" in result.stdout
    assert re.search(r"beacon\.interval +SHALL +✗ violates", result.stdout)
    reports = [line for line in result.stdout.splitlines() if line.startswith("report: ")]
    assert reports == [f"report: {name}" for name in names]
    assert "no beacon of the store arrived" in (folder / "out.html").read_text("utf-8")
    assert json.loads((folder / "out.json").read_text("utf-8"))["target"] == "deaf"
    assert ElementTree.parse(folder / "out.xml").getroot().get("failures") == "1"


def test_run_with_only_skipped_scenarios_fails(folder: Path) -> None:
    result = command("run", "attached.toml", "--scenario", "producer.grammar.publish.01")
    assert result.exit_code == 1
    assert result.stderr == "dafka-conformance: nothing was tested because every scenario was skipped\n"
    assert "remote has no way to give it records to publish" in result.stdout


def test_factory_with_its_arguments(folder: Path) -> None:
    options = ("--set", "name=custom", "--scenario", "store.acknowledges", "--dialect", "rfc46")
    result = command("run", "factories:Named", *options)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("custom: clauses by verdict")


# list, show, explain


def test_list_of_scenarios_and_clauses() -> None:
    lines = command("list", "--scenario", "store.ack*ges", "--scenario", "*.grammar.publish.01").stdout.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["store.acknowledges", "producer.grammar.publish.01"]
    assert lines[0].endswith("  A store acknowledges a saved record to its producer, by the record's offset.")
    roles = {line.partition(".")[0] for line in command("list", "--role", "consumer").stdout.splitlines()}
    assert roles == {"consumer"}
    clauses = command("list", "--clauses", "--role", "store", "--dialect", "libdafka").stdout.splitlines()
    listed = {line.split("  ")[0] for line in clauses}
    assert {"ack.sent", "ack.address", "head.interval"} & listed == {"ack.sent"}, "of rfc46 only, and a producer's"


def test_scenarios_and_clauses_are_explained() -> None:
    cases: list[tuple[str, list[str]]] = [
        (
            "show store.acknowledges",
            ["    when P:RECORD 0..9\n    then S:ACK 9\n", "    ack.sent: A store that has saved a producer's record"],
        ),
        (
            "show producer.grammar.publish.01",
            ["    then P:RECORD\n", "needs a producer and a way to\n    give it records to publish\n"],
        ),
        (
            "explain ack.sent",
            ["ack.sent (SHALL; RFC 46, The ACK Command; store)\n", "\ntested by\n", "    store.acknowledges\n"],
        ),
        (
            "explain ack.address",
            [
                "reading store (the suite tests this reading): The address of the store that sends it.",
                "reading partition: The address of the producer.",
                "see docs/reference/errata.md, number 7",
                "applies to rfc46 only",
                "checked in every scenario, for every message that it concerns",
            ],
        ),
        ("explain topic.ascii", ["not tested: It applies to the users who choose the names, not to nodes."]),
    ]
    for arguments, parts in cases:
        text = command(*arguments.split()).stdout
        assert [part for part in parts if part not in text] == []
        assert ("tested by" in text) == (arguments == "explain ack.sent")


# Mistakes


def test_usage_error_is_one_sentence(folder: Path) -> None:
    for arguments, sentence in [
        ("frob", "No such command 'frob'."),
        ("run", "Missing argument 'TARGET'."),
        ("run nosuch", "unknown target 'nosuch': expected dafka, embedded, libdafka, the path of a .toml file, or a"),
        ("run libdafka --set bin", "--set: expected NAME=VALUE, not 'bin'"),
        ("run libdafka --set =x", "--set: expected NAME=VALUE, not '=x'"),
        ("run libdafka --set bin=a --set bin=b", "--set sets bin twice: expected it once"),
        ("run embedded --scenario store.ack* --scenario x", "no scenario matches 'x'; run dafka-conformance list to"),
        ("run embedded --role consumer --scenario store.ack*", "no scenario for a consumer in rfc46 or libdafka match"),
        ("run embedded --role king", "Invalid value for '--role': 'king' is not one of 'tower', 'producer', "),
        ("run embedded --dialect welsh", "Invalid value for '--dialect': 'welsh' is not one of 'rfc46', 'libdafka'"),
        ("run deaf.toml --dialect libdafka", "deaf cannot send the dialect libdafka: expected rfc46"),
        ("run deaf.toml --role tower --role consumer", "deaf has no tower and no consumer: it has a store"),
        ("run embedded --report no/out.xml", "cannot write a report to no/out.xml: the folder no does not exist"),
        ("run embedded --patience 0", "Invalid value for '--patience': 0.0 is not in the range"),
        ("run embedded --patience nan", "Invalid value for '--patience': expected a number, not nan"),
        ("run embedded --jobs 0", "Invalid value for '--jobs': 0 is not in the range"),
        ("run embedded --grammar nosuch.abnf", "cannot read the grammar nosuch.abnf"),
        ("list --scenario nosuch", "no scenario matches 'nosuch'"),
        ("list --role consumer --scenario store.ack*", "no scenario for a consumer in rfc46 or libdafka matches 'st"),
        ("list --clauses --scenario store.*", "--scenario cannot be used with --clauses: remove one of them"),
        ("show store.nosuch", "there is no scenario store.nosuch; run dafka-conformance list to see all scenarios"),
        ("explain ack.snt", "there is no clause 'ack.snt'; did you mean ack.sent"),
        ("explain zzz", "there is no clause 'zzz'; "),
    ]:
        assert mistake(*arguments.split()).startswith(sentence)


# The grammar


def changed_grammar(path: Path, old: str, new: str) -> Path:
    """Write the grammar with a line replaced."""
    text = GRAMMAR_PATH.read_text("utf-8")
    assert len(re.findall(old, text, re.MULTILINE)) == 1
    path.write_text(re.sub(old, new, text, flags=re.MULTILINE), "utf-8")
    return path


def test_another_grammar_decides_what_is_sent_and_expected(tmp_path: Path) -> None:
    cases: list[tuple[str, str, str, list[str]]] = [
        (
            r"^DAFKA .*",
            "DAFKA = join-consumer / publish / offsets / twice\ntwice = P:RECORD P:RECORD",
            "producer.grammar.twice.01",
            ["; 1 scenario in "],
        ),
        (
            r"^sequence .*",
            "sequence = number-4",
            "producer.grammar.publish.01",
            ["RECORD: 4 bytes are left over after sequence: 00 00 00 00", "✗ violates"],
        ),
        (
            r"^publish .*",
            "PING = signature %d'Z' version address\npublish = P:PING",
            "producer.grammar.publish.01",
            ["A producer takes its part in the sentence P:PING", "no PING arrived"],
        ),
    ]
    for old, new, scenario, parts in cases:
        path = changed_grammar(tmp_path / "other.abnf", old, new)
        options = ("--dialect", "rfc46", "--scenario", scenario, "--patience", "0.2")
        result = command("run", "embedded", "--grammar", str(path), *options)
        assert [part for part in parts if part not in result.output] == [], result.output
        assert result.exit_code == int("✗" in result.output)


def test_wrong_grammar_is_one_sentence(tmp_path: Path) -> None:
    for old, new, sentence in [
        (r"^DAFKA .*", "DAFKA = = publish", "bad.abnf is not ABNF"),
        (r"^DAFKA .*", "", "the grammar has no rule DAFKA"),
        (r"^RECORD .*", "RECORD = frame", "bad.abnf has no rule for the message RECORD, which scenarios send"),
        (r"^GET-HEADS .*", "GET-HEADS = signature %d'G' version", "bad.abnf: the rule for GET-HEADS has other fields"),
    ]:
        path = changed_grammar(tmp_path / "bad.abnf", old, new)
        assert mistake("list", "--grammar", str(path)).replace(f"{tmp_path}/", "").startswith(sentence)


# Signals


def marked(mark: str) -> set[int]:
    """Return the processes with this text in their environment."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (path / "environ").read_bytes() and "Z" not in (path / "stat").read_text().split()[2]:
                found.add(int(path.name))
        except OSError:
            continue
    return found


def wait_for(mark: str, count: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while len(marked(mark)) < count:
        assert time.monotonic() < deadline, f"there are {len(marked(mark))} processes, expected {count}"
        time.sleep(0.01)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize(
    "number", [signal.SIGINT, *(pytest.param(each, marks=pytest.mark.long) for each in (signal.SIGTERM, signal.SIGHUP))]
)
def test_signal_ends_a_run_with_its_report_and_leaves_nothing_running(number: signal.Signals, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    mark = f"DAFKA_CONFORMANCE_TEST={uuid.uuid4()}"
    name, value = mark.split("=")
    # Ignored interrupts are inherited, for example from a background shell.
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from dafka_conformance.cli import main; main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, "run", "dafka", "--scenario", "*.grammar.*", "--jobs", "2", "--report", report],
        env={**os.environ, name: value},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for(mark, 3)  # the command, and a target for each job
        process.send_signal(number)
        _, errors = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, errors) == (
            128 + number,
            f"dafka-conformance: ended by {number.name}; the results so far are above\n",
        )
        assert json.loads(report.read_text())["is_complete"] is False
        assert marked(mark) == set()
    finally:
        process.kill()
        process.wait()
        for pid in marked(mark):
            os.kill(pid, signal.SIGKILL)
