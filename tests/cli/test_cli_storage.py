"""The storage commands: stories on storages in memory with URLs `shelf:NAME`, and real processes with real files."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import signal
import stat
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import attrs
import pytest
import trio
from click.testing import CliRunner

from dafka.broker.core.log.log_table import leader_partition
from dafka.broker.core.metadata.cluster_state import ClusterState
from dafka.broker.core.metadata.commands import CreateTopic, Order, RegisterBroker
from dafka.broker.core.metadata.topics import Topic
from dafka.cli import main
from dafka.cli.storage import common, removal
from dafka.errors import StorageBusyError, StorageCorruptError, StorageError
from dafka.records import Partition, RecordBatch
from dafka.storage import READ_BYTES, Damage, PartitionInfo, Storage, TierStatistics, open_storage, opening
from dafka.storage.cold.tiered import TieredStorage
from dafka.storage.memory import MemoryStorage
from tests.cli.harness import Dafka, open_terminal

PARTITIONS = {"orders": Partition("orders", "A"), "bills": Partition("bills", "B"), "none": Partition("none", "N")}
PARTITIONS |= {"strange": Partition("[red]\x1b\udcff", "C"), "orders/D": Partition("orders", "D")}
SYSTEM = [Partition(topic, "4F0C") for topic in ("$topics", "$logs", "$brokers", "$coordinators", "$unheard-of")]
PARTITIONS |= {each.topic: each for each in (*SYSTEM, Partition("$group/billing", "A"))}
ORDERS = PARTITIONS["orders"]
Open = Callable[..., AbstractAsyncContextManager[Storage]]


class Shelf:
    """Named storages that keep their records when they are closed."""

    def __init__(self) -> None:
        self.storages: dict[str, MemoryStorage] = {}
        self.in_use: set[str] = set()

    def put(self, name: str, *batches: RecordBatch, storage: MemoryStorage | None = None) -> MemoryStorage:
        self.storages[name] = storage or MemoryStorage()
        trio.run(self.storages[name].append, batches)
        return self.storages[name]

    @asynccontextmanager
    async def open(self, place: str, *, read_only: bool = False) -> AsyncIterator[Storage]:
        if read_only and place not in self.storages:
            raise StorageError(f"{place} does not exist")
        if place in self.in_use and not read_only:
            raise StorageBusyError(f"{place} is in use by another writer; stop it first")
        yield self.storages.setdefault(place, MemoryStorage())

    def infos(self, name: str) -> dict[Partition, PartitionInfo]:
        return trio.run(self.storages[name].partitions)


class Corrupt(MemoryStorage):
    """A storage in which sequence 5 of orders is damaged."""

    async def read(
        self, partition: Partition, first: int, count: int, bytes_max: int = READ_BYTES, *, with_times: bool = False
    ) -> RecordBatch | None:
        if partition == ORDERS and first <= 5:
            if first == 5:
                raise StorageCorruptError("orders/A, sequence 5: the CRC is wrong", 6)
            count = min(count, 5 - first)
        return await super().read(partition, first, count, bytes_max, with_times=with_times)


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> Shelf:
    shelf = Shelf()
    monkeypatch.setattr(opening, "load_plugin", lambda *_: shelf.open)
    return shelf


def batch(first_sequence: int, end_sequence: int, partition: Partition = ORDERS) -> RecordBatch:
    """Return records that were stored a second apart."""
    sequences = range(first_sequence, end_sequence)
    times = [1_767_225_600_000 + 1000 * sequence for sequence in sequences]
    return RecordBatch(partition, first_sequence, [b"%d" % sequence for sequence in sequences], stored_at=times)


INFO = r"""
put a orders:0-10 strange:5-6 bills:0-3
trim a orders:4 bills:3
save a billing orders:7 bills:0 none:5
save a audit orders:2
$ info shelf:a
topic partition earliest head records size first stored last stored
[red]\x1b\udcff C 5 5 1 1 byte 2026-01-01T00:00:05.000Z 2026-01-01T00:00:05.000Z
bills B 3 2 0 0 bytes - -
orders A 4 9 6 6 bytes 2026-01-01T00:00:04.000Z 2026-01-01T00:00:09.000Z

