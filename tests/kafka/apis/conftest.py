"""What the tests of Kafka's APIs share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kafka.apis.door import Client, Door


@pytest.fixture
def client(door: Door) -> Iterator[Client]:
    """A connection to the module's broker."""
    with door.connect() as found:
        yield found
