"""The README's examples run as they stand there."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
import trio

from dafka.testing import Cluster

README = Path(__file__).parent.parent / "README.md"
IN_SPARK = "dafka.spark"
"""Examples with this are run where Spark is."""

EXAMPLES = re.findall(r"^```python\n(.*?)^```$", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
EMBEDDED = [example for example in EXAMPLES if IN_SPARK not in example]


def test_readme_has_examples() -> None:
    assert len(EXAMPLES) > len(EMBEDDED) > 0


@pytest.mark.parametrize("example", EMBEDDED, ids=range(len(EMBEDDED)))
async def test_readme_example_runs(example: str, dafka_cluster: Cluster, tmp_path: Path) -> None:
    environ = {
        "DAFKA_BEACON_TOWER_SUB": dafka_cluster.tower.sub_endpoint,
        "DAFKA_BEACON_TOWER_PUB": dafka_cluster.tower.pub_endpoint,
    }
    with trio.fail_after(60):
        done = await trio.run_process(
            [sys.executable, "-W", "error", "-c", example],
            env={**os.environ, **environ},
            cwd=tmp_path,
            check=False,
            capture_stdout=True,
            capture_stderr=True,
        )
    assert done.returncode == 0, done.stderr.decode()
