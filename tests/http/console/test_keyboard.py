"""The console without a mouse, on a phone, with other colours, with little motion, and loading quickly."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from dafka import Config
from tests.http.console.browser import PHONE, WIDE, ServedBroker, Window, open_window, serve_broker
from tests.ports import free_port

LOADED_BYTES_MAX = 120_000
"""What the first page may load before it is shown, compressed: a second at 1 Mbit/s."""

LOADED_FILES_MAX = 24

SECTIONS = ("Overview", "Topics", "Groups", "Brokers", "Storage", "Settings")


def focused(window: Window) -> str:
    name = window.page.evaluate(
        "(element => element.getAttribute('aria-label') || element.labels?.[0]?.innerText || element.innerText)"
        "(document.activeElement)"
    )
    return " ".join(str(name).split())


def test_the_console_is_used_without_a_mouse(window: Window) -> None:
    page, press = window.page, window.page.keyboard.press
    window.open("", "Overview")
    page.reload()  # else, Tab goes on from where the test before has left the focus
    window.settle()
    for name in ("Skip to the contents", "Dafka", *SECTIONS):
        press("Tab")
        assert focused(window) == name
    press("Tab")
    assert focused(window).startswith("Colours")
    for _ in range(len(SECTIONS) + 2):
        press("Shift+Tab")
    press("Enter")
    assert focused(window) == "Overview"
    page.get_by_role("link", name="Topics").focus()
    press("Enter")
    page.get_by_role("heading", level=1, name="Topics").wait_for()
    page.wait_for_timeout(0)
    assert focused(window) == "Topics", "the heading of a new page has the focus"
    page.get_by_label("Filter topics by name").wait_for()
    press("/")
    assert focused(window) == "Filter topics by name"
    page.keyboard.type("orders")
    page.get_by_text("1 of ").wait_for()
    press("Tab")
    assert focused(window) == "Topics", "the table can be scrolled by keys"
    for _ in range(7):
        press("Tab")
        if focused(window) == "orders":
            break
    press("Enter")
    page.get_by_role("heading", level=1, name="orders").wait_for()
    table = page.get_by_label("Records", exact=True)
    page.locator("tbody th button").first.wait_for()
    table.focus()
    press("ArrowDown")
    press("ArrowDown")
    page.locator("tr.selected").wait_for()
    assert page.locator("tbody tr:not(.spacer)").nth(1).get_attribute("class") == "selected"
    assert focused(window) == "Records"


def test_dialogs_take_and_return_the_focus(window: Window) -> None:
    page, press = window.page, window.page.keyboard.press
    window.open("topics", "Topics")
    page.get_by_role("button", name="Create a topic").focus()
    press("Enter")
    page.get_by_role("dialog").wait_for()
    assert focused(window) == "Name"
    assert window.find_faults() == []
    inside = "document.activeElement === document.body || document.activeElement.closest('dialog') !== null"
    for _ in range(8):
        press("Tab")
        assert page.evaluate(inside), "the focus stays in the dialog"
    press("Escape")
    page.get_by_role("dialog").wait_for(state="detached")
    assert focused(window) == "Create a topic"


def test_the_theme_is_chosen_and_kept(window: Window) -> None:
    def background() -> str:
        return str(window.page.evaluate("getComputedStyle(document.body).backgroundColor"))

    with window.emulating(theme="light"):
        window.open("", "Overview")
        light = background()
        window.page.get_by_label("Colours").select_option("dark")
        dark = background()
        assert dark != light
        window.page.reload()
        window.settle()
        assert background() == dark
        window.page.get_by_label("Colours").select_option("system")
        assert background() == light


def test_nothing_moves_or_is_read_out_by_itself(window: Window) -> None:
    window.open("", "Overview")
    moving = "[...document.querySelectorAll('*')].filter(each => getComputedStyle(each).animationName !== 'none')"
    assert window.page.evaluate(f"{moving}.length") == 0
    live = "[...document.querySelectorAll('[aria-live], [role=status], [role=alert], [role=log]')]"
    assert window.page.evaluate(f"{live}.map(each => each.id)") == ["announcements"]
    assert window.page.evaluate("document.getElementById('announcements').textContent") == ""


def test_a_phone_has_everything(window: Window) -> None:
    with window.emulating(viewport=PHONE):
        page = window.open("", "Overview")
        for name in ("Topics", "Groups", "Storage", "Settings"):
            page.get_by_role("link", name=name).click()
            page.get_by_role("heading", level=1, name=name).wait_for()
        page.get_by_role("button", name="More").click()
        page.get_by_label("Colours").select_option("dark")
        assert window.find_faults() == []
        page.get_by_label("Colours").select_option("system")


def test_the_first_page_needs_little(browser: Any, broker: ServedBroker) -> None:
    sizes: dict[str, int] = {}

    def note(response: Any) -> None:
        if re.search(r"/console/|/dafka.js|/$", response.url):
            sizes[response.url] = int(response.headers.get("content-length", 0))

    with open_window(browser, broker.url, is_shared=False) as window:
        window.page.on("response", note)
        # Charts are drawn when there is time: their library is not needed to show the page.
        window.page.route("**/uplot-*.js", lambda route: route.abort())
        window.open("", "Overview")
        window.forgive("ERR_FAILED", "imported")
    loaded = {url: size for url, size in sizes.items() if "uplot" not in url}
    assert len(loaded) <= LOADED_FILES_MAX
    assert 0 < sum(loaded.values()) <= LOADED_BYTES_MAX


PAGES = {
    "": "Overview",
    **{each: each.capitalize() for each in ("topics", "groups", "brokers", "storage", "settings")},
    **{f"topics/{each}": each for each in ("orders", "bytes", "empty")},
    **{f"topics/orders/{each}": "orders" for each in ("produce", "logs", "epochs", "partitions", "settings")},
    "groups/billing": "billing",
    "nowhere": "No such page",
}
"""The heading of each page, by its path."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_every_page_fits_a_phone_and_axe_finds_nothing_on_it(window: Window, theme: str) -> None:
    faults = {}
    for path, heading in PAGES.items():
        with window.emulating(viewport=PHONE, theme=theme):
            window.open(path, heading)
            is_too_wide = window.is_too_wide()
            window.page.set_viewport_size(WIDE)
            window.settle()
            faults[path] = (is_too_wide, window.find_faults())
    assert faults == dict.fromkeys(PAGES, (False, []))


