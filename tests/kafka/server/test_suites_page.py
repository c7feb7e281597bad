"""The page about the clients' own tests lists those that do not apply, with the reason that the program knows."""

from __future__ import annotations

from pathlib import Path

from tests.kafka.server.suites.expected import EXPECTED

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "kafka-suites.md"


def test_page_lists_the_tests_that_do_not_apply() -> None:
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| `")]
    expected = [
        f"| `{name.rpartition('.')[2]}` | {reason} |" for suite in EXPECTED.values() for name, reason in suite.items()
    ]
    assert rows == expected
