"""Members of a share group whose broker is killed.

What was answered as accepted is never delivered again, and no record is forgotten.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter

import attrs
import pytest

from dafka.batches import encode_batch
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.share.share_partition import DEFAULT_LIMITS, AcknowledgeType
from dafka.kafka.protocol.apis import RESPONSES
from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.frames import decode_response
from tests.cli.harness import FREE, Dafka, Running
from tests.kafka.apis.door import Client, plain
from tests.kafka.share_member import Delivery, ShareMember, errors_of
from tests.ports import free_port

TOPIC, GROUP, LOGS, MEMBERS = "orders", "workers", 2, 3
RECORDS = 200
DEADLINE_S = 110
ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT


@attrs.define
class Ledger:
    """What members know of records, by log and offset. What was said without an answer is `uncertain`."""

    accepted: set[tuple[int, int]] = attrs.field(factory=set)
    rejected: set[tuple[int, int]] = attrs.field(factory=set)
    uncertain: set[tuple[int, int]] = attrs.field(factory=set)
    deliveries: Counter[tuple[int, int]] = attrs.field(factory=Counter)

    def deliver(self, delivery: Delivery) -> None:
        place = delivery.log, delivery.offset
        assert delivery.value == b"%d-%d" % place
        assert place not in self.accepted | self.rejected, "it was acknowledged, and is delivered again"
        assert delivery.delivery_count <= DEFAULT_LIMITS.delivery_count_max
        self.deliveries[place] += 1

    def record(self, said: dict[int, dict[int, AcknowledgeType]], errors: dict[int, ErrorCode] | None) -> None:
        """Record what a member has said, and the errors of logs; None if there was no answer."""
        for log, kinds in said.items():
            for offset, kind in kinds.items():
                place = log, offset
                if errors is None:
                    self.uncertain.add(place)
                elif errors[log] is ErrorCode.NONE and kind is not RELEASE:
                    assert place not in self.accepted | self.rejected, "it is accepted twice"
                    (self.accepted if kind is ACCEPT else self.rejected).add(place)
                else:
                    assert errors[log] in {ErrorCode.NONE, ErrorCode.INVALID_RECORD_STATE}

    def check(self, count: int) -> None:
        """Check that each record has a fate."""
        for place in ((log, offset) for log in range(LOGS) for offset in range(count)):
            is_worn = self.deliveries[place] >= DEFAULT_LIMITS.delivery_count_max
            assert place in self.accepted | self.rejected | self.uncertain or is_worn, place


class Broker:
    """A broker that is killed and started again on its port."""

    def __init__(self, dafka: Dafka, storage: str) -> None:
        self._dafka, self._storage, self._port = dafka, storage.format(dafka.folder), free_port()
        self._running = self._start()

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self._port}"

    def _start(self) -> Running:
        listening = ("--kafka", self.servers, "--storage", self._storage)
        up = self._dafka.start("up", "--sub", FREE, "--pub", FREE, *listening)
        up.wait_output(3)
        return up

    def kill(self) -> None:
        self._running.end(signal.SIGKILL)

    def restart(self) -> None:
        self._running = self._start()


def is_finished(client: Client, count: int) -> bool:
    """Return whether the group has finished all records of all logs."""
    topics = [{"topic_name": TOPIC, "partitions": [*range(LOGS)]}]
    (group,) = client.ask(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1, groups=[{"group_id": GROUP, "topics": topics}])[
        "groups"
    ]
    parts = [part for topic in group["topics"] for part in topic["partitions"]]
    return [(part["start_offset"], part["lag"]) for part in parts] == [(count, 0)] * LOGS


def choose(draw: random.Random, delivered: list[Delivery]) -> dict[int, dict[int, AcknowledgeType]]:
    """Return what a member says of what it has got; it forgets some."""
    said: dict[int, dict[int, AcknowledgeType]] = {}
    for each in delivered:
        if draw.random() < 0.9:
            (kind,) = draw.choices((ACCEPT, RELEASE, REJECT), (80, 15, 5))
            said.setdefault(each.log, {})[each.offset] = kind
    return said


class Group:
    """The members, who work in turns, and a client that writes records for them."""

    def __init__(self, broker: Broker, seed: int, kills: int) -> None:
        self.draw = random.Random(seed)
        self.ledger = Ledger()
        self.kills = kills
        self.written = 0
        self._broker = broker
        self._open()

    def _open(self) -> None:
        servers = self._broker.servers
        self.client = Client(servers)
        self.client.create_topics(TOPIC, logs=LOGS) if not self.written else None
        self.members = [ShareMember(servers, GROUP, TOPIC, f"m{number}").join() for number in range(MEMBERS)]

    def close(self) -> None:
        for each in (self.client, *(member.client for member in self.members)):
            each.socket.close()

    def begin(self) -> None:
        """Have the group begin at the end of the empty logs."""
        while not is_finished(self.client, 0):
            for each in self.members:
                each.fetch()

    def write(self) -> None:
        for log in range(LOGS):
            values = [b"%d-%d" % (log, self.written + each) for each in range(10)]
            self.client.append(TOPIC, encode_batch(0, values, timestamps=1), log)
        self.written += 10

    def work(self) -> None:
        """Have a member get records, and say something of them. It can be the moment at which the broker is killed."""
        member = self.draw.choice(self.members)
        delivered = member.deliveries_in(member.fetch())
        for each in delivered:
            self.ledger.deliver(each)
        said = choose(self.draw, delivered)
        if said and self.kills and self.written > 20 and self.draw.random() < 0.15:
            self.kills -= 1
            self.kill(member, said)
            return
        if said:
            self.ledger.record(said, errors_of(member.acknowledge(said)))
        if not delivered or self.draw.random() < 0.1:  # it releases what it has forgotten
            member.acknowledge({}, is_last=True)
            member.session_epoch = 0

    def kill(self, member: ShareMember, said: dict[int, dict[int, AcknowledgeType]]) -> None:
        """Kill the broker while a member waits for an answer."""
        member.client.send(ApiKey.SHARE_ACKNOWLEDGE, 2, **member.acknowledging(said))
        self._broker.kill()
        frame = member.client.receive()
        answer = None if frame is None else plain(decode_response(frame, RESPONSES[ApiKey.SHARE_ACKNOWLEDGE], 2))
        self.ledger.record(said, None if answer is None else errors_of(answer))
        self.close()
        self._broker.restart()
        self._open()


@pytest.mark.parametrize("seed", [1])
def test_what_was_answered_is_kept_when_the_broker_is_killed(dafka: Dafka, seed: int) -> None:
    group = Group(Broker(dafka, "filelog:{}/log"), seed, kills=3)
    group.begin()
    deadline = time.monotonic() + DEADLINE_S
    while group.kills or group.written < RECORDS or not is_finished(group.client, group.written):
        assert time.monotonic() < deadline, (group.written, len(group.ledger.accepted))
        if group.written < RECORDS:
            group.write()
        group.work()
    group.close()
    group.ledger.check(group.written)
    assert len(group.ledger.accepted) > group.written
