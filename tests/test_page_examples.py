"""The programs of the README, the tutorial and the how-to pages run unchanged, and so do the shell commands."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from dafka.testing import Cluster
from tests.cli.forks import PYTHON, fork_dafka
from tests.cli.harness import Dafka
from tests.waiting import wait_until

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


STRICT = "import sys, warnings; warnings.simplefilter('error'); sys.stdout.reconfigure(line_buffering=True)\n"
"""Makes a warning in a program an error, and each printed line visible at once."""


@pytest.mark.parametrize("program", PROGRAMS)
async def test_program_runs(
    program: str, dafka_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {
        **os.environ,
        "DAFKA_BEACON_TOWER_SUB": dafka_cluster.tower.sub_endpoint,
        "DAFKA_BEACON_TOWER_PUB": dafka_cluster.tower.pub_endpoint,
    }
    async with dafka_cluster.producer("orders") as producer:
        await producer.send_many([b"1", b"2", b"3"])
    monkeypatch.chdir(tmp_path)
    output, errors = tmp_path / "output", tmp_path / "errors"
    with output.open("wb") as stdout, errors.open("wb") as stderr:
        streams = subprocess.DEVNULL, stdout.fileno(), stderr.fileno()
        process = fork_dafka([STRICT + program], *streams, environment, program=(PYTHON,))
    is_endless = "async for" in program and "break" not in program
    try:
        if is_endless:
            await wait_until(lambda: output.stat().st_size > 0 or process.poll() is not None)
            process.send_signal(signal.SIGINT)
        await wait_until(lambda: process.poll() is not None)
    finally:
        process.kill()
    assert output.stat().st_size or "print(" not in program, errors.read_text()
    assert is_endless or process.returncode == 0, errors.read_text()


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
