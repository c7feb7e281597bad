"""Erratum 26: how nodes learn that records are unrecoverable, and when they continue without them."""

from __future__ import annotations

from collections.abc import Sequence

from tests.protocol.scripts import play, scripts_of

SCRIPTS = """
# Records are unrecoverable for a consumer when every store says so
consumer offset_reset=earliest subscribe=hello stores=A,B settled
0.1 < HEAD 199 => FETCH 0:200
0.2 < DIRECT-EARLIEST 100 from=A unrecoverable_end=100
< DIRECT-EARLIEST 120 from=B unrecoverable_end=120 => RecordsUnrecoverable 0 100, FETCH 100:200
records_unrecoverable => = 100
0.3 < DIRECT-RECORD 100:200 => deliver 100:200
0.4 < HEAD 199
# A store that is found again counts although its connection never ended
consumer offset_reset=earliest subscribe=hello stores=A settled
0.1 < HEAD 199 => FETCH 0:200
0.2 peer_left A
0.3 peer_joined A
0.4 < DIRECT-EARLIEST 100 from=A unrecoverable_end=100 => RecordsUnrecoverable 0 100, FETCH 100:200
# Answers to no fetch are discarded
consumer offset_reset=earliest subscribe=hello stores=A settled
0.1 < HEAD 199 => FETCH 0:200
0.2 < DIRECT-EARLIEST 100 to=ANOTHER from=A unrecoverable_end=100 => discarded 1 (another requestor)
< DIRECT-EARLIEST UNKNOWN 100 from=A unrecoverable_end=100 => discarded 1 (not asked for)
< DIRECT-EARLIEST hello2/PRODUCER 100 from=A unrecoverable_end=100 => discarded 1 (not asked for)
# Unsubscribing forgets answers
consumer offset_reset=earliest subscribe=hello stores=A,B settled
0.1 < HEAD 199 => FETCH 0:200
0.2 < DIRECT-EARLIEST 100 from=A unrecoverable_end=100
unsubscribe hello => -RECORD hello, -HEAD hello
subscribe hello => +RECORD hello, +HEAD hello, GET-HEADS hello
0.3 < HEAD 199 => FETCH 0:200
< DIRECT-EARLIEST 120 from=B unrecoverable_end=120
# The producer must answer, too
consumer offset_reset=earliest subscribe=hello settled
0.1 peer_joined PRODUCER
< HEAD 199 => FETCH 0:200
0.2 < DIRECT-EARLIEST 150 from=PRODUCER unrecoverable_end=150 => RecordsUnrecoverable 0 150, FETCH 150:200
# A reader leaves unrecoverable records out, unless the producer may have them
reader stores=STORE settled
0.2 fetch_range 0 10 => FETCH 0:10
fetch_range OTHER 0 10 => FETCH OTHER 0:10
peer_joined OTHER
0.3 < DIRECT-EARLIEST 4 from=STORE unrecoverable_end=4 & DIRECT-EARLIEST OTHER 4 from=STORE unrecoverable_end=4
    => FETCH 4:10
position => = 4
position OTHER => = 0
0.4 < DIRECT-RECORD 4:10 => deliver 4:10
< DIRECT-EARLIEST OTHER 50 from=OTHER => FETCH OTHER 4:10
position OTHER => = 4
# A store answers a FETCH of dropped records with its earliest
store PRODUCER=100:200 OTHER=0:50 settled
0.1 +DIRECT-EARLIEST R
0.2 < FETCH 40:50 from=R => DIRECT-EARLIEST 100 to=R unrecoverable_end=100, discarded 1 (before the earliest)
< FETCH 99:100 from=R => DIRECT-EARLIEST 100 to=R unrecoverable_end=100, discarded 1 (before the earliest)
< FETCH 100:110 from=R
records_trimmed 150 => = 50
records_trimmed 160 => = 10
< FETCH 0:10 from=R => DIRECT-EARLIEST 160 to=R unrecoverable_end=160, discarded 1 (before the earliest)
< FETCH UNKNOWN 0:10 from=R => DIRECT-EARLIEST UNKNOWN nothing to=R, discarded 1 (beyond the head)
< FETCH OTHER 60:70 from=R => discarded 1 (beyond the head)
# Only nodes that subscribe to DIRECT-EARLIEST get one
store PRODUCER=100:200 settled
+DIRECT-EARLIEST & +DIRECT-EARLIEST ANOTHER
0.2 < FETCH 0:10 from=R => discarded 1 (before the earliest)
+DIRECT-EARLIEST R & -DIRECT-EARLIEST R
< FETCH 0:10 from=R => discarded 1 (before the earliest)
# A producer does not call acknowledged records unrecoverable
producer settled published=200
0.1 < ACK 99 from=A
+DIRECT-EARLIEST R
0.2 < FETCH 0:10 from=R => DIRECT-EARLIEST 100 to=R from=PRODUCER
< FETCH 100:110 from=R
# A producer without stores calls dropped records unrecoverable, except those that a store has
producer min_stores=0 unacknowledged_records_max=3 settled
+DIRECT-EARLIEST R
publish 0:2 => RECORD 0:2
publish 2:4 => RECORD 2:4
publish 4:6 => RECORD 4:6
0.1 < FETCH 4:104 from=R
responder.pending_ranges => = R PRODUCER=4:104
fetches_received => = 1
< FETCH 3:4 from=R => DIRECT-EARLIEST 4 to=R from=PRODUCER unrecoverable_end=4
< ACK 2 from=STORE
< FETCH 2:3 from=R => DIRECT-EARLIEST 4 to=R from=PRODUCER
< FETCH 3:4 from=R => DIRECT-EARLIEST 4 to=R from=PRODUCER unrecoverable_end=4
# A new store begins at the earliest record of the others, before the records that follow
store settled stores=A
0.1 < RECORD 150:160 => FETCH 0:150
< RECORD OTHER 100:110 => FETCH OTHER 0:100
0.2 < DIRECT-EARLIEST 100 from=A unrecoverable_end=100 => RecordsUnrecoverable 0 100, reset to 100, FETCH 100:150
position_reset 100 => ACK 99
< DIRECT-EARLIEST OTHER 100 from=A unrecoverable_end=100
    => RecordsUnrecoverable OTHER 0 100, reset OTHER to 100, append OTHER 100:110
0.3 +DIRECT-EARLIEST R
< FETCH 0:10 from=R => DIRECT-EARLIEST 100 to=R unrecoverable_end=100, discarded 1 (before the earliest)
# A store with retention gives up the older records
store PRODUCER=0:50 retention_records=1000 settled stores=A
0.1 < HEAD 199 => FETCH 50:200
0.2 < DIRECT-EARLIEST 100 from=A unrecoverable_end=100 => RecordsUnrecoverable 50 100, reset to 100, FETCH 100:200
# A store without retention keeps its records and reports it once
store PRODUCER=0:50 settled stores=A
0.1 < HEAD 199 => FETCH 50:200
0.2 < DIRECT-EARLIEST 100 from=A unrecoverable_end=100 => PartitionHalted 50 100
0.3 < DIRECT-EARLIEST 100 from=A unrecoverable_end=100
"""


@scripts_of(SCRIPTS)
def test_unrecoverable_records(script: Sequence[str]) -> None:
    play(script)
