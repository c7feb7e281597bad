"""Planted bugs: each breaks the product in a few lines, as a plausible mistake would, and a known seed shows it.

python -m tests.simulation.planted            find the first seed that shows each bug
python -m tests.simulation.planted NAME...    likewise for these bugs
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from dafka import wire
from dafka.protocol import BeaconMachine, ConsumerMachine, DeliveryBuffer, FetchResponder, ProducerMachine, StoreMachine
from dafka.protocol.actions import Publish
from dafka.protocol.machines.head_exchange import HeadExchange
from dafka.protocol.ordering.cursor import Cursor
from dafka.protocol.ordering.gap_resolver import GapResolver
from dafka.protocol.ordering.position_query import FoundPosition, PositionQuery
from dafka.protocol.presence.connections import ConnectionManager
from dafka.records import Partition
from tests.simulation import run_seed

SEEDS_MAX = 2000
"""Every planted bug must be found by a seed below this."""

Patch = pytest.MonkeyPatch


@attrs.frozen
class Planted:
    """A bug. `seed` is the first one that shows it, and `promise` the promise that is broken."""

    apply: Callable[[Patch], None]
    seed: int
    promise: str

    @property
    def name(self) -> str:
        return self.apply.__name__.replace("_", "-")


def _after(patch: Patch, owner: Any, name: str, change: Callable[..., Any]) -> None:
    """Replace what a method returns by `change(returned, self, *arguments)`."""
    method = getattr(owner, name)
    patch.setattr(owner, name, lambda self, *args, **kwargs: change(method(self, *args, **kwargs), self, *args))


# Stores


def ack_one_too_far(patch: Patch) -> None:
    def one_more(actions: Any, *_: Any) -> Any:
        return [Publish(attrs.evolve(each.message, sequence=each.message.sequence + 1)) for each in actions]

    _after(patch, StoreMachine, "_acknowledge", one_more)


def heads_are_told_to_stores_before_durable(patch: Patch) -> None:
    def all_known(_: Any, heads: HeadExchange, topic: str, requestor: str, *__: int) -> Any:
        return [
            Publish(wire.DirectHead(requestor, each.address, topic, cursor.known_end - 1))
            for each, cursor in heads._followed.items()
            if each.topic == topic and cursor.known_end
        ]

    _after(patch, HeadExchange, "_direct_heads", all_known)


# Partitions that have ended


def stores_tell_each_other_of_ended_partitions(patch: Patch) -> None:
    patch.setattr(HeadExchange, "_is_announced", lambda self, partition: self._stored.durable_end(partition) > 0)


# Producers


def head_one_too_far(patch: Patch) -> None:
    def one_more(actions: Any, *_: Any) -> Any:
        return [Publish(attrs.evolve(each.message, sequence=each.message.sequence + 1)) for each in actions]

    _after(patch, ProducerMachine, "_announce_head", one_more)


def held_back_records_are_lost(patch: Patch) -> None:
    _after(
        patch, ProducerMachine, "has_capacity", lambda has_capacity, self: has_capacity or not self._config.min_stores
    )
    publish = ProducerMachine.publish

    def publish_and_trim(self: ProducerMachine, contents: Any, now: float) -> Any:
        actions = publish(self, contents, now)
        self._trim_buffer()
        return actions

    patch.setattr(ProducerMachine, "publish", publish_and_trim)


def one_ack_is_enough(patch: Patch) -> None:
    def release(given: Any, producer: ProducerMachine, *_: Any) -> Any:
        producer.acknowledged_end = max(producer.acknowledged_end, *producer._stores.values(), 0)
        producer.retransmit_buffer.release(producer.acknowledged_end)
        return given

    _after(patch, ProducerMachine, "_receive_ack", release)


# Consumers, and what they share with stores


def another_topics_records_are_taken(patch: Patch) -> None:
    follow = ConsumerMachine._follow_partition

    def follow_any(self: ConsumerMachine, partition: Partition, latest: int, now: float, *, is_live: bool) -> bool:
        topics = self.topics
        self.topics = {**topics, partition.topic: 0.0}
        try:
            return follow(self, partition, latest, now, is_live=is_live)
        finally:
            self.topics = topics

    patch.setattr(ConsumerMachine, "_follow_partition", follow_any)


def records_are_delivered_before_order(patch: Patch) -> None:
    take = Cursor.add_batch

    def take_any(self: Cursor, batch: Any, ahead_bytes_left: int) -> Any:
        self.next_sequence = max(self.next_sequence, batch.first_sequence)
        return take(self, batch, ahead_bytes_left)

    patch.setattr(Cursor, "add_batch", take_any)


def duplicates_are_taken(patch: Patch) -> None:
    take = Cursor.add_batch
    patch.setattr(
        Cursor,
        "add_batch",
        lambda self, batch, left: [batch] if batch.end_sequence <= self.next_sequence else take(self, batch, left),
    )


def overlaps_are_taken_whole(patch: Patch) -> None:
    def whole(ready: Any, _: Cursor, batch: Any, __: int) -> Any:
        return [batch, *ready[1:]] if ready else ready

    _after(patch, Cursor, "add_batch", whole)


def records_ahead_are_kept_without_limit(patch: Patch) -> None:
    take = Cursor.add_batch
    patch.setattr(Cursor, "add_batch", lambda self, batch, _: take(self, batch, 2**40))


def position_is_one_too_far(patch: Patch) -> None:
    def further(batch: Any, delivery: DeliveryBuffer, *_: Any) -> Any:
        delivery.positions[batch.partition] += 1
        return batch

    _after(patch, DeliveryBuffer, "hand_over", further)


def not_here_is_taken_for_gone(patch: Patch) -> None:
    earliest = GapResolver.resume_sequence

    def believe(self: GapResolver, partition: Partition, next_sequence: int, attempts: int) -> Any:
        asked, answers = self._answers.get(partition, (next_sequence, {}))
        believed = {name: attrs.evolve(each, unrecoverable_end=each.sequence) for name, each in answers.items()}
        self._answers[partition] = asked, believed
        return earliest(self, partition, next_sequence, attempts)

    patch.setattr(GapResolver, "resume_sequence", believe)


def second_fetch_of_a_node_is_dropped(patch: Patch) -> None:
    offer = FetchResponder.add_fetch

    def offer_once(self: FetchResponder, fetch: wire.Fetch, **how: bool) -> bool:
        seen = self.__dict__.setdefault("seen", set())
        key = fetch.address, fetch.partition, fetch.sequence
        is_new = key not in seen
        seen.add(key)
        return offer(self, fetch, **how) if is_new else True

    patch.setattr(FetchResponder, "add_fetch", offer_once)


# Beginning at a time


def beginning_at_a_time_is_one_too_far(patch: Patch) -> None:
    _after(patch, PositionQuery, "take_positions", lambda found, *_: {p: _one_later(each) for p, each in found.items()})


def _one_later(found: FoundPosition) -> FoundPosition:
    return attrs.evolve(found, sequence=found.sequence + 1)


# Discovery and connections


def two_at_an_endpoint_are_connected_twice(patch: Patch) -> None:
    def always(_: bool, connections: ConnectionManager, endpoint: str) -> bool:
        return bool(endpoint)

    _after(patch, ConnectionManager, "add_peer", always)


def never_beacons_again(patch: Patch) -> None:
    def once(given: Any, beacons: BeaconMachine, *_: Any) -> Any:
        beacons._beacon_due = float("inf")
        for tower in beacons._towers:
            tower.client._due = float("inf")
        return given

    _after(patch, BeaconMachine, "tick", once)


def never_settles(patch: Patch) -> None:
    patch.setattr(ConnectionManager, "try_settle", lambda *_: False)


def repeats_what_a_tower_says(patch: Patch) -> None:
    def always(given: Any, *_: Any) -> Any:
        return True

    _after(patch, BeaconMachine, "_hear", always)


PLANTED = [
    Planted(ack_one_too_far, 0, "ACK before durable"),
    Planted(heads_are_told_to_stores_before_durable, 1, "DIRECT-HEAD before durable"),
    Planted(stores_tell_each_other_of_ended_partitions, 9, "not forgotten"),
    Planted(head_one_too_far, 0, "HEAD of no record"),
    Planted(held_back_records_are_lost, 16, "not published in order"),
    Planted(one_ack_is_enough, 38, "acknowledged and not durable"),
    Planted(another_topics_records_are_taken, 1, "another topic's record"),
    Planted(records_are_delivered_before_order, 1, "gap in a log"),
    Planted(duplicates_are_taken, 1, "given twice"),
    Planted(overlaps_are_taken_whole, 13, "another record's content"),
    Planted(records_ahead_are_kept_without_limit, 8, "memory"),
    Planted(position_is_one_too_far, 8, "position too far"),
    Planted(not_here_is_taken_for_gone, 107, "gave up recoverable records"),
    Planted(second_fetch_of_a_node_is_dropped, 62, "not converged"),
    Planted(beginning_at_a_time_is_one_too_far, 123, "time began late"),
    Planted(two_at_an_endpoint_are_connected_twice, 189, "connected twice"),
    Planted(never_beacons_again, 31, "not converged"),
    Planted(never_settles, 0, "busy"),
    Planted(repeats_what_a_tower_says, 0, "storm"),
]


def main(names: list[str]) -> None:
    """Print the first seed that shows each bug."""
    everything = [value for name, value in globals().items() if callable(value) and is_bug(name, value)]
    for apply in everything:
        if names and apply.__name__.replace("_", "-") not in names:
            continue
        with pytest.MonkeyPatch.context() as patch:
            apply(patch)
            for seed in range(SEEDS_MAX):
                outcome = run_seed(seed)
                if not outcome.is_good:
                    print(f'    Planted({apply.__name__}, {seed}, "{outcome.promise}"),', flush=True)
                    break
            else:
                print(f"    # {apply.__name__}: not found", flush=True)


def is_bug(name: str, value: Any) -> bool:
    return getattr(value, "__module__", "") == __name__ and name[0] != "_" and name.islower() and name not in _OTHERS


_OTHERS = ("main", "is_bug")

if __name__ == "__main__":
    main(sys.argv[1:])
