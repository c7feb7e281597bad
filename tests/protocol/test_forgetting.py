"""A store forgets partitions that have ended: without records, without a producer, and known to no other store."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dafka import wire
from dafka.config import Config
from dafka.protocol import StoreMachine
from dafka.protocol.answering.head_responder import SLICE
from dafka.protocol.machines.store import FORGOTTEN_TOGETHER_MAX
from dafka.protocol.machines.stored_partitions import CROWDED_S, RESTART_GRACE_S, UNPROVEN_S, EndedPartitions
from dafka.records import Partition
from dafka.wire import Command
from tests.protocol.helpers import HELLO, head, published, subscription
from tests.protocol.scripts import play, scripts_of

AFTER_S = 60.0
CONFIG = Config().with_store(forget_empty_after_ms=int(AFTER_S * 1000))

SCRIPTS = """
# An ended partition is forgotten after the wait
store PRODUCER=10:10 forget_empty_after_ms=60000
59.9 silent_partitions
60 silent_partitions => = PRODUCER
begin_forgetting PRODUCER => = PRODUCER
partitions_deleted => PartitionsForgotten 1
stored.durable => = nothing
stored.earliest => = nothing
reassembler.cursors => = nothing
peer_joined PRODUCER
peer_left PRODUCER
+ACK PRODUCER
# Without a wait nothing is forgotten
store PRODUCER=10:10 forget_empty_after_ms=0
1000000000 silent_partitions
# Any sign of the partition restarts the wait, and the longest silent one is the first
store PRODUCER=10:10 A=10:10 B=10:10 forget_empty_after_ms=60000
30 < DIRECT-HEAD B 9
40 < RECORD A 9:10 => ACK A 9
50 < HEAD 9 => ACK 9
89.9 silent_partitions
90 silent_partitions => = B
100 silent_partitions => = B A
109.9 silent_partitions => = B A
110 silent_partitions => = B A PRODUCER
# Records that come later keep a partition until retention has dropped them
store PRODUCER=10:10 forget_empty_after_ms=60000
< RECORD 10:12 => append 10:12
records_committed 12 => ACK 11
600 silent_partitions
begin_forgetting PRODUCER => = nothing
records_trimmed 12 => = 2
silent_partitions => = PRODUCER
# While too many producers are connected to tell them apart, all partitions are kept
store PRODUCER=10:10 forget_empty_after_ms=60000 peers_max=1
+ACK ANOTHER
600 silent_partitions
# A partition without any record is dropped after the wait
store forget_empty_after_ms=60000
< HEAD 9 => FETCH 0:10
+ACK OTHER
< HEAD OTHER 9 => FETCH OTHER 0:10
59.9 drop_silent_unproven
reassembler.cursors => = PRODUCER=0:10 OTHER=0:10
60 drop_silent_unproven
reassembler.cursors => = OTHER=0:10
# A partition without any record is dropped after an hour if the wait is longer
store forget_empty_after_ms=36000000
< HEAD 9 => FETCH 0:10
3600 drop_silent_unproven
reassembler.cursors => = nothing
# A partition without any record is dropped after an hour if nothing is forgotten
store forget_empty_after_ms=0
< HEAD 9 => FETCH 0:10
3599 drop_silent_unproven
reassembler.cursors => = PRODUCER=0:10
3600 drop_silent_unproven
reassembler.cursors => = nothing
# A producer that comes back while the storage deletes its partition continues
store PRODUCER=10:10 A=10:10 B=10:10 C=10:10 forget_empty_after_ms=60000
60 begin_forgetting PRODUCER A B C => = PRODUCER A B C
< HEAD 9 => ACK 9
+ACK A => ACK A 9
< RECORD B 10:12 => append B 10:12
partitions_deleted => reset to 10, reset A to 10, PartitionsForgotten 1
stored.durable => = hello=PRODUCER=10 A=10 B=10
# Records that wait for the storage keep a partition
store PRODUCER=10:10 forget_empty_after_ms=60000
60 silent_partitions => = PRODUCER
< RECORD 10:12 => append 10:12
begin_forgetting PRODUCER => = nothing
# A partition without any record is kept while its position is stored
store forget_empty_after_ms=60000 settled stores=OTHER
+ACK PRODUCER & +ACK SECOND
< HEAD 9 & RECORD SECOND 10:11 => FETCH 0:10, FETCH SECOND 0:10
< DIRECT-EARLIEST 10 from=OTHER unrecoverable_end=10 => RecordsUnrecoverable 0 10, reset to 10
< DIRECT-EARLIEST SECOND 10 from=OTHER unrecoverable_end=10
    => RecordsUnrecoverable SECOND 0 10, reset SECOND to 10, append SECOND 10:11
