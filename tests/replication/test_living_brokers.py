"""Which brokers are alive, as another one knows them."""

from __future__ import annotations

from dafka.protocol.replication import BrokerDescription, Brokers


def know_two() -> Brokers:
    brokers = Brokers(BrokerDescription(address="a"), timeout_s=1.0)
    for each in ("b", "c"):
        brokers.note(BrokerDescription(address=each, number=1 + (each == "c")))
    return brokers


def test_a_broker_without_signs_of_life_is_dead() -> None:
    brokers = know_two()
    brokers.heard("b", 10.0)
    brokers.heard("c", 10.5)
    assert brokers.check_alive(10.9)
    assert brokers.alive == {"a", "b", "c"}
    assert brokers.check_alive(11.2)
    assert brokers.alive == {"a", "c"}


def test_nobody_is_dead_because_this_broker_was_held_up() -> None:
    brokers = know_two()
    brokers.heard("b", 10.0)
    brokers.heard("c", 9.5)
    brokers.check_alive(10.2)
    assert not brokers.check_alive(15.4, 5.0)
    brokers.heard("c", 15.5)
    assert brokers.check_alive(16.1)
    assert brokers.alive == {"a", "c"}
