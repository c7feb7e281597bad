"""The store's machine: what it appends, acknowledges and fetches, what it tells other nodes, and what it lacks."""

from __future__ import annotations

from collections.abc import Sequence

from dafka.protocol import RecordsMissing
from tests.protocol.helpers import HELLO
from tests.protocol.scripts import play, scripts_of

SCRIPTS = """
# A restarted store continues where its storage ends
store PRODUCER=0:5
0.1 < RECORD 3:7 & RECORD 9:10 => append 5:7, FETCH 7:9
< HEAD OTHER 6 => FETCH OTHER 0:7
< DIRECT-HEAD THIRD 6 => FETCH THIRD 0:7
# Durable records are acknowledged again, whoever repeats them (erratum 9)
store PRODUCER=0:5 hello2/PRODUCER=0:7 OTHER=0:9
0.1 < RECORD 1:3 => ACK 4
< HEAD 4 => ACK 4
< HEAD 5 => FETCH 5:6
+ACK PRODUCER => ACK 4, ACK hello2/PRODUCER 6
-ACK PRODUCER
+ACK PRO
0.2 < DIRECT-HEAD 4
# A partition of which nothing came for a while gives its place to another one
store partitions_unproven_max=1
< HEAD A 4 => FETCH A 0:5
29.9 < HEAD B 4
    => StoreFull too many partitions without records 1, discarded 1 (too many partitions without records)
30 < HEAD B 4 => FETCH B 0:5
reassembler.cursors => = B=0:5
# Live records wait for the disk up to the limit
store pending_bytes_max=100
records_queued 99
0.1 < RECORD 0:2 => append 0:2
records_queued 1
< RECORD OTHER 0:2
0.2 tick
records_unqueued 1
0.3 tick => FETCH OTHER 0:2
# Fetched records wait for the disk up to twice the limit
store pending_bytes_max=100
records_queued 199
0.1 < DIRECT-RECORD 0:2 => append 0:2
records_queued 1
< DIRECT-RECORD OTHER 0:2
pending_bytes => = 200
records_unqueued 1
0.2 tick
# An unanswered FETCH is reported and repeated, also to a node that connects
store
< HEAD 9 => FETCH 0:10
until 3.5 => FETCH 0:10 at 0.5 1.5 3.5, FetchUnanswered 0 3 at 3.5
3.6 +FETCH PRODUCER => FETCH 0:10
# Trimmed records are counted once, and not sent
store PRODUCER=0:50
records_trimmed 10 => = 10
records_trimmed 10 => = 0
records_trimmed 25 => = 15
0.1 < FETCH 24:25 from=C => discarded 1 (before the earliest)
< FETCH 25:26 from=C
< FETCH 50:51 from=C => discarded 1 (beyond the head)
answers.fetches_received => = 1
# A FETCH is answered with durable records only
store PRODUCER=0:5
0.1 < RECORD 5:8 & FETCH 5:8 from=C => append 5:8, discarded 1 (beyond the head)
< FETCH 4:104 from=C
responder.pending_ranges => = C PRODUCER=4:104
stored.readable_range => = 0:5
# Consumers are greeted and told the durable heads of exactly their topics (erratum 14)
store PRODUCER=0:5 OTHER=0:9 hello2/PRODUCER=0:7
0.1 +STORE-HELLO CONSUMER => STORE-HELLO to=CONSUMER
+STORE-HELLO
< RECORD 5:8 => append 5:8
< CONSUMER-HELLO hello,nothing from=CONSUMER => DIRECT-HEAD 4 to=CONSUMER, DIRECT-HEAD OTHER 8 to=CONSUMER
0.2 < GET-HEADS hello from=CONSUMER => DIRECT-HEAD 4 to=CONSUMER, DIRECT-HEAD OTHER 8 to=CONSUMER
# A store that connects is told every head, and again because they may be lost (erratum 13)
store PRODUCER=0:5 hello2/PRODUCER=0:7
+CONSUMER-HELLO STORE2 => DIRECT-HEAD 4 to=STORE2, DIRECT-HEAD hello2/PRODUCER 6 to=STORE2
+CONSUMER-HELLO
until 1000 => DIRECT-HEAD 4 to=STORE2 at 5 35, DIRECT-HEAD hello2/PRODUCER 6 to=STORE2 at 5 35
peer_joined STORE3
+CONSUMER-HELLO STORE3 => DIRECT-HEAD 4 to=STORE3, DIRECT-HEAD hello2/PRODUCER 6 to=STORE3
1001 peer_left STORE3
until 1300
# A libdafka store that connects is asked for all heads, and again, also for what it did not hear (erratum 13)
store PRODUCER=0:5
0.1 +GET-HEADS => GET-HEADS *
until 400 => GET-HEADS * at 1.126 6.08 20.237 67.61 128.824 203.515 260.273 307.537 367.997
-GET-HEADS
until 1000
# A store that only asks for one topic is none of libdafka
store PRODUCER=0:5
+GET-HEADS hello
until 100
# Other stores are asked for the records of a producer that left (erratum 13)
store PRODUCER=0:5 hello2/PRODUCER=0:7
peer_left CONSUMER
peer_left PRODUCER => GET-HEADS hello, GET-HEADS hello2
until 100 => GET-HEADS hello at 5 35, GET-HEADS hello2 at 5 35
# Records that become durable after their producer left are announced to all subscribers
store
+DIRECT-HEAD CONSUMER & +ACK PRODUCER
0.1 < RECORD 0:10 => append 0:10
records_committed 5 => ACK 4
0.2 -ACK PRODUCER
0.3 records_committed 8 => ACK 7
0.4 records_committed 10 => ACK 9, DIRECT-HEAD 9 to=CONSUMER
0.5 -DIRECT-HEAD CONSUMER
0.6 records_committed 10 => ACK 9
# What a store holds of a producer that left is announced to nodes that did not know it (erratum 28)
store PRODUCER=0:5
+DIRECT-HEAD CONSUMER
peer_joined PRODUCER
1 peer_left PRODUCER => GET-HEADS hello, DIRECT-HEAD 4 to=CONSUMER
until 100 => GET-HEADS hello at 6 36, DIRECT-HEAD 4 to=CONSUMER at 6 36
# A store found again while its connection lasts gets every head (erratum 28)
store PRODUCER=0:5
peer_joined OTHER
+DIRECT-HEAD OTHER & +CONSUMER-HELLO OTHER => DIRECT-HEAD 4 to=OTHER
until 45 => DIRECT-HEAD 4 to=OTHER at 5 10.258 22.645 32.082 35 39.978
peer_left OTHER
46 peer_joined OTHER => GET-HEADS *, DIRECT-HEAD 4 to=OTHER
until 100 => GET-HEADS * at 47.026 51.98 66.137, DIRECT-HEAD 4 to=OTHER at 50.18 51 62.629 72.088 79.966 81 90.043
# A partition without records is not told
store PRODUCER=0:5
peer_joined OTHER
+DIRECT-HEAD OTHER & +CONSUMER-HELLO OTHER => DIRECT-HEAD 4 to=OTHER
until 40 => DIRECT-HEAD 4 to=OTHER at 5 10.258 22.645 32.082 35 39.978
records_trimmed 5 => = 5
until 100
# The heads of refused partitions are asked for when there is room
store partitions_unproven_max=1
< DIRECT-HEAD 3 & DIRECT-HEAD LATE 2
    => StoreFull too many partitions without records 1, FETCH 0:4, discarded 1 (too many partitions without records)
until 3 => FETCH 0:4 at 0.5 1.5
reassembler.forget_partition
until 500 => StoreHasRoom at 4, GET-HEADS hello at 8.5 38.5
# Nodes that subscribe to lists get one with new topics at once, and soon without those that are gone (erratum 27)
store a/P=0:10
+DIRECT-TOPICS C
1 < GET-TOPICS from=C & GET-TOPICS from=STRANGER => DIRECT-TOPICS a to=C remaining=0 partitions=1
reassembler.follow_partition b/P 0
records_committed b/P=1 => ACK b/P 0
< GET-TOPICS from=C => DIRECT-TOPICS a,b to=C remaining=0 partitions=2
forget_own a/P
2 < GET-TOPICS from=C => DIRECT-TOPICS b to=C remaining=0 partitions=1
< GET-TOPICS from=C after=b => DIRECT-TOPICS to=C after=b remaining=0 partitions=1
# Missing records are reported once a minute until they come
store PRODUCER=0:10
< DIRECT-HEAD 99 & DIRECT-HEAD other/GONE 4 => FETCH 10:100, FETCH other/GONE 0:5
missing.count => = 0
until 180
    => FETCH 10:100 at 0.5 1.5 3.5 7.5 12.5 .. 177.5, FETCH other/GONE 0:5 at 0.5 1.5 3.5 7.5 12.5 .. 177.5,
       FetchUnanswered 10 3 at 3.5, FetchUnanswered other/GONE 0 3 at 3.5, RecordsMissing 95 2 at 18.5 78.5 138.5
missing.count => = 95
< DIRECT-RECORD other/GONE 0:5 => append other/GONE 0:5
until 250 => FETCH 10:100 at 182.5 187.5 .. 247.5, RecordsMissing 90 1 at 198.5
< DIRECT-RECORD 10:100 => append 10:100
missing.count => = 0
until 1000
< DIRECT-HEAD 199 => FETCH 100:200
until 1060
    => FETCH 100:200 at 1000.5 1001.5 1003.5 1007.5 1012.5 .. 1057.5, FetchUnanswered 100 3 at 1003.5, RecordsMissing
       100 1 at 1018.5
# Records that come soon are not reported
store PRODUCER=0:10
< DIRECT-HEAD 99 => FETCH 10:100
until 15 => FETCH 10:100 at 0.5 1.5 3.5 7.5 12.5, FetchUnanswered 10 3 at 3.5
< DIRECT-RECORD 10:100 => append 10:100
until 500
# A libdafka store that lags hears of the rest, once for all its answers (erratum 32)
store PRODUCER=0:9000 stores=FOREIGN
+DIRECT-EARLIEST OURS & +CONSUMER-HELLO OURS => DIRECT-HEAD 8999 to=OURS
until 9 => DIRECT-HEAD 8999 to=FOREIGN at 5, DIRECT-HEAD 8999 to=OURS at 5
10 < DIRECT-HEAD 999 & DIRECT-HEAD 999
< DIRECT-HEAD 999
until 14 => HEAD 8999 at 12
20 < DIRECT-HEAD 999
until 24 => HEAD 8999 at 22
30 < DIRECT-HEAD 8999
until 34
# Stores that have everything, and those of this project, get no head
store PRODUCER=0:9000
+DIRECT-EARLIEST OURS & +CONSUMER-HELLO OURS => DIRECT-HEAD 8999 to=OURS
10 < DIRECT-HEAD 999
peer_left PRODUCER => GET-HEADS hello
until 30 => DIRECT-HEAD 8999 to=OURS at 10, GET-HEADS hello at 15
# A producer that is there speaks for itself
store PRODUCER=0:9000 stores=FOREIGN
5 +ACK PRODUCER => ACK 8999
10 < DIRECT-HEAD 999 & FETCH 1000:2000 from=WRITER
until 14 => DIRECT-HEAD 8999 to=FOREIGN at 10
20 -ACK PRODUCER
< DIRECT-HEAD 999
20.5 +ACK PRODUCER => ACK 8999
until 24
# A broker takes the ACKs of all its partitions
store hello/B/1=0:9000 hello/C/1=0:9000 hello/D/1=0:9 hello/E/1=0:9 stores=FOREIGN
+ACK B/ & +ACK C/1 & +ACK D & +ACK E/2 => ACK hello/C/1 8999
until 10
    => DIRECT-HEAD hello/B/1 8999 to=FOREIGN at 5, DIRECT-HEAD hello/C/1 8999 to=FOREIGN at 5, DIRECT-HEAD hello/D/1 8
       to=FOREIGN at 5, DIRECT-HEAD hello/E/1 8 to=FOREIGN at 5
< DIRECT-HEAD hello/B/1 2 & DIRECT-HEAD hello/C/1 2 & DIRECT-HEAD hello/D/1 2 & DIRECT-HEAD hello/E/1 2
until 14 => HEAD hello/D/1 8 at 12, HEAD hello/E/1 8 at 12
# The next page is announced to a node that asks for one page (erratum 17), but not to those of this project
store PRODUCER=0:9000
10 < FETCH 1000:2000 from=WRITER
until 14 => HEAD 8999 at 12
20 < FETCH 8000:9000 from=WRITER
until 30
+DIRECT-EARLIEST OURS
< FETCH 0:1000 from=OURS
until 40
# The leaving of a producer is told to libdafka stores
store PRODUCER=0:9000 stores=FOREIGN
5 peer_joined PRODUCER
10 peer_left PRODUCER => GET-HEADS hello
until 14 => DIRECT-HEAD 8999 to=FOREIGN at 10, HEAD 8999 at 12
# Records that become durable after their producer left are announced to libdafka stores
store stores=FOREIGN
10 < HEAD 2 => FETCH 0:3
records_committed 3 => ACK 2
until 13 => DIRECT-HEAD 2 to=FOREIGN at 10, FETCH 0:3 at 10.5 11.5, HEAD 2 at 12
# Dropped records are not announced
store PRODUCER=0:9000 stores=FOREIGN
10 < DIRECT-HEAD 999
records_trimmed 9000 => = 9000
until 14
"""


@scripts_of(SCRIPTS)
def test_store(script: Sequence[str]) -> None:
    play(script)


def test_a_report_is_a_sentence() -> None:
    assert str(RecordsMissing(1, 1, HELLO)) == (
        f"No node sends 1 record of {HELLO}, which this store lacks and other nodes have announced; retrying"
    )
    assert f"95 records of 2 partitions, such as {HELLO}, which" in str(RecordsMissing(95, 2, HELLO))
