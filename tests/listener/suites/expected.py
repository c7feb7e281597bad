"""The tests of other suites that cannot pass, and why."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

EXPECTED: Mapping[str, Mapping[str, str]] = MappingProxyType({"aiokafka": {}, "kafka-python": {}})
"""For each suite, tests by the beginning of their names, and the reason."""


def find_reason(suite: str, test: str) -> str | None:
    """Return why a test cannot pass; None if it should."""
    return next((reason for name, reason in EXPECTED[suite].items() if test.startswith(name)), None)
