"""The storage commands in the process of the test, on storages in memory with URLs `shelf:NAME`."""

from __future__ import annotations

import io
import json
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import attrs
import pytest
import trio
from click.testing import CliRunner, Result

from dafka.broker.core.log.log_table import leader_partition
from dafka.broker.core.metadata.topics import Topic, encode_topic
from dafka.cli import main
from dafka.cli.storage import common, removal
from dafka.errors import StorageBusyError, StorageCorruptError, StorageError
from dafka.records import Partition, RecordBatch
from dafka.storage import READ_BYTES, Damage, PartitionInfo, Storage, opening
from dafka.storage.memory import MemoryStorage

ORDERS = Partition("orders", "A")
BILLS = Partition("bills", "B")
STRANGE = Partition("[red]\x1b\udcff", "C")
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

    def load_plugin(self, group: str, name: str, error: type[StorageError]) -> Open:
        return self.open

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
        self,
        partition: Partition,
        first_sequence: int,
        count: int,
        bytes_max: int = READ_BYTES,
        *,
        with_times: bool = False,
    ) -> RecordBatch | None:
        if partition == ORDERS and first_sequence <= 5:
            if first_sequence == 5:
                raise StorageCorruptError("orders/A, sequence 5: the CRC is wrong", 6)
            count = min(count, 5 - first_sequence)
        return await super().read(partition, first_sequence, count, bytes_max, with_times=with_times)


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> Shelf:
    shelf = Shelf()
    monkeypatch.setattr(opening, "load_plugin", shelf.load_plugin)
    return shelf


def batch(first_sequence: int, end_sequence: int, partition: Partition = ORDERS) -> RecordBatch:
    """Return records that were stored a second apart."""
    sequences = range(first_sequence, end_sequence)
    times = [1_767_225_600_000 + 1000 * sequence for sequence in sequences]
    return RecordBatch(partition, first_sequence, [b"%d" % sequence for sequence in sequences], stored_at=times)


def run(*arguments: str, status: int = 0) -> Result:
    result = CliRunner().invoke(main, ["storage", *arguments])
    assert (result.exit_code, result.stderr if status == 0 else "") == (status, ""), result.output
    return result


def run_json(*arguments: str, status: int = 0) -> Any:
    (line,) = run(*arguments, "--json", status=status).stdout.splitlines()
    return json.loads(line)


def error_of(*arguments: str, status: int = 2) -> str:
    (line,) = run(*arguments, status=status).stderr.splitlines()
    assert line.startswith("Error: ")
    return line.removeprefix("Error: ")


# info


def test_info(shelf: Shelf) -> None:
    storage = shelf.put("a", batch(0, 10), batch(5, 6, STRANGE), batch(0, 3, BILLS))
    trio.run(storage.trim, ORDERS, 4)
    trio.run(storage.trim, BILLS, 3)
    trio.run(storage.save_positions, "billing", {ORDERS: 7, BILLS: 0, Partition("none", "N"): 5})
    trio.run(storage.save_positions, "audit", {ORDERS: 2})
    lines = run("info", "shelf:a").stdout.splitlines()
    assert [" ".join(line.split()) for line in lines] == [
        "topic partition earliest head records size first stored last stored",
        r"[red]\x1b\udcff C 5 5 1 1 byte 2026-01-01T00:00:05.000Z 2026-01-01T00:00:05.000Z",
        "bills B 3 2 0 0 bytes - -",
        "orders A 4 9 6 6 bytes 2026-01-01T00:00:04.000Z 2026-01-01T00:00:09.000Z",
        "",
        "consumer topic partition next lag",
        "audit orders A 2 6",
        "billing bills B 0 0",
        "billing none N 5 -",
        "billing orders A 7 3",
        "",
        f"storage {storage.identity}: 3 partitions, 7 records of 7 bytes, {7 * 65} bytes stored",
    ]


def test_info_as_json(shelf: Shelf) -> None:
    storage = shelf.put("a", batch(4, 10), batch(0, 3, BILLS))
    trio.run(storage.save_positions, "billing", {ORDERS: 7, BILLS: 2, Partition("none", "N"): 5})
    found = run_json("info", "shelf:a", "--topic", "orders")
    orders = {
        "topic": "orders",
        "partition": "A",
        "earliest": 4,
        "head": 9,
        "records": 6,
        "bytes": 6,
        "first_stored_at": 1_767_225_604_000,
        "last_stored_at": 1_767_225_609_000,
        "is_orphan": False,
    }
    assert found == {
        "identity": storage.identity,
        "totals": {"partitions": 2, "records": 9, "content_bytes": 9, "stored_bytes": 9 * 65},
        "partitions": [orders],
        "positions": [{"name": "billing", "topic": "orders", "partition": "A", "next": 7, "lag": 3}],
    }
    assert [line["topic"] for line in run_json("info", "shelf:a")["partitions"]] == ["bills", "orders"]
    assert run_json("info", "shelf:a")["positions"][1]["lag"] is None


