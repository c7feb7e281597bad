"""The nodes in conformance/examples/, which are written without this project, conform."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from dafka_conformance.catalog import Catalog
from dafka_conformance.model import Outcome, Role
from dafka_conformance.runner import run
from dafka_conformance.targets import open_target

EXAMPLES = Path(__file__).parents[2] / "conformance" / "examples"
SAMPLE = (
    "*.discovers",
    "*.prefix-topic",
    "consumer.gap*",
    "consumer.live",
    "producer.foreign-acks",
    "producer.input-ended",
    "producer.malformed-fetch",
    "producer.records",
    "producer.resends-after-ack",
)
PATIENCE = 5.0
"""The factor for the target's time limits. Several processes start at once, which takes long on a busy machine."""

TIMEOUT_S = 900

LACKS_BATCHES = re.compile(r"the (producer sends|consumer subscribes to) no record batches")


async def expect_conforming(target_file: Path, patterns: tuple[str, ...] = ()) -> None:
    """Expect that a producer and a consumer pass these scenarios, or all of them but those of record batches."""
    finished = await run(Catalog.load(), open_target(str(target_file), {}), patterns=patterns, patience=PATIENCE)
    wrong = [
        f"{result.scenario}: {result.reason} {[each for each in result.checks if not each.holds]}"
        for result in finished.results
        if result.outcome is not Outcome.PASSED
        and not (result.outcome is Outcome.SKIPPED and LACKS_BATCHES.fullmatch(result.reason))
    ]
    assert wrong == []
    assert finished.conforms
    assert {result.role for result in finished.results} == {Role.PRODUCER, Role.CONSUMER}


@pytest.mark.timeout(TIMEOUT_S)
async def test_python_nodes_conform_in_a_sample() -> None:
    await expect_conforming(EXAMPLES / "python" / "target.toml", SAMPLE)


@pytest.mark.long
@pytest.mark.timeout(TIMEOUT_S)
async def test_python_nodes_conform() -> None:
    await expect_conforming(EXAMPLES / "python" / "target.toml")


@pytest.mark.long
@pytest.mark.timeout(TIMEOUT_S)
async def test_javascript_nodes_conform(tmp_path: Path) -> None:
    folder = tmp_path / "javascript"
    shutil.copytree(EXAMPLES / "javascript", folder, ignore=shutil.ignore_patterns("node_modules"))
    install_packages(folder)
    await expect_conforming(folder / "target.toml")


def install_packages(folder: Path) -> None:
    """Install the packages of a folder with npm. Skip the test if that is not possible."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("the JavaScript nodes need Node.js 18 or newer with npm; install the package nodejs")
    for command in (["npm", "ci", "--no-audit", "--no-fund"], ["node", "--eval", "require('zeromq')"]):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
            pytest.skip(f"npm could not install zeromq ({reason}); run npm ci in conformance/examples/javascript")


def test_lock_file_names_no_host() -> None:
    assert "resolved" not in (EXAMPLES / "javascript" / "package-lock.json").read_text("utf-8")


def test_nodes_use_nothing_of_this_project() -> None:
    used = {
        line.split()[1].partition(".")[0]
        for path in (EXAMPLES / "python").glob("*.py")
        for line in path.read_text("utf-8").splitlines()
        if line.startswith(("import ", "from "))
    }
    assert {name for name in used if name.startswith("dafka")} == set()
    assert "zmq" in used
