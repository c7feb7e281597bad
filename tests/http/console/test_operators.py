"""What operators do in the console, each behind a confirmation that names the thing, and only where they may."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from dafka import Config
from dafka.broker.access.permissions import Permissions
from tests.http.console.browser import ServedBroker, Window, open_window, serve_broker
from tests.http.running import run_webs
from tests.http.server.test_authentication import basic
from tests.kafka.server.secured import EVERYTHING, PASSWORD, write_user_file
from tests.waiting import poll_until

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
    window.page.get_by_label("User").fill(user)
    window.page.get_by_label("Password").fill(password)
    window.page.get_by_role("button", name="Log in").click()


def own_settings(broker: ServedBroker, topic: str) -> tuple[int, dict[str, str]]:
    """Return the number of a topic's logs, and its own settings."""
    found = broker.request("GET", f"/topics/{topic}")
    return found["log_count"], {each["name"]: each["value"] for each in found["settings"] if each["is_own"]}


def test_a_topic_is_created_changed_and_deleted(window: Window, broker: ServedBroker) -> None:
    page = window.open("topics", "Topics")
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
    assert own_settings(broker, "made.here") == (2, {"retention.ms": "60000"})
    page.get_by_role("navigation", name="Parts of the topic").get_by_role("link", name="Settings").click()
    page.get_by_role("button", name="Change").click()
    dialog.get_by_label("Settings").fill("retention.bytes=1000")
    dialog.get_by_label("Logs").fill("3")
    dialog.get_by_role("button", name="Change").click()
    dialog.wait_for(state="detached")
    assert own_settings(broker, "made.here") == (3, {"retention.bytes": "1000"})
    page.get_by_role("button", name="Delete", exact=True).click()
    confirm = page.get_by_role("dialog", name="Delete the topic made.here?")
    assert confirm.get_by_role("button", name="Delete the topic").is_disabled()
    confirm.get_by_role("textbox").fill("made.here")
    confirm.get_by_role("button", name="Delete the topic").click()
    page.get_by_role("heading", level=1, name="Topics").wait_for()
    names = [each["name"] for each in broker.request("GET", "/topics")["topics"]]
    assert "made.here" not in names


