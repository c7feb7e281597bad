"""What operators do in the console, each behind a confirmation that names the thing, and only where they may."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dafka import Config
from dafka.broker.access.permissions import Permissions
from tests.http.console.browser import Window, open_window
from tests.http.console.served import ServedBroker, serve_broker
from tests.http.server.test_authentication import basic
from tests.kafka.server.secured import EVERYTHING, PASSWORD, write_user_file

ACTIONS = ("Create a topic", "Delete records", "Delete", "Change", "Reset offsets", "Verify the storage", "Publish")


def find_actions(window: Window) -> list[str]:
    """Return the actions of operators and producers that the page offers."""
    return [each for each in ACTIONS if window.page.get_by_role("button", name=each, exact=True).count()]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    folder = tmp_path_factory.mktemp("secured")
    users = folder / "users.json"
    reader = Permissions(read=("orders*",))
    write_user_file(users, ada=EVERYTHING, reader=reader, writer=Permissions(write=("orders*",), groups=("mine",)))
    with serve_broker(folder / "records", Config().with_clients(users=str(users))) as broker:
        ada: dict[str, Any] = {"Authorization": basic("ada", PASSWORD)}
        for topic in ("orders", "secret"):
            broker.create_topic(topic, **ada)
        broker.publish("orders", [{"value": "one"}], **ada)
        for group in ("mine", "theirs"):
            broker.request("PUT", f"/groups/{group}/offsets", {"topic": "orders", "to": "earliest"}, **ada)
        yield broker


def log_in(window: Window, user: str, password: str = PASSWORD) -> None:
    """Log in at the page that asks for it."""
    window.page.get_by_label("User").fill(user)
    window.page.get_by_label("Password").fill(password)
    window.page.get_by_role("button", name="Log in").click()


def test_a_topic_is_created_changed_and_deleted(browser: Any, broker: ServedBroker) -> None:
    with open_window(browser, broker.url) as window:
        page = window.page
        window.open("topics", "Topics")
        page.get_by_role("button", name="Create a topic").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Name").fill("made.here")
        dialog.get_by_label("Settings").fill("retention.ms")
        dialog.get_by_role("button", name="Create").click()
        dialog.get_by_text("A setting looks like retention.ms=86400000").wait_for()
        dialog.get_by_label("Settings").fill("retention.ms=60000")
        dialog.get_by_label("Logs").fill("2")
        dialog.get_by_role("button", name="Create").click()
        page.get_by_role("heading", level=1, name="made.here").wait_for()
        described = broker.request("GET", "/topics/made.here")
        assert described["log_count"] == 2
        assert {each["name"]: each["value"] for each in described["settings"] if each["is_own"]} == {
            "retention.ms": "60000"
        }
        page.get_by_role("navigation", name="Parts of the topic").get_by_role("link", name="Settings").click()
        page.get_by_role("button", name="Change").click()
        dialog.get_by_label("Settings").fill("retention.bytes=1000")
        dialog.get_by_label("Logs").fill("3")
        dialog.get_by_role("button", name="Change").click()
        dialog.wait_for(state="detached")
        described = broker.request("GET", "/topics/made.here")
        assert described["log_count"] == 3
        assert {each["name"]: each["value"] for each in described["settings"] if each["is_own"]} == {
            "retention.bytes": "1000"
        }
        page.get_by_role("button", name="Delete", exact=True).click()
        confirm = page.get_by_role("dialog", name="Delete the topic made.here?")
        assert confirm.get_by_role("button", name="Delete the topic").is_disabled()
        confirm.get_by_role("textbox").fill("made.here")
        confirm.get_by_role("button", name="Delete the topic").click()
        page.get_by_role("heading", level=1, name="Topics").wait_for()
        names = [each["name"] for each in broker.request("GET", "/topics")["topics"]]
        assert "made.here" not in names


def test_records_are_deleted(browser: Any, broker: ServedBroker) -> None:
    broker.create_topic("deleting")
    broker.publish("deleting", [{"value": str(number)} for number in range(10)])
    with open_window(browser, broker.url) as window:
        page = window.page
        window.open("topics/deleting", "deleting")
        page.get_by_role("button", name="Delete records").click()
        dialog = page.get_by_role("dialog", name="Delete records of deleting")
        dialog.get_by_label("Before offset").fill("11")
        dialog.get_by_text("Expected a number from 1 to 10.").wait_for()
        dialog.get_by_label("Before offset").fill("4")
        dialog.get_by_role("button", name="Delete 4 records").click()
        dialog.wait_for(state="detached")
        assert broker.request("GET", "/topics/deleting")["logs"][0]["start_offset"] == 4


def test_offsets_of_a_group_are_reset_and_the_group_is_deleted(browser: Any, broker: ServedBroker) -> None:
    broker.request("PUT", "/groups/doomed/offsets", {"topic": "orders", "to": "earliest"})
    with open_window(browser, broker.url) as window:
        page = window.page
        window.open("groups/doomed", "doomed")
        for choice, value in (("latest", ""), ("offset", "5"), ("time", "")):
            page.get_by_role("button", name="Reset offsets").click()
            dialog = page.get_by_role("dialog", name="Reset the offsets of doomed")
            dialog.get_by_label("Read next").select_option(choice)
            if value:
                dialog.get_by_label("Offset").fill(value)
            dialog.get_by_role("button", name="Reset the offsets").click()
            dialog.wait_for(state="detached")
            found = broker.request("GET", "/groups/doomed")
            if choice == "latest":
                assert found["lag"] == 0
            if value:
                assert {each["offset"] for each in found["offsets"]} == {int(value)}
        page.get_by_role("button", name="Delete", exact=True).click()
        confirm = page.get_by_role("dialog", name="Delete the group doomed?")
        confirm.get_by_role("textbox").fill("doomed")
        confirm.get_by_role("button", name="Delete the group").click()
        page.get_by_role("heading", level=1, name="Groups").wait_for()
        assert "doomed" not in [each["group"] for each in broker.request("GET", "/groups")["groups"]]


def test_the_storage_is_verified(browser: Any, broker: ServedBroker) -> None:
    with open_window(browser, broker.url) as window:
        window.open("storage", "Storage")
        window.page.get_by_role("button", name="Verify the storage").click()
        window.page.get_by_text("No damage.").wait_for()


PERMITTED: dict[str, dict[str, list[str]]] = {
    "ada": {"topics/orders/settings": ["Delete records", "Delete", "Change"]},
    "reader": {"topics/orders": [], "topics/orders/settings": [], "topics/orders/produce": []},
    "writer": {"topics/orders/produce": ["Publish"], "groups/mine": ["Delete", "Reset offsets"]},
}
"""The actions that each user is offered on some pages."""

HIDDEN = ("storage", "settings", "topics/secret", "groups/theirs")


def test_users_log_in_are_offered_what_they_may_do_and_log_out(browser: Any, secured: ServedBroker) -> None:
    with open_window(browser, secured.url, is_shared=False) as window:
        page, login = window.page, window.page.get_by_role("heading", level=1, name="Log in to Dafka")
        window.open("topics", "Log in to Dafka")
        assert window.find_faults() == []
        log_in(window, "ada", "wrong")
        page.get_by_role("alert").wait_for()
        assert page.evaluate("document.activeElement.name") == "password"
        for user, actions in PERMITTED.items():
            log_in(window, user)
            page.get_by_text("Connected", exact=True).wait_for()
            window.open("topics", "Topics")
            if user == "ada":
                page.reload()
            page.get_by_role("link", name="orders").wait_for()
            is_administrator = user == "ada"
            assert page.get_by_role("link", name="secret").count() == is_administrator
            assert page.get_by_role("button", name="Create a topic").count() == is_administrator
            for name in ("Storage", "Settings"):
                assert page.get_by_role("link", name=name).count() == is_administrator
            for path, expected in actions.items():
                window.open(path)
                assert sorted(find_actions(window)) == sorted(expected), path
            assert page.get_by_role("link", name="Records").count() == (user != "writer")
            for path in HIDDEN if user == "reader" else ():
                window.open(path)
                page.get_by_role("alert").first.wait_for()
            window.open("", "Overview")
            assert page.get_by_text("Nothing is wrong").count() == is_administrator
            page.get_by_role("button", name="Log out").click()
            login.wait_for()
        page.reload()
        login.wait_for()
        window.forgive("401", "403")
