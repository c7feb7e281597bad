"""The console goes on by itself: when its broker is restarted, when its tab sleeps, and with thousands of topics."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from dafka import Config
from tests.http.console.browser import ServedBroker, Window, open_window, serve_broker
from tests.ports import free_port

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