-ACK PRODUCER & -ACK SECOND
60 drop_silent_unproven
position_reset 10 => ACK 9
position_reset SECOND 10 => ACK SECOND 9
drop_silent_unproven
records_committed SECOND=11 => ACK SECOND 10
records_trimmed PRODUCER=10 SECOND=11 => = 1
silent_partitions => = PRODUCER SECOND
# A partition is kept while its records wait for the storage, although the rest is unrecoverable
store retention_records=5 forget_empty_after_ms=60000 settled stores=OTHER
< RECORD 0:5 => append 0:5
< DIRECT-HEAD 9 => FETCH 5:10
< DIRECT-EARLIEST 10 from=OTHER unrecoverable_end=10 => RecordsUnrecoverable 5 10, reset to 10
records_committed 5 => ACK 4
position_reset 10 => ACK 9
# Other stores are not told of ended partitions, else each would keep the other from forgetting them
store PRODUCER=10:10 forget_empty_after_ms=60000 stores=OTHER
< GET-HEADS hello from=OTHER
0.1 < GET-HEADS hello from=CONSUMER => DIRECT-HEAD 9 to=CONSUMER
0.2 +ACK PRODUCER => ACK 9
< GET-HEADS hello from=OTHER => DIRECT-HEAD 9 to=OTHER
# When a producer leaves, its partition is announced if there are records
store PRODUCER=10:10 hello2/PRODUCER=9:10 forget_empty_after_ms=60000
+DIRECT-HEAD OTHER
peer_joined PRODUCER
1 peer_left PRODUCER => GET-HEADS hello, GET-HEADS hello2, DIRECT-HEAD hello2/PRODUCER 9 to=OTHER
# An ended partition that another store names does not come back
store forget_empty_after_ms=60000 settled stores=OTHER
1 < DIRECT-HEAD 9 => FETCH 0:10
1.1 < DIRECT-EARLIEST 10 from=OTHER unrecoverable_end=10
reassembler.cursors => = nothing
# A producer with a spool continues at a store that never knew it, where another store says
store forget_empty_after_ms=60000 settled stores=OTHER
+ACK PRODUCER
1 < HEAD 9 => FETCH 0:10
1.1 < DIRECT-EARLIEST 10 from=OTHER unrecoverable_end=10 => RecordsUnrecoverable 0 10, reset to 10
# A late record of a forgotten partition is never stored, and is dropped again
store PRODUCER=10:10 forget_empty_after_ms=60000
60 begin_forgetting PRODUCER => = PRODUCER
partitions_deleted => PartitionsForgotten 1
61 < RECORD 5:10 => FETCH 0:5
120 drop_silent_unproven
reassembler.cursors => = PRODUCER=0:10
121 drop_silent_unproven
reassembler.cursors => = nothing
# The limit counts partitions that live
store A=5:5 B=5:5 forget_empty_after_ms=60000 node.partitions_max=2
< HEAD 0 => FETCH 0:1
capacity.full_reason => = nothing
# Producers that are connected count, although their partitions are empty
store A=5:5 B=5:5 forget_empty_after_ms=60000 node.partitions_max=2
+ACK A & +ACK B => ACK A 4, ACK B 4
5 < HEAD 0 => StoreFull too many partitions 2, discarded 1 (too many partitions)
capacity.full_reason => = The store is full (too many partitions: 2); new producers get no ACKs
# A store says once that it is full, and that it has room again
store Z=0:5 forget_empty_after_ms=60000 node.partitions_max=2
< RECORD NEW 0:5 => append NEW 0:5, StoreFull too many partitions 2
0.1 < HEAD 0 & HEAD OTHER 0 => discarded 2 (too many partitions)
until 1.2
records_trimmed Z=5 => = 5
until 2.3 => StoreHasRoom at 2.1
deadline => = inf
2.4 < HEAD 0 => StoreFull too many partitions 2, FETCH 0:1
# A store with too many partitions without records is full until one is dropped
store forget_empty_after_ms=60000 partitions_unproven_max=1
< HEAD A 0 & HEAD B 0
    => StoreFull too many partitions without records 1, FETCH A 0:1, discarded 1 (too many partitions without records)
until 2 => FETCH A 0:1 at 0.5 1.5
capacity.full_reason => = The store is full (too many partitions without records: 1); new producers get no ACKs
60 drop_silent_unproven
until 60 => StoreHasRoom at 60
# A refused partition does not count among those of its producer
store partitions_unproven_max=1 partitions_per_node_max=2
< HEAD a/X 0 => FETCH a/X 0:1
< HEAD b/X 0 & HEAD c/X 0 & HEAD d/X 0
    => StoreFull too many partitions without records 1, discarded 3 (too many partitions without records)
