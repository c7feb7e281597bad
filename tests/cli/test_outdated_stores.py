"""Brokers that are killed, and started with older copies of their storage folders: nothing is lost."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.cli.harness import Dafka
from tests.cli.test_lost_brokers import Brokers


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
