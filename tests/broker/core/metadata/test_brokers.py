"""Which brokers are alive, as another one knows them."""

from __future__ import annotations

import itertools

import attrs

from dafka.broker.core.metadata.brokers import BrokerRegistration, Brokers


def know_two() -> Brokers:
    brokers = Brokers(BrokerRegistration(address="a"), timeout_s=1.0)
    for each in ("b", "c"):
        brokers.record_registration(BrokerRegistration(address=each, number=1 + (each == "c")))
    return brokers


def test_a_broker_without_signs_of_life_is_dead() -> None:
    brokers = know_two()
    brokers.record_heartbeat("b", 10.0)
    brokers.record_heartbeat("c", 10.5)
    assert brokers.check_alive(10.9)
    assert brokers.alive == {"a", "b", "c"}
    assert brokers.check_alive(11.2)
    assert brokers.alive == {"a", "c"}


def test_a_broker_that_is_cut_off_goes_on_listing_the_others() -> None:
    brokers = Brokers(BrokerRegistration(address="a"), timeout_s=1.0)
    for number, each in enumerate(("b", "c", "d"), 1):
        brokers.record_registration(BrokerRegistration(address=each, number=number))
        brokers.record_heartbeat(each, 10.0)
    brokers.check_alive(10.1)
    for each in ("b", "c"):
        brokers.record_heartbeat(each, 11.0)
    brokers.check_alive(11.5)
    assert [each.address for each in brokers.advertised()] == ["a", "b", "c"]  # d has died
    brokers.check_alive(13.0)
    assert brokers.alive == {"a"}
    assert [each.address for each in brokers.advertised()] == ["a", "b", "c"]  # a is cut off
    brokers.record_heartbeat("b", 13.0)
    brokers.check_alive(13.1)
    assert [each.address for each in brokers.advertised()] == ["a", "b"]


def test_nobody_is_dead_because_this_broker_was_held_up() -> None:
    brokers = know_two()
    brokers.record_heartbeat("b", 10.0)
    brokers.record_heartbeat("c", 9.5)
    brokers.check_alive(10.2)
    assert not brokers.check_alive(15.4, 5.0)
    brokers.record_heartbeat("c", 15.5)
    assert brokers.check_alive(16.1)
    assert brokers.alive == {"a", "c"}


def test_of_two_brokers_with_a_number_one_gives_it_up() -> None:
    """The one that was there keeps it, then the one whose number is a setting."""
    kinds = [
        BrokerRegistration(address=address, number=1, is_starting=is_starting, has_set_number=has_set_number)
        for address, is_starting, has_set_number in itertools.product("ab", (False, True), (False, True))
    ]
    for one, other in itertools.permutations(kinds, 2):
        assert one.yields_number(other) != other.yields_number(one)
        assert not one.yields_number(attrs.evolve(other, number=2))
        if one.is_starting != other.is_starting:
            assert one.yields_number(other) == one.is_starting
        elif one.has_set_number != other.has_set_number:
            assert one.yields_number(other) == other.has_set_number


def test_a_broker_that_has_left_is_no_rival_and_not_listed() -> None:
    brokers = know_two()
    rival = BrokerRegistration(address="d", number=0)
    brokers.record_registration(rival)
    for each in ("b", "d"):
        brokers.record_heartbeat(each, 10.0)
    brokers.check_alive(10.1)
    assert brokers.rivals() == [rival]
    brokers.record_registration(attrs.evolve(rival, has_left=True))
    brokers.record_heartbeat("d", 10.2)
    brokers.check_alive(10.2)
    assert brokers.rivals() == []
    assert brokers.alive == {"a", "b"}
    assert [each.address for each in brokers.all()] == ["a", "b", "c"]
    assert brokers.find_number(0) == brokers.own
    assert not brokers.is_alone


def test_a_broker_that_cannot_write_is_replaceable_if_two_others_can() -> None:
    brokers = know_two()
    for each in ("b", "c"):
        brokers.record_heartbeat(each, 10.0)
    brokers.check_alive(10.1)
    assert brokers.is_replaceable(can_write=False)
    assert not brokers.is_replaceable(can_write=True)
    brokers.record_storage("c", can_write=False)
    assert not brokers.is_replaceable(can_write=False), "with a full disk everywhere, leaders go on serving readers"


def test_a_round_is_answered_when_replicas_know_what_it_says() -> None:
    """Until then they may vote for another leader, while the answer prolongs the lease of the one that asks."""
    brokers = know_two()
    brokers.record_heartbeat("b", 10.0)
    assert not brokers.may_answer("b", can_write=True)
    brokers.check_alive(10.1)
    assert brokers.may_answer("b", can_write=True)
    brokers.record_storage("b", can_write=False)
    assert not brokers.may_answer("b", can_write=False)
    brokers.check_alive(10.2)
    assert brokers.may_answer("b", can_write=False)
    assert not brokers.may_answer("b", can_write=True)
    brokers.check_alive(11.2)
    assert not brokers.may_answer("b", can_write=False)


def test_a_broker_is_replaceable_when_two_others_can_vote() -> None:
    brokers = know_two()
    for each in ("b", "c"):
        brokers.record_heartbeat(each, 10.0)
    brokers.check_alive(10.1)
    assert brokers.is_replaceable(can_write=False)
    assert not brokers.is_replaceable(can_write=True)
    brokers.record_storage("c", can_write=False)
    assert not brokers.is_replaceable(can_write=False)
