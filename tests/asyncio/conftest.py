"""What the tests of this style use: a cluster, and the style."""

from __future__ import annotations

import pytest

from tests.clients.cluster import config
from tests.clients.styles import ASYNCIO, Style

__all__ = ["config", "style"]


@pytest.fixture
def style() -> Style:
    return ASYNCIO
