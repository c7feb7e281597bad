"""`dafka produce` and `dafka consume` with a cluster: what they read, print and show, and how they end."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from pathlib import Path

import pytest
import trio

from dafka.cli.selection import Selection
from dafka.testing import Cluster
from tests.cli.forks import fork_dafka
from tests.cli.harness import DEADLINE_S, MODULE, Dafka, Ended, numbered_lines, open_terminal
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
    ended = dafka.node("consume", "orders", *options, environment={"DAFKA_NODE_TOWER_TIMEOUT_MS": "4500"})
    assert ended.status == 1
    assert "no store was found within 4.5 s" in ended.error


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


# `dafka produce` and `dafka consume` with a running cluster: what they read, print and show, and how they end

LINES = 20_000
TEXT = numbered_lines(LINES)

both_dialects = pytest.mark.parametrize("wire", ["rfc46", "libdafka"])


def stored(cluster: Dafka, topic: str) -> list[bytes]:
    with sqlite3.connect(f"file:{cluster.folder / 'store.db'}?mode=ro", uri=True) as connection:
        rows = connection.execute("SELECT content FROM topic_records WHERE topic = ? ORDER BY sequence", (topic,))
        contents = [row[0] for row in rows]
    connection.close()
    return contents


@both_dialects
def test_text_is_consumed_live_and_late_and_stored_unchanged(cluster: Dafka, tmp_path: Path, wire: str) -> None:
    topic = f"text-{wire}"
    path = tmp_path / "input"
    path.write_bytes(TEXT)
    live = cluster.start_consumer(topic, "--count", str(LINES), "--wire", wire)

    produced = cluster.node("produce", topic, "--file", str(path), "--wire", wire)
    assert (produced.status, produced.output) == (0, b"")
    assert "Error" not in produced.errors

    assert live.wait().output == TEXT + b"\n"
    late = cluster.node("consume", topic, "--from-beginning", "--count", str(LINES), "--wire", wire)
    assert late.output == TEXT + b"\n"
    assert (live.wait().status, late.status) == (0, 0)
    assert stored(cluster, topic) == TEXT.split(b"\n")


@both_dialects
def test_keys_headers_times_and_nulls_are_consumed_live_and_late(cluster: Dafka, wire: str) -> None:
    topic = f"whole-{wire}"
    template = r"%k|%s|%h|%T\n"
    live = cluster.start_consumer(topic, "--count", "4", "--wire", wire, "--format", template)
    headers = ("--header", "a=1", "--header", "a")
    options = ("--key-separator", ":", *headers, "--timestamp", "2026-01-31", "--null-as", "-")
    produced = cluster.node("produce", topic, "--wire", wire, *options, stdin=b"k:v:w\nk:-\nno key\n:\n")
    assert produced.status == 0

    late = ("--from-beginning", "--count", "4", "--wire", wire)
    rest = "a=1,a=NULL|1769817600000"
    expected = f"k|v:w|{rest}\nk|NULL|{rest}\nNULL|no key|{rest}\n||{rest}\n".encode()
    assert live.wait().output == expected
    assert cluster.node("consume", topic, *late, "--format", template).output == expected
    assert cluster.node("consume", topic, *late).output == b"v:w\nNULL\nno key\n\n"


def test_consume_ends_when_its_reader_is_gone_and_no_records_come(cluster: Dafka) -> None:
    assert cluster.node("produce", "head", stdin=b"0\n1\n2\n").status == 0
    consumer = subprocess.Popen(
        [*MODULE, "consume", "head", "--from-beginning", *cluster.options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=cluster.environment(),
    )
    try:
        assert consumer.stdout is not None
        assert consumer.stdout.readline() == b"0\n"
        consumer.stdout.close()
        assert consumer.stderr is not None
        assert consumer.stderr.read() == b""
        assert consumer.wait(60) == 0
    finally:
        consumer.kill()
        consumer.communicate()


def test_repeated_runs_continue_one_partition(cluster: Dafka, tmp_path: Path) -> None:
    spool = str(tmp_path / "spool.db")
    for number in range(2):
        produced = cluster.node("produce", "cron", "--spool", spool, stdin=b"%d\n" % number)
        assert (produced.status, produced.errors) == (0, "")
    info = cluster.run("storage", "info", f"sqlite:{cluster.folder / 'store.db'}", "--topic", "cron", "--json")
    (partition,) = json.loads(info.output)["partitions"]
    assert partition["records"] == 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_full_disk_is_an_error(cluster: Dafka, tmp_path: Path) -> None:
    def run_on_full_disk(*arguments: str) -> tuple[int, str]:
        errors = tmp_path / "errors"
        with open("/dev/full", "wb") as full, open(os.devnull) as nothing, errors.open("wb") as written:
            streams = nothing.fileno(), full.fileno(), written.fileno()
            status = fork_dafka([*arguments], *streams, cluster.environment()).wait(DEADLINE_S)
        return status, errors.read_text()

    assert cluster.node("produce", "full-disk", stdin=b"0\n").status == 0
    consumed = run_on_full_disk("consume", "full-disk", "--from-beginning", *cluster.options)
    assert consumed == (1, "Error: cannot write the output: No space left on device\n")
    listed = run_on_full_disk("topics", "--storage", f"sqlite:{cluster.folder / 'store.db'}")
    assert listed == (1, "Error: No space left on device\n")


def test_interrupt_restores_the_terminal(cluster: Dafka, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "input")
    with (
        open(os.open(tmp_path / "input", os.O_RDWR), "wb", buffering=0) as pipe,
        open_terminal(cluster, "produce", "cut", "--file", str(tmp_path / "input"), *cluster.options) as terminal,
    ):
        pipe.write(b"0\n")
        terminal.wait_for(b"1 published, 1 stored")
        terminal.type(b"\x03")
        assert terminal.wait() == 0
        assert b"Interrupted: 1 published, 0 of them not acknowledged" in terminal.seen
        assert b"\x1b[?25h" in terminal.seen
        assert b"Traceback" not in terminal.seen
