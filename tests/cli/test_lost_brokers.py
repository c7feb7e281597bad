"""Brokers that are killed and whose storages are lost: what the commands do about it, with real processes and disks."""

from __future__ import annotations

import json
import shutil
import signal
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.cli.harness import Dafka, Ended, Running, wait_for

QUICK = {"DAFKA_BROKER_LEADER_TIMEOUT_MS": "1000", "DAFKA_BROKER_REPLACE_REPLICAS_AFTER_MS": "5000"}
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

    def create(self, topic: str, replicas: int) -> None:
        at = next(iter(self.running))
        document = {"name": topic, "log_count": 1, "replica_count": replicas}
        assert self.ask(at, "POST", "/topics", document)[0] == 201

    def publish(self, topic: str, values: list[int], at: int) -> None:
        """Publish values one by one, each until it is acknowledged."""
        for value in values:

            def publish(value: int = value) -> bool | None:
                return self.ask(at, "POST", f"/topics/{topic}/records?log=0", value)[0] == 200 or None

            wait_for(publish, lambda: f"{topic} takes no records at broker {at}")

    def read(self, topic: str, at: int) -> list[int]:
        status, found = self.ask(at, "GET", f"/topics/{topic}/records?limit=1000")
        assert status == 200, found
        return [int(each["value"]) for each in found]

    def wait_replicas(self, topic: str, at: int, replicas: set[int]) -> None:
        """Wait until exactly these brokers store a topic, and are in sync."""

        def look() -> bool | None:
            (log,) = self.ask(at, "GET", f"/topics/{topic}")[1]["logs"]
            return (set(log["replicas"]) == set(log["in_sync"] or ()) == replicas) or None

        wait_for(look, lambda: str(self.ask(at, "GET", f"/topics/{topic}")))

    def command(self, at: int, *arguments: str) -> Ended:
        return self._dafka.run(*arguments, "--http", self.url(at))


def test_a_broker_whose_storage_is_lost_is_forgotten_and_a_new_one_takes_its_number(
    dafka: Dafka, tmp_path: Path
) -> None:
    brokers = Brokers(dafka, tmp_path, 3)
    brokers.create("orders", 3)
    brokers.publish("orders", list(range(20)), 0)
    refused = brokers.command(0, "cluster", "forget", "2", "--yes")
    assert (refused.status, refused.error) == (2, "broker 2 is alive: drain it, and stop it before it is forgotten")
    brokers.kill(2)
    brokers.publish("orders", list(range(20, 30)), 0)
    former = shutil.move(brokers.storage(2), tmp_path / "former")
    taken = brokers.start(2).wait()
    assert taken.status == 2
    assert "dafka cluster forget 2" in taken.errors

    def forget() -> Ended | None:
        found = brokers.command(1, "cluster", "forget", "2", "--yes")
        return None if "is alive" in found.errors else found

    assert wait_for(forget, lambda: "broker 2 is still heard").errors == "broker 2 is forgotten\n"
    brokers.start(2)
    brokers.wait_replicas("orders", 0, {0, 1, 2})
    brokers.kill(0)
    brokers.publish("orders", list(range(30, 40)), 2)
    assert brokers.read("orders", 2) == list(range(40))

    back = dafka.node("broker", "--storage", f"filelog:{former}", "--kafka", "0")
    assert back.status == 2
    assert "has forgotten this store" in back.errors
    assert "start the broker with an empty storage" in back.errors
