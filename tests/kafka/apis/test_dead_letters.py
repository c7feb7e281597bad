"""Dead letters of share groups: what a topic gets for the records that a group gives up, and when it gets nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from dafka import Config
from dafka.batches import decode_records, encode_batch
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.share.share_partition import AcknowledgeType, ShareEvent
from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.server.metrics import KafkaMetrics
from dafka.operations.metrics import TopicLabels
from dafka.records import Partition, Record
from tests.kafka.apis.door import Client, Door, open_door
from tests.kafka.apis.test_share_groups import Sharing, counts, set_group
from tests.waiting import poll_until

ENABLED = {"errors.deadletterqueue.group.enable": "true"}
ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
_numbers = itertools.count()


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    config = Config().with_kafka(auto_create_topics="off", auto_create_dead_letters="on")
    with open_door(config) as found:
        yield found


@pytest.fixture(scope="module")
def client(door: Door) -> Iterator[Client]:
    with door.connect() as found:
        yield found


class DeadLetters(Sharing):
    """A topic with one log, a group that reads it, and the topic for the dead letters of the group."""

    def __init__(self, door: Door, client: Client) -> None:
        super().__init__(door, client)
        self.letters = f"dlq.{self.name}"

    def set_group(self, **settings: str) -> None:
        own = {"errors_deadletterqueue_topic_name": self.letters, "share_auto_offset_reset": "earliest"}
        set_group(self.client, self.group, **own, **settings)

    def read(self, number: int = 0) -> list[Record]:
        """Return the dead letters."""
        asked: dict[tuple[str, int], dict[str, Any]] = {(self.letters, number): {}}
        found = self.client.ask_logs(ApiKey.FETCH, 11, asked, max_wait_ms=0)[self.letters, number]
        records, letters = bytes(found["records"] or b""), list[Record]()
        while records:
            size = 12 + int.from_bytes(records[8:12], "big")
            letters += decode_records(Partition(self.letters, ""), records[:size])
            records = records[size:]
        return letters

    def give_up(self, **values: Any) -> None:
        """Write a record, and have a member reject it."""
        member = self.members[0] if self.members else self.join("one")
        offset = self.client.append(self.topic, encode_batch(0, [b"bad"], timestamps=1, **values))
        delivered: dict[int, int] = {}
        while offset not in delivered:
            delivered |= counts(member, member.fetch())
        assert member.acknowledge({0: dict.fromkeys(delivered, REJECT)})["error_code"] == 0

    def has_finished_one(self) -> bool:
        return self.offsets() == (1, 0)

    def events(self) -> dict[ShareEvent, int]:
        return dict(self.door.broker.broker.shares.counts[self.group])


@pytest.fixture
def sharing(door: Door, client: Client) -> Iterator[DeadLetters]:
    found = DeadLetters(door, client)
    yield found
    found.close()


def reasons(letter: Record) -> dict[str, bytes | None]:
    prefix = "__dlq.errors."
    return {name.removeprefix(prefix): value for name, value in letter.headers if name.startswith(prefix)}


def test_letters_say_where_records_come_from_and_why(sharing: DeadLetters, client: Client) -> None:
    sharing.set_group(share_delivery_count_limit="2")
    member = sharing.join("one")
    client.append(
        sharing.topic, encode_batch(0, [b"a", b"b", b"c"], timestamps=1, keys=[b"k"] * 3, headers=[[("h", b"v")]] * 3)
    )
    delivered = dict[int, int]()
    while len(delivered) < 3:
        delivered |= counts(member, member.fetch())
    member.acknowledge({0: {0: ACCEPT, 1: RELEASE, 2: REJECT}})
    assert counts(member, member.fetch(max_wait_ms=10**7)) == {1: 2}
    member.acknowledge({0: {1: RELEASE}})
    poll_until(lambda: sharing.offsets() == (3, 0))
    letters = sharing.read()
    assert [(each.key, each.value, len(each.headers)) for each in letters] == [(None, None, 6)] * 2
    common = {"topic": sharing.topic.encode(), "partition": b"0", "group": sharing.group.encode()}
    assert [reasons(each) for each in letters] == [
        {**common, "offset": b"2", "delivery.count": b"1", "message": b"a member rejected the record"},
        {**common, "offset": b"1", "delivery.count": b"2", "message": b"the record was delivered 2 times"},
    ]
    described = client.ask(
        ApiKey.DESCRIBE_CONFIGS,
        4,
        resources=[{"resource_type": 2, "resource_name": sharing.letters, "configuration_keys": None}],
    )["results"][0]["configs"]
    assert {each["name"]: each["value"] for each in described}["errors.deadletterqueue.group.enable"] == "true"
    kafka = sharing.door.broker.kafka
    assert kafka is not None
    families = sharing.door.call(KafkaMetrics(kafka).read, TopicLabels(100))
    samples = [each for family in families for each in family.samples if each.labels.get("group") == sharing.group]
    shown = {each.labels["event"]: each.value for each in samples if each.name == "dafka_kafka_share_records_total"}
    assert shown == {event.value: count for event, count in sharing.events().items()}
    assert [each.value for each in samples if each.name == "dafka_kafka_group_lag_records"] == [0]
    assert sharing.events() == {
        ShareEvent.ACQUIRED: 4,
        ShareEvent.ACCEPTED: 1,
        ShareEvent.RELEASED: 2,
        ShareEvent.REJECTED: 1,
        ShareEvent.GIVEN_UP: 2,
        ShareEvent.DEAD_LETTERED: 2,
        ShareEvent.UNDELIVERABLE: 0,
    }


def test_a_missing_topic_is_created_once_for_all_groups(door: Door, client: Client, sharing: DeadLetters) -> None:
    several = [sharing, *(DeadLetters(door, client) for _ in range(4))]
    with ExitStack() as stack:
        for each in several[1:]:
            stack.callback(each.close)
        for each in several:
            each.letters = sharing.letters
            each.set_group()
            each.join("one")
        for each in several:
            each.give_up()
        for each in several:
            poll_until(each.has_finished_one)
    assert {reasons(each)["group"] for each in sharing.read()} == {each.group.encode() for each in several}


def test_letters_copy_records_and_their_headers_come_last(sharing: DeadLetters) -> None:
    sharing.set_group(errors_deadletterqueue_copy_record_enable="true")
    own = [("h", b"v"), ("__dlq.errors.group", b"forged"), ("none", None)]
    sharing.give_up(keys=[b"k"], headers=[own])
    poll_until(sharing.has_finished_one)
    (letter,) = sharing.read()
    assert (letter.key, letter.value, list(letter.headers[:3])) == (b"k", b"bad", own)
    assert reasons(letter)["group"] == sharing.group.encode()
    assert (letter.timestamp or 0) > 1, "it has the time at which it was written"


def test_a_letter_that_would_be_too_large_copies_nothing(sharing: DeadLetters, client: Client) -> None:
    client.create_topics(sharing.letters, logs=1, **ENABLED, max_message_bytes="500")
    sharing.set_group(errors_deadletterqueue_copy_record_enable="true")
    sharing.join("one")
    client.append(sharing.topic, encode_batch(0, [b"x" * 1000], timestamps=1))
    sharing.give_up()
    poll_until(lambda: sharing.offsets() == (2, 0))
    assert [each.value for each in sharing.read()] == [None, b"bad"]


def test_letters_go_to_the_log_with_the_number_of_theirs(sharing: DeadLetters, client: Client) -> None:
    client.create_topics(sharing.letters, logs=3, **ENABLED)
    sharing.set_group()
    sharing.give_up()
    poll_until(lambda: len(sharing.read()) == 1)
    assert sharing.read(1) == sharing.read(2) == []


@pytest.mark.parametrize(
    ("letters", "problem"),
    [
        ({}, "does not have the setting errors.deadletterqueue.group.enable=true"),
        ({**ENABLED, "cleanup.policy": "compact"}, "expected a key"),
        ({**ENABLED, "max.message.bytes": "100"}, "at most 100 bytes"),
    ],
)
def test_a_group_goes_on_without_letters_that_are_refused(
    sharing: DeadLetters, client: Client, letters: dict[str, str], problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    client.create_topics(sharing.letters, logs=1, **letters)
    sharing.set_group()
    for _ in range(2):
        sharing.give_up()
    poll_until(lambda: sharing.offsets() == (2, 0))
    assert sharing.read() == []
    assert sharing.events()[ShareEvent.UNDELIVERABLE] == 2
    assert len([each for each in caplog.messages if repr(sharing.group) in each and problem in each]) == 1


def test_a_topic_without_the_prefix_is_refused_at_once(sharing: DeadLetters, client: Client) -> None:
    config = {"name": "errors.deadletterqueue.topic.name", "value": "orders", "config_operation": 0}
    resource = {"resource_type": 32, "resource_name": sharing.group, "configs": [config]}
    (answer,) = client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False)["responses"]
    assert answer["error_code"] == ErrorCode.INVALID_CONFIG
    assert "expected a name that begins with 'dlq.', not 'orders'" in answer["error_message"]


def test_a_topic_gets_no_letters_of_its_own_records(sharing: DeadLetters, client: Client) -> None:
    name = f"dlq.own-{next(_numbers)}"
    client.create_topics(name, logs=1, **ENABLED)
    sharing.topic = sharing.letters = name
    sharing.set_group()
    sharing.give_up()
    poll_until(sharing.has_finished_one)
