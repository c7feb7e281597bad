"""The tutorial's examples with Kafka's clients run as they are, but for the port."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.harness import Dafka
from tests.kafka.server.matrix.installing import NODE_PACKAGES, is_installed
from tests.kafka.server.matrix.programs import FOLDER

PAGE = Path(__file__).parents[3] / "docs" / "tutorial" / "kafka-clients.md"
RECORDS = ["0 alice tea", "1 bob coffee", "2 carol cake", "3 dave water"]
KAFKAJS = next(iter(NODE_PACKAGES))

HAS_KCAT = shutil.which("kcat") is not None
HAS_KAFKAJS = shutil.which("node") is not None and is_installed(FOLDER, KAFKAJS)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)


def run(dafka: Dafka, command: list[str]) -> list[str]:
    environment = {**dafka.environment(), "NODE_PATH": str(FOLDER / KAFKAJS / "node_modules")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def check_page(dafka: Dafka, tmp_path: Path, *, with_kcat: bool, with_kafkajs: bool) -> None:
    up, kcat, consume = blocks("sh")
    arguments = up.replace("127.0.0.1:9092", "127.0.0.1:0").replace("tutorial-records", str(tmp_path / "records"))
    running = dafka.start_up(*arguments.split()[2:])
    servers = running.wait_output(3)[2].split()[-1]
    count = 0
    for program in blocks("python"):
        count += 1
        printed = run(dafka, [sys.executable, "-c", program.replace("127.0.0.1:9092", servers)])
        assert printed == RECORDS[:count]
    if with_kcat:
        count += 1
        assert run(dafka, ["sh", "-ec", kcat.replace("127.0.0.1:9092", servers)]) == RECORDS[:count]
    if with_kafkajs:
        count += 1
        (program,) = blocks("javascript")
        script = tmp_path / "orders.js"
        script.write_text(program.replace("127.0.0.1:9092", servers), "utf-8")
        assert [line.split()[1:] for line in run(dafka, ["node", str(script)])] == [
            line.split()[1:] for line in [*RECORDS[: count - 1], RECORDS[3]]
        ]
    command = [sys.executable, "-m", *shlex.split(consume)]
    printed = run(dafka, [*command, "--count", str(count), *dafka.options])
    expected = RECORDS[:count] if not with_kafkajs else [*RECORDS[: count - 1], RECORDS[3]]
    assert printed == [line.partition(" ")[2] for line in expected]


def test_examples_in_python(dafka: Dafka, tmp_path: Path) -> None:
    check_page(dafka, tmp_path, with_kcat=False, with_kafkajs=False)


@pytest.mark.skipif(not HAS_KCAT, reason="kcat is not installed")
def test_examples_with_kcat(dafka: Dafka, tmp_path: Path) -> None:
    check_page(dafka, tmp_path, with_kcat=True, with_kafkajs=False)


@pytest.mark.skipif(not HAS_KAFKAJS, reason="set KAFKA_CLIENTS to a folder with kafkajs: see contributing/testing.md")
def test_examples_with_kafkajs(dafka: Dafka, tmp_path: Path) -> None:
    check_page(dafka, tmp_path, with_kcat=HAS_KCAT, with_kafkajs=True)
