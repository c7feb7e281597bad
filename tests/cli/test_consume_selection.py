"""Which records `dafka consume` prints, alone and in a group, and the messages of `dafka produce`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

from dafka.cli.selection import SelectedRecords, Selection
from dafka.testing import Cluster, open_cluster
from tests.cli.harness import Dafka, Ended
from tests.roles.helpers import DEADLINE_S
from tests.waiting import wait_until


def numbers(first: int, end: int) -> bytes:
    return b"".join(b"%d\n" % number for number in range(first, end))


@pytest.fixture(scope="module")
def partition(cluster: Dafka) -> str:
    """Store two partitions of the topic `numbers`; return the address of that with the numbers from 0 to 49."""
    assert cluster.node("produce", "numbers", stdin=numbers(0, 50)).status == 0
    first = cluster.node("consume", "numbers", "--exit-at-end", "--output", "json", "--count", "1").output
    assert cluster.node("produce", "numbers", stdin=numbers(100, 150)).status == 0
    return str(json.loads(first)["partition"])


def check_printed(ended: Ended, *expected: bytes) -> None:
    assert (ended.status, ended.errors) == (0, "")
    assert sorted(ended.output.splitlines(keepends=True)) == sorted(b"".join(expected).splitlines(keepends=True))


def test_messages_are_published_as_they_are(cluster: Dafka) -> None:
    produced = cluster.node("produce", "messages", "one", "", "two words\nin two lines", "ключ", stdin=b"not read")
    assert (produced.status, produced.output) == (0, b"")
    printed = cluster.node("consume", "messages", "--exit-at-end", "--output", "json").output.splitlines()
    values = [json.loads(line)["value"] for line in printed]
    assert values == ["one", "", "two words\nin two lines", "ключ"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], numbers(0, 50) + numbers(100, 150)),
        (["--tail", "7"], numbers(43, 50) + numbers(143, 150)),
        (["--tail", "99"], numbers(0, 50) + numbers(100, 150)),
        (["--offset", "45"], numbers(45, 50) + numbers(145, 150)),
    ],
)
def test_what_is_stored_is_printed_from_the_beginning_chosen(
    cluster: Dafka, partition: str, options: list[str], expected: bytes
) -> None:
    check_printed(cluster.node("consume", "numbers", "nothing", "--exit-at-end", *options), expected)


def test_a_time_is_the_beginning_in_each_partition(cluster: Dafka) -> None:
    for time, words in (("2023-01-01", ("old", "older")), ("2023-01-03", ("new", "newer"))):
        assert cluster.node("produce", "timed", *words, "--timestamp", time).status == 0
    everything = cluster.node("consume", "timed", "--since", "2022-12-31", "--exit-at-end")
    check_printed(everything, b"old\nolder\nnew\nnewer\n")
    live = cluster.start_consumer("timed", "--since", "2023-01-02T12:00:00+01:00", "--count", "3")
    live.wait_output(2)
    assert cluster.node("produce", "timed", "newest").status == 0
    assert live.wait().output == b"new\nnewer\nnewest\n"


def test_a_partition_is_printed_alone(cluster: Dafka, partition: str) -> None:
    chosen = ("--partition", partition[:8].lower())
    ended = cluster.node("consume", "numbers", *chosen, "--tail", "3", "--exit-at-end")
    check_printed(ended, numbers(47, 50))
    live = cluster.start_consumer("numbers", *chosen, "--from-beginning", "--count", "50")
    assert live.wait().output == numbers(0, 50)


def test_a_partition_that_is_not_stored_is_named(cluster: Dafka, partition: str) -> None:
    ended = cluster.node("consume", "numbers", "--partition", "XYZ", "--exit-at-end")
    assert ended.status == 2
    assert ended.error.startswith("--partition XYZ: no stored partition of numbers begins so; ")


def test_records_of_other_partitions_do_not_count_as_received(cluster: Dafka, partition: str, tmp_path: Path) -> None:
    environment = {"DAFKA_CONSUMER_NAME": "billing", "DAFKA_CONSUMER_POSITIONS": f"sqlite:{tmp_path}/billing.db"}

    def consume(*options: str) -> Ended:
        return cluster.node("consume", "numbers", "--exit-at-end", *options, environment=environment)

    check_printed(consume("--partition", partition, "--count", "10"), numbers(0, 10))
    check_printed(consume(), numbers(10, 50), numbers(100, 150))
    check_printed(consume(), b"")


async def test_other_partitions_are_paused_at_their_first_record(dafka_cluster: Cluster) -> None:
    """Otherwise their records would come again and again."""
    async with dafka_cluster.producer("two") as chosen, dafka_cluster.producer("two") as other:
        for producer in (chosen, other):
            await producer.send(b"0")
            await producer.wait_stored()
        async with dafka_cluster.consumer(["two"]) as consumer, trio.open_nursery() as nursery:
            records = await Selection(partitions=(chosen.partition.address,)).begin(consumer)
            batch = await records.next_batch()
            assert batch is not None
            assert batch.partition == chosen.partition
            nursery.start_soon(records.next_batch)
            await wait_until(lambda: consumer.paused == {other.partition})
            assert consumer.lag() == {chosen.partition: 0, other.partition: 1}
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("options", [["--exit-at-end"], ["--since", "2h"]])
def test_an_end_and_a_time_that_no_store_tells_are_errors(dafka: Dafka, options: list[str]) -> None:
    dafka.start_tower()
    ended = dafka.node("consume", "orders", *options, environment={"DAFKA_NODE_TOWER_TIMEOUT_MS": "1500"})
    assert ended.status == 1
    assert "no store was found within 1.5 s" in ended.error


def test_a_group_goes_on_and_is_described_and_reset(cluster: Dafka) -> None:
    assert cluster.node("produce", "orders", "tea", "milk").status == 0
    group = ("consume", "orders", "--group", "billing", "--offset-reset", "earliest")
    assert cluster.node(*group, "--count", "2").output == b"tea\nmilk\n"
    found = json.loads(cluster.node("group", "describe", "billing", "--json").output)
    [position] = found["positions"]
    assert (found["members"], position["position"], position["lag"]) == ([], 2, 0)
    assert cluster.node("group", "list").output.split() == [b"group", b"billing"]
    assert cluster.node("group", "reset", "billing", "--to", "1").status == 0
    assert cluster.node(*group, "--count", "1").output == b"milk\n"


def test_mistakes_with_groups(cluster: Dafka) -> None:
    missing = cluster.node("group", "describe", "missing")
    assert missing.status == 2
    assert "group 'missing': there is no such group in the cluster" in missing.errors


async def test_only_records_that_are_printed_count_as_received() -> None:
    """A consumer that saves its positions gets the others later."""
    async with open_cluster() as cluster:
        async with cluster.producer("orders") as one, cluster.producer("orders") as other:
            for producer in (one, other):
                await producer.send_many([b"%d" % number for number in range(20)])
                await producer.wait_acknowledged()
            printed, hidden = one.partition, other.partition
        async with cluster.consumer(["orders"]) as consumer:
            records = SelectedRecords(
                consumer, Selection(partitions=(printed.address,)).includes, {printed: 20, hidden: 20}
            )
            with trio.fail_after(DEADLINE_S):
                while consumer.positions().get(printed, 0) < 15 and (found := await records.next_batch(5)) is not None:
                    assert found.partition == printed
                    assert len(found) <= 5
                    assert consumer.positions().get(printed) == found.end_sequence
            assert not consumer.positions().get(hidden)
