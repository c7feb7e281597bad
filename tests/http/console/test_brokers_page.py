"""The page of brokers and the drawing of leader epochs, in real Chromium, with several brokers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.http.console.browser import open_window
from tests.http.console.served import ServedBroker
from tests.http.running import run_webs
from tests.waiting import poll_until


@pytest.fixture(scope="module")
def brokers() -> Iterator[list[ServedBroker]]:
    """Two brokers of one cluster."""
    with run_webs(2) as webs:
        found = [ServedBroker(each) for each in webs]
        found[0].create_topic("orders", 2)
        yield found


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
        poll_until(lambda: draining(brokers[1]) == [False, True])
        assert window.find_faults() == []
        page.get_by_role("button", name="Stop draining broker 1").click()
        page.get_by_role("button", name="Drain broker 1").wait_for()


def test_a_table_says_what_the_drawing_of_epochs_shows(browser: Any, brokers: list[ServedBroker]) -> None:
    with open_window(browser, brokers[0].url) as window:
        window.open("topics/orders/epochs", "orders")
        page = window.page
        page.get_by_role("img", name=re.compile("^Drawing of .*; the table has the same$")).wait_for()
        rows = page.get_by_role("group", name="Leader epochs", exact=True).locator("tbody tr")
        page.get_by_label("Log", exact=True).select_option("1")
        epochs = brokers[1].request("GET", "/topics/orders/epochs")["logs"][1]["epochs"]
        for each in epochs:
            rows.filter(has_text=f"Broker {each['leader']}").first.wait_for()
        rows.nth(len(epochs) - 1).wait_for()  # leaders may change meanwhile, and the page asks each second
        assert window.find_faults() == []


EPOCHS: list[dict[str, Any]] = [
    {"epoch": 0, "leader": 0, "parent_epoch": None, "parent_leader": None, "start_offset": 0, "flags": ["first"]},
    {"epoch": 1024, "leader": 1, "parent_epoch": 0, "parent_leader": 0, "start_offset": 100, "flags": ["divergent"]},
    {"epoch": 1026, "leader": 2, "parent_epoch": 0, "parent_leader": 0, "start_offset": 90, "flags": ["divergent"]},
    {"epoch": 2048, "leader": 1, "parent_epoch": 1024, "parent_leader": 1, "start_offset": 150, "flags": ["latest"]},
]


def test_divergent_epochs_and_merging_are_drawn(browser: Any, brokers: list[ServedBroker]) -> None:
    found = [
        {
            **each,
            "leader_address": f"{each['leader']}" * 32,
            "parent_leader_address": "" if each["parent_leader"] is None else f"{each['parent_leader']}" * 32,
            "replicas": [0, 1, 2],
        }
        for each in EPOCHS
    ]
    with open_window(browser, brokers[0].url) as window:
        window.open("", "Overview")
        drawn = window.page.evaluate(
            """async (epochs) => {
                const { arrange } = await import("./console/epochs.js");
                const { lines, lanes, places } = arrange(epochs, 200);
                return [lines.map((each) => [each.isLatest, each.isAbandoned, each.y, each.from, each.to]),
                        lanes.length, [...places.keys()]];
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
    assert lines[1][4] == froms[3]  # the second leader's epoch ends where the next one begins