# The console goes on by itself: when its broker is restarted, when its tab sleeps, and with thousands of topics


MANY = 10_000


def forgive_lost_connections(window: Window) -> None:
    """Forget what the browser says about connections that were refused while the broker was away."""
    window.forgive("net::ERR_", "WebSocket connection to")


def test_the_console_goes_on_when_its_broker_is_restarted(browser: Any, tmp_path: Path) -> None:
    config = Config().with_http(listen=f"127.0.0.1:{free_port()}")
    with ExitStack() as windows:
        with serve_broker(tmp_path, config) as broker:
            window = windows.enter_context(open_window(browser, broker.url, is_shared=False))
            broker.create_topic("orders", ["before"])
            page = window.open("topics/orders", "orders")
            page.get_by_role("button", name="Live tail").click()
            page.get_by_text("before").wait_for()
        page.get_by_text("The connection to the broker is lost. What you see may be old").wait_for()
        assert page.get_by_text("before").is_visible()
        assert window.find_faults() == []
        with serve_broker(tmp_path, config) as broker:
            page.get_by_text("Connected", exact=True).wait_for()
            broker.publish("orders", [{"value": "after"}])
            page.get_by_text("after", exact=True).wait_for()
            assert page.locator("tbody th button").count() == 2
            forgive_lost_connections(window)
            windows.close()


@pytest.mark.long
def test_a_broker_that_is_away_at_first_is_waited_for(browser: Any, tmp_path: Path) -> None:
    with serve_broker(tmp_path) as broker, open_window(browser, broker.url, is_shared=False) as window:
        window.open("", "Overview")
        # The page is loaded, but its first question is not answered.
        window.page.route("**/session", lambda route: route.abort())
        window.page.reload()
        window.page.get_by_role("heading", level=1, name="No connection").wait_for()
        window.page.unroute("**/session")
        window.page.get_by_role("heading", level=1, name="Overview").wait_for()
        window.forgive("ERR_FAILED")


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_tab_that_slept_for_more_than_a_minute_goes_on(browser: Any, tmp_path: Path) -> None:
    """The page is frozen as browsers do with tabs in the background."""
    with serve_broker(tmp_path) as broker, open_window(browser, broker.url, is_shared=False) as window:
        broker.create_topic("orders", ["before"])
        page = window.open("topics/orders", "orders")
        page.get_by_role("button", name="Live tail").click()
        page.get_by_text("before").wait_for()
        debugger = page.context.new_cdp_session(page)
        debugger.send("Page.setWebLifecycleState", {"state": "frozen"})
        broker.publish("orders", [{"value": f"asleep {number}"} for number in range(3000)])
        page.wait_for_timeout(75_000)
        debugger.send("Page.setWebLifecycleState", {"state": "active"})
        page.get_by_text("asleep 2999", exact=True).wait_for()
        broker.publish("orders", [{"value": "after"}])
        page.get_by_text("after", exact=True).wait_for()
        assert page.locator("tbody th button").first.inner_text() == "3,001"
        forgive_lost_connections(window)


def create_many_topics(broker: ServedBroker) -> None:
    """Create topics as a client of Kafka: many in one request."""
    admin = AdminClient({"bootstrap.servers": broker.web.broker.bootstrap_servers})
    for first in range(0, MANY, 1000):
        wanted = [NewTopic(f"topic-{number:05}", 1) for number in range(first, first + 1000)]
        for done in admin.create_topics(wanted, request_timeout=60).values():
            done.result()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_ten_thousand_topics_are_listed_filtered_and_sorted(browser: Any, tmp_path: Path) -> None:
    with serve_broker(tmp_path) as broker, open_window(browser, broker.url, is_shared=False) as window:
        create_many_topics(broker)
        broker.publish("topic-07777", [{"value": "one"}] * 10)
        page = window.open("topics", "Topics")
        page.get_by_text("10,000 topics").wait_for()
        rows = page.locator("tbody tr:not(.spacer)")
        assert rows.count() < 100, "only rows that can be seen are drawn"
        page.get_by_role("button", name="Records").click()
        page.locator("tbody tr:not(.spacer)").first.get_by_text("topic-07777").wait_for()
        page.get_by_role("searchbox").fill("topic-099")
        page.get_by_text("100 of 10,000 topics").wait_for()
        page.get_by_role("searchbox").fill("")
        page.get_by_role("button", name="Topic", exact=True).click()
        page.locator(".virtual").focus()
        page.keyboard.press("End")
        page.get_by_role("link", name="topic-09999").click()
        page.get_by_role("heading", level=1, name="topic-09999").wait_for()