consumer topic partition next lag
audit orders A 2 6
billing bills B 0 0
billing none N 5 -
billing orders A 7 3

storage IDENTITY: 3 partitions, 7 records of 7 bytes, 455 bytes stored
$ info shelf:a --topic orders --json
{"identity": "IDENTITY", "totals": {"partitions": 3, "records": 7, "content_bytes": 7, "stored_bytes": 455},
 "partitions": [{"topic": "orders", "partition": "A", "earliest": 4, "head": 9, "records": 6, "bytes": 6,
  "first_stored_at": 1767225604000, "last_stored_at": 1767225609000, "is_orphan": false}],
 "positions": [{"name": "audit", "topic": "orders", "partition": "A", "next": 2, "lag": 6},
  {"name": "billing", "topic": "orders", "partition": "A", "next": 7, "lag": 3}]}
! info shelf:a --topic unheard-of
topic 'unheard-of' has no partition
! info shelf:none
none does not exist
! info a.db
storage 'a.db': expected SCHEME:LOCATION, such as sqlite:dafka.db
"""
VERIFY = r"""
put a orders:4-10 bills:0-1
use a
$ verify shelf:a
7 records in 2 partitions: no damage
$ verify shelf:a --json
{"partitions": 2, "records": 7, "bytes": 7, "damages": []}
damaged b orders:0-10 bills:0-1
!1 verify shelf:b
orders/A, sequence 5: the CRC is wrong (found by reading)
1.log\x1b: cut
10 records in 2 partitions: 2 damages
!1 verify shelf:b --json
{"partitions": 2, "records": 10, "bytes": 10, "damages": [
 {"topic": "orders", "partition": "A", "first": 5, "end": 6, "location": "found by reading",
  "reason": "the CRC is wrong"},
 {"topic": null, "partition": null, "first": 0, "end": 0, "location": "1.log\u001b", "reason": "cut"}]}
! verify shelf:none
none does not exist
"""
COPY = r"""
put a orders:4-10 bills:0-1
save a billing orders:7
put b orders:4-6 bills:0-3
$ copy shelf:a shelf:b
bills/B: the target holds more than the source and was not changed
4 records of 4 bytes copied into 1 partition, 3 already present
$ copy shelf:a shelf:c --topic orders --json
{"partitions": 1, "records": 6, "bytes": 6, "present": 0, "position_names": 1, "ahead": []}
holds c orders:4-10
$ copy shelf:a shelf:b --json
{"partitions": 0, "records": 0, "bytes": 0, "present": 7, "position_names": 1,
 "ahead": [{"topic": "bills", "partition": "B"}]}
