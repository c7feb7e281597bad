"""Which brokers are alive, as another one knows them."""

from __future__ import annotations

import itertools
import json
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dafka.broker.core.metadata.brokers import BROKER_VERSION, BrokerRegistration, Brokers, decode_broker, encode_broker
from dafka.broker.core.metadata.leader_and_isr import LeaderAndIsr
from dafka.errors import StorageFormatError


def know_two() -> Brokers:
    brokers = Brokers(BrokerRegistration(address="a"), timeout_s=1.0)
    for each in ("b", "c"):
        brokers.record_registration(BrokerRegistration(address=each, number=1 + (each == "c")))
    return brokers


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


STEPS = st.one_of(
    st.tuples(st.just("heard"), st.sampled_from("bcde")),
    st.tuples(st.just("known"), st.sampled_from("bcd")),
    st.tuples(st.just("left"), st.sampled_from("bcd")),
    st.tuples(st.just("disk"), st.sampled_from("abc"), st.booleans()),
    st.tuples(st.just("check"), st.sampled_from([0.0, 0.1, 0.9, 1.0, 2.0]), st.booleans()),
    st.tuples(st.just("back"), st.sampled_from([0.5, 100.0])),
)


@settings(max_examples=60)
@given(st.lists(STEPS, max_size=40))
def test_a_broker_is_alive_that_was_heard_for_less_than_the_timeout_that_this_one_was_running(
    steps: list[tuple[Any, ...]],
) -> None:
    """Time during which this broker has stalled does not count, and a clock that is set back makes nobody older."""
    brokers = Brokers(BrokerRegistration(address="a"), timeout_s=1.0)
    now, silent, members, failing = 1000.0, dict[str, float](), set[str](), set[str]()
    alive: set[str] = {"a"}
    advertised: set[str] = {"a"}
    unwritable: set[str] = set()
    for kind, *step in steps:
        if kind == "heard":
            brokers.record_heartbeat(step[0], now)
            silent[step[0]] = 0.0
        elif kind in {"known", "left"}:
            brokers.record_registration(BrokerRegistration(address=step[0], has_left=kind == "left"))
            members = members | {step[0]} if kind == "known" else members - {step[0]}
        elif kind == "disk":
            brokers.record_storage(step[0], can_write=step[1])
            failing = failing - {step[0]} if step[1] else failing | {step[0]}
        elif kind == "back":
            now -= step[0]
            brokers.check_alive(now)
            silent = {each: max(at - step[0], 0.0) for each, at in silent.items()}
        else:
            passed, has_stalled = step
            now += passed
            if not has_stalled:
                silent = {each: at + passed for each, at in silent.items()}
            before = set(alive), set(unwritable)
            changed = brokers.check_alive(now, passed if has_stalled else 0.0)
            alive = {"a"} | {each for each in members if silent.get(each, 9e9) < 1.0 - 1e-9}
            unwritable = alive & failing
            if 2 * len(alive & advertised) >= len(advertised):
                advertised = set(alive)
            assert changed == (before != (alive, unwritable))
            assert {each.address for each in brokers.advertised()} == {
                each for each in advertised if each in members | {"a"}
            }
        alive, unwritable = set(brokers.alive) if kind == "back" else alive, set(brokers.unwritable)
        if kind == "back" and 2 * len(alive & advertised) >= len(advertised):
            advertised = set(alive)
        assert brokers.alive == alive
    assert brokers.silent_s("z", now) == float("inf")


def test_a_broker_that_was_known_before_a_restart_counts_as_heard_then() -> None:
    brokers = know_two()
    brokers.record_heartbeat("b", 9.5)
    for each in ("b", "c"):
        brokers.expect(each, 10.0)
    brokers.check_alive(10.6)
    assert brokers.alive == {"a", "c"}, "b was heard before, which counts"


def test_brokers_are_found_by_address_and_number_and_living_ones_first() -> None:
    brokers = Brokers(BrokerRegistration(address="c", number=2), timeout_s=1.0)
    assert brokers.is_alone
    dead = BrokerRegistration(address="b", number=7)
    living = BrokerRegistration(address="d", number=7)
    for each in (dead, living, BrokerRegistration(address="c", number=9)):
        brokers.record_registration(each)
    brokers.record_heartbeat("d", 10.0)
    brokers.check_alive(10.1)
    assert brokers.own.number == 2, "its own registration is not taken from others"
    assert not brokers.is_alone
    assert (brokers.find("b"), brokers.find("c"), brokers.find("z")) == (dead, brokers.own, None)
    assert (brokers.find_number(7), brokers.find_number(2), brokers.find_number(1)) == (living, brokers.own, None)
    assert [each.address for each in brokers.all()] == ["c", "b", "d"]
    assert [each.address for each in brokers.living()] == ["c", "d"]


def test_clients_get_the_leader_that_is_alive_or_the_presumed_one() -> None:
    brokers = know_two()
    brokers.record_heartbeat("b", 10.0)
    brokers.check_alive(10.1)
    for leadership, leader in [
        (LeaderAndIsr("b", is_led=True), "a"),
        (LeaderAndIsr("b", is_led=False), "b"),
        (LeaderAndIsr("c", is_led=False), ""),
        (LeaderAndIsr("c", is_led=False, presumed_leader="c"), "c"),
        (LeaderAndIsr("", is_led=False, presumed_leader="b"), "b"),
    ]:
        assert brokers.leader_of(leadership) == leader


REGISTRATION = BrokerRegistration(
    address="a",
    number=3,
    rack="r",
    kafka_listener="k:1",
    http_url="http://h",
    free_bytes=7,
    is_draining=True,
    under_replicated_logs=2,
    forwarding_key="key",
    awaits_share=True,
    is_starting=True,
    has_set_number=True,
    has_left=True,
)


def test_a_registration_is_read_as_it_was_written() -> None:
    value = encode_broker(REGISTRATION)
    assert decode_broker("a", value) == REGISTRATION
    assert "key" not in repr(REGISTRATION)
    fields = json.loads(value)
    for name in set(fields) - {"version"}:
        rest = {key: each for key, each in fields.items() if key != name}
        default = getattr(BrokerRegistration(address="a"), name)
        assert decode_broker("a", json.dumps(rest).encode()) == attrs.evolve(REGISTRATION, **{name: default})
    assert decode_broker("a", json.dumps(fields | {"new": 1}).encode()) == REGISTRATION
    with pytest.raises(StorageFormatError, match="newer version"):
        decode_broker("a", json.dumps(fields | {"version": BROKER_VERSION + 1}).encode())
    for malformed in (b"", b"[]", b"{}", b"\xff", json.dumps(fields | {"number": "x"}).encode()):
        with pytest.raises(StorageFormatError):
            decode_broker("a", malformed)
