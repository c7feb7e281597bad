"""The console without a mouse, on a phone, with other colours, with little motion, and loading quickly."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.http.console.browser import PHONE, WIDE, ServedBroker, Window, open_window

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
