"""Which of the subscriptions of a connection libzmq is told, with record batches and without."""

from __future__ import annotations

import pytest

from dafka.transport.subscription_table import SubscriptionTable

SINGLE, BATCH = b"Mhello", b"Bhello"


@pytest.mark.parametrize("first", [SINGLE, BATCH])
def test_a_connection_that_takes_batches_gets_no_single_records(first: bytes) -> None:
    table = SubscriptionTable(sends_batches=True)
    told: set[bytes] = set()
    for prefix in sorted((SINGLE, BATCH), key=lambda each: each != first):
        for is_subscribed, changed in table.subscribe(1, prefix):
            (told.add if is_subscribed else told.remove)(changed)
    assert told == {BATCH}
    assert table.is_wanted(BATCH)
    assert not table.is_wanted(SINGLE)
    assert table.has(SINGLE)


@pytest.mark.parametrize("first", [SINGLE, BATCH])
def test_single_records_come_again_when_the_subscription_to_batches_ends(first: bytes) -> None:
    table = SubscriptionTable(sends_batches=True)
    for prefix in (SINGLE, BATCH):
        table.subscribe(1, prefix)
    assert table.unsubscribe(1, first) == ([] if first == SINGLE else [(False, BATCH), (True, SINGLE)])
    (second,) = {SINGLE, BATCH} - {first}
    assert table.unsubscribe(1, second) == [(False, second)]
    assert not table.is_wanted(SINGLE)
    assert not table.is_wanted(BATCH)


def test_connections_do_not_count_for_each_other() -> None:
    table = SubscriptionTable(sends_batches=True)
    assert table.subscribe(1, BATCH) == [(True, BATCH)]
    assert table.subscribe(2, SINGLE) == [(True, SINGLE)]
    assert table.is_wanted(SINGLE)
    assert table.forget_connection(2) == [SINGLE]
    assert not table.is_wanted(SINGLE)
    assert table.forget_connection(1) == [BATCH]


def test_a_longer_topic_is_wanted_by_whom_a_prefix_was_entered() -> None:
    table = SubscriptionTable(sends_batches=True)
    assert not table.is_wanted(b"Bhello2")
    table.subscribe(1, BATCH)
    assert table.is_wanted(b"Bhello2")
    assert not table.is_wanted(b"Bhell")


def test_a_publisher_without_batches_tells_everything() -> None:
    table = SubscriptionTable(sends_batches=False)
    assert table.subscribe(1, BATCH) == [(True, BATCH)]
    assert table.subscribe(1, SINGLE) == [(True, SINGLE)]
    assert table.is_wanted(SINGLE)


def test_a_repeated_subscription_tells_the_same_again() -> None:
    table = SubscriptionTable(sends_batches=True)
    for prefix in (SINGLE, BATCH):
        table.subscribe(1, prefix)
    assert table.subscribe(1, SINGLE) == []
    assert table.subscribe(1, BATCH) == [(True, BATCH)]
    assert table.forget_connection(1)
    assert not table.is_wanted(BATCH)


def test_a_subscription_counts_once_for_each_connection() -> None:
    table = SubscriptionTable(sends_batches=True)
    table.subscribe(1, SINGLE)
    assert table.subscribe(1, SINGLE) == [(True, SINGLE)]
    table.unsubscribe(1, SINGLE)
    assert table.unsubscribe(1, SINGLE) == []
    assert not table.has(SINGLE)


def test_a_connection_that_subscribes_to_everything_gets_no_batches() -> None:
    table = SubscriptionTable(sends_batches=True)
    told = {prefix for is_subscribed, prefix in table.subscribe(1, b"") if is_subscribed}
    assert b"M" in told
    assert not told & {b"", b"B", b"C"}
    assert table.is_wanted(SINGLE)
    assert not table.is_wanted(BATCH)
    assert table.subscribe(1, b"M") == []
    assert table.unsubscribe(1, b"M") == []
    assert {prefix for _, prefix in table.unsubscribe(1, b"")} == told
    assert not table.is_wanted(SINGLE)


def test_a_publisher_without_batches_tells_an_empty_subscription() -> None:
    table = SubscriptionTable(sends_batches=False)
    assert table.subscribe(1, b"") == [(True, b"")]
    assert table.is_wanted(b"anything")
    assert table.forget_connection(1) == [b""]
    assert not table.is_wanted(b"anything")


def test_a_subscription_to_more_than_the_topic_of_libdafkas_first_frame_counts() -> None:
    table = SubscriptionTable(sends_batches=True)
    assert table.subscribe(1, SINGLE + b"\0\1 A") == [(True, SINGLE + b"\0\1 A")]
    table.subscribe(2, SINGLE + b"\0")
    assert table.is_wanted(SINGLE)
    assert not table.is_wanted(b"Mhell")
    table.unsubscribe(1, SINGLE + b"\0\1 A")
    assert table.is_wanted(SINGLE)
    table.forget_connection(2)
    assert not table.is_wanted(SINGLE)
