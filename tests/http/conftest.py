"""One broker for all tests of a module that need no other one, and topics for each test."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from tests.http.running import SharedWeb, run_web

_NUMBERS = count()


@pytest.fixture(scope="module")
def web() -> Iterator[SharedWeb]:
    """A broker without users. Other tests of the module use it, too.

    It draws random numbers in its thread, which Hypothesis does not allow beside its tests in other modules.
    """
    with run_web() as running:
        yield running


@pytest.fixture
def name() -> str:
    """A name that no other test uses, for a topic or a group."""
    return f"n{next(_NUMBERS)}."


@pytest.fixture
def topic(web: SharedWeb, name: str) -> str:
    """A new topic with one log."""
    return web.create(name)
