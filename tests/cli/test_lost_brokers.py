"""Brokers that are killed, and whose storages are lost or older copies: real processes and disks, and the commands."""

from __future__ import annotations

import json
import shutil
import signal
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.cli.harness import Dafka, Ended, Running, wait_for

QUICK = {"DAFKA_BROKER_LEADER_TIMEOUT_MS": "3000", "DAFKA_BROKER_REPLACE_REPLICAS_AFTER_MS": "5000"}
"""Settings with which a lost broker is replaced sooner than by default."""


class Brokers:
    """The processes of brokers, by number, with a tower. Each has a storage in a folder of its own."""

    def __init__(self, dafka: Dafka, folder: Path, count: int) -> None:
        self.running: dict[int, Running] = {}
        self._dafka = dafka
        self._folder = folder
        dafka.start_tower()
        for number in range(count):
            self.start(number, "--initial-brokers", str(count))
        for number in range(count):
            self.url(number)

    def storage(self, number: int) -> Path:
        return self._folder / f"broker-{number}"

    def start(self, number: int, *options: str) -> Running:
        storage = f"filelog:{self.storage(number)}"
        options = ("--storage", storage, "--number", str(number), "--kafka", "0", "--http", "0", *options)
        self.running[number] = self._dafka.start_node("broker", *options, environment=QUICK)
        return self.running[number]

    def kill(self, number: int) -> None:
        self.running.pop(number).end(signal.SIGKILL)

    def url(self, number: int) -> str:
        """Return the URL of a broker, when it is ready."""
        return self.running[number].wait_output(3)[2].split()[-1]

    def ask(self, number: int, method: str, target: str, document: Any = None) -> tuple[int, Any]:
        """Return the status and the document, or the list of documents, in the answer to a request."""
        connection = HTTPConnection(urlsplit(self.url(number)).netloc, timeout=60)
        connection.request(method, target, json.dumps(document), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        found = [json.loads(each) for each in answer.read().splitlines()]
        connection.close()
        return answer.status, found if target.partition("?")[0].endswith("/records") else found[0]

    def create(self, at: int, topic: str, replicas: int) -> None:
        """Create a topic. The answer to an attempt can be lost with the controller that has made it."""
        document, attempts = {"name": topic, "log_count": 1, "replica_count": replicas}, list[int]()

        def attempt() -> bool | None:
            attempts.append(self.ask(at, "POST", "/topics", document)[0])
            return attempts[-1] == 201 or (len(attempts) > 1 and attempts[-1] == 409) or None

        wait_for(attempt, lambda: f"{topic} is not created: {attempts}")

    def publish(self, topic: str, values: list[int], at: int) -> None:
        """Publish values one by one, each until it is acknowledged."""
        for value in values:

            def publish(value: int = value) -> bool | None:
                return self.ask(at, "POST", f"/topics/{topic}/records?log=0", value)[0] == 200 or None

            wait_for(publish, lambda: f"{topic} takes no records at broker {at}")

    def read(self, topic: str, at: int) -> list[int]:
        def attempt() -> list[int] | None:
            status, found = self.ask(at, "GET", f"/topics/{topic}/records?limit=1000")
            return [int(each["value"]) for each in found] if status == 200 else None

        return wait_for(attempt, lambda: f"{topic} is not read at broker {at}")

    def wait_replicas(self, topic: str, at: int, replicas: set[int]) -> None:
        """Wait until exactly these brokers store a topic, and are in sync."""

        def look() -> bool | None:
            (log,) = self.ask(at, "GET", f"/topics/{topic}")[1]["logs"]
            return (set(log["replicas"]) == set(log["in_sync"] or ()) == replicas) or None

        wait_for(look, lambda: str(self.ask(at, "GET", f"/topics/{topic}")))

    def ask_to_forget(self, at: int, number: int, *options: str) -> Ended:
        """Ask the cluster to forget a broker, until it is not heard any more."""

        def ask() -> Ended | None:
            found = self.command(at, "cluster", "forget", str(number), "--yes", *options)
            return None if "is alive" in found.errors else found

        return wait_for(ask, lambda: f"broker {number} is still heard")

    def forget(self, at: int, number: int, *options: str) -> None:
        found = self.ask_to_forget(at, number, *options)
        assert (found.status, found.errors) == (0, f"broker {number} is forgotten\n")

    def command(self, at: int, *arguments: str) -> Ended:
        return self._dafka.run(*arguments, "--http", self.url(at))


def test_a_broker_whose_storage_is_lost_is_forgotten_and_a_new_one_takes_its_number(
    dafka: Dafka, tmp_path: Path
) -> None:
    brokers = Brokers(dafka, tmp_path, 3)
    brokers.create(0, "orders", 3)
    brokers.publish("orders", list(range(20)), 0)
    refused = brokers.command(0, "cluster", "forget", "2", "--yes")
    assert (refused.status, refused.error) == (2, "broker 2 is alive: drain it, and stop it before it is forgotten")
    brokers.kill(2)
    brokers.publish("orders", list(range(20, 30)), 0)
    former = shutil.move(brokers.storage(2), tmp_path / "former")
    taken = brokers.start(2).wait()
    assert taken.status == 2
    assert "dafka cluster forget 2" in taken.errors
    brokers.forget(1, 2)
    brokers.start(2)
    brokers.wait_replicas("orders", 0, {0, 1, 2})
    brokers.kill(0)
    brokers.publish("orders", list(range(30, 40)), 2)
    assert brokers.read("orders", 2) == list(range(40))

    back = dafka.node("broker", "--storage", f"filelog:{former}", "--kafka", "0")
    assert back.status == 2
    assert "has forgotten this store" in back.errors
    assert "start the broker with an empty storage" in back.errors


def test_a_cluster_that_has_lost_most_of_its_voters_goes_on_from_the_storage_that_is_left(
    dafka: Dafka, tmp_path: Path
) -> None:
    brokers = Brokers(dafka, tmp_path, 3)
    brokers.create(0, "orders", 3)
    brokers.publish("orders", list(range(20)), 0)
    for number in range(3):
        brokers.kill(number)
    shutil.rmtree(brokers.storage(0))
    former = shutil.copytree(brokers.storage(1), tmp_path / "former")
    shutil.rmtree(brokers.storage(1))
    url = f"filelog:{brokers.storage(2)}"
    shown = dafka.run("cluster", "recover", url, f"filelog:{former}", "--dry-run")
    assert (shown.status, shown.error) == (
        2,
        "2 of the 3 voters on metadata are left, which is enough: start their brokers",
    )
    assert [line.split()[:2] for line in shown.output.decode().splitlines()[1:]] == [
        [url, "2"],
        [f"filelog:{former}", "1"],
    ]
    recovered = dafka.run("cluster", "recover", url, "--yes")
    assert recovered.errors == "start broker 2: it becomes the only voter on metadata\n"
    brokers.start(2)
    brokers.create(2, "later", 1)
    brokers.publish("later", [1], 2)
    for number in (0, 1):
        result = brokers.ask_to_forget(2, number)
        assert (result.status, "would have no quorum" in result.errors) == (2, True), result.errors
        brokers.forget(2, number, "--accept-loss")
    brokers.start(0)
    brokers.create(0, "last", 2)
    brokers.publish("last", [1], 0)
    back = dafka.node("broker", "--storage", f"filelog:{former}", "--kafka", "0")
    assert (back.status, "has forgotten this store" in back.errors) == (2, True), back.errors


def test_a_log_that_has_lost_its_quorum_continues_from_the_broker_that_is_left(dafka: Dafka, tmp_path: Path) -> None:
    brokers = Brokers(dafka, tmp_path, 3)
    brokers.create(0, "orders", 2)
    brokers.publish("orders", list(range(20)), 0)
    (log,) = brokers.ask(0, "GET", "/topics/orders")[1]["logs"]
    left, lost = log["replicas"]
    (other,) = {0, 1, 2} - {left, lost}
    brokers.kill(lost)
    shutil.rmtree(brokers.storage(lost))
    command = ("topic", "recover", "orders", "--log", "0", "--from", str(left))

    def run(option: str) -> Ended:
        def attempt() -> Ended | None:
            found = brokers.command(other, *command, option)
            return None if "has a quorum" in found.errors else found

        return wait_for(attempt, lambda: f"broker {lost} is still heard")  # the controller can hear it for longer

    shown = run("--dry-run")
    sentence = (
        f"log 0 of orders would continue from broker {left}: records that only the broker {lost} had would be lost\n"
    )
    assert (shown.status, shown.errors) == (0, sentence)
    found = run("--yes")
    assert (found.status, found.errors) == (0, f"{sentence}log 0 of orders is recovered\n")
    brokers.publish("orders", list(range(20, 30)), other)
    brokers.wait_replicas("orders", left, {left, other})
    assert brokers.read("orders", other) == list(range(30))
    brokers.forget(other, lost)


def test_a_topic_that_a_recovery_has_lost_is_adopted(dafka: Dafka, tmp_path: Path) -> None:
    brokers = Brokers(dafka, tmp_path, 3)
    brokers.kill(2)
    brokers.create(0, "orders", 3)
    brokers.publish("orders", list(range(20)), 0)
    for number in (0, 1):
        brokers.kill(number)
    assert dafka.run("cluster", "recover", f"filelog:{brokers.storage(2)}", "--yes").status == 0
    brokers.start(2)
    brokers.create(2, "other", 1)
    refused = brokers.start(0).wait()
    assert (refused.status, "copy its records with `dafka storage copy`" in refused.errors) == (2, True), refused.errors
    copied = f"filelog:{brokers.storage(5)}"
    assert dafka.run("storage", "copy", f"filelog:{brokers.storage(0)}", copied).status == 0
    listed = dafka.run("storage", "adopt", copied).output.decode().splitlines()
    (topic_id,) = [line.split()[0] for line in listed if line.split()[1] == "orders"]
    adopted = dafka.run("storage", "adopt", copied, topic_id, "--as", "orders")
    assert (adopted.status, adopted.errors) == (0, "20 records appended to orders: start the broker\n")
    for number in (0, 1):
        brokers.forget(2, number, "--accept-loss")
    brokers.start(5)

    def look() -> bool | None:
        status, found = brokers.ask(5, "GET", "/topics/orders")
        return (status == 200 and found["logs"][0]["end_offset"] == 20) or None

    wait_for(look, lambda: str(brokers.ask(5, "GET", "/topics/orders")))
    assert brokers.read("orders", 5) == list(range(20))


def test_a_broker_with_an_older_copy_of_its_storage_loses_nothing_that_was_acknowledged(
    dafka: Dafka, tmp_path: Path
) -> None:
    brokers = Brokers(dafka, tmp_path, 3)
    brokers.create(0, "orders", 3)
    brokers.publish("orders", list(range(10)), 0)
    brokers.kill(2)
    copy = shutil.copytree(brokers.storage(2), tmp_path / "copy")
    brokers.start(2)
    brokers.wait_replicas("orders", 0, {0, 1, 2})
    brokers.publish("orders", list(range(10, 20)), 2)
    for number in range(3):
        brokers.kill(number)
    shutil.rmtree(brokers.storage(2))
    shutil.move(copy, brokers.storage(2))
    outdated = brokers.start(2)
    brokers.start(1)
    outdated.wait_errors("is an older copy or a clone")
    brokers.start(0)
    brokers.wait_replicas("orders", 0, {0, 1, 2})
    assert [brokers.read("orders", number) for number in range(3)] == [list(range(20))] * 3
