"""Makes the report card of clients' own test suites from `tests/suites/records`."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RECORDS = Path(__file__).parents[1] / "tests" / "suites" / "records"

PREFACE = """\
# Suites of Kafka's clients

Clients of Kafka run their own tests against brokers of Dafka. `docs/generate.py` makes this page from the results that
`tests.suites` [records](../contributing/testing.md#suites-of-kafkas-clients). It lists every test that failed, with the
reason. Tests that fail run once more by themselves, because many of them have short timeouts; those that passed only
then are listed, too.

| client | version | tests | passed | failed | skipped by the suite |
| --- | --- | --- | --- | --- | --- |
"""


def suites_page() -> str:
    """Return the page."""
    cards = [json.loads(path.read_text("utf-8")) for path in sorted(RECORDS.glob("*.json"))]
    cards.sort(key=lambda card: str(card["client"]).casefold())
    lines = [PREFACE]
    for card in cards:
        counts = f"{card['passed']} | {len(card['failed'])} | {sum(card['skipped'].values())}"
        lines.append(f"| {card['client']} | {card['version']} | {card['tests']} | {counts} |\n")
    for card in cards:
        lines += _section(card)
    return "".join(lines)


def _section(card: dict[str, Any]) -> Iterator[str]:
    yield f"\n## {card['client']}: {card['tests'].partition(',')[0].partition(':')[0]}\n"
    if card["failed"]:
        yield "\n| failed | why |\n| --- | --- |\n"
        reasons: dict[str, list[str]] = defaultdict(list)
        for test, reason in card["failed"].items():
            reasons[reason].append(test)
        yield from (f"| {_list(tests)} | {reason} |\n" for reason, tests in reasons.items())
    else:
        yield "\nNo test failed.\n"
    if card["passed_again"]:
        yield f"\nPassed in the second run only: {_list(card['passed_again'])}.\n"
    if card["skipped"]:
        yield "\n| skipped by the suite | tests |\n| --- | --- |\n"
        yield from (
            f"| {_cell(reason) or 'no reason is named'} | {count} |\n" for reason, count in card["skipped"].items()
        )


def _list(tests: list[str]) -> str:
    return ", ".join(f"`{_cell(each)}`" for each in tests)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