def test_info_names_the_partitions_of_no_topic(shelf: Shelf) -> None:
    known, other = Topic("orders", "1D"), Topic("orders", "2D")
    topics = RecordBatch(Partition("$topics", "4F0C"), 0, [encode_topic(known)], keys=[b"orders"], timestamps=[1])
    of_known, orphan = leader_partition("4F0C", known, 0), leader_partition("4F0C", other, 0)
    shelf.put("a", topics, batch(0, 2, of_known), batch(0, 3, orphan), batch(0, 1))
    found = run_json("info", "shelf:a")["partitions"]
    assert [each["partition"] for each in found if each["is_orphan"]] == [orphan.address]
    assert run("info", "shelf:a").stdout.splitlines()[-2:] == [
        "1 partition with 3 records of no topic that the broker knows: kept, and read by nobody",
        f"  {orphan}",
    ]


def test_info_of_an_empty_storage_and_of_times_beyond_the_calendar(shelf: Shelf) -> None:
    storage = shelf.put("a")
    assert run("info", "shelf:a").stdout.splitlines()[-1].startswith(f"storage {storage.identity}: 0 partitions, ")
    shelf.put("a", attrs.evolve(batch(0, 1), stored_at=[2**62]))
    assert run("info", "shelf:a").stdout.splitlines()[1].split()[-2:] == [str(2**62)] * 2


def test_topics(shelf: Shelf) -> None:
    shelf.put("a", batch(4, 10), batch(5, 6, STRANGE))
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
    assert strange["topic"] == STRANGE.topic
    assert CliRunner().invoke(main, ["topics", "--storage", "shelf:none"]).stdout.count("\n") == 1


# verify


def test_verify(shelf: Shelf) -> None:
    shelf.put("a", batch(4, 10), batch(0, 1, BILLS))
    assert run("verify", "shelf:a").stdout == "7 records in 2 partitions: no damage\n"
    assert run_json("verify", "shelf:a") == {"partitions": 2, "records": 7, "bytes": 7, "damages": []}


def test_verify_reports_damage(shelf: Shelf) -> None:
    storage = Corrupt()
    shelf.put("a", batch(0, 10), batch(0, 1, BILLS), storage=storage)
    storage.repairs = [Damage("1.log\x1b", "cut")]
    assert run("verify", "shelf:a", status=1).stdout.splitlines() == [
        "orders/A, sequence 5: the CRC is wrong (found by reading)",
        r"1.log\x1b: cut",
        "10 records in 2 partitions: 2 damages",
    ]
    found = run_json("verify", "shelf:a", status=1)
    assert found["damages"] == [
        {
            "topic": "orders",
            "partition": "A",
            "first": 5,
            "end": 6,
            "location": "found by reading",
            "reason": "the CRC is wrong",
        },
        {"topic": None, "partition": None, "first": 0, "end": 0, "location": "1.log\x1b", "reason": "cut"},
    ]


# copy


def test_copy(shelf: Shelf) -> None:
    shelf.put("a", batch(4, 10), batch(0, 1, BILLS))
    trio.run(shelf.storages["a"].save_positions, "billing", {ORDERS: 7})
    shelf.put("b", batch(4, 6), batch(0, 3, BILLS))
    assert run("copy", "shelf:a", "shelf:b").stdout.splitlines() == [
        "bills/B: the target holds more than the source and was not changed",
        "4 records of 4 bytes copied into 1 partition, 3 already present",
    ]
    assert run_json("copy", "shelf:a", "shelf:c", "--topic", "orders") == {
        "partitions": 1,
        "records": 6,
        "bytes": 6,
        "present": 0,
        "position_names": 1,
        "ahead": [],
    }
    assert shelf.infos("c") == {ORDERS: shelf.infos("a")[ORDERS]}
    assert run_json("copy", "shelf:a", "shelf:b")["ahead"] == [{"topic": "bills", "partition": "B"}]


def test_copy_of_damaged_or_different_records(shelf: Shelf) -> None:
    shelf.put("a", batch(0, 10), storage=Corrupt())
    assert error_of("copy", "shelf:a", "shelf:b", status=1) == "orders/A, sequence 5: the CRC is wrong"
    assert shelf.infos("b")[ORDERS].end_sequence == 5
    shelf.put("c", RecordBatch(ORDERS, 0, [b"x"]))
    assert "orders/A: sequence 0 has another value" in error_of("copy", "shelf:b", "shelf:c", status=1)


# import


