from __future__ import annotations

import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import attrs
import pytest
from rich.console import Console

from dafka_conformance.clauses import Clauses
from dafka_conformance.model import Check, Dialect, Event, Kind, Outcome, Role, Run, ScenarioResult
from dafka_conformance.report import ReportError, check_report_path, to_html, to_json, to_junit, write_report
from dafka_conformance.report import json as json_report
from dafka_conformance.report.findings import faults, group_failures
from dafka_conformance.report.svg_chart import FIELDS_LETTERS_MAX, LANES_MAX, draw_chart
from dafka_conformance.report.terminal import Progress, print_result, summary
from dafka_conformance.report.text_chart import Omitted, select_events, text_chart
from dafka_conformance.verdicts import judge_clauses
from tests.conformance.sample_runs import (
    ACK_FAULT,
    ACK_SENT,
    FETCH_TOPIC,
    HEAD_REGULAR,
    HELLO_ANSWERED,
    exchange,
    failed,
    message,
    mixed_run,
    result,
    run_of,
)

HOSTILE = "<script>alert(1)</script>\x1b[2J\x00\"'&\udc80"
ESCAPED = "&lt;script&gt;alert(1)&lt;/script&gt;\\x1b[2J\\x00&#34;&#39;&amp;\\udc80"


def hostile_run() -> Run:
    """Return a run with hostile text in everything that comes from the target."""
    event = message(0.5, "S", "P", "ACK", subject=HOSTILE, fault_field="subject")
    event = attrs.evolve(event, sender=HOSTILE, label=HOSTILE, frames=(HOSTILE,))
    check = Check(ACK_SENT.id, False, HOSTILE, event=0)
    broken = result(HOSTILE, HEAD_REGULAR, title=HOSTILE, outcome=Outcome.BROKEN, checks=(), reason=HOSTILE)
    skipped = result("skipped", HEAD_REGULAR, outcome=Outcome.SKIPPED, checks=(), reason=HOSTILE)
    read = result("read", FETCH_TOPIC, checks=(Check(FETCH_TOPIC.id, True, reading=HOSTILE),))
    results = (failed(HOSTILE, checks=(check,), trace=(event,)), broken, skipped, read)
    return run_of(*results, missing_roles={Role.TOWER: HOSTILE}, target=HOSTILE)


# charts in text


def test_chart_marks_the_fault_and_names_the_field() -> None:
    trace = exchange()
    assert text_chart(trace, {5: ACK_FAULT}, width=70) == [
        "  0.000  S ╌╌▷ P      subscribe command=RECORD",
        "  0.001  S ··▶ tower  beacon port=4711",
        "  0.010  P ──▶ S      RECORD address=P subject=orders sequence=1 cont…",
        "  0.020  P ──▶ S      RECORD address=P subject=orders sequence=2 cont…",
        "  0.030  P ──▶ S      RECORD address=P subject=orders sequence=3 cont…",
        "✗ 0.060  S ──▶ P      ACK address=S sequence=9",
        "         ✗ sequence=9: the ACK names record 9, but record 5 is the",
        "           last one that was sent",
    ]


def test_chart_counts_similar_messages_and_shows_notes() -> None:
    trace = [message(1.0, "P", "S", "RECORD", count=10), Event(12.5, "", "", Kind.NOTE, "the store is killed")]
    assert text_chart(trace, {}) == [
        "   1.000  P ──▶ S  RECORD \N{MULTIPLICATION SIGN}10",
        "  12.500  ·        the store is killed",
    ]


def test_long_chart_shows_its_ends_and_the_events_around_the_fault() -> None:
    lines = text_chart(
        [message(n / 1000, "P", "S", "RECORD", n=str(n)) for n in range(1000)], {600: "wrong"}, events_max=12
    )
    numbers = [line.split("n=")[-1] if "n=" in line else line.strip() for line in lines]
    assert numbers[numbers.index("600") + 1] == "✗ wrong"
    shown = [int(number) for number in numbers if number.isdigit()]
    assert shown == [0, 1, 2, 3, 597, 598, 599, 600, 601, 997, 998, 999]
    left_out = sum(int(re.findall(r"… (\d+) more", line)[0]) for line in lines if "…" in line)
    assert left_out == 1000 - 12


