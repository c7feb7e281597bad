"""A client that creates topics, writes to them, deletes them and makes them again while brokers fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, ResourceType

from tests.broker.cluster.brokers import SHORT, ask
from tests.broker.cluster.traffic import IDEMPOTENT, QUICK, Client, read_logs

NAMES = (f"{SHORT}0", f"{SHORT}1")
RECORDS = 20
AGAIN_S = 0.3
ANSWER_S = 20
ASKED_S = 3.0

_SETTLED = {
    KafkaError.TOPIC_ALREADY_EXISTS: "create",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "delete",
    KafkaError.INVALID_PARTITIONS: "grow",
}
"""Errors that say that an order was carried out, if it was given before and its outcome was unknown."""


class Topics(Client):
    """Creates and deletes topics in turn. A topic contains what was sent to it since it was created, and nothing else.

    It uses a topic once all brokers name its id. Those that are cut off from most of the voters go on with the deleted
    one meanwhile.

    Attributes:
        logs: How many logs the topics have that exist now, by name; None while an order has an unknown outcome.
    """

    def __init__(self, servers: str, urls: Sequence[str]) -> None:
        super().__init__(servers)
        self.logs: dict[str, int | None] = {}
        self.turns = 0
        self._urls = urls
        self._ids: dict[str, str] = {}
        self._records: dict[str, set[bytes]] = {}
        self._admin = AdminClient({**self.servers, **QUICK})

    def run(self) -> None:
        while not self.is_stopped.is_set():
            name = NAMES[self.turns % len(NAMES)]
            self.turns += 1
            if name in self.logs:
                if not self._order("delete", name, partial(AdminClient.delete_topics, topics=[name])):
                    return
                del self.logs[name]
            new = NewTopic(name, num_partitions=1, replication_factor=3)
            if not self._order("create", name, partial(AdminClient.create_topics, new_topics=[new])):
                return
            self.logs[name], self._records[name] = 1, set()
            if not self._wait_known(name):
                return
            self._write(name)
            if self.turns % 3 == 0:
                more = NewPartitions(name, 2)
                if not self._order("grow", name, partial(AdminClient.create_partitions, new_partitions=[more])):
                    return
                self.logs[name] = 2
            self._read(name)

    def find_problems(self, found: dict[str, int]) -> list[str]:
        """Return the topics of this client that are there and should not be, or the reverse."""
        wanted = {name: logs for name, logs in self.logs.items() if logs is not None}
        there = {name: logs for name, logs in found.items() if name in NAMES and self.logs.get(name, 0) is not None}
        return self.problems + ([] if wanted == there else [f"there are {there} logs instead of {wanted}"])

    def _order(self, action: str, name: str, send: Callable[[AdminClient], dict[str, Any]]) -> bool:
        """Repeat an order until it was carried out, and return True; False if the client is stopped before."""
        before, is_repeated = self.logs.get(name), False
        while not self.is_stopped.is_set():
            self.waits_for = f"{action} {name}"
            try:
                send(self._admin)[name].result(ANSWER_S)
                return True
            except KafkaException as error:
                self.waits_for += f": {error}"
                if _SETTLED.get(code := error.args[0].code()) == action:
                    if not is_repeated:
                        self.problems.append(f"turn {self.turns}: {action} {name}, which has {before} logs: {error}")
                    return True
                is_repeated = is_repeated or code not in (KafkaError.NOT_CONTROLLER,)
            except TimeoutError:  # librdkafka can stop to answer
                is_repeated, self._admin = True, AdminClient({**self.servers, **QUICK})
            self.is_stopped.wait(AGAIN_S)
        if is_repeated:
            self.logs[name] = None
        return False

    def _wait_known(self, name: str) -> bool:
        """Wait until all brokers name the new topic, and return True; False if the client is stopped before."""
        former = self._ids.get(name, "")
        while not self.is_stopped.is_set():
            found = {_find_id(url, name) for url in self._urls}
            self.waits_for = f"the id of {name}, which is {' or '.join(sorted(found))} and was {former}"
            if len(found) == 1 and found.isdisjoint({former, ""}):
                (self._ids[name],) = found
                return True
            self.is_stopped.wait(AGAIN_S)
        return False

    def _write(self, name: str) -> None:
        self.waits_for = f"acknowledgements of {name}"
        producer = Producer({**self.servers, **IDEMPOTENT})
        for number in range(RECORDS):
            value = f"{name} {self.turns} {number}".encode()
            self._records[name].add(value)
            producer.produce(name, value, partition=0, on_delivery=self._note)
        while producer.flush(AGAIN_S) and not self.is_stopped.is_set():
            pass

    def _note(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self.problems.append(f"turn {self.turns}: {message.topic()} took no record: {error}")
        elif int(message.value().split()[2]) != message.offset():
            self.problems.append(f"turn {self.turns}: {message.value()!r} is at {message.offset()}")

    def _read(self, name: str) -> None:
        if self.is_stopped.is_set():
            return
        self.waits_for = f"records of {name}"
        try:
            (records, *_) = read_logs(self.servers["bootstrap.servers"], name, 1)
        except AssertionError as error:
            self.problems.append(f"turn {self.turns}: {error}")
            return
        found = Counter(value for _, value in records)
        if wrong := {
            each for each in self._records[name] | found.keys() if found[each] != (each in self._records[name])
        }:
            self.problems.append(f"turn {self.turns}: {len(wrong)} records are lost, doubled or wrong: {min(wrong)!r}")


def _find_id(url: str, name: str) -> str:
    """Return the id of a topic as a broker knows it; empty if the broker has no such topic or does not answer."""
    try:
        return str(ask(f"{url}/topics/{name}", timeout_s=ASKED_S)["topic_id"])
    except OSError:
        return ""


def describe(servers: str, names: list[str]) -> dict[str, Any]:
    """Return what no fault may change of topics: ids, the numbers of logs, and settings."""
    admin = AdminClient({"bootstrap.servers": servers, **QUICK})
    found = admin.describe_topics(TopicCollection(names), request_timeout=ANSWER_S)
    configs = admin.describe_configs([ConfigResource(ResourceType.TOPIC, name) for name in names])
    settings = {
        key.name: sorted((each.name, each.value) for each in future.result(ANSWER_S).values())
        for key, future in configs.items()
    }
    return {
        name: (str((topic := future.result(ANSWER_S)).topic_id), len(topic.partitions), settings[name])
        for name, future in found.items()
    }