# Many ended partitions are forgotten earlier
store A=5:5 B=5:5 C=5:5 forget_empty_after_ms=1000000000 node.partitions_max=2
3599 silent_partitions
3600 silent_partitions => = A B C
# Few ended partitions are not
store A=5:5 B=5:5 forget_empty_after_ms=1000000000 node.partitions_max=2
3600 silent_partitions
# Empty partitions of connected producers do not crowd
store A=5:5 B=5:5 C=5:5 forget_empty_after_ms=1000000000 node.partitions_max=2
+ACK A => ACK A 4
3600 silent_partitions
# A short wait stays short when there are many ended partitions
store A=5:5 B=5:5 C=5:5 forget_empty_after_ms=60000 node.partitions_max=2
60 silent_partitions => = A B C
# A partition that begins at a position without records has ended
store PRODUCER=2:10 forget_empty_after_ms=60000
reassembler.reset_to PRODUCER 20
position_reset 20 => ACK 19
600 silent_partitions => = PRODUCER
# A partition that comes back after it was forgotten can halt again
store forget_empty_after_ms=60000 settled stores=OTHER
< RECORD 0:5 => append 0:5
records_committed 5 => ACK 4
< HEAD 30 => FETCH 5:31
< DIRECT-EARLIEST 20 from=OTHER unrecoverable_end=20 => PartitionHalted 5 20
forget_own
120 < RECORD 0:5 => append 0:5
records_committed 5 => ACK 4
< HEAD 30 => FETCH 5:31
< DIRECT-EARLIEST 20 from=OTHER unrecoverable_end=20 => PartitionHalted 5 20
"""


@scripts_of(SCRIPTS)
def test_forgetting(script: Sequence[str]) -> None:
    play(script)


def make_store(partitions: dict[Partition, int], ended: dict[Partition, int], idle_s: float = 0.0) -> StoreMachine:
    store = StoreMachine("STORE", CONFIG, partitions, ended, dict.fromkeys(partitions, idle_s))
    store.start(0.0)
    return store


@pytest.mark.parametrize("obstacle", ["producer", "missing records"])
def test_partitions_that_must_be_kept_do_not_hold_up_others(obstacle: str) -> None:
    """They are the longest silent ones, and fill a whole turn."""
    names = [Partition("hello", f"A{number}") for number in range(FORGOTTEN_TOGETHER_MAX + 1)]
    store = make_store(dict.fromkeys(names, 5), dict.fromkeys(names, 5))
    for name in names[1:]:
        if obstacle == "producer":
            store.receive_subscriptions(subscription(Command.ACK, name.address), 0.0)
        else:
            store.receive([head(9, name)], 0.0)
    store.receive([head(4, names[0])], 1.0)
    assert store.silent_partitions(10 * AFTER_S) == [names[0]]


def test_a_partition_whose_end_is_not_known_has_not_ended() -> None:
    """Retention may trim records in the storage before the machine notes that they are durable."""
    ended = EndedPartitions(CONFIG, lambda _: False, {})
    ended.start(1.0)
    ended.record_heard(HELLO, 5.0)
    for earliest, end, has_ended in ((5, 0, False), (5, 5, True)):
        ended.record_range(HELLO, earliest, end)
        assert (HELLO in ended) is has_ended
    assert ended.heard_at(HELLO) == 5.0
    ended.remove(HELLO)
    assert ended.heard_at(HELLO) == 1.0, "its signs are forgotten with it"


@pytest.mark.parametrize(
    ("idle_s", "forgotten_at_s"), [(1e9, RESTART_GRACE_S), (3600.0, 9 * 3600.0), (-1e9, 10 * 3600.0)]
)
def test_a_restarted_store_counts_the_time_before_except_an_hour(idle_s: float, forgotten_at_s: float) -> None:
    """The clock may have been set back meanwhile."""
    config = Config().with_store(forget_empty_after_ms=10 * 3_600_000)
    store = StoreMachine("STORE", config, {HELLO: 10}, {HELLO: 10}, {HELLO: idle_s})
    store.start(0.0)
    assert store.silent_partitions(forgotten_at_s - 1) == []
    assert store.silent_partitions(forgotten_at_s) == [HELLO]
    assert (CROWDED_S, UNPROVEN_S) == (3600.0, 3600.0)


def test_no_head_is_left_out_while_partitions_are_forgotten() -> None:
    """Answers to GET-HEADS are sent bit by bit. A partition that goes meanwhile must not hide a later one."""
    ended = {Partition("hello", f"A{number}"): 5 for number in range(SLICE)}
    living = {Partition("hello", f"Z{number}"): 5 for number in range(SLICE)}
    gone = {Partition("gone", f"A{number}"): 5 for number in range(SLICE + 1)}
    store = make_store(ended | living | gone, ended | gone)
    actions = store.receive([wire.GetHeads("hello", "X"), wire.GetHeads("gone", "X")], 0.0)
    named = {each.address for each in published(actions, wire.DirectHead)}
    while silent := store.silent_partitions(AFTER_S):
        store.begin_forgetting(silent)
        store.partitions_deleted()
    assert store.stored.durable.keys() == {"hello"}
    for step in range(100):
        named |= {each.address for each in published(store.tick(AFTER_S + step / 100), wire.DirectHead)}
    assert named >= {partition.address for partition in living}
    assert store.deadline() == float("inf")
