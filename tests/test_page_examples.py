"""The programs of the README, the tutorial and the how-to pages run unchanged, and so do the shell commands."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from dafka.testing import Cluster
from tests.cli.harness import Dafka

ROOT = Path(__file__).parent.parent
PAGES = (
    "README.md",
    "docs/tutorial/from-python.md",
    "docs/tutorial/surviving-a-crash.md",
    "docs/how-to/asyncio-and-threads.md",
    "docs/how-to/serializers.md",
)
RUNS = re.compile(r"^(trio\.run|asyncio\.run|with dafka\.blocking)\b", re.MULTILINE)
TUTORIAL = ROOT / "docs" / "tutorial" / "first-records.md"


def programs(page: str) -> list[str]:
    """Return the complete programs of a page: those that run something."""
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return [block for block in blocks if "import dafka" in block and RUNS.search(block)]


PROGRAMS = [pytest.param(program, id=f"{page}-{n}") for page in PAGES for n, program in enumerate(programs(page))]


def test_every_page_has_a_program() -> None:
    assert [page for page in PAGES if not programs(page)] == []


HEEDS_SIGINT = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
"""Makes a program end with SIGINT even if these tests run as a background job, which ignores it."""


@pytest.mark.parametrize("program", PROGRAMS)
async def test_program_runs(program: str, dafka_cluster: Cluster, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "DAFKA_BEACON_TOWER_SUB": dafka_cluster.tower.sub_endpoint,
        "DAFKA_BEACON_TOWER_PUB": dafka_cluster.tower.pub_endpoint,
        "PYTHONUNBUFFERED": "1",
    }
    async with dafka_cluster.producer("orders") as producer:
        await producer.send_many([b"1", b"2", b"3"])
    command = [sys.executable, "-W", "error", "-c", HEEDS_SIGINT + program]
    errors = tmp_path / "errors"
    with trio.fail_after(60), errors.open("wb") as stderr:
        process = await trio.lowlevel.open_process(
            command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=stderr
        )
        assert process.stdout is not None
        is_endless = "async for" in program and "break" not in program
        output = b""
        async with process.stdout:
            async for chunk in process.stdout:
                output += chunk
                if is_endless:
                    process.send_signal(signal.SIGINT)
        status = await process.wait()
    assert output or "print(" not in program, errors.read_text()
    assert is_endless or status == 0, errors.read_text()


def commands(page: Path, folder: Path) -> list[str]:
    """Return the shell commands of a page, except for the installation, with their files in this folder."""
    text = page.read_text("utf-8").replace("sqlite:", f"sqlite:{folder}/")
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines() if "dafka" in line and "pip" not in line]


def test_first_chapter_of_the_tutorial_works(dafka: Dafka, tmp_path: Path) -> None:
    version, up, live, produce, again, with_keys, keyed, topics, status = commands(TUTORIAL, tmp_path)
    assert dafka.run(*version.split()[1:]).status == 0
    dafka.start_up(*up.split()[2:])
    consumer = dafka.start_consumer(*live.split()[2:])
    lines, _, publish = produce.partition(" | ")
    content = subprocess.run(["sh", "-c", lines], capture_output=True, check=True).stdout
    assert dafka.node(*publish.split()[1:], stdin=content).status == 0
    assert consumer.wait_output(3) == ["tea\n", "coffee\n", "cake\n"]
    assert dafka.node(*again.split()[1:]).output.decode().split() == ["tea", "coffee", "cake"]
    lines, _, publish = with_keys.partition(" | ")
    content = subprocess.run(["sh", "-c", lines], capture_output=True, check=True).stdout
    assert dafka.node(*shlex.split(publish)[1:], stdin=content).status == 0
    printed = dafka.node(*shlex.split(keyed)[1:]).output.decode()
    assert printed == "alice ordered tea (origin=tutorial)\nbob ordered cake (origin=tutorial)\n"
    assert b"orders" in dafka.run(*topics.split()[1:]).output
    assert b"orders" in dafka.node(*status.split()[1:]).output
