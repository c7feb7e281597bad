"""The page of brokers and the drawing of branches, in real Chromium, with several brokers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.cli.harness import wait_for
from tests.http.console.browser import open_window
from tests.http.console.served import ServedBroker


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ServedBroker]]:
    """Two brokers of one cluster."""
    with ExitStack() as stack:
        first = ServedBroker(tmp_path_factory.mktemp("first"))
        first.start()
        stack.callback(first.stop)
        second = ServedBroker(tmp_path_factory.mktemp("second"), joined=first)
        second.start()
        stack.callback(second.stop)
        first.request("POST", "/topics", {"name": "orders", "log_count": 2})
        yield [first, second]


def draining(broker: ServedBroker) -> list[bool]:
    """Return of each broker whether it is being drained, as one of them has heard."""
    return [each["is_draining"] for each in broker.request("GET", "/brokers")["brokers"]]


def test_a_broker_is_drained_after_a_question(browser: Any, brokers: list[ServedBroker]) -> None:
    with open_window(browser, brokers[0].url) as window:
        window.open("brokers", "Brokers")
        page = window.page
        rows = page.get_by_role("group", name="Brokers of the cluster").locator("tbody tr")
        rows.nth(1).wait_for()
        assert rows.count() == 2
        page.get_by_role("button", name="Drain broker 1").press("Enter")
        dialog = page.get_by_role("dialog", name="Drain broker 1?")
        dialog.get_by_role("button", name="Cancel").click()
        assert draining(brokers[0]) == [False, False]
        page.get_by_role("button", name="Drain broker 1").click()
        dialog.get_by_role("button", name="Drain the broker").click()
        page.get_by_role("button", name="Stop draining broker 1").wait_for()
        wait_for(lambda: draining(brokers[1]) == [False, True] or None, lambda: str(draining(brokers[1])))
        assert window.find_faults() == []
        page.get_by_role("button", name="Stop draining broker 1").click()
        page.get_by_role("button", name="Drain broker 1").wait_for()


def test_a_table_says_what_the_drawing_of_branches_shows(browser: Any, brokers: list[ServedBroker]) -> None:
    with open_window(browser, brokers[1].url) as window:
        window.open("topics/orders/branches", "orders")
        page = window.page
        page.get_by_role("img", name=re.compile("^Drawing of .*; the table has the same$")).wait_for()
        rows = page.get_by_role("group", name="Branches", exact=True).locator("tbody tr")
        page.get_by_label("Log", exact=True).select_option("1")
        branches = brokers[1].request("GET", "/topics/orders/branches")["logs"][1]["branches"]
        for each in branches:
            rows.filter(has_text=f"Broker {each['leader']}").first.wait_for()
        rows.nth(len(branches) - 1).wait_for()  # leaders may change meanwhile, and the page asks each second
        assert window.find_faults() == []


BRANCHES: list[dict[str, Any]] = [
    {"epoch": 0, "leader": 0, "old_epoch": None, "old_leader": None, "start_offset": 0, "flags": ["first"]},
    {"epoch": 1024, "leader": 1, "old_epoch": 0, "old_leader": 0, "start_offset": 100, "flags": ["fork"]},
    {"epoch": 1026, "leader": 2, "old_epoch": 0, "old_leader": 0, "start_offset": 90, "flags": ["fork"]},
    {"epoch": 2048, "leader": 1, "old_epoch": 1024, "old_leader": 1, "start_offset": 150, "flags": ["latest"]},
]


def test_forks_and_healing_are_drawn(browser: Any, brokers: list[ServedBroker]) -> None:
    found = [
        {
            **each,
            "leader_address": f"{each['leader']}" * 32,
            "old_leader_address": "" if each["old_leader"] is None else f"{each['old_leader']}" * 32,
            "old_end_offset": each["start_offset"],
            "replicas": [0, 1, 2],
        }
        for each in BRANCHES
    ]
    with open_window(browser, brokers[0].url) as window:
        window.open("", "Overview")
        drawn = window.page.evaluate(
            """async (branches) => {
                const { arrange } = await import("./console/branches.js");
                const { lines, lanes, places } = arrange(branches, 200);
                return [lines.map((each) => [each.isLatest, each.isLeft, each.y, each.from, each.to]), lanes.length,
                        [...places.keys()]];
            }""",
            found,
        )
    lines, lanes, places = drawn
    assert (lanes, places) == (3, [0, 90, 100, 150, 200])
    assert [line[:2] for line in lines] == [[False, False], [False, False], [False, True], [True, False]]
    ys, froms = [line[2] for line in lines], [line[3] for line in lines]
    assert ys[1] == ys[3]
    assert len(set(ys)) == 3
    assert froms[0] < froms[2] < froms[1] < froms[3]
    assert lines[1][4] == froms[3]  # the second leader's branch ends where the next one begins
