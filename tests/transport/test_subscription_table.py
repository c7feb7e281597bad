"""Which subscriptions of a connection libzmq knows, compared with the rule, for any history of subscriptions."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dafka.transport.subscription_table import CACHED_MAX, SubscriptionTable

SINGLES_TO_BATCHES = {b"M": b"B", b"D": b"C"}
COMMANDS_OF_RFC46 = frozenset(b"%c" % byte for byte in b"MDFKHEGWLTQPSRN")
"""All commands but those of record batches."""

PREFIXES = [
    *(b"", b"M", b"B", b"H", b"Ma", b"Ba", b"Mab", b"Bab", b"Da", b"Ca", b"D", b"C", b"x"),
    *(b"Ma\0", b"Ma\0\1 A", b"Ba\0\1 A", b"Mab\0"),
]
FRAMES = [b"", b"M", b"B", b"D", b"C", b"H", b"Ma", b"Ba", b"Mab", b"Mabc", b"Bab", b"Da", b"Ca", b"Hx", b"xy", b"Mb"]

OPERATIONS = st.tuples(st.sampled_from(["add", "add", "add", "remove", "forget"]), st.integers(1, 3))
HISTORIES = st.lists(st.tuples(OPERATIONS, st.sampled_from(PREFIXES)), max_size=25)


def known_to_libzmq(prefixes: Iterable[bytes], *, sends_batches: bool) -> set[bytes]:
    """Return the subscriptions of a connection that libzmq must know: no single records beside batches of the same."""
    if not sends_batches:
        return set(prefixes)
    kept = {each for each in prefixes if each and SINGLES_TO_BATCHES.get(each[:1], b"?") + each[1:] not in prefixes}
    return kept | (COMMANDS_OF_RFC46 if b"" in prefixes else frozenset())


def reaches(frame: bytes, subscription: bytes) -> bool:
    """Return whether a message can reach a subscriber. The first frame of libdafka continues after the topic."""
    return frame.startswith(subscription) or subscription.startswith(frame + b"\0")


@pytest.mark.parametrize("sends_batches", [True, False])
@settings(max_examples=100)
@given(history=HISTORIES)
def test_libzmq_always_knows_the_subscriptions_that_the_rule_requires(
    history: list[tuple[tuple[str, int], bytes]], sends_batches: bool
) -> None:
    table = SubscriptionTable(sends_batches=sends_batches)
    subscribed: dict[int, set[bytes]] = {}
    told: dict[int, set[bytes]] = {}
    for (operation, connection), prefix in history:
        own, known = subscribed.setdefault(connection, set()), told.setdefault(connection, set())
        if operation == "forget":
            others = set().union(*(each for number, each in subscribed.items() if number != connection))
            assert sorted(table.forget_connection(connection)) == sorted(own - others)
            own.clear()
            known.clear()
        else:
            is_repeated = operation == "add" and prefix in own
            changes = getattr(table, {"add": "subscribe", "remove": "unsubscribe"}[operation])(connection, prefix)
            (own.add if operation == "add" else own.discard)(prefix)
            must = known_to_libzmq(own, sends_batches=sends_batches)
            if is_repeated:  # the earlier one may have been for a former connection with the same descriptor
                concerned = {*COMMANDS_OF_RFC46} if sends_batches and not prefix else {prefix}
                if sends_batches:
                    singles = (single for single, batch in SINGLES_TO_BATCHES.items() if batch == prefix[:1])
                    concerned |= {single + prefix[1:] for single in singles}
                assert changes == [(True, each) for each in sorted(must & concerned)]
            else:
                assert changes == [
                    *((False, each) for each in sorted(known - must)),
                    *((True, each) for each in sorted(must - known)),
                ]
            told[connection] = must
        everything = set().union(*told.values())
        for frame in FRAMES:
            assert table.is_wanted(frame) == any(reaches(frame, each) for each in everything), frame
        for each in PREFIXES:
            assert table.has(each) == any(each in prefixes for prefixes in subscribed.values()), each


def test_the_number_of_topics_with_a_cached_answer_is_limited() -> None:
    table = SubscriptionTable(sends_batches=True)
    table.subscribe(1, b"Ma")
    for number in range(2 * CACHED_MAX + 10):
        assert table.is_wanted(b"Ma%d" % number)
        assert len(table._wanted) <= CACHED_MAX