def test_import_of_a_file(shelf: Shelf, tmp_path: Path) -> None:
    shelf.put("a", batch(0, 2))
    lines = [{"topic": "orders", "partition": "A", "sequence": number, "value": "x"} for number in range(5)]
    path = tmp_path / "lines"
    path.write_text("\n".join(map(json.dumps, lines)))
    assert run("import", "shelf:a", str(path)).stdout == "3 records of 3 bytes imported, 2 already present\n"
    assert run_json("import", "shelf:b", str(path)) == {"records": 5, "bytes": 5, "skipped": 0}
    path.write_text("\n" + json.dumps({**lines[0], "sequence": 7}))
    assert error_of("import", "shelf:a", str(path)) == "line 2: orders/A: sequence 7 would leave a gap, expected 5"


# export to a file; to standard output see test_cli_storage_processes.py


def test_export_to_a_file(shelf: Shelf, tmp_path: Path) -> None:
    shelf.put("a", batch(4, 6), batch(0, 1, BILLS))
    path = tmp_path / "lines"
    path.write_bytes(b"what was there before" * 100)
    export = partial(run, "export", "shelf:a", "--output", str(path))
    assert export().stdout == f"3 records written as {path.stat().st_size} bytes\n"
    assert path.read_bytes().splitlines() == [
        b'{"topic": "bills", "partition": "B", "sequence": 0, "stored_at": 1767225600000, "value": "0"}',
        b'{"topic": "orders", "partition": "A", "sequence": 4, "stored_at": 1767225604000, "value": "4"}',
        b'{"topic": "orders", "partition": "A", "sequence": 5, "stored_at": 1767225605000, "value": "5"}',
    ]
    assert json.loads(export("--topic", "bills", "--json").stdout) == {"records": 1, "bytes": path.stat().st_size}
    assert len(path.read_bytes().splitlines()) == 1


def test_an_export_is_readable_as_the_users_other_files(shelf: Shelf, tmp_path: Path) -> None:
    shelf.put("a", batch(0, 1))
    before = os.umask(0o002)
    try:
        run("export", "shelf:a", "--output", str(tmp_path / "lines"))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "lines").stat().st_mode) == 0o664


