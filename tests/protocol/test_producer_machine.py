"""The producer's machine: when it publishes records and HEADs, what its stores owe it, and what it keeps in memory."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dafka.protocol.machines import producer as producer_module
from dafka.protocol.presence.peer_limits import MANY_FETCHES, UNKNOWN_BURST, UNKNOWN_FETCH_COST
from tests.protocol.helpers import run
from tests.protocol.scripts import Player, message, play, scripts_of

SCRIPTS = """
# Records are held back until it is settled, and then published in order (erratum 11)
producer published=5000
publish 5000:6000
until 3
3.1 +HEAD hello
3.2 node_settled => RECORD 0:4096, RECORD 4096:5000, RECORD 5000:6000
3.3 node_settled
3.4 publish 6000:6001 => RECORD 6000:6001
# New subscribers to HEADs of its topic are sent one at once (erratum 10)
producer settled published=3
0.1 +HEAD => HEAD 2
+HEAD hel => HEAD 2
+HEAD hello & +HEAD => HEAD 2
+HEAD hello2 & +HEAD other & -HEAD hello & +RECORD hello
# There is no HEAD before the first record, and no peer has missed one
producer settled listened
1 +HEAD
followed_at => = -inf
< GET-HEADS hello from=C
deadline => = inf
# GET-HEADS is answered for the exact topic, once for each node (erratum 6)
producer settled published=3
0.1 < GET-HEADS hello2 from=C
< GET-HEADS hello from=C & GET-HEADS hello from=C & GET-HEADS hello from=D => DIRECT-HEAD 2 to=C, DIRECT-HEAD 2 to=D
# HEADs follow each other at the interval, which records do not put off
producer settled head_interval_max_ms=1000
5 publish 0:2 => RECORD 0:2
< ACK 1 from=STORE
until 7.2 => HEAD 1 at 6 7
7.5 publish 2:3 => RECORD 2:3
< ACK 2 from=STORE
until 8.2 => HEAD 2 at 8
+HEAD hello => HEAD 2
until 10 => HEAD 2 at 9.2
# HEADs that say nothing new become rare, until a subscriber comes (erratum 33)
producer settled stores=S1,S2 published=1
< ACK 0 from=S1 & ACK 0 from=S2
until 192 => HEAD 0 at 1 2 4 8 16 32 62 .. 182
192.5 +HEAD hello => HEAD 0
until 205 => HEAD 0 at 193.5 194.5 196.5 200.5
# HEADs are regular until every connected store has everything
producer settled stores=S1,S2 published=1
< ACK 0 from=S1
until 30 => HEAD 0 at 1 2 .. 30
publish 1:2 => RECORD 1:2
< ACK 1 from=S2
until 60 => HEAD 1 at 31 32 .. 60
< ACK 1 from=S1
until 100 => HEAD 1 at 61 62 64 68 76 92
# HEADs are regular until every connected store has everything, with `min_stores` 0
producer settled stores=S1,S2 published=1 min_stores=0
< ACK 0 from=S1
until 30 => HEAD 0 at 1 2 .. 30
< ACK 0 from=S2
until 60 => HEAD 0 at 31 32 34 38 46
# HEADs are regular until enough stores have everything
producer settled stores=S1 published=1 min_stores=2
< ACK 0 from=S1
until 30 => HEAD 0 at 1 2 .. 30, StoresSilent 1 5 at 5
# HEADs are regular while somebody needs them
producer settled listened stores=S1 published=1
< ACK 0 from=S1
until 30 => HEAD 0 at 1 2 .. 30
# Silent stores are reported at the time and not before
producer head_interval_ms=60000 settled
1 publish 0:2 => RECORD 0:2
4 publish 2:3 => RECORD 2:3
5.9 deadline => = 6
until 7 => StoresSilent 3 5 at 6
8 < ACK 0 from=STORE => StoresHeard
deadline => = 13
9 < ACK 2 from=STORE
until 60
# Records are acknowledged by as many stores as they need
producer min_stores=2 settled published=5
0.1 < ACK 0 from=A & ACK 1 from=B & ACK 4 from=C
acknowledged_end => = 2
ends_by_store => = A=1 B=2 C=5
< ACK 3 from=A
readable_range => = 4:5
unacknowledged => = 1
is_all_stored => = False
< ACK 4 from=A
is_all_stored => = True
# A producer has room for records up to a number
producer unacknowledged_records_max=3 settled published=2
has_capacity => = True
publish 2:3 => RECORD 2:3
has_capacity => = False
< ACK 0 from=S
has_capacity => = True
# A producer has room for records up to a number of bytes
producer unacknowledged_bytes_max=3 settled published=2
has_capacity => = True
publish 2:3 => RECORD 2:3
has_capacity => = False
unacknowledged_bytes => = 3
# A producer without ACKs has room before it is settled up to a number of bytes
producer min_stores=0 unacknowledged_bytes_max=4 published=3
has_capacity => = True
publish 3:4
has_capacity => = False
# A spool holds the contents, so that memory does not limit them
producer unacknowledged_records_max=3 unacknowledged_bytes_max=5 is_spooled=True published=100
has_capacity => = True
retransmit_buffer.content_bytes => = 0
0.1 node_settled => HEAD 99
0.2 < FETCH 0:100 from=C
responder.pending_ranges => = C PRODUCER=0:100
# Without `min_stores`, no ACK is waited for, and the latest records stay
producer min_stores=0 unacknowledged_records_max=6 silence_ms=1000
publish 0:2
publish 2:4
has_capacity => = True
publish 4:6
has_capacity => = False
publish 6:8
0.1 node_settled => RECORD 0:2, RECORD 2:4, RECORD 4:6, RECORD 6:8
has_capacity => = True
readable_range => = 2:8
publish 8:10 => RECORD 8:10
unacknowledged => = 0
unacknowledged_bytes => = 0
readable_range => = 4:10
until 100 => HEAD 9 at 1.1 2.1 4.1 8.1 16.1 32.1 62.1 92.1
< ACK 9 from=STORE
readable_range => = 4:10
# Without `min_stores`, a resumed producer does not take its records for stored
producer min_stores=0 next_sequence=10 acknowledged_end=7 is_spooled=True settled
unacknowledged => = 0
+DIRECT-EARLIEST STORE
0.3 < FETCH 2:5 from=STORE => DIRECT-EARLIEST 6 to=STORE from=PRODUCER unrecoverable_end=6
# A resumed partition continues at its next sequence
producer next_sequence=10 acknowledged_end=7 is_spooled=True
unacknowledged => = 3
until 0 => HEAD 9 at 0
0.1 < FETCH 7:10 from=C
responder.pending_ranges => = C PRODUCER=7:10
0.2 node_settled => HEAD 9
0.3 publish 10:12 => RECORD 10:12
0.4 < ACK 11 from=STORE
unacknowledged => = 0
# A spool is trimmed when it is worth it, or all is stored
producer is_spooled=True spool_trim_records=10 settled published=20
0.1 < ACK 8 from=STORE
begin_spool_trim
< ACK 9 from=STORE
begin_spool_trim => = 9
begin_spool_trim
earliest_sequence => = 0
spool_starts_at 9
readable_range => = 9:20
< ACK 18 from=STORE
begin_spool_trim
< ACK 19 from=STORE
begin_spool_trim => = 19
# Without `min_stores`, a spool keeps the latest records
producer is_spooled=True spool_trim_records=10 min_stores=0 unacknowledged_records_max=20 settled published=20
begin_spool_trim
publish 20:40 => RECORD 20:40
begin_spool_trim => = 20
# A producer whose peers follow leaves at once (erratum 17)
producer listened settled published=10 head_interval_ms=60000
< ACK 9 from=S
followed_at => = -inf
1 begin_leaving
# A peer that fetches is sent HEADs every second until it stops
producer listened settled published=10 head_interval_ms=60000
< ACK 9 from=S
1 < FETCH 9:1000 from=C
followed_at => = 6
1.5 begin_leaving => HEAD 9
until 3.5 => HEAD 9 at 2.5 3.5
< FETCH 0:1000 from=C
until 8 => HEAD 9 at 4.5 5.5 6.5 7.5
followed_at => = 8.5
# Peers that ask by themselves, or for records to come, are not waited for
producer listened settled published=10 head_interval_ms=60000
1 +DIRECT-EARLIEST C
< FETCH 0:1000 from=C & FETCH 10:20 from=OTHER => discarded 1 (beyond the head)
followed_at => = -inf
# A peer that has just connected is waited for
producer listened settled published=10 head_interval_ms=60000
2 +HEAD hello => HEAD 9
followed_at => = 7
# Without peers that need HEADs, none is waited for
producer settled published=10
1 < FETCH 0:1000 from=C
followed_at => = -inf
# A new partition takes over what too few stores have
producer min_stores=2 settled published=10
< ACK 6 from=OLD
unstored_from => = 0
# A new partition takes over what no store has, or is left, with `min_stores` 0
producer min_stores=0 unacknowledged_records_max=3 settled published=2
unstored_from => = 0
publish 2:4 => RECORD 2:4
publish 4:6 => RECORD 4:6
< ACK 2 from=OLD
unstored_from => = 4
< ACK 20 from=OLD => discarded 1 (beyond the head)
unstored_from => = 6
"""


@scripts_of(SCRIPTS)
def test_producer(script: Sequence[str]) -> None:
    play(script)


@pytest.mark.parametrize("setup", ["is_spooled=True", "", "min_stores=0"])
def test_records_that_wait_for_peers_are_limited(setup: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_module, "HELD_RECORDS_MAX", 3)
    player = Player(f"producer {setup} published=2")
    assert player.machine.has_capacity()
    player.machine.publish(run(2, 3), 0.0)
    assert not player.machine.has_capacity()
    player.machine.node_settled(0.1)
    assert player.machine.has_capacity()


def test_nodes_that_listen_for_records_are_answered_first_and_without_delay() -> None:
    player = Player("producer settled published=3")
    player.play("+DIRECT-RECORD LISTENER")
    player.play("< FETCH 0:3 from=STRANGER & FETCH 0:3 from=LISTENER")
    served = []
    while (request := player.machine.responder.next_read()) is not None:
        served.append((request.requestor, request.delay_s > 0))
        player.machine.responder.complete_read(request, run(0, 3))
    assert served == [("LISTENER", False), ("STRANGER", True)]


def test_acks_of_too_many_stores_are_discarded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_module, "STORES_MAX", 2)
    player = Player("producer min_stores=2 settled published=5")
    assert player.play("< ACK 0 from=A & ACK 1 from=B & ACK 4 from=C") == "discarded 1 (too many stores)"
    assert player.play("acknowledged_end") == "= 1"
    player.play("< ACK 3 from=A")
    assert player.play("acknowledged_end") == "= 2"


def test_heads_become_rare_when_nobody_needs_them_any_more() -> None:
    player, is_needed = Player("producer settled stores=S published=1"), [True]
    player.play("< ACK 0 from=S")
    player.machine.watch_listeners(lambda: is_needed[0])
    assert player.play("until 30") == "HEAD 0 at 1 2 .. 30"
    is_needed[0] = False
    assert player.play("until 60") == "HEAD 0 at 31 32 34 38 46"


def test_fetches_of_unknown_nodes_are_limited() -> None:
    machine = Player("producer settled published=3").machine
    allowed = round(UNKNOWN_BURST / UNKNOWN_FETCH_COST)
    assert machine.receive([message("FETCH 0:3 from=C")] * (allowed + 2), 0.0) == []
    assert machine.fetches_received == pytest.approx(allowed, abs=1)
    assert machine.discarded == {MANY_FETCHES: allowed + 2 - machine.fetches_received}
