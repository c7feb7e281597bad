"""Every page, in real Chromium."""

from __future__ import annotations

from typing import Any

import pytest

from tests.http.console.browser import PHONE, open_window
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
def test_axe_finds_nothing_on_any_page(browser: Any, broker: ServedBroker, theme: str) -> None:
    with open_window(browser, broker.url, color_scheme=theme, reduced_motion="reduce") as window:
        faults = {}
        for path, heading in PAGES.items():
            window.open(path, heading)
            found = window.find_faults()
            if found:
                faults[path] = found
        assert faults == {}


def test_every_page_fits_a_phone(browser: Any, broker: ServedBroker) -> None:
    with open_window(browser, broker.url, viewport=PHONE) as window:
        too_wide = []
        for path, heading in PAGES.items():
            window.open(path, heading)
            if window.is_too_wide():
                too_wide.append(path)
        assert too_wide == []
