"""Large buffers that were freed go back to the system."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
from dafka.cli.runner import return_freed_memory
from pathlib import Path

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

return_freed_memory()
bytes(40 << 20)
before = resident()
kept, freed = [], []
for _ in range(20):
    freed.append(b"x" * (8 << 20))
    kept.append(b"x" * (1 << 10))
del freed
print(resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it is about glibc")
def test_large_freed_buffers_are_returned() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) < 16 << 20
