"""Three brokers of a cluster, and queues of topics with a log at each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

import pytest

from tests.http.queues.clients import HOUR_MS, Queue
from tests.http.running import STEADY, SharedWeb, run_webs
from tests.waiting import poll_until

LOGS = BROKERS = 3

_names = itertools.count()


@pytest.fixture(scope="module")
def webs() -> Iterator[list[SharedWeb]]:
    with run_webs(BROKERS, STEADY.with_broker(heartbeat_ms=200)) as found:
        yield found


def spread(webs: list[SharedWeb], lock_ms: str = HOUR_MS) -> Queue:
    """Return a queue whose topic has a log at each broker."""
    nodes = sorted((web.broker.node for web in webs), key=lambda node: node.brokers.own.number)
    topic, leaders = f"spread-{next(_names)}", [node.address for node in nodes]
    webs[0].call(partial(nodes[0].admin.create_topic, topic, LOGS, placement=[[each] for each in leaders]))

    def is_spread() -> bool:
        return all([log.leadership.leader for log in node.log_table.logs(topic)] == leaders for node in nodes)

    poll_until(lambda: webs[0].call_sync(is_spread))  # they run in one thread
    return Queue.of(webs[0], topic, lock_ms)
