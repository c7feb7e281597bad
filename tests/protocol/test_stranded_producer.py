"""A producer notices that no store can continue its partition, and never by the word of one store among others."""

from __future__ import annotations

from random import Random

from dafka import wire
from dafka.protocol.machines.stranded_detector import ASKING_S, STRANDED_CHECK_S, StrandedDetector
from dafka.wire import Command
from tests.protocol.helpers import HELLO
from tests.protocol.scripts import Player
from tests.seeds import each_seed

AFTER_S = 5.0


class History:
    """Stores that come, go, ask for records and acknowledge them, and what follows from all that has happened."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        self.now = 0.0
        self.ends = {"OLD": self.draw.randrange(9)}
        self.detector = StrandedDetector(AFTER_S, self.ends, 100)
        self.connected: set[str] = set()
        self.discovered: set[str] = set()
        self.questions: dict[str, list[tuple[float, int]]] = {}
        """By store, the times of its questions for one and the same record, none long after the one before."""
        self.held_at = 0.0
        self.is_stranded = False
        self.stores = self.draw.sample(["OLD", "NEW", "OTHER"], self.draw.choice((1, 1, 2, 3)))
        self.wanted = dict.fromkeys(self.stores, 0)

    def step(self) -> None:
        event, store = self.draw.random(), self.draw.choice(self.stores)
        if event < 0.06:
            self.connected ^= {store}
            is_active = store in self.connected
            self.detector.record_subscription(wire.Subscription(Command.CONSUMER_HELLO, store, is_active))
        elif event < 0.1:
            self.discovered ^= {store}
            (self.detector.peer_joined if store in self.discovered else self.detector.peer_left)(store)
        elif event < 0.13:
            self.wanted[store] = self.draw.randrange(9)
        elif event < 0.16:
            end = self.draw.randrange(10)
            self.ends[store] = max(self.ends.get(store, 0), end)
            self.detector.record_ack(store, end)
            if store in self.questions and end > self.questions[store][-1][1]:
                del self.questions[store]
        else:
            self.ask(store, self.wanted[store])
        self.pass_time(self.draw.choice((0.1, 0.3, 0.6, 0.6, 20.0 if self.draw.random() < 0.1 else 1.0)))

    def ask(self, store: str, sequence: int) -> None:
        self.detector.record_fetch(wire.Fetch(HELLO.address, store, HELLO.topic, sequence, 10), self.now)
        if store in self.connected:
            asked = self.questions.setdefault(store, [])
            if asked and (asked[-1][1] != sequence or self.now - asked[-1][0] > ASKING_S):
                asked.clear()
            asked.append((self.now, sequence))
            assert self.detector.deadline() <= self.now + STRANDED_CHECK_S, "it looks by itself"

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while (due := self.detector.deadline()) <= end:
            self.detector.tick(due)
            self.check(due)
        self.now = end

    def check(self, now: float) -> None:
        self.questions = {
            store: asked
            for store, asked in self.questions.items()
            if store in self.connected and now - asked[-1][0] <= ASKING_S
        }
        if self.questions:
            asked_for = min(asked[-1][1] for asked in self.questions.values())
            others = {store for store in self.discovered if self.ends.get(store, 0) > asked_for} | self.connected
            if others - self.questions.keys():
                self.held_at = now
            began = max(self.held_at, *(asked[0][0] for asked in self.questions.values()))
            are_repeated = all(asked[-1][0] > asked[0][0] for asked in self.questions.values())
            self.is_stranded = are_repeated and now - began >= AFTER_S
        assert self.detector.is_stranded == self.is_stranded


@each_seed(60)
def test_a_producer_is_stranded_when_all_stores_ask_for_what_none_has(seed: int) -> None:
    history = History(seed)
    for _ in range(120):
        history.step()
        end = history.draw.randrange(10)
        has_all = all(history.ends.get(store, 0) >= end for store in history.connected)
        assert history.detector.have_all_stores(end) == has_all


def is_stranded(producer: Player, begin: int, end: int, *stores: str) -> bool:
    """Return whether a producer is stranded after stores have asked for its first record each second."""
    for second in range(begin, end):
        for store in stores:
            producer.play(f"{second} < FETCH 0:100 from={store}")
        producer.play(f"until {second + 0.9}")
    return bool(producer.machine.is_stranded)


def make_producer(*stores: str, stranded_after_s: float = AFTER_S) -> Player:
    """Return a producer of 10 records, of which a store that is gone has acknowledged 8; others are connected."""
    producer = Player(f"producer stranded_after_s={stranded_after_s} settled published=10 stores={','.join(stores)}")
    producer.play("< ACK 7 from=OLD")
    return producer


def test_a_producer_whose_only_store_began_anew_is_stranded() -> None:
    producer = make_producer("NEW")
    assert not is_stranded(producer, 1, 6, "NEW")
    assert is_stranded(producer, 6, 7, "NEW")
    assert producer.play("unstored_from") == "= 8"
    assert not is_stranded(make_producer("NEW", stranded_after_s=0.0), 1, 100, "NEW"), "without a limit it waits"


def test_records_that_no_store_acknowledged_are_unrecoverable_instead() -> None:
    """With `min_stores` 0, a producer drops records that no store has; stores continue after them."""
    limits = "min_stores=0 unacknowledged_records_max=3"
    producer = Player(f"producer {limits} stranded_after_s=5.0 settled published=2 stores=NEW")
    for records in ("2:4", "4:6"):
        producer.play(f"publish {records}")
    producer.play("+DIRECT-EARLIEST NEW")
    assert producer.play("1 < FETCH 0:100 from=NEW") == "DIRECT-EARLIEST 4 to=NEW from=PRODUCER unrecoverable_end=4"
    assert not is_stranded(producer, 2, 60, "NEW")
