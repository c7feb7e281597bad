"""No log keeps a transaction that its coordinator does not know, and readers see exactly what was committed."""

from __future__ import annotations

import trio
import trio.testing

from tests.broker.coordinator.transaction_clients import run_world
from tests.seeds import each_seed


@each_seed(20)
def test_late_repeated_and_lost_requests_leave_no_transaction_open(seed: int) -> None:
    trio.run(run_world, seed, clock=trio.testing.MockClock(autojump_threshold=0))
