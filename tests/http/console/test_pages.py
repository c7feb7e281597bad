"""Every page, in real Chromium."""

from __future__ import annotations

from typing import Any

import pytest

from tests.http.console.browser import PHONE, WIDE, open_window
from tests.http.console.served import ServedBroker

PAGES = {
    "": "Overview",
    "topics": "Topics",
    "topics/orders": "orders",
    "topics/orders/produce": "orders",
    "topics/orders/logs": "orders",
    "topics/orders/epochs": "orders",
    "topics/orders/partitions": "orders",
    "topics/orders/settings": "orders",
    "topics/bytes": "bytes",
    "topics/empty": "empty",
    "groups": "Groups",
    "groups/billing": "billing",
    "brokers": "Brokers",
    "storage": "Storage",
    "settings": "Settings",
    "nowhere": "No such page",
}
"""The heading of each page, by its path."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_every_page_fits_a_phone_and_axe_finds_nothing_on_it(browser: Any, broker: ServedBroker, theme: str) -> None:
    with open_window(browser, broker.url) as window:
        faults = {}
        for path, heading in PAGES.items():
            with window.emulating(viewport=PHONE, theme=theme):
                window.open(path, heading)
                is_too_wide = window.is_too_wide()
                window.page.set_viewport_size(WIDE)
                window.settle()
                faults[path] = (is_too_wide, window.find_faults())
        assert faults == dict.fromkeys(PAGES, (False, []))
