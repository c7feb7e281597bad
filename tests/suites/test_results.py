"""The report card names a reason for every failure, and results are read as the suites mean them."""

from __future__ import annotations

import json
from pathlib import Path

from tests.suites.__main__ import RECORDS, SUITES
from tests.suites.running import Outcome, Verdict, read_go, read_junit

PASSED, FAILED = Outcome(Verdict.PASSED), Outcome(Verdict.FAILED)


def test_each_record_is_of_a_suite_and_explains_its_failures() -> None:
    for path in RECORDS.glob("*.json"):
        card = json.loads(path.read_text("utf-8"))
        assert path.stem in SUITES
        assert card["client"] == SUITES[path.stem].client
        assert card["passed"]
        for test, reason in card["failed"].items():
            assert reason, f"{path.name} has no reason for {test}"


def test_a_go_test_with_subtests_counts_if_it_fails_by_itself(tmp_path: Path) -> None:
    ends = [
        ("Whole/one", "pass"),
        ("Whole", "pass"),
        ("ByItself/one", "pass"),
        ("ByItself", "fail"),
        ("ByOne/one/deep", "fail"),
        ("ByOne/one", "fail"),
        ("ByOne/two", "pass"),
        ("ByOne", "fail"),
        ("Alone", "pass"),
    ]
    events = [{"Action": "run", "Test": test} for test in (*dict(ends), "Crashed")]
    events += [{"Action": "output", "Test": "Skipped", "Output": "    file_test.go:3: needs a cluster\n"}]
    events += [{"Action": action, "Test": test} for test, action in (*ends, ("Skipped", "skip"))]
    report = tmp_path / "report"
    report.write_text("\n".join(map(json.dumps, events)), "utf-8")
    assert read_go(report) == {
        "Whole/one": PASSED,
        "ByItself/one": PASSED,
        "ByItself": FAILED,
        "ByOne/one/deep": FAILED,
        "ByOne/two": PASSED,
        "Alone": PASSED,
        "Crashed": FAILED,
        "Skipped": Outcome(Verdict.SKIPPED, "needs a cluster"),
    }


def test_one_failure_of_a_name_in_junit_outweighs_what_else_has_this_name(tmp_path: Path) -> None:
    cases = ["", "<failure/>", "", "<skipped message='no root'/>"]
    text = "".join(f"<testcase classname='tests.test_a.TestA' name='one'>{each}</testcase>" for each in cases)
    text += "<testcase classname='tests.test_a' name='two'><skipped message='no root'/></testcase>"
    report = tmp_path / "report"
    report.write_text(f"<testsuites><testsuite>{text}</testsuite></testsuites>", "utf-8")
    assert read_junit(report) == {"TestA.one": FAILED, "test_a.two": Outcome(Verdict.SKIPPED, "no root")}
