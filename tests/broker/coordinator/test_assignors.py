"""Assignors of plugins: they are found by their entry points, and their mistakes harm no group."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer

from dafka import Config
from dafka.assignors import Assignment, LogKey, Subscriber
from dafka.broker.coordinator.assignors import CheckedAssignor, load_assignors
from dafka.broker.core.groups.consumer.assignors import DEFAULT_ASSIGNORS, UniformAssignor
from dafka.errors import ConfigError
from dafka.testing import check_assignor
from tests.kafka.apis.door import Door, open_door

EXAMPLE = Path(__file__).parents[3] / "examples" / "striped_assignor.py"
DEADLINE_S = 60
SAME = frozenset({"t"})


@pytest.fixture
def striped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the example as pip would: a module, and metadata with its entry point."""
    site = tmp_path / "site"
    metadata = site / "striped_assignor-1.0.dist-info"
    metadata.mkdir(parents=True)
    shutil.copy(EXAMPLE, site)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: striped-assignor\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[dafka.assignors]\nstriped = striped_assignor:StripedAssignor\nabsent = striped_assignor:Missing\n"
    )
    monkeypatch.syspath_prepend(site)


@pytest.fixture
def door(striped: None) -> Iterator[Door]:
    with open_door(Config().with_kafka(consumer_assignors="range, striped")) as found:
        yield found


def read_assignment(consumers: list[Consumer], count: int) -> list[list[int]]:
    """Return the logs of each consumer when they share so many."""
    while True:
        for each in consumers:
            each.poll(0.05)
        found = [sorted(log.partition for log in each.assignment()) for each in consumers]
        if sorted(number for logs in found for number in logs) == list(range(count)) and all(found):
            return found


def test_clients_choose_the_assignor_of_a_plugin(door: Door) -> None:
    with door.connect() as client:
        client.create_topics("orders", logs=6)
    for assignor, expected in (("striped", [[0, 2, 4], [1, 3, 5]]), ("range", [[0, 1, 2], [3, 4, 5]])):
        consumers = [
            Consumer(
                {
                    "bootstrap.servers": door.servers,
                    "group.id": assignor,
                    "group.protocol": "consumer",
                    "group.remote.assignor": assignor,
                    "group.instance.id": f"reader-{number}",
                }
            )
            for number in range(2)
        ]
        try:
            for each in consumers:
                each.subscribe(["orders"])
            assert read_assignment(consumers, 6) == expected
        finally:
            for each in consumers:
                each.close()


@pytest.mark.usefixtures("striped")
def test_the_example_keeps_the_contract_and_others_are_named() -> None:
    found = load_assignors(("striped", "uniform"))
    assert list(found) == ["striped", "uniform"]
    for assignor in (*found.values(), *DEFAULT_ASSIGNORS.values()):
        check_assignor(assignor)
    for name, reason in (("nope", "unknown assignors 'nope'"), ("absent", "'absent' cannot be loaded")):
        with pytest.raises(ConfigError, match=rf"^\[kafka\] consumer_assignors: .*{reason}.* has uniform and range"):
            load_assignors((name,))


def fail(*_: Any) -> Any:
    raise RuntimeError("no idea")


BROKEN: dict[str, Any] = {
    "RuntimeError: no idea": fail,
    "log 0 of the topic 't' has no reader": lambda _members, _counts: {},
    "log 0 of the topic 't' has two readers": lambda members, _counts: dict.fromkeys(members, (LogKey("t", 0),)),
    "there is no member 'stranger'": lambda _members, _counts: {"stranger": []},
    "TypeError": lambda _members, _counts: {"a": [1]},
    "AttributeError": lambda _members, _counts: None,
}


@pytest.mark.parametrize("problem", BROKEN)
def test_a_broken_assignor_is_replaced_by_the_uniform_one(problem: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "dafka.broker")
    broken: Any = SimpleNamespace(assign=BROKEN[problem])
    members = {"a": Subscriber(SAME), "b": Subscriber(SAME)}
    found = CheckedAssignor("mine", broken).assign(members, {"t": 4})
    assert found == UniformAssignor().assign(members, {"t": 4})
    assert caplog.messages[0].startswith(
        f"the assignor mine is not used for a group, which is assigned uniformly: {problem}"
    )
    with pytest.raises((AssertionError, RuntimeError, TypeError, AttributeError)):
        check_assignor(broken)


class Lists:
    """An assignor that returns lists of tuples."""

    def assign(self, members: Mapping[str, Subscriber], log_counts: Mapping[str, int]) -> dict[str, Collection[Any]]:
        first = min(members)
        return {first: [(topic, number) for topic, count in log_counts.items() for number in range(count)]}


def test_logs_may_be_plain_tuples() -> None:
    plain: Any = Lists()
    members = {"a": Subscriber(SAME), "b": Subscriber(SAME)}
    found: dict[str, Assignment] = CheckedAssignor("mine", plain).assign(members, {"t": 2})
    assert found == {"a": frozenset({LogKey("t", 0), LogKey("t", 1)})}, "as it says, not uniformly"
