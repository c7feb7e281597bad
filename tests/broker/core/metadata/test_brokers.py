"""Which brokers are alive, as another one knows them."""

from __future__ import annotations

import json
from random import Random

import attrs
import pytest

from dafka.broker.core.metadata.brokers import BROKER_VERSION, BrokerRegistration, Brokers, decode_broker, encode_broker
from dafka.broker.core.metadata.leader_and_isr import LeaderAndIsr
from dafka.errors import StorageFormatError
from tests.seeds import each_seed

TIMEOUT_S = 1.0


class Model:
    """What the broker `a` must know of others: for how long each was silent while this one was running."""

    def __init__(self) -> None:
        self.brokers = Brokers(BrokerRegistration(address="a"), TIMEOUT_S)
        self.now = 1000.0
        self.silent: dict[str, float] = {}
        self.unheard: dict[str, float] = {}  # also while it was stopped
        self.known: dict[str, BrokerRegistration] = {}
        self.failing: set[str] = set()
        self.followed: dict[str, float] = {}  # though they cannot write
        self.has_forgotten = False
        self.alive, self.heard, self.advertised = {"a"}, {"a"}, {"a"}
        self.unwritable, self.replaceable = set[str](), set[str]()

    def step(self, draw: Random) -> None:
        broker, is_so = draw.choice("bcde"), draw.random() < 0.5
        match draw.choice(
            ["heard"] * 4
            + ["check"] * 4
            + ["known", "known", "disk", "disk", "round", "round", "expected", "back", "forget"]
        ):
            case "heard":
                self.do_heard(broker)
            case "expected":
                self.do_expected(broker)
            case "known":
                self.do_known(draw.choice("abcde"), draw.randint(-1, 2))
            case "disk":
                self.do_disk(broker, is_so)
            case "round":
                self.do_round(broker)
            case "check":
                self.do_check(draw.choice([0.0, 0.125, 0.5, 0.875, 1.0, 2.0]), is_so)
            case "back":
                self.do_back(draw.choice([0.5, 100.0]))
            case "forget":
                self.do_forget(broker)

    def do_forget(self, broker: str) -> None:
        self.brokers.forget(broker)
        self.brokers.check_alive(self.now)
        self.known.pop(broker, None)
        self.failing.discard(broker)
        self.followed.pop(broker, None)
        self.advertised.discard(broker)
        self.has_forgotten = True
        self.update()

    def do_heard(self, broker: str) -> None:
        self.brokers.record_heartbeat(broker, self.now)
        self.silent[broker] = self.unheard[broker] = 0.0

    def do_expected(self, broker: str) -> None:
        """A broker that was known before a restart counts as heard then, unless it was."""
        self.brokers.expect(broker, self.now)
        self.silent.setdefault(broker, 0.0)
        self.unheard.setdefault(broker, 0.0)
        self.followed.setdefault(broker, self.now)

    def do_known(self, broker: str, number: int) -> None:
        found = BrokerRegistration(address=broker, number=number)
        self.brokers.record_registration(found)
        if broker != "a":  # its own registration is not taken from others
            self.known[broker] = found

    def do_disk(self, broker: str, can_write: bool) -> None:
        self.brokers.record_storage(broker, can_write=can_write)
        self.failing = self.failing - {broker} if can_write else self.failing | {broker}

    def do_round(self, broker: str) -> None:
        """A broker that cannot write asks. It is followed from then on while nobody can be elected in its place."""
        can_elect = len(self.alive - self.failing - {broker}) >= 2
        if not can_elect:
            self.followed[broker] = self.now
        may_answer = not can_elect and broker in self.alive - self.replaceable
        assert self.brokers.may_answer(broker, self.now, can_write=False) == may_answer

    def do_back(self, seconds: float) -> None:
        """A clock that is set back makes nobody older."""
        self.now -= seconds
        self.followed = {each: min(at, self.now) for each, at in self.followed.items()}
        self.brokers.check_alive(self.now)
        for times in (self.silent, self.unheard):
            times.update({each: max(silent - seconds, 0.0) for each, silent in times.items()})
        self.update()

    def do_check(self, passed: float, has_stalled: bool) -> None:
        """Time during which this broker has stalled does not count: heartbeats wait unread."""
        self.now += passed
        if not has_stalled:
            self.silent = {each: silent + passed for each, silent in self.silent.items()}
        self.unheard = {each: unheard + passed for each, unheard in self.unheard.items()}
        before = set(self.alive), set(self.unwritable), set(self.replaceable), set(self.heard)
        has_changed = self.brokers.check_alive(self.now, passed if has_stalled else 0.0)
        self.update()
        assert has_changed == (before != (self.alive, self.unwritable, self.replaceable, self.heard))

    def update(self) -> None:
        self.alive = {"a"} | {each for each in self.known if self.silent.get(each, 9e9) < TIMEOUT_S}
        self.heard = {"a"} | {each for each in self.known if self.unheard.get(each, 9e9) < TIMEOUT_S}
        followed = {each for each, at in self.followed.items() if self.now - at < TIMEOUT_S}
        self.unwritable = self.alive & self.failing
        self.replaceable = self.unwritable - followed
        if 2 * len(self.alive & self.advertised) >= len(self.advertised):  # otherwise it is more likely cut off
            self.advertised = set(self.alive)

    def check(self) -> None:
        brokers, own = self.brokers, self.brokers.own
        every = sorted([own, *self.known.values()], key=lambda each: (each.number, each.address))
        living = [each for each in every if each.address in self.alive]
        assert (set(brokers.alive), set(brokers.unwritable)) == (self.alive, self.unwritable)
        assert set(brokers.replaceable) == self.replaceable
        assert set(brokers.heard) == self.heard <= self.alive, "who has stalled relies on nobody"
        assert brokers.is_alone == (not self.known and not self.has_forgotten)
        assert (brokers.all(), brokers.living()) == (every, living)
        assert brokers.advertised() == [each for each in every if each.address in self.advertised]
        for each in "abcz":
            assert brokers.is_heard(each, self.now) == (each == "a" or self.silent.get(each, 9e9) < TIMEOUT_S)
        numbers = brokers.living_by_log(lambda each: [f"{each.number}", "all"])
        assert numbers == {
            name: {each.address for each in living if name in {f"{each.number}", "all"}}
            for name in {"all", *(f"{each.number}" for each in living)}
        }
        for each in "abz":
            assert brokers.find(each) == (own if each == "a" else self.known.get(each))
        for number in range(4):
            assert brokers.find_number(number) == next((e for e in [*living, *every] if e.number == number), None)
        for each in "bcz":
            may_answer = each in self.alive - self.replaceable
            assert brokers.may_answer(each, self.now, can_write=True) == may_answer, "replicas may elect another leader"
        assert brokers.silent_s("z", self.now) == float("inf")


