"""Three brokers of a cluster, and queues of topics with a log at each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dafka import Config
from tests.http.queues.clients import HOUR_MS, Queue
from tests.http.running import SharedWeb, run_webs
from tests.waiting import poll_until

LOGS = BROKERS = 3


@pytest.fixture(scope="module")
def webs() -> Iterator[list[SharedWeb]]:
    steady = Config().with_broker(heartbeat_ms=200, leader_timeout_ms=20_000)  # also on a busy machine
    with run_webs(BROKERS, steady) as found:
        yield found


def spread(webs: list[SharedWeb], lock_ms: str = HOUR_MS) -> Queue:
    """Return a queue whose topic has a log at each broker."""
    queue = Queue.make(webs[0], LOGS, lock_ms)
    for number in range(LOGS):
        target = f"/topics/{queue.topic}/logs/{number}/replicas"
        assert webs[0].ask("PUT", target, document={"replicas": [number]}).status == 200
    described = f"/topics/{queue.topic}"

    def is_spread(web: SharedWeb) -> bool:
        found = [(each["leader"], each["replicas"]) for each in web.ask("GET", described).document["logs"]]
        has_moved = not web.ask("GET", "/cluster").document["move_count"]
        return has_moved and found == [(number, [number]) for number in range(LOGS)]

    poll_until(lambda: all(map(is_spread, webs)))
    return queue
