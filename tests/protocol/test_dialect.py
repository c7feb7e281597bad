"""The choice of the dialect to send, by the subscriptions and messages of peers (erratum 30)."""

from __future__ import annotations

import pytest

from dafka.config import NodeConfig
from dafka.protocol import DialectChoice
from dafka.wire import Command, Dialect, Subscription

READER = [(Command.FETCH, ""), (Command.GET_HEADS, ""), (Command.CONSUMER_HELLO, "READER")]
STORE = [
    (Command.RECORD, ""),
    (Command.HEAD, ""),
    (Command.FETCH, ""),
    (Command.GET_HEADS, ""),
    (Command.CONSUMER_HELLO, ""),
    (Command.CONSUMER_HELLO, "STORE"),
    (Command.DIRECT_RECORD, "STORE"),
]


def subscribe(choice: DialectChoice, connection: int, *wanted: tuple[Command, str], active: bool = True) -> None:
    choice.record_subscriptions([(connection, Subscription(*each, active=active)) for each in wanted])


@pytest.mark.parametrize("first", READER)
def test_any_subscription_of_a_libdafka_reader_is_enough(first: tuple[Command, str]) -> None:
    choice = DialectChoice(NodeConfig())
    assert (choice.dialect, choice.may_change) == (Dialect.RFC46, True)
    subscribe(choice, 1, first)
    assert (choice.dialect, choice.may_change) == (Dialect.LIBDAFKA, False)


def test_sorted_as_libzmq_sends_them_they_never_look_like_a_reader() -> None:
    choice = DialectChoice(NodeConfig())
    for each in sorted(STORE, key=lambda each: each[0].value + each[1].encode()):
        subscribe(choice, 1, each)
        assert choice.dialect is Dialect.RFC46, each


def test_a_reader_beside_a_store_is_recognized_by_its_connection() -> None:
    choice = DialectChoice(NodeConfig())
    subscribe(choice, 1, *STORE)
    subscribe(choice, 2, (Command.DIRECT_RECORD, "WRITER"))
    subscribe(choice, 3, READER[0])
    assert choice.dialect is Dialect.LIBDAFKA


def test_a_peer_that_turns_out_to_be_a_whole_store_takes_the_choice_back() -> None:
    choice = DialectChoice(NodeConfig())
    subscribe(choice, 1, (Command.FETCH, ""))
    subscribe(choice, 1, (Command.RECORD, ""))
    assert choice.may_change
    subscribe(choice, 2, *READER)
    subscribe(choice, 1, *STORE)
    assert choice.dialect is Dialect.LIBDAFKA, "the other one is a reader"


def test_requests_for_one_partition_or_topic_are_a_producer_s() -> None:
    choice = DialectChoice(NodeConfig())
    subscribe(choice, 1, (Command.FETCH, "PRODUCER"), (Command.GET_HEADS, "orders"), (Command.ACK, "PRODUCER"))
    subscribe(choice, 2, *READER, active=False)
    subscribe(choice, -1, *READER)
    assert choice.dialect is Dialect.RFC46


def test_hearing_libdafka_is_enough_and_lasts() -> None:
    choice = DialectChoice(NodeConfig())
    choice.record_heard({Dialect.RFC46})
    assert choice.may_change
    choice.record_heard({Dialect.RFC46, Dialect.LIBDAFKA})
    subscribe(choice, 1, *STORE)
    assert choice.dialect is Dialect.LIBDAFKA


@pytest.mark.parametrize("dialect", [Dialect.RFC46, Dialect.LIBDAFKA])
def test_an_explicit_dialect_stays(dialect: Dialect) -> None:
    choice = DialectChoice(NodeConfig(wire=dialect.value))
    subscribe(choice, 1, *READER)
    choice.record_heard(set(Dialect))
    assert (choice.dialect, choice.may_change, choice.is_fixed) == (dialect, False, True)


def test_in_a_closed_cluster_there_is_no_libdafka() -> None:
    choice = DialectChoice(NodeConfig(), is_closed=True)
    subscribe(choice, 1, *READER)
    assert (choice.dialect, choice.is_fixed) == (Dialect.RFC46, True)


def test_nodes_of_this_project_are_known_by_their_own_command() -> None:
    choice = DialectChoice(NodeConfig(peers_max=2))
    subscribe(choice, 1, (Command.DIRECT_EARLIEST, "A"), (Command.ACK, "B"), (Command.DIRECT_EARLIEST, "C"))
    assert [each in choice.named_ack_takers for each in "ABC"] == [True, False, True]
    subscribe(choice, 2, (Command.DIRECT_EARLIEST, "D"))
    assert [each in choice.named_ack_takers for each in "ACD"] == [False, True, True]


def test_connections_beyond_the_limit_are_forgotten() -> None:
    choice = DialectChoice(NodeConfig(connections_max=16))
    for connection in range(1000):
        subscribe(choice, connection, *STORE)
    subscribe(choice, 2000, READER[0])
    assert choice.dialect is Dialect.LIBDAFKA
