"""Runs a client's own tests against brokers of Dafka, and keeps the report card.

    python -m tests.suites SUITE CHECKOUT [--record] [TEST]...

CHECKOUT is a checkout of the client's repository, built as its documentation says. Tests that fail run once more by
themselves, because many of them have short timeouts; what passes then counts as passed, and is named.

Without TEST, the results are compared with `records/SUITE.json`: the exit status is 1 if another test fails than it
names, or if one that it names passes. `--record` writes the file instead; the reason of each new failure is then to be
added by hand.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from tests.suites import (
    aiokafka,
    faststream,
    faust,
    franz_go,
    kafka_go,
    kafka_python,
    kafkajs,
    karapace,
    librdkafka,
    platformatic,
    quix_streams,
)
from tests.suites.running import Outcomes, Run, Suite, Verdict

RECORDS = Path(__file__).parent / "records"

SUITES = {
    "librdkafka": librdkafka.PLAIN,
    "librdkafka-users": librdkafka.USERS,
    "franz-go": franz_go.CLIENT,
    "kafka-ports": franz_go.PORTS,
    "kafkajs": kafkajs.SUITE,
    "platformatic-kafka": platformatic.SUITE,
    "aiokafka": aiokafka.SUITE,
    "kafka-python": kafka_python.SUITE,
    "kafka-go": kafka_go.SUITE,
    "faststream": faststream.SUITE,
    "faust": faust.SUITE,
    "quix-streams": quix_streams.SUITE,
    "karapace": karapace.SUITE,
}


@attrs.frozen
class Results:
    passed: int
    passed_again: list[str]
    """Tests that passed in the second run."""
    failed: list[str]
    skipped: dict[str, int]
    """How many tests the suite skipped for each reason."""


def run(suite: Suite, checkout: Path, tests: tuple[str, ...]) -> Results:
    first = _run_once(suite, checkout, tests)
    failed = _select(first, Verdict.FAILED)
    second = _run_once(suite, checkout, tuple(failed)) if failed and not tests else {}
    again = [name for name in failed if name in second and second[name].verdict is Verdict.PASSED]
    skipped = Counter(each.reason for each in first.values() if each.verdict is Verdict.SKIPPED)
    passed = len(_select(first, Verdict.PASSED)) + len(again)
    return Results(passed, again, [name for name in failed if name not in again], dict(sorted(skipped.items())))


def _run_once(suite: Suite, checkout: Path, tests: tuple[str, ...]) -> Outcomes:
    with tempfile.TemporaryDirectory() as folder:
        try:
            outcomes = suite.run(Run(checkout.resolve(), Path(folder), tests))
        except FileNotFoundError as error:
            sys.exit(f"The suite has not run: {error}")
    return {name: each for name, each in outcomes.items() if not tests or name in tests}


def _select(outcomes: Outcomes, verdict: Verdict) -> list[str]:
    return sorted(name for name, each in outcomes.items() if each.verdict is verdict)


def load(name: str) -> dict[str, Any]:
    path = RECORDS / f"{name}.json"
    return dict(json.loads(path.read_text("utf-8"))) if path.exists() else {"failed": {}}


def record(name: str, checkout: Path, results: Results) -> None:
    suite, former = SUITES[name], load(name)["failed"]
    describe = ["git", "-C", str(checkout), "describe", "--tags", "--always", "--exclude=*/*"]
    version = subprocess.run(describe, capture_output=True, text=True, check=True).stdout.strip()
    card = {
        "client": suite.client,
        "version": version,
        "tests": suite.tests,
        **attrs.asdict(results),
        "failed": {test: former.get(test, "") for test in results.failed},
    }
    RECORDS.mkdir(exist_ok=True)
    (RECORDS / f"{name}.json").write_text(json.dumps(card, indent=2, ensure_ascii=False) + "\n", "utf-8")


def main(arguments: list[str], show: Callable[[str], None] = print) -> int:
    tests = [each for each in arguments if each != "--record"]
    if len(tests) < 2 or tests[0] not in SUITES:
        print(__doc__, f"\nSuites: {', '.join(SUITES)}", file=sys.stderr)
        return 2
    name, checkout = tests[0], Path(tests[1])
    results = run(SUITES[name], checkout, tuple(tests[2:]))
    show(f"{results.passed} passed, {len(results.failed)} failed, {sum(results.skipped.values())} skipped")
    for test in results.passed_again:
        show(f"passed in the second run only: {test}")
    if not results.passed:
        return 1
    if "--record" in arguments:
        record(name, checkout, results)
        return 0
    known = load(name)["failed"]
    unexpected = [test for test in results.failed if test not in known]
    for test in unexpected:
        show(f"failed unexpectedly: {test}")
    gone = [] if tests[2:] else [test for test in known if test not in results.failed]
    for test in gone:
        show(f"passed, but is expected to fail: {test}")
    return 1 if unexpected or gone else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
