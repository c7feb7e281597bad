"""What the tests of this room use: a cluster."""

from __future__ import annotations

from tests.clients.cluster import config

__all__ = ["config"]
