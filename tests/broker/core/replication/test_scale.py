"""How many messages brokers exchange as their number grows: signs of life, control records and acknowledgements."""

from __future__ import annotations

from dafka.broker.core.replication.settings import Availability
from tests.broker.core.replication.world import World

LOGS = 6


def count_messages(count: int) -> float:
    """Return how many messages the busiest broker sends for each other one, while a leader dies and is replaced."""
    world = World(0, Availability.MAJORITY, count, LOGS)
    world.place_on(3)
    for broker in world.brokers.values():
        broker.start()
    world.run_until(2.0)
    dead = next(each for each in world.brokers.values() if each.logs["log/0"].led is not None)
    dead.crash()
    world.run_until(5.0)
    leaders = {each.logs["log/0"].replica.leader for each in world.brokers.values() if each.is_up}
    assert len(leaders) == 1
    assert dead.name not in leaders
    return max(world.messages.values()) / (count - 1)


def test_messages_of_each_broker_grow_at_most_linearly_with_the_number_of_brokers() -> None:
    assert count_messages(20) <= 1.1 * count_messages(10)
