"""What all machines have in common: what they subscribe to, the messages that they discard, and their limits."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dafka import wire
from dafka.protocol.actions import Subscribe
from dafka.protocol.presence.peer_limits import MANY_FETCHES, NODE_BURST, TOO_OFTEN
from dafka.wire import Command
from tests.protocol.helpers import published, subscription
from tests.protocol.scripts import ME, Player, message, play, scripts_of

# What a machine must hear: with `min_stores` above 1, a producer shows that it is of this project (erratum 30), and
# stores hear everything (erratum 12).
PREFIXES = [
    ("producer", "KPRODUCER FPRODUCER Ghello"),
    ("producer min_stores=2", "KPRODUCER FPRODUCER Ghello TPRODUCER"),
    ("consumer", "DME EME RME LME TME"),
    ("reader", "DME EME RME LME TME"),
    ("reader topics=hello", "DME EME RME LME TME K"),
    ("store", "M H F G W DME EME SME WME TME QME"),
]


def test_a_machine_first_subscribes_to_what_it_must_hear() -> None:
    for setup, prefixes in PREFIXES:
        assert Player(setup).machine.start(0.0) == [Subscribe(prefix.encode()) for prefix in prefixes.split()]


SCRIPTS = """
# Messages that a producer cannot use are counted by reason
producer settled published=10
< ACK 10 from=S & ACK 4611686018427387903 from=S => discarded 2 (beyond the head)
< ACK 4611686018427387904 from=S & ACK nothing from=S => discarded 2 (sequence too large)
< ACK OTHER 3 from=S & ACK hello2/PRODUCER 3 from=S => discarded 2 (another partition)
< FETCH 10:11 from=C & FETCH 18446744073709551615:18446744078004518910 from=C => discarded 2 (beyond the head)
< FETCH OTHER 0:1 from=C & FETCH hello2/PRODUCER 0:1 from=C => discarded 2 (another partition)
< RECORD 0:1 & HEAD 5 & DIRECT-HEAD 5 & STORE-HELLO from=S => discarded 4 (unexpected command)
acknowledged_end => = 0
responder.pending_ranges => = nothing
# Messages that a consumer cannot use are counted by reason
consumer offset_reset=earliest node.partitions_max=1 subscribe=hello
< RECORD hello2/PRODUCER 0:3 & HEAD hello2/PRODUCER 9 & DIRECT-HEAD hello2/PRODUCER 9 => discarded 3 (another topic)
< DIRECT-RECORD 0:3 to=ANOTHER & DIRECT-HEAD 20 to=ANOTHER => discarded 4 (another requestor)
< DIRECT-RECORD 0:3 => discarded 3 (not asked for)
< HEAD OTHER 0 & HEAD 0 => FETCH OTHER 0:1, discarded 1 (too many partitions)
# Messages that a reader cannot use are counted by reason
reader topics=hello node.partitions_max=1
fetch_range 0 10 => FETCH 0:10
< RECORD 0:2 & DIRECT-RECORD 0:3 to=ANOTHER & DIRECT-HEAD 9 to=ANOTHER => discarded 6 (another requestor)
< DIRECT-RECORD OTHER 0:4 => discarded 4 (not asked for)
< HEAD 50 => discarded 1 (unexpected command)
< ACK 1 from=S & ACK OTHER 2 from=S & ACK 3 from=S => discarded 1 (too many partitions)
# Messages that a store cannot use are counted by reason
store PRODUCER=0:5
< DIRECT-RECORD 0:3 to=ANOTHER & DIRECT-HEAD 20 to=ANOTHER => discarded 4 (another requestor)
< GET-HEADS hello from=ME & GET-HEADS unknown from=ME => discarded 2 (own message)
< CONSUMER-HELLO hello from=ME & FETCH 0:5 from=ME => discarded 2 (own message)
< CONSUMER-HELLO hello to=ANOTHER from=C => discarded 1 (unexpected command)
< GET-HEADS * from=C
< FETCH OTHER 0:5 from=C & FETCH hello2/PRODUCER 0:5 from=C => discarded 2 (beyond the head)
< FETCH 5:8 from=C => discarded 1 (beyond the head)
# A store follows a limited number of partitions
store PRODUCER=0:5 node.partitions_max=1
< RECORD OTHER 0:1 & HEAD hello2/PRODUCER 3 => discarded 2 (too many partitions)
# A store answers a limited number of FETCHes
store PRODUCER=0:5 replies_max=1
< FETCH 0:5 from=A & FETCH 0:5 from=B & FETCH 0:5 from=C => discarded 2 (too many fetches)
responder.pending_ranges => = A PRODUCER=0:5
# A consumer takes no records beyond the largest sequence
consumer offset_reset=earliest subscribe=hello
< RECORD 4611686018427387903:4611686018427387905 => discarded 2 (sequence too large)
# Records and heads up to the largest sequence are taken
store PRODUCER=0:4611686018427387902
< RECORD 4611686018427387902:4611686018427387904 => append 4611686018427387902:4611686018427387904
< HEAD A 4611686018427387903 & DIRECT-HEAD B 4611686018427387903 => FETCH A 0:1000, FETCH B 0:1000
< HEAD C 4611686018427387904 & DIRECT-HEAD D 4611686018427387904 => discarded 2 (sequence too large)
# A run that ends after the largest sequence is not
store PRODUCER=0:4611686018427387903
< RECORD 4611686018427387903:4611686018427387905 => discarded 2 (sequence too large)
"""


@scripts_of(SCRIPTS)
def test_edges(script: Sequence[str]) -> None:
    play(script)


@pytest.mark.parametrize("leaves", [True, False])
def test_fetches_are_limited(leaves: bool) -> None:
    for setup in ("producer settled published=10", "store PRODUCER=0:5"):
        machine = Player(setup).machine
        machine.peer_joined("C", 0.0)
        if leaves:
            machine.peer_left("C", 0.0)
        machine.receive([message("FETCH 4:5 from=C")] * 6000, 0.0)
        assert 6000 - machine.discarded[MANY_FETCHES] == pytest.approx(5000, abs=1)


def test_greetings_of_one_name_are_limited() -> None:
    store, consumer = Player("store").machine, Player("consumer subscribe=hello").machine
    store.peer_joined("C", 0.0)
    consumer.peer_joined("S", 0.0)
    greetings = subscription(Command.STORE_HELLO, "C") * (NODE_BURST + 5)
    greeted = published(store.receive_subscriptions(greetings, 0.0), wire.StoreHello)
    assert greeted == [wire.StoreHello("C", ME)] * NODE_BURST
    answers = published(consumer.receive([wire.StoreHello(ME, "S")] * (NODE_BURST + 5), 0.1), wire.ConsumerHello)
    assert answers == [wire.ConsumerHello("S", ME, ("hello",))] * NODE_BURST
    assert store.discarded == consumer.discarded == {TOO_OFTEN: 5}


@pytest.mark.parametrize(
    ("setup", "question"),
    [
        ("store PRODUCER=0:5", "GET-HEADS hello from=C"),
        ("store PRODUCER=0:5", "CONSUMER-HELLO hello from=C"),
        ("producer settled published=10", "GET-HEADS hello from=C"),
    ],
)
def test_questions_for_heads_are_limited(setup: str, question: str) -> None:
    machine = Player(setup).machine
    machine.peer_joined("C", 0.0)
    machine.receive([message(question)] * 11_000, 0.0)
    assert machine.discarded[TOO_OFTEN] == pytest.approx(1000, abs=1)