damaged d orders:0-10
!1 copy shelf:d shelf:e
orders/A, sequence 5: the CRC is wrong
holds e orders:0-5
put f orders:0-1
other g orders:0-1
!1 copy shelf:f shelf:g
orders/A: sequence 0 has another value
! copy shelf:none shelf:new
none does not exist
! copy shelf:a shelf:new --topic unheard-of
topic 'unheard-of' has no partition
use b
! copy shelf:a shelf:b
b is in use by another writer; stop it first
"""
FILES = r"""
put a orders:4-6 bills:0-1
! export shelf:a --topic unheard-of --output {tmp}/none
topic 'unheard-of' has no partition
! export shelf:none --output {tmp}/none
none does not exist
! export shelf:a --output {tmp}/no/lines
cannot write {tmp}/no/lines: No such file or directory
use a
$ export shelf:a --output {tmp}/lines
3 records written as 284 bytes
$ export shelf:a --output {tmp}/bills --topic bills --json
{"records": 1, "bytes": 94}
$ import shelf:b {tmp}/bills
1 record of 1 byte imported, 0 already present
$ import shelf:b {tmp}/lines
2 records of 2 bytes imported, 1 already present
$ import shelf:c {tmp}/lines --json
{"records": 3, "bytes": 3, "skipped": 0}
$ import shelf:c {tmp}/bills --json
{"records": 0, "bytes": 0, "skipped": 1}
holds c bills:0-1 orders:4-6
put d orders:0-2
! import shelf:d {tmp}/lines
line 2: orders/A: sequence 4 would leave a gap, expected 2
! import shelf:a {tmp}/lines
a is in use by another writer; stop it first
"""
TRIM = r"""
put a orders:0-10 bills:0-3
$ trim shelf:a --records 4 --dry-run
orders/A: 6 records would be dropped
6 records would be dropped from 1 partition
! trim shelf:a --records 4
expected --yes, since standard input is not a terminal on which to ask
holds a orders:0-10 bills:0-3
$ trim shelf:a --records 4 --yes
orders/A: 6 records dropped
6 records dropped from 1 partition
$ trim shelf:a --bytes 3B --topic orders --dry-run --json
{"records": 1, "dry_run": true, "partitions": [{"topic": "orders", "partition": "A", "records": 1}]}
$ trim shelf:a --bytes 3B --topic orders --yes --json
{"records": 1, "dry_run": false, "partitions": [{"topic": "orders", "partition": "A", "records": 1}]}
holds a orders:7-10 bills:0-3
$ trim shelf:a --age 1s --dry-run --json
{"records": 6, "dry_run": true, "partitions": [{"topic": "bills", "partition": "B", "records": 3},
 {"topic": "orders", "partition": "A", "records": 3}]}
