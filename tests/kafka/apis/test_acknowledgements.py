"""What members of share groups say of records, against the meaning of each offset by itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import trio

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.share.share_partition import Acknowledgement, AcknowledgeType
from dafka.kafka.apis.shared.acknowledgements import acknowledge
from dafka.kafka.protocol.messages.share_records import AcknowledgementBatch
from dafka.kafka.server.share_sessions import SharedLog, ShareMemberId
from tests.seeds import each_seed

SEEDS = 200
MEMBER = ShareMemberId("group", "member")
UNKNOWN, FORBIDDEN, KNOWN = (UUID(int=number) for number in range(1, 4))
LEADERS = {0: True, 1: True, 2: False, 3: True, 4: True}
"""The logs of the known topic, and whether this broker leads them. No records of the log 3 are acquired here."""

NONE, NOT_LEADER = ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER
MISPLACED = {
    SharedLog(UNKNOWN, 0): ErrorCode.UNKNOWN_TOPIC_ID,
    SharedLog(FORBIDDEN, 0): ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    SharedLog(KNOWN, 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    SharedLog(KNOWN, 2): NOT_LEADER,
}
ACKNOWLEDGED = [SharedLog(KNOWN, number) for number in (0, 1, 4)]
WRONG = [
    AcknowledgementBatch(first_offset=3, last_offset=2, acknowledge_types=[1]),
    AcknowledgementBatch(first_offset=3, last_offset=2, acknowledge_types=[]),
    AcknowledgementBatch(first_offset=3, last_offset=5, acknowledge_types=[]),
    AcknowledgementBatch(first_offset=3, last_offset=5, acknowledge_types=[1, 1]),
    AcknowledgementBatch(first_offset=3, last_offset=5, acknowledge_types=[1, 1, 1, 1]),
    AcknowledgementBatch(first_offset=3, last_offset=4, acknowledge_types=[1, 5]),
    AcknowledgementBatch(first_offset=3, last_offset=4, acknowledge_types=[-1, 1]),
    AcknowledgementBatch(first_offset=3, last_offset=3, acknowledge_types=[5]),
]


class World:
    """A broker that leads some logs, with the share partitions of a group."""

    def __init__(self, draw: Random) -> None:
        self.draw = draw
        self.said: dict[int, list[tuple[int, AcknowledgeType]]] = {}
        self.refused: dict[int, ErrorCode] = {}
        self.uncertain: dict[int, ErrorCode] = {}
        self.waited: list[int] | None = None
        self.may_renew = draw.random() < 0.5
        topics = {UNKNOWN: None, FORBIDDEN: SimpleNamespace(name="secret"), KNOWN: SimpleNamespace(name="orders")}
        table = SimpleNamespace(find_client_topic_by_id=lambda topic_id: topics[UUID(topic_id)])
        part: Any = self
        self.context: Any = SimpleNamespace(
            broker=SimpleNamespace(node=SimpleNamespace(log_table=table), shares=part),
            may_read=lambda name: name == "orders",
            find_log=self.find_log,
        )

    def find_log(self, name: str, topic_id: UUID, number: int) -> Any:
        assert (name, topic_id) == ("orders", KNOWN)
        if number not in LEADERS:
            return None
        return SimpleNamespace(leadership=SimpleNamespace(epoch=0, is_led=LEADERS[number]))

    def settings_of(self, group_id: str) -> Any:
        assert group_id == MEMBER.group_id
        return SimpleNamespace(may_renew=self.may_renew)

    def served(self, group_id: str, topic_id: str, number: int) -> int | None:
        assert (group_id, UUID(topic_id), LEADERS[number]) == (MEMBER.group_id, KNOWN, True)
        return None if number == 3 else number

    def acknowledge(self, served: int, member_id: str, said: Sequence[Acknowledgement]) -> ErrorCode:
        assert member_id == MEMBER.member_id
        assert served not in self.said
        self.said[served] = [(offset, kind) for first, end, kind in said for offset in range(first, end)]
        self.refused[served] = self.draw.choice([NONE, NONE, ErrorCode.INVALID_RECORD_STATE])
        return self.refused[served]

    async def wait_written(self, changed: Iterable[int]) -> dict[int, ErrorCode]:
        assert self.waited is None, "they are waited for together"
        await trio.lowlevel.checkpoint()
        self.waited = [*changed]
        errors = [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.FENCED_STATE_EPOCH, NOT_LEADER, ErrorCode.GROUP_ID_NOT_FOUND]
        self.uncertain = {each: self.draw.choice(errors) for each in self.waited if self.draw.random() < 0.4}
        return self.uncertain


def describe(draw: Random, said: Sequence[tuple[int, AcknowledgeType]]) -> list[AcknowledgementBatch]:
    """Return batches that say the same, divided at any places, and with one type or one for each offset."""
    found = list[AcknowledgementBatch]()
    while said:
        offset, kind = said[0]
        longest = next((each for each, (next_, _) in enumerate(said) if next_ != offset + each), len(said))
        size = draw.randint(1, longest)
        kinds = [int(each) for _, each in said[:size]]
        if set(kinds) == {kind} and draw.random() < 0.5:
            kinds = [int(kind)]
        found.append(AcknowledgementBatch(first_offset=offset, last_offset=offset + size - 1, acknowledge_types=kinds))
        said = said[size:]
    return found


@each_seed(SEEDS)
def test_each_offset_gets_what_the_member_says_and_each_log_its_error_once_that_is_committed(seed: int) -> None:
    draw = Random(seed)
    world, is_renewal = World(draw), draw.random() < 0.5
    named, said = dict[SharedLog, list[AcknowledgementBatch]](), dict[SharedLog, list[tuple[int, AcknowledgeType]]]()
    wrong = set[SharedLog]()
    for each in draw.sample([*ACKNOWLEDGED, SharedLog(KNOWN, 3), *MISPLACED], draw.randint(0, 8)):
        kinds = [*AcknowledgeType][: 5 if draw.random() < 0.5 else 4]
        said[each] = [(offset, draw.choice(kinds)) for offset in range(draw.randint(0, 5), 12) if draw.random() < 0.8]
        named[each] = describe(draw, said[each])
        if draw.random() < 0.2:
            named[each].insert(draw.randint(0, len(named[each])), draw.choice(WRONG))
            wrong.add(each)
        if not (is_renewal and world.may_renew) and AcknowledgeType.RENEW in {kind for _, kind in said[each]}:
            wrong.add(each)
    errors = trio.run(lambda: acknowledge(world.context, MEMBER, named, is_renewal=is_renewal))
    taken = [each for each in named if each in ACKNOWLEDGED and each not in wrong]
    assert world.said == {each.number: said[each] for each in taken}
    assert world.waited == [each.number for each in taken if not world.refused[each.number]]

    def find_error(each: SharedLog) -> ErrorCode:
        if each in MISPLACED:
            return MISPLACED[each]
        if each in wrong:
            return ErrorCode.INVALID_REQUEST
        if each not in ACKNOWLEDGED or world.refused[each.number]:
            return ErrorCode.INVALID_RECORD_STATE
        found = world.uncertain.get(each.number, NONE)
        return found if found in {NONE, ErrorCode.KAFKA_STORAGE_ERROR} else NOT_LEADER

    assert errors == {each: find_error(each) for each in named}
