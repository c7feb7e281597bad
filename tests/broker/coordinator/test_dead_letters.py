"""Dead letters while leaders are lost: of the log, of the topic for letters, and of the group's coordinator.

Each record that the group gives up has a letter before the group finishes it, and no other record has one.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import attrs
import pytest
import trio
from trio.testing import MockClock

from dafka.batches import decode_records
from dafka.broker.broker import Broker
from dafka.broker.coordinator.dead_letter_appends import DeadLetterAppends, LettersRefused
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.share.runs import RecordState
from dafka.broker.core.groups.share.share_partition import Acknowledgement, AcknowledgeType
from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.commands import AlterGroupSettings
from dafka.broker.core.metadata.topic_settings import DEAD_LETTERS
from dafka.broker.core.positions import Offset
from dafka.records import Partition
from tests.broker.coordinator.brokers import Brokers
from tests.broker.coordinator.test_several_brokers import led_log, open_orders
from tests.broker.coordinator.test_share_partitions import GROUPS, READ, Faults, append, join, load
from tests.broker.replication.virtual_cluster import PATIENCE_S, wait_for

LETTERS = "dlq.orders"
STEPS = 90
ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT


async def prepare(brokers: Brokers, group: str, **settings: str) -> None:
    """Create the topic for letters, and have a group use it."""
    admin = next(iter(brokers.running.values())).node.admin
    await admin.create_topic(LETTERS, 1, {DEAD_LETTERS: "true"})
    own = {"errors.deadletterqueue.topic.name": LETTERS, "share.delivery.count.limit": "3", **settings}
    await admin.change(AlterGroupSettings(group, own))
    await wait_for(
        lambda: all(
            each.shares.settings_of(group).dead_letter_topic and each.node.find_log(LETTERS, 0) is not None
            for each in brokers.running.values()
        )
    )


def find_letter_leader(brokers: Brokers) -> tuple[Broker, Log] | None:
    for each in brokers.running.values():
        log = each.node.find_log(LETTERS, 0)
        if log is not None and log.leadership.is_led and log.is_end_known:
            return each, log
    return None


async def read_letters(brokers: Brokers) -> Counter[int]:
    """Return how many letters each record has, by its offset."""
    await wait_for(lambda: find_letter_leader(brokers) is not None)
    found = find_letter_leader(brokers)
    assert found is not None
    broker, log = found
    batches = await broker.node.reader.read(log, Offset(0), log.high_watermark, 2**24)
    letters = Counter[int]()
    for data in batches:
        for record in decode_records(Partition(LETTERS, ""), data):
            headers = dict(record.headers)
            assert headers["__dlq.errors.topic"] == b"orders"
            letters[int(headers["__dlq.errors.offset"] or b"")] += 1
    return letters


async def stored_states(brokers: Brokers, group: str) -> list[RecordState]:
    found = await brokers.coordinator_of(group).groups.share_states(group)
    assert found is not None
    (state,) = found.values()
    return [run.state for run in state.runs]


async def test_the_next_leader_stores_the_letters_that_are_missing(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_orders() as brokers:
        group = GROUPS[0]
        await prepare(brokers, group)
        await join(brokers, group)
        broker, served = await load(brokers, group)
        assert await append(broker, served.log, b"x", b"y")
        assert (await broker.share_reader.read(served, READ, 2**20)).ranges
        with monkeypatch.context() as patch:

            async def refuse(*_: object) -> None:
                raise LettersRefused(ErrorCode.NOT_ENOUGH_REPLICAS)

            patch.setattr(DeadLetterAppends, "append", refuse)
            said = [Acknowledgement(0, 1, REJECT), Acknowledgement(1, 2, ACCEPT)]
            assert broker.shares.acknowledge(served, "m", said) is ErrorCode.NONE
            assert not await broker.shares.wait_written([served])
            await trio.sleep(5)
            assert served.partition is not None
            assert served.partition.start_offset == 0
            assert await stored_states(brokers, group) == [RecordState.ARCHIVING, RecordState.ACKNOWLEDGED]
            await brokers.stop(broker)
        broker, served = await load(brokers, group)
        assert not (await broker.share_reader.read(served, READ, 2**20)).ranges
        await wait_for(lambda: served.partition is not None and served.partition.start_offset == 2)
        assert await read_letters(brokers) == {0: 1}


@attrs.define
class LetterFaults(Faults):
    """A member that rejects records, too, and releases others until they are given up."""

    rejected: set[int] = attrs.field(factory=set)
    counts: Counter[int] = attrs.field(factory=Counter)

    async def work(self) -> None:
        broker, served = await load(self.brokers, self.group)
        found = await broker.share_reader.read(served, READ, 2**20)
        if not broker.shares.holds_lease(served):
            return
        for each in found.ranges:
            for offset in range(each.first, each.end):
                assert offset not in self.accepted | self.rejected
                self.delivered.add(offset)
                self.counts[offset] = each.delivery_count
                kind = RELEASE if offset % 5 == 0 else self.draw.choice((ACCEPT, ACCEPT, RELEASE, REJECT))
                if broker.shares.acknowledge(served, "m", [Acknowledgement(offset, offset + 1, kind)]):
                    continue
                with trio.move_on_after(self.draw.choice((0.1, 5, 40))):
                    if not await broker.shares.wait_written([served]) and kind is not RELEASE:
                        (self.accepted if kind is ACCEPT else self.rejected).add(offset)
                if kind is ACCEPT:
                    self.uncertain.add(offset)


@pytest.mark.parametrize("seed", range(3))
async def test_each_record_that_is_given_up_has_a_letter(autojump_clock: MockClock, seed: int) -> None:
    draw = Random(seed)
    async with open_orders() as brokers:
        faults = LetterFaults(brokers, draw.choice(GROUPS), draw)
        await prepare(
            brokers, faults.group, **{"errors.deadletterqueue.copy.record.enable": draw.choice(("true", "false"))}
        )
        await join(brokers, faults.group)
        await faults.play(STEPS)
        with trio.fail_after(PATIENCE_S * 5):
            await faults.end()
        letters = await read_letters(brokers)
        _, log = led_log(brokers)
        given_up = set(range(log.high_watermark)) - faults.uncertain - faults.accepted
        assert faults.delivered == set(range(log.high_watermark))
        assert faults.rejected | given_up <= letters.keys()
        assert not faults.accepted & letters.keys()
