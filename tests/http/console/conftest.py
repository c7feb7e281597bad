"""Fixtures of the console's tests: one browser and one broker for all of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.http.console.browser import ServedBroker, Window, open_browser, open_window, serve_broker

RECORDS = [
    {
        "key": f"customer-{number % 7}",
        "value": json.dumps({"id": number, "amount": number * 1.5, "customer": {"id": number % 7, "name": "Ada"}}),
        "headers": [["trace", f"t-{number}"]],
        "timestamp": 1_790_000_000_000 + number * 1000,
    }
    for number in range(300)
]


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    with open_browser() as found:
        yield found


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    """A broker with a topic of records, one without, and a group."""
    with serve_broker(tmp_path_factory.mktemp("console")) as served:
        served.create_topic("orders", log_count=3)
        served.publish("orders", RECORDS)
        served.create_topic("bytes")
        served.publish("bytes", [{"key": None, "value_base64": "AAECA//+"}, {"key": "gone", "value": None}])
        served.create_topic("empty")
        served.request("PUT", "/groups/billing/offsets", {"topic": "orders", "to": "earliest"})
        yield served


@pytest.fixture
def window(browser: Any, broker: ServedBroker) -> Iterator[Window]:
    """A window of the broker's console, which must stay calm."""
    with open_window(browser, broker.url) as opened:
        yield opened