@pytest.mark.parametrize("kind", ["topic", "group"])
def test_a_page_whose_thing_was_deleted_gives_way_to_the_list_even_if_the_answer_is_late(
    window: Window, broker: ServedBroker, kind: str
) -> None:
    broker.create_topic("late")
    broker.request("PUT", "/groups/late/offsets", {"topic": "late", "to": "earliest"})
    page, target, held = window.open(f"{kind}s/late", "late"), f"**/{kind}s/late", list[Any]()
    page.route(target, lambda each: held.append(each) if each.request.method == "DELETE" else each.fallback())
    page.get_by_role("button", name="Delete", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox").fill("late")
    with page.expect_request(lambda request: request.method == "DELETE"):
        dialog.get_by_role("button", name=f"Delete the {kind}").click()
    broker.request("DELETE", f"/{kind}s/late")
    page.get_by_text(f"There is no {kind} of this name").wait_for()
    held[0].fulfill(status=204)
    page.get_by_role("heading", level=1, name=f"{kind}s".capitalize(), exact=True).wait_for()
    page.unroute(target)
    window.forgive("404")
    if kind == "group":
        broker.request("DELETE", "/topics/late")


def test_records_are_deleted(window: Window, broker: ServedBroker) -> None:
    broker.create_topic("deleting", [str(number) for number in range(10)])
    page = window.open("topics/deleting", "deleting")
    page.get_by_role("button", name="Delete records").click()
    dialog = page.get_by_role("dialog", name="Delete records of deleting")
    dialog.get_by_label("Before offset").fill("11")
    dialog.get_by_text("Expected a number from 1 to 10.").wait_for()
    dialog.get_by_label("Before offset").fill("4")
    dialog.get_by_role("button", name="Delete 4 records").click()
    dialog.wait_for(state="detached")
    assert broker.request("GET", "/topics/deleting")["logs"][0]["start_offset"] == 4


def test_offsets_of_a_group_are_reset_and_the_group_is_deleted(window: Window, broker: ServedBroker) -> None:
    broker.request("PUT", "/groups/doomed/offsets", {"topic": "orders", "to": "earliest"})
    page = window.open("groups/doomed", "doomed")
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


def test_the_storage_is_verified(window: Window) -> None:
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


# Several brokers, and the drawing of leader epochs


@pytest.fixture(scope="module")
def brokers() -> Iterator[list[ServedBroker]]:
    with run_webs(2) as webs:
        found = [ServedBroker(each) for each in webs]
        found[0].create_topic("orders", log_count=2)
        yield found


def draining(broker: ServedBroker) -> list[bool]:
    """Return of each broker whether it is being drained, as one of them has heard."""
    return [each["is_draining"] for each in broker.request("GET", "/brokers")["brokers"]]


def test_a_broker_is_drained_after_a_question(browser: Any, brokers: list[ServedBroker]) -> None:
    with open_window(browser, brokers[0].url) as window:
        page = window.open("brokers", "Brokers")
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


def test_the_page_of_brokers_shows_voters_and_logs_that_need_attention(
    browser: Any, brokers: list[ServedBroker]
) -> None:
    with open_window(browser, brokers[1].url) as window:
        found = brokers[1].request("GET", "/cluster")
        page = window.open("brokers", "Brokers")
        page.get_by_text(f"Cluster {found['cluster_id']}").wait_for()
        row = page.get_by_role("row").filter(has=page.get_by_text("controller", exact=True))
        assert row.get_by_role("rowheader").inner_text().startswith(str(found["controller"]))
        assert row.get_by_text("voter", exact=True).count() == 1
        brokers[1].create_topic("seen")  # the newest change: the page shows the last ones, and logs are moved meanwhile
        (change,) = [
            each["description"]
            for each in brokers[1].request("GET", "/cluster/log")["changes"]
            if each["description"].startswith("create topic seen")
        ]
        page.get_by_text(change).wait_for()
        assert window.find_faults() == []


def test_a_table_says_what_the_drawing_of_epochs_shows(browser: Any, brokers: list[ServedBroker]) -> None:
    with open_window(browser, brokers[0].url) as window:
        page = window.open("topics/orders/epochs", "orders")
        page.get_by_role("img", name=re.compile("^Drawing of .*; the table has the same$")).wait_for()
        rows = page.get_by_role("group", name="Leader epochs", exact=True).locator("tbody tr")
        page.get_by_label("Log", exact=True).select_option("1")
        epochs = brokers[1].request("GET", "/topics/orders/epochs")["logs"][1]["epochs"]
        for each in epochs:
            rows.filter(has_text=f"Broker {each['leader']}").first.wait_for()
        rows.nth(len(epochs) - 1).wait_for()  # leaders may change meanwhile, and the page asks each second
        assert window.find_faults() == []


EPOCHS = [(0, 0, None, None, 0, "first"), (1024, 1, 0, 0, 100, "divergent")]
EPOCHS += [(1026, 2, 0, 0, 90, "divergent"), (2048, 1, 1024, 1, 150, "latest")]
FIELDS = ("epoch", "leader", "parent_epoch", "parent_leader", "start_offset")


def test_divergent_epochs_and_merging_are_drawn(browser: Any, brokers: list[ServedBroker]) -> None:
    found: list[dict[str, Any]] = []
    for *values, flag in EPOCHS:
        each: dict[str, Any] = dict(zip(FIELDS, values, strict=True))
        parent = "" if each["parent_leader"] is None else f"{each['parent_leader']}" * 32
        addresses = {"leader_address": f"{each['leader']}" * 32, "parent_leader_address": parent}
        found.append({**each, **addresses, "flags": [flag], "replicas": [0, 1, 2]})
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
