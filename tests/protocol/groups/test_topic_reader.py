"""The reader of a group's topic: it asks stores for the heads, reads the records, and counts the answers."""

from __future__ import annotations

from collections.abc import Sequence

from dafka.protocol.groups import topic_of_group
from tests.protocol.scripts import play, scripts_of

SCRIPTS = """
# A survey counts the stores that have answered it
group stores=A,B,C settled
stores => = 3
surveyed => = 0
1 begin_survey
    => CONSUMER-HELLO hello to=A, FETCH $survey/1/A 0:1, CONSUMER-HELLO hello to=B, FETCH $survey/1/B 0:1,
       CONSUMER-HELLO hello to=C, FETCH $survey/1/C 0:1
1.1 < DIRECT-EARLIEST $survey/1/A nothing from=A
surveyed => = 1
1.2 < DIRECT-EARLIEST $survey/1/B nothing to=YOU from=B & DIRECT-EARLIEST $survey/9/B nothing from=B
< DIRECT-EARLIEST $survey/1/B nothing from=A => discarded 1 (not asked for)
surveyed => = 1
1.3 < DIRECT-EARLIEST $survey/1/B nothing from=B & DIRECT-EARLIEST $survey/1/B nothing from=B
surveyed => = 2
2 begin_survey
    => CONSUMER-HELLO hello to=A, FETCH $survey/2/A 0:1, CONSUMER-HELLO hello to=B, FETCH $survey/2/B 0:1,
       CONSUMER-HELLO hello to=C, FETCH $survey/2/C 0:1
2.1 < DIRECT-EARLIEST $survey/1/A nothing from=A
surveyed => = 0
2.2 < DIRECT-EARLIEST $survey/2/A nothing from=A
surveyed => = 1
# Only stores that have not answered are asked again, until the survey begins anew
group stores=A,B settled
begin_survey => CONSUMER-HELLO hello to=A, FETCH $survey/1/A 0:1, CONSUMER-HELLO hello to=B, FETCH $survey/1/B 0:1
0.1 < DIRECT-EARLIEST $survey/1/A nothing from=A
until 1.99 => CONSUMER-HELLO hello to=B at 0.25 0.5 .. 1.75, FETCH $survey/1/B 0:1 at 0.25 0.5 .. 1.75
surveyed => = 1
until 2
    => CONSUMER-HELLO hello to=A at 2, FETCH $survey/2/A 0:1 at 2, CONSUMER-HELLO hello to=B at 2, FETCH $survey/2/B
       0:1 at 2
surveyed => = 0
# A survey that has ended asks nothing more
group stores=A settled
begin_survey => CONSUMER-HELLO hello to=A, FETCH $survey/1/A 0:1
0.1 < DIRECT-EARLIEST $survey/1/A nothing from=A
end_survey
surveyed => = 0
deadline => = inf
+CONSUMER-HELLO B
# A store that connects or greets is asked while a survey is under way
group stores=A settled
begin_survey => CONSUMER-HELLO hello to=A, FETCH $survey/1/A 0:1
0.1 +CONSUMER-HELLO B => CONSUMER-HELLO hello to=B, FETCH $survey/1/B 0:1
0.2 < STORE-HELLO from=B => CONSUMER-HELLO hello to=B, FETCH $survey/1/B 0:1
< STORE-HELLO to=YOU from=B
# A survey is complete when all records of its heads have been read
group stores=A settled
begin_survey => CONSUMER-HELLO hello to=A, FETCH $survey/1/A 0:1
0.1 < DIRECT-HEAD MEMBER 4 & DIRECT-EARLIEST $survey/1/A nothing from=A => FETCH MEMBER 0:5
surveyed => = 0
ends => = MEMBER=5
0.2 < DIRECT-RECORD MEMBER 0:3 => deliver MEMBER 0:3
surveyed => = 0
0.3 < DIRECT-RECORD MEMBER 3:5 => deliver MEMBER 3:5
surveyed => = 1
# ACKs of watched members show new records
group stores=A settled
0.1 < ACK MEMBER 9 from=A
ends => = nothing
watch MEMBER X => +ACK MEMBER, +ACK X
watch MEMBER Y => +ACK Y, -ACK X
< ACK MEMBER 9 from=A & ACK other/MEMBER 99 from=A & ACK X 5 from=A => FETCH MEMBER 0:10
ends => = MEMBER=10
# Messages of others and beyond the limits are discarded
group stores=A settled node.partitions_max=1
0.1 < DIRECT-HEAD MEMBER 4 to=YOU & DIRECT-HEAD other/MEMBER 4 & DIRECT-RECORD MEMBER 0:3 & HEAD MEMBER 4
    => discarded 3 (not asked for), discarded 1 (unexpected command)
< DIRECT-HEAD MEMBER 4611686018427387904 & DIRECT-HEAD MEMBER 4 & DIRECT-HEAD SECOND 4
    => FETCH MEMBER 0:5, discarded 1 (sequence too large), discarded 1 (too many partitions)
ends => = MEMBER=5
# Unanswered FETCHes are sent to a node that connects
group stores=A settled
0.1 < DIRECT-HEAD MEMBER 4 => FETCH MEMBER 0:5
0.2 +FETCH => FETCH MEMBER 0:5
until 2 => FETCH MEMBER 0:5 at 0.7 1.7
"""


@scripts_of(SCRIPTS)
def test_topic_reader(script: Sequence[str]) -> None:
    play(script)


def test_the_topic_of_a_group() -> None:
    assert topic_of_group("team") == "$group/team"
