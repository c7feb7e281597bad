"""The reader's machine: the ends and positions that it finds at stores, and the ranges that it fetches.

A reader asks for the first record of a partition in order to learn where it ends; the answer that a store holds nothing
is sent after all heads (docs/errata.md, erratum 26).
"""

from __future__ import annotations

from collections.abc import Sequence

from dafka.protocol.ordering.gap_resolver import STORES_MAX
from tests.protocol.scripts import Player, play, scripts_of

SCRIPTS = """
# Ends are what stores report as durable
reader topics=hello
0.1 < DIRECT-HEAD 9 & ACK OTHER 4 from=STORE & ACK 7 from=STORE & ACK another/A 99 from=STORE
ends => = PRODUCER=10 OTHER=5
0.2 < ACK 10 from=STORE & DIRECT-HEAD 99 to=SOMEBODY & HEAD 50
    => discarded 1 (another requestor), discarded 1 (unexpected command)
ends => = PRODUCER=11 OTHER=5
# It is ready when every store has sent its heads, and stays so
reader topics=hello
0.1 +CONSUMER-HELLO A => CONSUMER-HELLO hello to=A
+CONSUMER-HELLO B => CONSUMER-HELLO hello to=B
0.3 < DIRECT-EARLIEST A nothing from=A & DIRECT-EARLIEST B nothing from=A => discarded 1 (not asked for)
node_settled
< STORE-HELLO from=B => CONSUMER-HELLO hello to=B, FETCH B 0:1
0.4 < DIRECT-HEAD 9 & DIRECT-EARLIEST B nothing from=B => is_ready
5 +CONSUMER-HELLO C => CONSUMER-HELLO hello to=C
# A store that reconnects must answer again
reader topics=hello
0.1 +CONSUMER-HELLO A => CONSUMER-HELLO hello to=A
0.2 < DIRECT-EARLIEST A nothing from=A
0.3 -CONSUMER-HELLO A
0.4 +CONSUMER-HELLO A => CONSUMER-HELLO hello to=A
0.5 node_settled
# A discovered node may be a store until it has connected
reader topics=hello
0.1 peer_joined P
+CONSUMER-HELLO A => CONSUMER-HELLO hello to=A
0.2 < DIRECT-EARLIEST A nothing from=A
0.4 +ACK P
0.5 peer_joined Q
node_settled
0.6 +ACK Q => is_ready
# A silent store is waited for until the patience ends
reader topics=hello
0.1 +CONSUMER-HELLO LIBDAFKA => CONSUMER-HELLO hello to=LIBDAFKA
0.2 node_settled
until 12 => CONSUMER-HELLO hello to=LIBDAFKA at 0.25 0.5 .. 1.25 6.25 11.25, is_ready at 1.2
# A store that is known to answer is waited for longer
reader topics=hello
0.1 +GET-POSITION SLOW & +CONSUMER-HELLO SLOW => CONSUMER-HELLO hello to=SLOW
0.2 node_settled
until 5.25 => CONSUMER-HELLO hello to=SLOW at 0.25 0.5 .. 5.25, is_ready at 5.25
# A store that is known to answer is not waited for longer if there are no topics
reader
0.1 +GET-POSITION SLOW & +CONSUMER-HELLO SLOW
0.2 node_settled
until 1.2 => is_ready at 1.2
# Without a store it is never ready
reader topics=hello
0.2 node_settled
until 10
11 +CONSUMER-HELLO A => CONSUMER-HELLO hello to=A
11.1 < DIRECT-EARLIEST A nothing from=A => is_ready
# A ready reader asks all stores again after the refresh interval
reader topics=hello stores=A
0.2 node_settled
< DIRECT-EARLIEST A nothing from=A => is_ready
until 20 => CONSUMER-HELLO hello to=A at 0.25 5.25 10.25 15.25
# Only the records of the range are delivered
reader
0.1 fetch_range 5 8 => FETCH 5:8
0.2 < DIRECT-RECORD 5:7 => deliver 5:7
position => = 7
0.3 < DIRECT-RECORD 6:10 & DIRECT-RECORD 20:21 => deliver 7:8
position => = 8
forget_range
0.4 < DIRECT-RECORD 5:8 => discarded 3 (not asked for)
# A FETCH is repeated as soon as a peer can receive it
reader
fetch_range 0 10 => FETCH 0:10
0.01 +FETCH => FETCH 0:10
< STORE-HELLO from=STORE => FETCH 0:10
< STORE-HELLO from=STORE => FETCH 0:10
until 10 => FETCH 0:10 at 0.51 1.51 3.51 7.51, FetchUnanswered 0 3 at 3.51
# A full buffer stops fetching
reader buffer_bytes_max=100
fetch_range 0 1000 => FETCH 0:1000
records_buffered 200
0.1 < DIRECT-RECORD 0:1000
0.2 records_taken 200 => FETCH 0:1000
0.3 < DIRECT-RECORD 0:1000 => deliver 0:1000
# It asks about the positions of partitions
reader topics=hello
peer_joined A
+CONSUMER-HELLO A => CONSUMER-HELLO hello to=A
stores => = 1
answering_stores => = 0
+GET-POSITION A
node_settled
answering_stores => = 1
query_positions PRODUCER OTHER 17 => GET-POSITION to=A time=17, GET-POSITION OTHER to=A time=17
0.1 < DIRECT-POSITION 40 from=A time=17 end=100 & DIRECT-POSITION OTHER 5 from=A time=17 end=100
positions => = PRODUCER=40 OTHER=5
0.2 query_positions PRODUCER 18 => GET-POSITION to=A time=18
positions => = OTHER=5
end_positions_query PRODUCER
0.3 < DIRECT-POSITION 41 from=A time=18 end=100 => discarded 1 (not asked for)
positions => = OTHER=5
peer_left A
answering_stores => = 0
# To find where a partition ends, it fetches the first record and subscribes to ACKs, until it is told not to
reader stores=A settled
0.1 held_ends.add_partition => +ACK PRODUCER, FETCH 0:1, CONSUMER-HELLO hello to=A
until 0.7 => FETCH 0:1 at 0.6, CONSUMER-HELLO hello to=A at 0.6
held_ends.remove_partition => -ACK PRODUCER
until 10 => is_ready at 1
# The answer that a store holds nothing is certain at once
reader stores=A settled asking=0.1
held_ends.held_end 1 => = ANSWERS
0.2 < DIRECT-EARLIEST nothing from=A
held_ends.held_end 1 => = 0
# A held end is certain after a quiet time
reader stores=A settled asking=0.1
0.2 < ACK 9 from=A
held_ends.held_end 1 => = QUIET
1 < ACK 11 from=A
1.5 < ACK 11 from=A
1.99 held_ends.held_end 1 => = QUIET
2 held_ends.held_end 1 => = 12
# As many stores as are needed must be connected
reader wire=rfc46 stores=A settled
0.1 held_ends.add_partition => +ACK PRODUCER, FETCH 0:1
< DIRECT-EARLIEST nothing from=A
100 held_ends.held_end 2 => = STORES
+CONSUMER-HELLO B => FETCH 0:1
100.1 < DIRECT-EARLIEST nothing from=B
held_ends.held_end 2 => = 0
# Nothing is certain before the node has settled
reader stores=A asking=0.1
0.2 < DIRECT-EARLIEST nothing from=A
50 held_ends.held_end 1 => = STORES
node_settled => FETCH 0:1, CONSUMER-HELLO hello to=A
held_ends.held_end 1 => = 0
# A silent store counts as empty after the patience
reader wire=rfc46 stores=A,LIBDAFKA settled
0.1 held_ends.add_partition => +ACK PRODUCER, FETCH 0:1
0.2 < ACK 9 from=A
until 2 => FETCH 0:1 at 0.6 1.1 1.6, is_ready at 1
held_ends.held_end 1 => = ANSWERS
deadline => = 2.1
until 2.1 => FETCH 0:1 at 2.1
held_ends.held_end 1 => = 10
# The patience counts from when the node has settled
reader wire=rfc46 stores=A,SILENT
held_ends.add_partition => +ACK PRODUCER, FETCH 0:1
0.2 < ACK 9 from=A
10 node_settled => FETCH 0:1
11.9 held_ends.held_end 1 => = ANSWERS
12 held_ends.held_end 1 => = 10
# A node that never connects is waited for until the patience ends, or it leaves
reader stores=A settled
peer_joined GONE
0.1 held_ends.add_partition => +ACK PRODUCER, FETCH 0:1, CONSUMER-HELLO hello to=A
0.2 < DIRECT-EARLIEST nothing from=A
held_ends.held_end 1 => = ANSWERS
2.1 held_ends.held_end 1 => = 0
0.5 peer_left GONE
held_ends.held_end 1 => = 0
# The question is repeated for a peer that has just connected
reader settled
0.1 held_ends.add_partition => +ACK PRODUCER, FETCH 0:1
0.2 +CONSUMER-HELLO A => FETCH 0:1, CONSUMER-HELLO hello to=A
+FETCH => FETCH 0:1, CONSUMER-HELLO hello to=A
< STORE-HELLO from=A => FETCH 0:1, CONSUMER-HELLO hello to=A
+HEAD
# Answers to others, of producers and of strangers do not count
reader stores=A settled asking=0.1
0.2 < DIRECT-EARLIEST nothing to=SOMEBODY from=A & DIRECT-EARLIEST OTHER nothing from=A & ACK OTHER 9 from=A
    => discarded 1 (another requestor), discarded 1 (not asked for)
< ACK hell/PRODUCER 9 from=A & DIRECT-HEAD 9 to=SOMEBODY => discarded 1 (another requestor)
< DIRECT-EARLIEST nothing from=PRODUCER & DIRECT-EARLIEST nothing from=UNKNOWN
held_ends.held_end 1 => = ANSWERS
2.1 held_ends.held_end 1 => = 0
# The record that answers the question is not delivered
reader stores=A settled asking=0.1
0.2 < DIRECT-RECORD 0:1
# A head does not name its store, so that the patience must end
reader wire=libdafka stores=A settled asking=0.1
0.2 < DIRECT-HEAD 9
held_ends.held_end 1 => = ANSWERS
2.1 held_ends.held_end 1 => = 10
# Stores that answer are not greeted
reader stores=A,B settled
+DIRECT-EARLIEST A & +DIRECT-EARLIEST B & -DIRECT-EARLIEST B
0.1 held_ends.add_partition => +ACK PRODUCER, FETCH 0:1, CONSUMER-HELLO hello to=B
# No store is greeted in a cluster of RFC 46
reader wire=rfc46 stores=A settled
0.1 held_ends.add_partition => +ACK PRODUCER, FETCH 0:1
# All stores are greeted in one of libdafka
reader wire=libdafka stores=A settled
+DIRECT-EARLIEST A
0.1 held_ends.add_partition => +ACK PRODUCER, FETCH 0:1, CONSUMER-HELLO hello to=A
# A partition of a surveyed topic may be queried and read meanwhile
reader topics=hello stores=A settled asking=0.1
< ACK 9 from=A
ends => = PRODUCER=10
0.2 fetch_range 0 10 => FETCH 0:10
0.3 < DIRECT-RECORD 0:10 => deliver 0:10
1.1 held_ends.held_end 1 => = 10
held_ends.remove_partition => -ACK PRODUCER
forget_range
"""


@scripts_of(SCRIPTS)
def test_reader(script: Sequence[str]) -> None:
    play(script)


def test_ends_of_invented_stores_take_limited_memory() -> None:
    reader = Player("reader stores=A settled")
    reader.play("held_ends.add_partition")
    for number in range(STORES_MAX + 100):
        reader.play(f"0.2 < ACK {number} from={number}")
    (question,) = reader.machine.held_ends._questions.values()
    assert len(question.ends) == STORES_MAX + 1
    assert reader.play("3 held_ends.held_end 1") == f"= {STORES_MAX + 100}"
