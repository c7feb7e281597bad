"""The JUnit XML report of a run, for build servers: one test suite per dialect, one test case per scenario.

The class of a case is the target's role. The text of a failure has the exchange of messages as a chart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from xml.etree import ElementTree

from dafka_conformance.model import Clause, Dialect, Outcome, Run, ScenarioResult
from dafka_conformance.report.findings import describe_readings, dialects_of, faults, is_failure
from dafka_conformance.report.text_chart import text_chart

_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_EVENTS_MAX = 60
_WIDTH = 120


def to_junit(run: Run) -> str:
    """Return the run as XML text, to be written in UTF-8, without characters that XML does not allow."""
    clauses = {verdict.clause.id: verdict.clause for verdict in run.verdicts}
    root = ElementTree.Element("testsuites", name=_legal(run.target), time=f"{run.seconds:.3f}")
    for dialect in dialects_of(run):
        _add_suite(root, run, dialect, clauses)
    for attribute in ("tests", "failures", "errors", "skipped"):
        root.set(attribute, str(sum(int(suite.get(attribute, 0)) for suite in root)))
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _add_suite(root: ElementTree.Element, run: Run, dialect: Dialect, clauses: Mapping[str, Clause]) -> None:
    results = [result for result in run.results if result.dialect is dialect]
    suite = ElementTree.SubElement(
        root,
        "testsuite",
        name=dialect.value,
        timestamp=datetime.fromtimestamp(run.started_at, UTC).strftime("%Y-%m-%dT%H:%M:%S"),
        time=f"{sum(result.seconds for result in results):.3f}",
    )
    for result in results:
        _add_case(suite, result, clauses)
    suite.set("tests", str(len(results)))
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(attribute, str(len(suite.findall(f"testcase/{tag}"))))


def _add_case(suite: ElementTree.Element, result: ScenarioResult, clauses: Mapping[str, Clause]) -> None:
    case = ElementTree.SubElement(
        suite,
        "testcase",
        classname=result.role.title,
        name=_legal(result.scenario),
        time=f"{result.seconds:.3f}",
    )
    if result.outcome is Outcome.SKIPPED:
        ElementTree.SubElement(case, "skipped", message=_legal(result.reason))
    elif not result.outcome.was_judged:
        error = ElementTree.SubElement(case, "error", type=result.outcome.value, message=_legal(result.reason))
        error.text = _legal(_text(result, clauses))
    elif is_failure(result, clauses):
        messages = dict.fromkeys(check.message or check.clause for check in result.checks if check.is_finding)
        message = "; ".join(messages) or result.reason or "the scenario failed"
        failure = ElementTree.SubElement(case, "failure", type="violation", message=_legal(message))
        failure.text = _legal(_text(result, clauses))


def _text(result: ScenarioResult, clauses: Mapping[str, Clause]) -> str:
    """Return the findings, one line per clause, and the exchange of messages."""
    lines = [line for line in (result.title, result.reason) if line]
    lines.extend(
        f"{check.clause}: {check.message}{f' (because of {check.because})' if check.because else ''}"
        for check in result.checks
        if not check.holds
    )
    named = dict.fromkeys((check.clause, check.reading) for check in result.checks if check.is_finding)
    lines.extend(
        f"{name}: {text}"
        for name, reading in named
        if name in clauses and (text := describe_readings(clauses[name], reading))
    )
    if result.trace:
        lines.extend(["", *text_chart(result.trace, faults(result), width=_WIDTH, events_max=_EVENTS_MAX)])
    return "\n".join(lines)


def _legal(text: str) -> str:
    return _ILLEGAL.sub("", text)