@each_seed(60)
def test_brokers_are_known_and_alive_that_were_heard_for_less_than_the_timeout(seed: int) -> None:
    model, draw = Model(), Random(seed)
    for _ in range(60):
        model.step(draw)
        model.check()


def test_clients_get_the_leader_that_is_alive_or_the_presumed_one() -> None:
    brokers = Brokers(BrokerRegistration(address="a"), TIMEOUT_S)
    brokers.record_registration(BrokerRegistration(address="b"))
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
    cluster_id="C1",
    first_voters=("a", "b"),
    is_open=True,
    initial_brokers=3,
    rack="r",
    kafka_listener="k:1",
    http_url="http://h",
    free_bytes=7,
    is_draining=True,
    is_stopping=True,
    under_replicated_logs=2,
    damaged_logs=("1D/0",),
    logs_to_copy=("2D/0",),
    unreadable_logs=("3D/0", "3D/1"),
    forwarding_key="key",
)


def test_a_registration_is_read_as_it_was_written() -> None:
    value = encode_broker(REGISTRATION)
    assert decode_broker("a", value) == REGISTRATION
    assert "key" not in repr(REGISTRATION)
    fields = json.loads(value)
    for name in set(fields) - {"version"}:
        rest = {key: each for key, each in fields.items() if key != name}
        default = getattr(BrokerRegistration(address="a"), name)
        assert getattr(REGISTRATION, name) != default
        assert decode_broker("a", json.dumps(rest).encode()) == attrs.evolve(REGISTRATION, **{name: default})
    assert decode_broker("a", json.dumps(fields | {"new": 1}).encode()) == REGISTRATION
    running = encode_broker(attrs.evolve(REGISTRATION, is_stopping=False))
    assert json.loads(running).keys() == fields.keys() - {"is_stopping"}, "as the first release has it"
    with pytest.raises(StorageFormatError, match="newer version"):
        decode_broker("a", json.dumps(fields | {"version": BROKER_VERSION + 1}).encode())
    for malformed in (b"", b"[]", b"{}", b"\xff", json.dumps(fields | {"number": "x"}).encode()):
        with pytest.raises(StorageFormatError):
            decode_broker("a", malformed)