$ trim shelf:a --age 1s --yes
bills/B: 3 records dropped
orders/A: 3 records dropped
6 records dropped from 2 partitions
$ trim shelf:a --age 1s --yes
0 records dropped from 0 partitions
! trim shelf:a
expected a limit: --age, --bytes or --records
! trim shelf:a --age 1s --topic unheard-of
topic 'unheard-of' has no partition
! trim shelf:none --age 1s
none does not exist
use a
! trim shelf:a --records 1 --yes
a is in use by another writer; stop it first
"""
DELETE = r"""
put a orders:0-10 bills:0-3 orders/D:0-2
$ delete shelf:a orders --dry-run
orders/A: 10 records would be deleted
orders/D: 2 records would be deleted
12 records of 2 partitions would be deleted
! delete shelf:a orders
expected --yes, since standard input is not a terminal on which to ask
holds a orders:0-10 bills:0-3 orders/D:0-2
$ delete shelf:a orders D --yes
orders/D: 2 records deleted
2 records of 1 partition deleted
$ delete shelf:a orders --yes --json
{"records": 10, "dry_run": false, "partitions": [{"topic": "orders", "partition": "A", "records": 10}]}
holds a bills:0-3
! delete shelf:a orders --yes
topic 'orders' has no partition
! delete shelf:a bills A --yes
topic 'bills' has no partition 'A'
! delete shelf:none orders --yes
none does not exist
use a
! delete shelf:a bills --yes
a is in use by another writer; stop it first
"""
SYSTEM_TOPICS = """
put a orders:0-10 $group/billing:0-10 $topics:0-10 $logs:0-10 $brokers:0-10 $coordinators:0-10 $unheard-of:0-10
$ trim shelf:a --records 0 --yes
$group/billing/A: 10 records dropped
orders/A: 10 records dropped
20 records dropped from 2 partitions
""" + "".join(
    f"! {command}\n'{each.topic}' is a system topic, in which brokers keep what they need\nholds a {each.topic}:0-10\n"
    for each in SYSTEM
    for command in (f"trim shelf:a --records 0 --topic {each.topic} --yes", f"delete shelf:a {each.topic} --yes")
)
STORIES = {"info": INFO, "verify": VERIFY, "copy": COPY, "files": FILES, "trim": TRIM, "delete": DELETE}
STORIES |= {"system topics": SYSTEM_TOPICS}


class Story:
    """Plays lines that prepare storages, and commands with their output.

    `$ ` begins a command that succeeds, `! ` one whose only line of errors begins with the next line, and `!1 ` one
    that fails with status 1: with that error, or with output. Columns may have any width.
    """

    def __init__(self, shelf: Shelf, folder: Path) -> None:
        self._shelf = shelf
        self._folder = folder

    def play(self, story: str) -> None:
        for part in re.split(r"\n(?=(?:\$|!1?|put|damaged|other|trim|save|use|holds) )", f"\n{story.strip()}"):
            if part:
                first, _, rest = part.replace("{tmp}", str(self._folder)).partition("\n")
                verb, *words = shlex.split(first)
                if verb in ("$", "!", "!1"):
                    self._run(words, {"$": 0, "!": 2, "!1": 1}[verb], rest)
                else:
                    getattr(self, f"_{verb}")(words[0], words[1:])

    def _run(self, command: list[str], status: int, expected: str) -> None:
        result = CliRunner().invoke(main, ["storage", *command])
        assert result.exit_code == status, (command, result.output)
        if result.stderr:
            assert status, result.stderr
            (line,) = result.stderr.splitlines()
            assert line.startswith(f"Error: {expected}"), command
        elif "--json" in command:
            identity = self._shelf.storages[command[1].partition(":")[2]].identity
            assert json.loads(result.stdout) == json.loads(expected.replace("IDENTITY", identity)), command
        else:
            identity = getattr(self._shelf.storages[command[1].partition(":")[2]], "identity", "")
            found = [" ".join(line.split()) for line in result.stdout.splitlines()]
            assert found == expected.replace("IDENTITY", identity).splitlines(), command

    def _batches(self, words: list[str]) -> list[RecordBatch]:
        split = [re.split(r":|(?<=\d)-", word) for word in words]
        return [batch(int(first), int(end), PARTITIONS[name]) for name, first, end in split]

    def _put(self, name: str, words: list[str]) -> None:
        self._shelf.put(name, *self._batches(words))

    def _other(self, name: str, words: list[str]) -> None:
        self._shelf.put(name, *(attrs.evolve(each, values=[b"x"] * len(each)) for each in self._batches(words)))

    def _damaged(self, name: str, words: list[str]) -> None:
        self._shelf.put(name, *self._batches(words), storage=Corrupt()).repairs = [Damage("1.log\x1b", "cut")]

    def _trim(self, name: str, words: list[str]) -> None:
        for each, _, sequence in (word.partition(":") for word in words):
            trio.run(self._shelf.storages[name].trim, PARTITIONS[each], int(sequence))

    def _save(self, name: str, words: list[str]) -> None:
        positions = {PARTITIONS[each]: int(end) for each, _, end in (word.partition(":") for word in words[1:])}
        trio.run(self._shelf.storages[name].save_positions, words[0], positions)

    def _use(self, name: str, words: list[str]) -> None:
        self._shelf.in_use.add(name)

    def _holds(self, name: str, words: list[str]) -> None:
        infos = self._shelf.infos(name)
        held = {each: (infos[each].earliest_sequence, infos[each].end_sequence) for each in infos if infos[each].count}
        expected = {each.partition: (each.first_sequence, each.end_sequence) for each in self._batches(words)}
        assert {each: held[each] for each in held if each not in SYSTEM or each in expected} == expected


@pytest.mark.parametrize("story", STORIES)
def test_each_command_on_storages_in_memory(shelf: Shelf, tmp_path: Path, story: str) -> None:
    Story(shelf, tmp_path).play(STORIES[story])
    assert "none" not in shelf.storages


def run_json(*arguments: str) -> Any:
    return json.loads(CliRunner().invoke(main, ["storage", *arguments, "--json"]).stdout)


def put_orphan(shelf: Shelf, *others: RecordBatch) -> tuple[Partition, Partition]:
    """Put the storage of a broker on the shelf. Return a partition of its topic, and one of no topic."""
    known, other, state = Topic("orders", "1D", placement=(("4F0C",),)), Topic("orders", "2D"), ClusterState()
    state.found("C" * 32)
    for command in (RegisterBroker("4F0C", 0), CreateTopic(known)):
        state.apply(Order(command))
    keys, values = zip(*state.take_records(), strict=True)
    storage = MemoryStorage()
    topics = RecordBatch(Partition("$cluster", storage.identity), 0, values, keys=keys, timestamps=[1] * len(keys))
    of_known, orphan = leader_partition("4F0C", known, 0), leader_partition("4F0C", other, 0)
    shelf.put("a", topics, batch(0, 2, of_known), batch(0, 3, orphan), *others, storage=storage)
    return of_known, orphan


def test_info_names_the_partitions_of_no_topic_and_times_beyond_the_calendar(shelf: Shelf) -> None:
    _, orphan = put_orphan(shelf, attrs.evolve(batch(0, 1), stored_at=[2**62]))
    found = run_json("info", "shelf:a")["partitions"]
    assert [each["partition"] for each in found if each["is_orphan"]] == [orphan.address]
    lines = CliRunner().invoke(main, ["storage", "info", "shelf:a"]).stdout.splitlines()
    assert lines[-2:] == [
        "1 partition with 3 records of no topic that the broker knows: kept, and read by nobody",
        f"  {orphan}",
    ]
    assert [line.split()[-2:] for line in lines if line.split()[:2] == ["orders", "A"]] == [[str(2**62)] * 2]


def test_partitions_of_no_topic_are_deleted_by_a_command(shelf: Shelf) -> None:
    of_known, orphan = put_orphan(shelf)
    command = ["storage", "delete", "shelf:a", "--orphans"]
    for options, status in (["--dry-run"], 0), ([], 2), (["--yes"], 0), (["--yes"], 0):
        before = set(shelf.infos("a"))
        assert CliRunner().invoke(main, [*command, *options]).exit_code == status
        gone = {orphan} if options == ["--yes"] and orphan in before else set()
        assert before - set(shelf.infos("a")) == gone
    assert of_known in shelf.infos("a")
    for wrong in (["orders"], []):
        options = ["--orphans"] if wrong else []
        result = CliRunner().invoke(main, ["storage", "delete", "shelf:a", *wrong, *options])
        assert (result.exit_code, "either a TOPIC or --orphans" in result.stderr) == (2, True)


def test_topics(shelf: Shelf) -> None:
    shelf.put("a", batch(4, 10), batch(5, 6, PARTITIONS["strange"]))
    shelf.put("none")
    shelf.in_use.add("a")
    command = ["topics", "--storage", "shelf:a"]
    lines = CliRunner().invoke(main, command).stdout.splitlines()
    assert [" ".join(line.split()) for line in lines] == [
        "topic partition earliest head records size",
        r"[red]\x1b\udcff C 5 5 1 1 byte",
        "orders A 4 9 6 6 bytes",
    ]
    strange, orders = map(json.loads, CliRunner().invoke(main, [*command, "--json"]).stdout.splitlines())
    assert orders == {"topic": "orders", "partition": "A", "earliest": 4, "head": 9, "records": 6, "bytes": 6}
    assert strange["topic"] == PARTITIONS["strange"].topic
    assert CliRunner().invoke(main, ["topics", "--storage", "shelf:none"]).stdout.count("\n") == 1


def test_the_file_of_an_export_is_replaced_and_readable_as_the_users_other_files(shelf: Shelf, tmp_path: Path) -> None:
    shelf.put("a", batch(4, 5))
    shelf.put("empty")
    (tmp_path / "lines").write_bytes(b"what was there before" * 100)
    before = os.umask(0o002)
    try:
        for name, status in (("empty --topic orders", 2), ("a", 0)):
            command = ["storage", "export", *f"shelf:{name} --output {tmp_path}/lines".split()]
            assert CliRunner().invoke(main, command).exit_code == status
            assert ((tmp_path / "lines").stat().st_size == 2100) == bool(status)
        assert (tmp_path / "lines").read_bytes() == (
            b'{"topic": "orders", "partition": "A", "sequence": 4, "stored_at": 1767225604000, "value": "4"}\n'
        )
        CliRunner().invoke(main, ["storage", "export", "shelf:a", "--output", f"{tmp_path}/new"])
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o664


def test_delete_asks_on_standard_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output is for the result, which may go to another program."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    removal._confirm_deletion("shelf:a", "orders", {ORDERS: 10}, yes=False)
    shown = capsys.readouterr()
    assert shown.out.strip() == ""
    assert shown.err.startswith("Delete 1 partition of orders with 10 records from shelf:a?")


def test_what_is_due_moves_to_the_cold_tier_whose_objects_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = "local_retention_bytes=0&cold_segment_bytes=1000&cold_interval_ms=3600000"
    url = f"tiered:sqlite:{tmp_path}/s.db?cold=file://{tmp_path}/cold&{query}"

    async def fill() -> None:
        async with open_storage(url) as opened:
            await opened.append([RecordBatch(Partition(topic, "A"), 0, [bytes(100)] * 20) for topic in ("a", "b")])

    def run(command: str, *options: str) -> Any:
        return CliRunner().invoke(main, ["storage", command, url, *options])

    trio.run(fill)
    moved = run("move")
    assert (moved.exit_code, moved.stdout) == (0, f"40 records moved to file://{tmp_path}/cold\n"), moved.output
    assert json.loads(run("move", "--json").stdout) == {"records": 0, "bytes": 0}
    every = run("objects").stdout.splitlines()
    assert sorted(every) == sorted(f"file://{path}" for path in (tmp_path / "cold").rglob("*.parquet"))
    assert json.loads(run("objects", "--json", "--topic", "b", "--topic", "a").stdout) == [
        *(each for each in every if "/b/" in each), *(each for each in every if "/a/" in each)
    ]  # fmt: skip
    assert f"cold tier file://{tmp_path}/cold: 40 records of 4.0 kB in {len(every)} objects" in run("info").stdout

    def fail(tier: TieredStorage) -> TierStatistics:
        return attrs.evolve(statistics(tier), moved_records=7, moved_bytes=700, move_error="the bucket is gone")

    statistics = TieredStorage.tier_statistics
    monkeypatch.setattr(TieredStorage, "tier_statistics", fail)
    failed = run("move", "--json")
    assert (failed.exit_code, json.loads(failed.stdout)) == (1, {"records": 7, "bytes": 700})
    assert failed.stderr == "some records stay where they are: the bucket is gone\n"
    url = f"sqlite:{tmp_path}/other.db"
    trio.run(fill)
    for command in ("move", "objects"):
        refused = run(command)
        sentence = f"{url} has no cold tier: expected tiered:{url}?cold=URL, or a storage that was opened so"
        assert (refused.exit_code, refused.stderr) == (2, f"Error: {sentence}\n")


def test_delete_needs_a_storage_that_can_delete(shelf: Shelf, tmp_path: Path) -> None:
    class Undeletable:
        def __init__(self, storage: Storage) -> None:
            self.partitions = storage.partitions

    shelf.storages["a"] = cast(MemoryStorage, Undeletable(shelf.put("a", batch(0, 10))))
    Story(shelf, tmp_path).play("! delete shelf:a orders --yes\nshelf:a: this storage cannot delete partitions")


def test_damage_that_one_of_several_tasks_meets_is_one_error(capsys: pytest.CaptureFixture[str]) -> None:
    async def fail() -> None:
        raise StorageCorruptError("orders/A, sequence 5: the CRC is wrong", 6)

    async def program(_: common.Meter) -> int:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
        return 0

    with pytest.raises(SystemExit) as caught:
        common.run_metered(program, "copied")
    assert caught.value.code == 1
    assert capsys.readouterr().err == "Error: orders/A, sequence 5: the CRC is wrong\n"


# Real processes: pipes, signals and terminals


@pytest.fixture
def source(tmp_path: Path) -> str:
    url = f"sqlite:{tmp_path / 'source.db'}"

    async def fill() -> None:
        async with open_storage(url) as storage:
            contents = [b"%d" % sequence for sequence in range(1000)]
            await storage.append(
                [RecordBatch(ORDERS, 5, contents, stored_at=[1000 + number for number in range(1000)])]
            )

    trio.run(fill)
    return url


def test_export_is_read_by_import(dafka: Dafka, source: str, tmp_path: Path) -> None:
    target = f"sqlite:{tmp_path / 'target.db'}"
    exported = dafka.run("storage", "export", source, "--json")
    lines = exported.output
    assert (exported.status, lines.count(b"\n")) == (0, 1000)
    assert json.loads(exported.errors) == {"records": 1000, "bytes": len(lines)}
    imported = dafka.run("storage", "import", target, "--json", stdin=lines)
    assert json.loads(imported.output) == {"records": 1000, "bytes": 2890, "skipped": 0}
    again = dafka.run("storage", "export", target)
    assert (again.status, again.output, again.errors) == (0, lines, "")


@pytest.mark.parametrize(("answer", "status", "left"), [(b"y\n", 0, 0), (b"n\n", 2, 1000)])
def test_a_terminal_is_asked_before_a_topic_is_deleted(
    dafka: Dafka, source: str, answer: bytes, status: int, left: int
) -> None:
    with open_terminal(dafka, "storage", "delete", source, "orders") as terminal:
        terminal.wait_for(b"Delete 1 partition of orders with 1,000 records")
        terminal.type(answer)
        assert terminal.wait() == status
    info = json.loads(dafka.run("storage", "info", source, "--json").output)
    assert info["totals"]["records"] == left
    assert len(info["partitions"]) == (1 if left else 0)


def test_a_terminal_shows_progress(dafka: Dafka, source: str, tmp_path: Path) -> None:
    with open_terminal(dafka, "storage", "copy", source, f"sqlite:{tmp_path / 'target.db'}") as terminal:
        assert terminal.wait() == 0
        assert b"100%" in terminal.seen
        assert b"1,000 records, " in terminal.seen
        assert terminal.seen.rstrip().endswith(b"copied into 1 partition, 0 already present")
        assert b"\x1b[?25h" in terminal.seen  # the cursor is visible again


def test_an_export_to_a_terminal_shows_the_lines_only(dafka: Dafka, source: str) -> None:
    with open_terminal(dafka, "storage", "export", source) as terminal:
        assert terminal.wait() == 0
        lines = terminal.seen.splitlines()
    assert len(lines) == 1000
    assert all(json.loads(line)["topic"] == "orders" for line in lines)


def test_a_table_fits_the_terminal(dafka: Dafka, tmp_path: Path) -> None:
    async def fill() -> None:
        async with open_storage(f"sqlite:{tmp_path / 'long.db'}") as storage:
            await storage.append([RecordBatch(Partition("a" * 100, "A"), 0, [b"0"])])

    trio.run(fill)
    with open_terminal(dafka, "storage", "info", f"sqlite:{tmp_path / 'long.db'}") as terminal:
        assert terminal.wait() == 0
        rows = [line.rstrip() for line in terminal.seen.splitlines()]
        table = [row for row in rows[: rows.index(b"")] if b"\x1b" not in row]  # without the header
        assert max(map(len, table)) <= 80
        assert "\N{HORIZONTAL ELLIPSIS}".encode() not in b"".join(table)
        assert b"".join(table).count(b"a") == 100


def test_an_interrupted_import_is_continued(dafka: Dafka, tmp_path: Path) -> None:
    target = f"sqlite:{tmp_path / 'target.db'}"
    lines = [
        json.dumps({"topic": "t", "partition": "A", "sequence": sequence, "value": "x" * 1000}).encode() + b"\n"
        for sequence in range(3000)
    ]
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as pipe:
        running = dafka.start("storage", "import", target, stdin=reading)
        os.close(reading)
        pipe.write(b"".join(lines[:2000]))
        pipe.flush()
        ended = running.end(signal.SIGINT)
    assert ended.status == 128 + signal.SIGINT
    found = re.fullmatch(r"interrupted: ([0-9,]+) records done; run the command again to continue\n", ended.errors)
    assert found, ended.errors
    imported = int(found[1].replace(",", ""))
    again = dafka.run("storage", "import", target, "--json", stdin=b"".join(lines))
    assert json.loads(again.output) == {
        "records": 3000 - imported,
        "bytes": 1000 * (3000 - imported),
        "skipped": imported,
    }
