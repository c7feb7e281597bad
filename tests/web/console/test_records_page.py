"""Browsing, searching, producing and the live tail."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from tests.web.console.browser import PHONE, Window, open_window
from tests.web.console.conftest import SCRIPT
from tests.web.console.served import ServedBroker


@contextmanager
def flowing(broker: ServedBroker, topic: str) -> Iterator[None]:
    """Publish records until the block ends."""
    stopping = threading.Event()

    def publish() -> None:
        number = 0
        while not stopping.wait(0.05):
            broker.publish(topic, [{"key": f"key-{number + each}", "value": "flowing"} for each in range(5)])
            number += 5

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def wait_first_offset(window: Window, offset: int) -> None:
    """Wait until the first row has this offset."""
    first = window.page.locator("tbody tr:not(.spacer)").first
    first.locator("th button", has_text=re.compile(rf"^{offset}$")).wait_for()


def first_offset(window: Window) -> int:
    """Return the offset in the first row."""
    return int(window.page.locator("tbody th button").first.inner_text().replace(",", ""))


def test_records_are_browsed_by_offset_and_time(browser: Any, broker: ServedBroker) -> None:
    with open_window(browser, broker.url) as window:
        page = window.page
        window.open("topics/orders?log=1", "orders")
        page.get_by_label("From").select_option("offset")
        page.get_by_label("Offset", exact=True).fill("10")
        page.get_by_role("button", name="Go").click()
        wait_first_offset(window, 10)
        page.get_by_label("Log").select_option("")
        page.get_by_label("From").select_option("time")
        page.get_by_label("Time", exact=True).fill("2099-01-01T00:00:00")
        page.get_by_role("button", name="Go").click()
        page.get_by_text("No records here").wait_for()
        page.get_by_label("From").select_option("oldest")
        wait_first_offset(window, 0)


def test_a_record_is_shown_as_json_text_and_hex(browser: Any, broker: ServedBroker) -> None:
    with open_window(browser, broker.url) as window:
        page = window.page
        window.open("topics/orders", "orders")
        page.locator("tbody th button").first.click()
        detail = page.get_by_label("The selected record")
        detail.get_by_text('"customer"').wait_for()
        detail.get_by_label("How the value is shown").get_by_role("button", name="Hex").click()
        detail.get_by_text("000000  7b 22 69 64 22", exact=False).wait_for()
        window.open("topics/bytes", "bytes")
        page.locator("tbody th button", has_text="0").click()
        detail.get_by_text("000000  00 01 02 03 ff fe", exact=False).wait_for()
        page.locator("tbody th button", has_text="1").click()
        detail.get_by_text("None: a tombstone").wait_for()
        detail.get_by_role("button", name="Close the record").click()
        detail.wait_for(state="detached")


def test_a_search_looks_in_keys_values_headers_and_fields(browser: Any, broker: ServedBroker) -> None:
    with open_window(browser, broker.url) as window:
        page = window.page
        window.open("topics/orders", "orders")
        found = page.locator("tbody th button")
        for text, count in (
            ("header:t-299", 1),
            ("$.id=298", 1),
            ("key:customer-3 value:ada $.id=297", 1),
            ("nowhere to be seen", 0),
        ):
            page.locator("h1").click()
            page.keyboard.press("/")  # it also selects what is in the field
            page.keyboard.type(text)
            page.locator(f".table-foot:has-text('{count} of ')").wait_for()
            assert found.count() == count, text
        page.get_by_role("searchbox").fill("$.id=3")
        page.get_by_role("button", name="Search further").click()
        found.first.wait_for()
        assert found.count() == 1


def test_markup_in_records_is_text(browser: Any, broker: ServedBroker) -> None:
    with open_window(browser, broker.url) as window:
        page = window.page
        page.on("dialog", lambda dialog: window.complaints.append("a script of a record has run"))
        window.open("topics/markup", "markup")
        page.locator("tbody th button").first.click()
        assert page.get_by_label("The selected record").get_by_text(SCRIPT).count() >= 3
        broker.request("PUT", f"/groups/{quote(SCRIPT, safe='')}/offsets", {"topic": "orders", "to": "latest"})
        window.open("groups")
        page.get_by_role("link", name=SCRIPT).click()
        page.get_by_role("heading", level=1, name=SCRIPT).wait_for()
        # Nodes can give a topic any name.
        command = [sys.executable, "-m", "dafka", "produce", SCRIPT, *broker.tower_options]
        subprocess.run(command, input=b"a record\n", check=True, timeout=60)
        window.open("topics", "Topics")
        page.get_by_role("link", name=SCRIPT).click()
        page.get_by_role("heading", level=1, name=SCRIPT).wait_for()
        page.get_by_text("Only nodes can use a topic of this name").wait_for()
        assert window.find_faults() == []
        window.open("topics/missing", "missing")
        page.get_by_text("There is no topic of this name").wait_for()
        window.complaints = [each for each in window.complaints if "404" not in each]


def test_the_live_tail_follows_pauses_and_goes_on(browser: Any, broker: ServedBroker) -> None:
    broker.create_topic("flow")
    with flowing(broker, "flow"), open_window(browser, broker.url) as window:
        page = window.page
        window.open("topics/flow", "flow")
        page.get_by_role("button", name="Live tail").click()
        page.locator("tbody th button").first.wait_for()
        for _ in range(3):
            offset = first_offset(window)
            page.locator(f"tbody th button:has-text('{offset + 5:,}')").first.wait_for()
        page.get_by_role("button", name="Pause").click()
        # What was under way when the tail was paused still arrives.
        page.get_by_role("button", name="Resume").click()
        offset = first_offset(window)
        page.locator(f"tbody th button:has-text('{offset + 5:,}')").first.wait_for()


def test_a_tail_that_is_far_behind_goes_on_near_the_end(browser: Any, broker: ServedBroker) -> None:
    broker.create_topic("much")
    with open_window(browser, broker.url) as window:
        page = window.page
        window.open("topics/much", "much")
        page.get_by_role("button", name="Live tail").click()
        page.get_by_text("Waiting for records").wait_for()
        page.get_by_role("button", name="Pause").click()
        broker.publish("much", [{"value": str(number)} for number in range(9000)])
        page.get_by_role("definition").filter(has_text="9,000").wait_for()
        page.get_by_role("button", name="Resume").click()
        page.get_by_text("left out to keep up").wait_for()
        page.locator("tbody th button:has-text('8,999')").first.wait_for()


def test_a_record_is_produced_and_seen(browser: Any, broker: ServedBroker) -> None:
    broker.create_topic("produced")
    with open_window(browser, broker.url, viewport=PHONE) as window:
        page = window.page
        window.open("topics/produced/produce", "produced")
        page.get_by_label("With a key").check()
        page.get_by_label("Key", exact=True).fill("a key")
        page.get_by_label("Value", exact=True).fill('{"big": 12345678901234567890}')
        page.get_by_label("Headers").fill("trace: abc")
        page.get_by_role("button", name="Publish").click()
        page.get_by_text("Published at offset 0 of log 0.").wait_for()
        page.get_by_role("link", name="See the newest records").click()
        page.locator("tbody th button").first.click()
        # A number is shown as it was written, not as JavaScript would round it.
        page.get_by_label("The selected record").get_by_text("12345678901234567890").wait_for()
        page.get_by_label("The selected record").get_by_text("abc").wait_for()