def test_omitted_events_count_faults_and_are_never_a_single_event() -> None:
    shown = select_events(100, dict.fromkeys(range(50, 90), "wrong"), 10)
    assert sum(item.faulty for item in shown if isinstance(item, Omitted)) == 30
    for length in range(1, 40):
        for events_max in range(1, 12):
            selection = select_events(length, {length // 2: ""}, events_max)
            gaps = [item.count for item in selection if isinstance(item, Omitted)]
            assert 1 not in gaps
            assert sum(gaps) + len(selection) - len(gaps) == length
            assert length // 2 in selection


def test_chart_lines_have_no_excess_width_or_control_characters() -> None:
    lines = text_chart(hostile_run().results[0].trace, {0: HOSTILE * 5}, width=60)
    assert all(len(line) <= 60 and line.isprintable() for line in lines)


def test_faults_come_from_checks_and_from_events() -> None:
    trace = (*exchange(), attrs.evolve(exchange()[0], fault="never asked for"))
    checks = tuple(Check(ACK_SENT.id, False, text, event=event) for text, event in (("a", 5), ("b", 5), ("c", None)))
    found = faults(failed(trace=trace, checks=(*checks, Check(ACK_SENT.id, True, "fine", event=0))))
    assert found == {5: "a; b", 6: "never asked for"}


# terminal


def printed(run: Run, width: int = 120, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    print_result(run, Console(file=stream, width=width))
    stream.flush()
    return raw.getvalue().decode(encoding)


@pytest.mark.parametrize("width", [40, 120])
def test_table_shows_verdicts_without_color_or_wrapping(width: int) -> None:
    lines = [line.rstrip() for line in printed(mixed_run(), width).splitlines()]
    assert "  ack.sent        SHALL     ✗ violates    ✗ violates" in lines
    assert "  fetch.topic     SHALL     ✓ conforms    \N{EN DASH} not tested" in lines
    assert "  hello.answered  SHOULD    ○ does not    \N{EN DASH} not tested" in lines
    assert "  role tower: the target file has no [tower]; untested clauses: tower.repeats" in lines
    assert "  cannot be tested from outside: record.kept" in lines
    assert (
        "  fetch.topic: requestor (rfc46), to the consumer's own address; the suite tests partition (erratum 3)"
        in lines
    )
    assert lines[-1] == (
        "1 clause conforms, 1 violated, 3 not tested, 0 of 1 optional ones followed; "
        "6 scenarios (1 broken, 1 skipped) in 74 s"
    )
    assert not any("\x1b" in line for line in lines)


def test_clauses_that_no_selected_scenario_tests_are_counted_and_not_listed() -> None:
    verdicts = judge_clauses(Clauses.load(), [result("store.acknowledges", ACK_SENT)], [Dialect.RFC46], {})
    lines = printed(Run("sample", 0.0, 1.0, (result("store.acknowledges", ACK_SENT),), verdicts)).splitlines()
    untestable = [verdict.clause.id for verdict in verdicts if verdict.clause.untestable]
    untested = [line.split()[0] for line in lines if line.endswith("not tested")]
    assert untested == [*untestable, "not"]  # the last one is the heading of the list of reasons
    assert f"  no scenario of this run tests it: {len(verdicts) - len(untestable) - 1} clauses" in lines


def test_finding_names_the_reading_that_is_tested_and_the_one_that_is_followed() -> None:
    (clause,) = [each for each in Clauses.load() if each.id == "signature.value"]
    check = Check(clause.id, False, "the signature is AA A0", reading="prose")
    results = (failed(checks=(check,)),)
    text = printed(Run("sample", 0.0, 1.0, results, judge_clauses([clause], results, [Dialect.RFC46], {})))
    tested, followed = (
        f"{name}, \N{LEFT DOUBLE QUOTATION MARK}{clause.readings[name]}\N{RIGHT DOUBLE QUOTATION MARK}"
        for name in ("grammar", "prose")
    )
    assert f"    the suite tests the reading {tested} (erratum 1); the target follows the reading {followed}\n" in text


def test_violation_is_printed_once_with_its_chart_and_its_dialects() -> None:
    text = printed(mixed_run())
    assert text.count(f"    {ACK_FAULT}") == 1
    assert text.count("✗ sequence=9: ") == 1
    assert "✗ store-acks  store, rfc46, libdafka" in text
    assert f"ack.sent (SHALL, The ACK Command): {ACK_SENT.text}" in text
    other = Check(ACK_SENT.id, False, "no ACK came")
    text = printed(run_of(failed(), failed(dialect=Dialect.LIBDAFKA, checks=(other,))))
    assert f"    {ACK_FAULT} (rfc46)" in text
    assert "    no ACK came (libdafka)" in text
    assert text.count("the exchange in ") == 2
    broken = result("dies", ACK_SENT, outcome=Outcome.BROKEN, checks=(), reason="status 1\nlast words")
    assert "    the scenario could not be run: status 1\n      last words\n" in printed(run_of(broken))


def test_optional_clause_is_not_a_violation() -> None:
    checks = (Check(HELLO_ANSWERED.id, False, "no hello came"),)
    text = printed(run_of(result("hello", HELLO_ANSWERED, outcome=Outcome.FAILED, checks=checks)))
    assert "no hello came" not in text
    assert "○ does not" in text
    both = (*failed().checks, *checks)
    assert "no hello came" not in printed(run_of(failed(checks=both), result("hello", HELLO_ANSWERED)))


def test_summary_and_signs() -> None:
    run = run_of(result("ok", ACK_SENT), result("fine", FETCH_TOPIC))
    assert summary(run) == "2 clauses conform, 0 violated, 4 not tested; 2 scenarios in 74 s"
    assert "✗" not in printed(run)
    assert "x violates" in printed(mixed_run(), encoding="ascii")
    assert "P --> S" in printed(mixed_run(), encoding="latin-1")


def test_hostile_text_is_escaped_on_the_terminal() -> None:
    text = printed(hostile_run())
    assert "\\x1b[2J\\x00" in text
    assert all(line.isprintable() for line in text.splitlines())


def test_progress_without_a_terminal_prints_failures_only() -> None:
    stream = io.StringIO()
    results = mixed_run().results
    with Progress(Console(file=stream, width=40), len(results)) as progress:
        for each in results:
            progress.started(each.scenario, each.dialect)
            progress.finished(each)
    assert stream.getvalue().splitlines() == [
        "broken: head-interval (libdafka): it ended with status 1",
        f"failed: store-acks (rfc46): {ACK_FAULT}",
        f"failed: store-acks (libdafka): {ACK_FAULT}",
    ]


def test_progress_on_a_terminal_counts_and_names_running_scenarios() -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=140, force_terminal=True, color_system=None, legacy_windows=False)
    results = (result("[bold]ok", ACK_SENT), failed("acks"), failed("last"))
    with Progress(console, 3) as progress:
        for each in results:
            progress.started(each.scenario, each.dialect)
        for each in results[:2]:
            progress.finished(each)
    shown = [line for line in stream.getvalue().splitlines() if "2/3" in line][-1]
    assert "1 passed, 1 failed" in shown
    assert "last (rfc46)" in shown
    assert "acks" not in shown
    assert stream.getvalue().endswith("\x1b[2K")  # the bar is gone


# the page

VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """Parses a page, and checks that its elements are closed in the right place."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.targets: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.targets += [value or "" for name, value in attrs if name == "href"]
        if tag not in VOID and not (self.get_starttag_text() or "").endswith("/>"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_page_is_well_formed_and_self_contained() -> None:
    text = to_html(mixed_run())
    page = Page(text)
    assert text.startswith("<!DOCTYPE html>")
    assert '<html lang="en-US">' in text
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert "src" not in page.attributes
    assert not re.search(r"https?:|url\(|@import|javascript:", text)
    assert len(page.ids) == len(set(page.ids))
    assert page.targets
    assert {target.removeprefix("#") for target in page.targets} <= set(page.ids)


def test_page_shows_verdicts_and_draws_failures() -> None:
    text = to_html(mixed_run())
    page = Page(text)
    assert "1 clause violated" in page.text
    assert "21 September 2026" in page.text
    assert page.tags.count("svg") == 1
    assert f"✗ sequence=9: {ACK_FAULT[:30]}" in page.text
    assert '<tspan class="wrong">sequence=9</tspan>' in text
    assert re.search(r'<g class="head target">.*?<text x="\d+" y="37">S</text>', text)
    assert exchange()[-1].frames[0] in text
    assert "follows the reading" in page.text
    assert "Left out: 1 clause that no scenario of this run tests." in page.text


def test_hostile_text_is_escaped_on_the_page() -> None:
    text = to_html(hostile_run())
    page = Page(text)
    assert "script" not in page.tags
    assert ESCAPED in text
    assert "\x1b" not in text
    assert "\x00" not in text
    text.encode()


def test_page_lists_passed_scenarios_and_says_that_there_is_no_fault() -> None:
    text = to_html(run_of(*(result(f"scenario-{number}", ACK_SENT) for number in range(9))))
    assert "No clause violated" in Page(text).text
    assert text.count('class="passed"') == 9
    assert "<svg" not in text
    assert "Nothing was tested" in Page(to_html(run_of())).text


def test_page_stays_small_with_many_failures() -> None:
    frames = ("4d" * 40, "aaa54d01" + "30" * 200, "78" * 500)
    trace = tuple(attrs.evolve(event, frames=frames) for event in exchange(200))
    text = to_html(run_of(*(failed(f"scenario-{n}", events=200, trace=trace) for n in range(410))))
    assert len(text.encode()) < 5_000_000
    assert text.count("<svg") == 400
    assert text.count("The chart is omitted") == 10
    assert text.count("✗ sequence=9") == text.count("<svg")


def test_drawn_chart_keeps_the_faulty_field_and_the_target() -> None:
    fields = (*((f"field{n}", "v" * 30) for n in range(10)), ("sequence", "9"))
    crowd = [message(n / 10, f"P{n}", "C", "RECORD") for n in range(30)]
    faulty = attrs.evolve(message(9.0, "S", "P1", "ACK", fault_field="sequence"), fields=fields)
    trace = (*crowd, faulty)
    diagram = draw_chart(failed(trace=trace), {30: "wrong"}, 60)
    shown = diagram.rows[-1].fields
    assert [field.text for field in shown if field.is_faulty] == ["sequence=9"]
    assert len(" ".join(field.text for field in shown)) <= FIELDS_LETTERS_MAX
    assert len(diagram.lanes) <= LANES_MAX
    assert [lane.label for lane in diagram.lanes if lane.is_target] == ["S"]
    assert diagram.rows[-1].fault == ("sequence=9: wrong",)
    assert all(0 < row.x_from < diagram.width for row in diagram.rows)


# JSON and JUnit


def test_json_has_everything_and_the_traces_of_failures() -> None:
    run = mixed_run()
    report = json.loads(to_json(run))
    assert (report["format"], report["target"], report["conforms"]) == (1, "sample", False)
    assert report["summary"]["clauses"]["violates"] == 1
    assert report["missing_roles"] == {"tower": "the target file has no [tower]"}
    clauses = {clause["id"]: clause for clause in report["clauses"]}
    assert len(clauses) == len(report["clauses"]) == 6
    assert clauses["ack.sent"]["verdicts"]["rfc46"] == {
        "verdict": "violates",
        "scenarios": ["store-acks"],
        "reading": "",
        "reason": "",
    }
    assert clauses["fetch.topic"]["erratum"] == 3
    assert clauses["fetch.topic"]["roles"] == ["consumer", "store"]
    assert len(report["scenarios"]) == len(run.results)
    acks = next(each for each in report["scenarios"] if each["scenario"] == "store-acks")
    assert acks["role"] == "store"
    assert acks["checks"][0]["message"] == ACK_FAULT
    event = acks["trace"][acks["checks"][0]["event"]]
    assert event == {
        "at": 0.06,
        "sender": "S",
        "receiver": "P",
        "kind": "message",
        "label": "ACK",
        "fields": [["address", "S"], ["sequence", "9"]],
        "frames": list(exchange()[-1].frames),
        "count": 1,
        "fault": "",
        "fault_field": "sequence",
    }
    assert next(each for each in report["scenarios"] if each["scenario"] == "hello")["trace"] is None


def test_json_of_a_target_with_many_faults_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_report, "TRACE_EVENTS_MAX", 20)
    monkeypatch.setattr(json_report, "EVENTS_MAX", 500)
    many = [failed(f"store-{number}", events=30) for number in range(30)]
    report = json.loads(to_json(run_of(*many, result("hello", HELLO_ANSWERED))))
    traces = [len(each["trace"] or []) for each in report["scenarios"]]
    assert traces == [20] * 25 + [0] * 6
    assert [each["trace_omitted"] for each in report["scenarios"]] == [10] * 25 + [30] * 5 + [0]
    assert report["scenarios"][29]["trace"] is None


def test_json_keeps_hostile_text_unchanged() -> None:
    assert json.loads(to_json(hostile_run()))["target"] == HOSTILE


def test_junit_counts_by_dialect_and_gives_reasons() -> None:
    root = ElementTree.fromstring(to_junit(mixed_run()))
    suites = {suite.get("name"): suite for suite in root}
    counts = {
        name: tuple(suite.get(key) for key in ("tests", "failures", "errors", "skipped"))
        for name, suite in suites.items()
    }
    assert counts == {"rfc46": ("4", "1", "0", "1"), "libdafka": ("2", "1", "1", "0")}
    assert (root.get("tests"), root.get("failures")) == ("6", "2")
    assert {name: len(suite.findall("testcase")) for name, suite in suites.items()} == {"rfc46": 4, "libdafka": 2}
    failure = suites["rfc46"].find("testcase[@name='store-acks']/failure")
    assert failure is not None
    assert failure.get("message") == ACK_FAULT
    assert "✗ sequence=9: " in (failure.text or "")
    case = suites["rfc46"].find("testcase[@name='store-acks']")
    assert case is not None
    assert (case.get("classname"), case.get("time")) == ("store", "0.250")
    assert [each.get("message") for each in root.iter("skipped")] == ["it cannot be fed"]
    assert [each.get("message") for each in root.iter("error")] == ["it ended with status 1"]


def test_junit_leaves_out_characters_that_xml_forbids() -> None:
    root = ElementTree.fromstring(to_junit(hostile_run()).encode())
    assert root.get("name") == "<script>alert(1)</script>[2J\"'&"


# files


def test_suffix_selects_the_format(tmp_path: Path) -> None:
    for name, start in [("a.html", "<!DOCTYPE"), ("a.JSON", "{"), ("a.xml", "<?xml")]:
        check_report_path(tmp_path / name)
        write_report(hostile_run(), tmp_path / name)
        assert (tmp_path / name).read_text(encoding="utf-8").startswith(start)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("report.pdf", "expected a name that ends in .html, .json or .xml"),
        ("report", "expected a name that ends in .html, .json or .xml"),
        ("missing/report.html", "does not exist"),
        ("folder.html", "expected a file, not a folder"),
    ],
)
def test_impossible_report_path_is_one_sentence(tmp_path: Path, name: str, sentence: str) -> None:
    (tmp_path / "folder.html").mkdir()
    for refuse in (check_report_path, lambda path: write_report(mixed_run(), path)):
        with pytest.raises(ReportError, match=re.escape(sentence)):
            refuse(tmp_path / name)


def sentence(number: int, *failing: str) -> ScenarioResult:
    checks = tuple(Check(clause, False, f"wrong in {number}") for clause in failing)
    return ScenarioResult(
        f"store.grammar.publish.{number:02}", "A sentence.", Role.STORE, Dialect.RFC46, failing, Outcome.FAILED, checks
    )


def test_sentences_that_violate_the_same_clauses_are_one_failure() -> None:
    results = (sentence(1, "ack.sent"), sentence(2, "ack.sent"), sentence(3, "fetch.topic"), sentence(4, "ack.sent"))
    run = Run("target", 0.0, 1.0, results, ())
    found = [(failure.scenario, failure.similar) for failure in group_failures(run)]
    assert found == [
        ("store.grammar.publish.01", ("store.grammar.publish.02", "store.grammar.publish.04")),
        ("store.grammar.publish.03", ()),
    ]
    assert "the same in 2 more: store.grammar.publish.02, store.grammar.publish.04" in printed(run)
    page = to_html(run)
    assert "The same in 2 more scenarios" in page
    assert page.count("wrong in") == 2
