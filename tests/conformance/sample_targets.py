"""Targets for tests: files of a store that says nothing, one that ends at once and a running producer, and a class."""

from __future__ import annotations

from dafka_conformance.model import Role
from dafka_conformance.targets.embedded import EmbeddedTarget

DEAF = """
name = "deaf"
dialects = ["rfc46"]

[store]
command = ["{python}", "-c", "import time; time.sleep(100)", "{sub}", "{pub}"]
"""
ENDED = DEAF.replace("import time; time.sleep(100)", "raise SystemExit('no license')")
ATTACHED = """
name = "remote"
dialects = ["rfc46"]

[producer.attach]
sub = "tcp://127.0.0.1:1"
pub = "tcp://127.0.0.1:2"
topic = "orders"
"""


class LineTarget(EmbeddedTarget):
    """The embedded roles, as if their input and output were lines."""

    def carries(self, role: Role, content: bytes) -> bool:
        """Return whether a record fits a line."""
        return b"\n" not in content
