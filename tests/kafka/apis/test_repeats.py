"""A request that names the same thing twice: each API answers it in one way, and nothing is changed twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.protocol.constants import ApiKey
from tests.kafka.apis.door import Client, Door, open_door
from tests.kafka.apis.test_authorization import ABSENT, CALLS, Call

REFUSING = {
    ApiKey.LIST_OFFSETS,
    ApiKey.CREATE_TOPICS,
    ApiKey.DELETE_TOPICS,
    ApiKey.CREATE_PARTITIONS,
    ApiKey.ALTER_CONFIGS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
}
"""The APIs that refuse it, as in Kafka: what is asked for at each of the two places can differ."""


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    with open_door() as found:
        with found.connect() as client:
            client.create_topics("present")
        yield found


def errors_in(answer: Any) -> Iterator[int]:
    """Yield the error codes in a response."""
    if isinstance(answer, dict):
        yield from (each for name, each in answer.items() if name in {"error_code", "partition_error_code"})
        answer = [*answer.values()]
    if isinstance(answer, list):
        for each in answer:
            yield from errors_in(each)


@pytest.mark.parametrize("call", [each for each in CALLS if each.is_list], ids=lambda each: each.api.name)
def test_a_name_twice_is_answered_in_one_way_and_changes_nothing_twice(call: Call, door: Door, client: Client) -> None:
    is_refused = call.api in REFUSING
    is_present = is_refused and call.api is not ApiKey.CREATE_TOPICS
    names = ABSENT._replace(topic="present" if is_present else "absent", group=call.api.name)
    topics = dict(door.broker.broker.node.topics)
    for version in call.versions:
        found = client.ask(call.api, version, **call.values([names, names]))
        if is_refused:
            assert set(errors_in(found)) == {ErrorCode.INVALID_REQUEST}
            assert len(next(each for each in found.values() if isinstance(each, list))) == 1
            assert door.broker.broker.node.topics == topics
        else:
            assert set(errors_in(found)) == set(errors_in(client.ask(call.api, version, **call.values([names]))))
