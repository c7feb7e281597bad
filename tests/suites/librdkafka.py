"""librdkafka's tests, which its own program runs: `tests/test-runner`.

With users, many tests of the client alone are skipped; without them, ACLs are not served.
"""

from __future__ import annotations

import json
import re

from dafka.broker.access.credentials import MECHANISMS
from tests.suites.running import Outcome, Outcomes, Run, Suite, Verdict, add_users

SETTINGS = "[broker]\nreplicas = 1\n[kafka]\nlog_count = 4\nsession_timeout_min_ms = 100\n"
USER = {"tester": dict.fromkeys(MECHANISMS, "secret")}
LOGIN = """\
security.protocol=SASL_PLAINTEXT
sasl.mechanism=PLAIN
sasl.username=tester
sasl.password=secret
"""
_SKIPPED = re.compile(r"\[(?P<name>\w+) */ *[0-9.]+s\] WARN: SKIPPING TEST: (?P<reason>[^\[\n]*)")
_STATES = {"PASSED": Verdict.PASSED, "SKIPPED": Verdict.SKIPPED}
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def _run(run: Run, settings: str, login: str) -> Outcomes:
    config = run.folder / "test.conf"
    libraries = f"{run.checkout}/src:{run.checkout}/src-cpp"
    states = run.folder / "states.json"
    variables = {"RDKAFKA_TEST_CONF": str(config), "TEST_REPORT": str(states), "LD_LIBRARY_PATH": libraries}
    if run.tests:
        variables["TESTS"] = ",".join(each.partition("_")[0] for each in run.tests)
    with run.brokers(*["127.0.0.1:0"] * 3, settings=SETTINGS + settings) as servers:
        config.write_text(f"metadata.broker.list={servers}\ntest.timeout.multiplier=3\n{login}", "utf-8")
        run.execute(("./test-runner", "-p2", "-Q", "-V", "4.2.0.0"), variables, run.checkout / "tests", keep=True)
    printed = _COLOUR.sub("", run.report.read_text("utf-8", errors="replace"))
    reasons = {found["name"]: found["reason"].strip() for found in _SKIPPED.finditer(printed)}
    return {
        name: Outcome(_STATES.get(test["state"], Verdict.FAILED), reasons.get(name, ""))
        for name, test in json.loads(states.read_text("utf-8"))["tests"].items()
        if not name.startswith("<")
    }


def _run_plain(run: Run) -> Outcomes:
    return _run(run, "", "")


def _run_with_users(run: Run) -> Outcomes:
    users = add_users(run.folder, USER)
    return _run(run, f'[clients]\nusers = "{users}"\n', LOGIN)


PLAIN = Suite("librdkafka", "`tests/test-runner -Q` (quick), with three brokers", _run_plain)
USERS = Suite("librdkafka", "`tests/test-runner -Q` (quick), with three brokers and users who log in", _run_with_users)