def test_output_file_is_not_truncated_if_there_is_nothing_to_write(shelf: Shelf, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    assert error_of("export", "shelf:a", "--output", str(path)) == "a does not exist"
    assert not path.exists()
    shelf.put("a")
    path.write_text("precious")
    assert error_of("export", "shelf:a", "--topic", "orders", "--output", str(path)) == (
        "topic 'orders' has no partition"
    )
    assert path.read_text() == "precious"
    assert "No such file or directory" in error_of("export", "shelf:a", "--output", str(tmp_path / "none" / "lines"))


# trim


def test_trim(shelf: Shelf) -> None:
    shelf.put("a", batch(0, 10), batch(0, 3, BILLS))
    assert run("trim", "shelf:a", "--records", "4", "--yes").stdout.splitlines() == [
        "orders/A: 6 records dropped",
        "6 records dropped from 1 partition",
    ]
    assert run_json("trim", "shelf:a", "--bytes", "3B", "--topic", "orders", "--yes") == {
        "records": 1,
        "dry_run": False,
        "partitions": [{"topic": "orders", "partition": "A", "records": 1}],
    }
    assert shelf.infos("a")[ORDERS].earliest_sequence == 7
    assert shelf.infos("a")[BILLS].count == 3
    assert run_json("trim", "shelf:a", "--age", "1s", "--yes")["records"] == 6
    assert run("trim", "shelf:a", "--age", "1s", "--yes").stdout == "0 records dropped from 0 partitions\n"


@pytest.mark.parametrize("limit", [("--records", "4"), ("--bytes", "4B"), ("--age", "1s")])
def test_trim_says_before_what_it_drops(shelf: Shelf, limit: tuple[str, str]) -> None:
    shelf.put("a", batch(0, 10), batch(0, 3, BILLS))
    before = shelf.infos("a")
    planned = run_json("trim", "shelf:a", *limit, "--dry-run")
    assert planned.pop("dry_run")
    assert shelf.infos("a") == before
    assert error_of("trim", "shelf:a", *limit) == (
        "expected --yes, since standard input is not a terminal on which to ask"
    )
    assert shelf.infos("a") == before
    assert run_json("trim", "shelf:a", *limit, "--yes") == {**planned, "dry_run": False}


SYSTEM = [Partition(topic, "4F0C") for topic in ("$topics", "$logs", "$brokers", "$coordinators", "$unheard-of")]


def test_system_topics_are_neither_trimmed_nor_deleted(shelf: Shelf) -> None:
    group = Partition("$group/billing", "A")
    shelf.put("a", batch(0, 10), batch(0, 10, group), *(batch(0, 10, each) for each in SYSTEM))
    found = run_json("trim", "shelf:a", "--records", "0", "--yes")
    assert [each["topic"] for each in found["partitions"]] == ["$group/billing", "orders"]
    for each in SYSTEM:
        for command in (["trim", "--records", "0", "--topic", each.topic], ["delete", each.topic]):
            error = error_of(command[0], "shelf:a", *command[1:], "--yes")
            assert error.startswith(f"{each.topic!r} is a system topic, in which brokers keep what they need")
        assert shelf.infos("a")[each].count == 10


# delete


def test_delete(shelf: Shelf) -> None:
    shelf.put("a", batch(0, 10), batch(0, 3, BILLS), batch(0, 2, Partition("orders", "D")))
    assert run("delete", "shelf:a", "orders", "--dry-run").stdout.splitlines() == [
        "orders/A: 10 records would be deleted",
        "orders/D: 2 records would be deleted",
        "12 records of 2 partitions would be deleted",
    ]
    assert len(shelf.infos("a")) == 3
    assert run("delete", "shelf:a", "orders", "D", "--yes").stdout.splitlines() == [
        "orders/D: 2 records deleted",
        "2 records of 1 partition deleted",
    ]
    assert set(shelf.infos("a")) == {ORDERS, BILLS}
    assert run_json("delete", "shelf:a", "orders", "--yes") == {
        "records": 10,
        "dry_run": False,
        "partitions": [{"topic": "orders", "partition": "A", "records": 10}],
    }
    assert set(shelf.infos("a")) == {BILLS}


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


def test_delete_needs_a_storage_that_can_delete(shelf: Shelf) -> None:
    class Undeletable:
        def __init__(self, storage: Storage) -> None:
            self.partitions = storage.partitions

    shelf.put("a", batch(0, 10))
    shelf.storages["a"] = cast(MemoryStorage, Undeletable(shelf.storages["a"]))
    assert error_of("delete", "shelf:a", "orders", "--yes") == "shelf:a: this storage cannot delete partitions"


# ends


def test_an_interrupted_command_says_how_far_it_came(capsys: pytest.CaptureFixture[str]) -> None:
    async def program(meter: common.Meter) -> int:
        meter(7000, 10_000)
        os.kill(os.getpid(), signal.SIGTERM)
        await trio.sleep_forever()
        return 99

    with pytest.raises(SystemExit) as caught:
        common.run_metered(program, "copied")
    assert caught.value.code == 128 + signal.SIGTERM
    assert capsys.readouterr().err == "interrupted: 7,000 records copied\n"


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


# mistakes


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["info", "shelf:none"], "none does not exist"),
        (["verify", "shelf:none"], "none does not exist"),
        (["export", "shelf:none"], "none does not exist"),
        (["copy", "shelf:none", "shelf:new"], "none does not exist"),
        (["trim", "shelf:none", "--age", "1s"], "none does not exist"),
        (["trim", "shelf:a"], "expected a limit: --age, --bytes or --records"),
        (["copy", "shelf:a", "shelf:busy"], "busy is in use by another writer; stop it first"),
        (["import", "shelf:busy"], "busy is in use by another writer; stop it first"),
        (["trim", "shelf:busy", "--records", "1", "--yes"], "busy is in use by another writer; stop it first"),
        (["delete", "shelf:none", "orders", "--yes"], "none does not exist"),
        (["delete", "shelf:busy", "orders", "--yes"], "busy is in use by another writer; stop it first"),
        (["delete", "shelf:a", "bills", "--yes"], "topic 'bills' has no partition"),
        (["delete", "shelf:a", "orders", "B", "--yes"], "topic 'orders' has no partition 'B'"),
        (["info", "shelf:a", "--topic", "bills"], "topic 'bills' has no partition"),
        (["trim", "shelf:a", "--age", "1s", "--topic", "bills"], "topic 'bills' has no partition"),
        (["copy", "shelf:a", "shelf:new", "--topic", "bills"], "topic 'bills' has no partition"),
        (["info", "a.db"], "storage 'a.db': expected SCHEME:LOCATION, such as sqlite:dafka.db"),
        (["delete", "shelf:a", "orders"], "expected --yes, since standard input is not a terminal on which to ask"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes(shelf: Shelf, arguments: list[str], error: str) -> None:
    shelf.put("a", batch(0, 3))
    shelf.put("busy", batch(0, 3))
    shelf.in_use.add("busy")
    if arguments[0] == "import":  # the test has no readable standard input
        arguments = [*arguments, "/dev/null"]
    assert error_of(*arguments) == error
    assert "none" not in shelf.storages


@pytest.mark.parametrize("command", ["info", "verify", "export"])
def test_a_store_in_use_can_be_read(shelf: Shelf, tmp_path: Path, command: str) -> None:
    shelf.put("a", batch(0, 3))
    shelf.in_use.add("a")
    options = ["--output", str(tmp_path / "lines")] if command == "export" else []
    assert "3" in run(command, "shelf:a", *options).stdout
