"""Browsing, searching, producing and the live tail."""

from __future__ import annotations

import re

from tests.http.console.browser import PHONE, ServedBroker, Window


def wait_first_offset(window: Window, offset: int) -> None:
    """Wait until the first row has this offset."""
    first = window.page.locator("tbody tr:not(.spacer)").first
    first.locator("th button", has_text=re.compile(rf"^{offset}$")).wait_for()


def test_records_are_browsed_by_offset_and_time(window: Window) -> None:
    page = window.open("topics/orders?log=1", "orders")
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


def test_a_record_is_shown_as_json_text_and_hex(window: Window) -> None:
    page = window.open("topics/orders", "orders")
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


def test_a_search_looks_in_keys_values_headers_and_fields(window: Window) -> None:
    page = window.open("topics/orders", "orders")
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


def make_topic_to_search(broker: ServedBroker, name: str) -> None:
    """Create a topic with more records than are loaded; each tenth one is red, the next one blue."""
    broker.create_topic(name)
    colours = {0: "red", 1: "blue"}
    broker.publish(name, [{"value": f"{colours.get(number % 10, 'grey')} {number}"} for number in range(1500)])


def search_all(window: Window, text: str) -> int:
    """Search for a text in all records of the topic, and return how many are found."""
    page = window.page
    page.get_by_role("searchbox").fill(text)
    page.locator(".table-foot:has-text(' of ')").wait_for()
    further = page.get_by_role("button", name="Search further")
    while further.or_(page.get_by_text("All are searched")).first.inner_text() == "Search further":
        further.click()
        page.locator(".table-foot button:has-text('Older records'):enabled").wait_for()
    return int(page.locator(".table-foot span").first.inner_text().split(" of ")[0].replace(",", ""))


def test_another_search_finds_what_the_one_before_left_out(window: Window, broker: ServedBroker) -> None:
    make_topic_to_search(broker, "coloured")
    page = window.open("topics/coloured", "coloured")
    assert search_all(window, "red") == 150
    assert search_all(window, "blue") == 150
    assert search_all(window, "red") == 150
    page.get_by_role("searchbox").fill("")
    page.locator(".table-foot:has-text('200 records')").wait_for()
    page.get_by_role("button", name="Older records").click()
    page.locator(".table-foot:has-text('400 records')").wait_for()  # without gaps


def test_a_search_that_changes_ends_the_one_that_reads(window: Window, broker: ServedBroker) -> None:
    make_topic_to_search(broker, "slow")
    page = window.open("topics/slow", "slow")
    page.locator(".table-foot:has-text('200 records')").wait_for()
    page.route("**/records?*", lambda route: None)  # it is never answered
    page.get_by_role("searchbox").fill("red")
    page.get_by_role("button", name="Search further").click()
    page.get_by_role("button", name="Stop").wait_for()
    page.get_by_role("searchbox").fill("blue")
    page.get_by_role("button", name="Search further").wait_for()
    page.unroute("**/records?*")
    assert search_all(window, "blue") == 150


def test_a_topic_that_is_made_again_shows_nothing_of_the_one_before(window: Window, broker: ServedBroker) -> None:
    broker.create_topic("again", ["of the first"])
    page = window.open("topics/again", "again")
    page.get_by_text("of the first").wait_for()
    page.get_by_role("button", name="Delete records").click()
    broker.request("DELETE", "/topics/again")
    page.get_by_text("There is no topic of this name").wait_for()
    broker.create_topic("again", ["of the second"])
    page.get_by_text("of the second").wait_for()
    assert page.get_by_text("of the first").count() == 0
    window.forgive("404")


def test_records_that_were_deleted_are_not_shown(window: Window, broker: ServedBroker) -> None:
    broker.create_topic("shorter", [f"number {number}" for number in range(10)])
    page = window.open("topics/shorter", "shorter")
    page.get_by_text("number 3").wait_for()
    broker.request("DELETE", "/topics/shorter/records?log=0&before=4")
    page.locator(".table-foot:has-text('6 records')").wait_for()
    assert page.get_by_text("number 3").count() == 0


def test_a_dialog_does_not_outlive_its_topic(window: Window, broker: ServedBroker) -> None:
    broker.create_topic("here")
    broker.create_topic("there")
    page = window.open("topics/here", "here")
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("dialog").wait_for()
    window.open("topics/there", "there")
    assert page.get_by_role("dialog").count() == 0


def test_a_list_that_is_opened_again_is_not_filtered(window: Window) -> None:
    page = window.open("topics", "Topics")
    page.get_by_role("searchbox").fill("nowhere")
    page.get_by_text("No topic matches").wait_for()
    page.get_by_role("link", name="Topics").click()
    page.get_by_role("link", name="orders", exact=True).wait_for()
    assert page.get_by_role("searchbox").input_value() == ""


def test_records_of_a_log_are_shown_in_its_order_whatever_their_times(window: Window, broker: ServedBroker) -> None:
    broker.create_topic("times")
    broker.publish("times", [{"value": str(time), "timestamp": time} for time in (3000, 1000, 2000, 4000)])
    page = window.open("topics/times", "times")
    wait_first_offset(window, 3)
    assert page.locator("tbody th button").all_inner_texts() == ["3", "2", "1", "0"]


def test_a_long_live_tail_leaves_no_gap(window: Window, broker: ServedBroker) -> None:
    broker.create_topic("long", [str(number) for number in range(1000)])
    page = window.open("topics/long", "long")
    page.get_by_role("button", name="Older records").click()
    page.locator(".table-foot:has-text('400 records')").wait_for()
    page.get_by_role("button", name="Live tail").click()
    page.locator(".table-foot:has-text('200 records')").wait_for()
    for first in range(1000, 6000, 1000):
        broker.publish("long", [{"value": str(number)} for number in range(first, first + 1000)])
        page.locator(f"tbody th button:has-text('{first + 999:,}')").first.wait_for()
    page.locator(".table-foot:has-text('5,000 records')").wait_for()
    page.get_by_role("button", name="Older records").click()
    page.locator(".table-foot:has-text('5,200 records')").wait_for()


def test_a_tail_that_is_far_behind_goes_on_near_the_end(window: Window, broker: ServedBroker) -> None:
    broker.create_topic("much")
    page = window.open("topics/much", "much")
    page.get_by_role("button", name="Live tail").click()
    page.get_by_text("Waiting for records").wait_for()
    page.get_by_role("button", name="Pause").click()
    broker.publish("much", [{"value": str(number)} for number in range(9000)])
    page.get_by_role("definition").filter(has_text="9,000").wait_for()
    page.get_by_role("button", name="Resume").click()
    page.get_by_text("left out to keep up").wait_for()
    page.locator("tbody th button:has-text('8,999')").first.wait_for()


def test_a_record_is_produced_and_seen(window: Window, broker: ServedBroker) -> None:
    broker.create_topic("produced")
    with window.emulating(viewport=PHONE):
        page = window.open("topics/produced/produce", "produced")
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
