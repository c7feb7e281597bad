"""Topic ids (KIP-516): which requests name topics by id, and the names of these topics.

A request gets the names of its topics before it is authorized. A topic that does not exist keeps an empty name.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TypeAlias

from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.metadata.topics import Topic
from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.messages.logs import (
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    ProduceRequest,
    TopicProduceData,
)
from dafka.kafka.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestTopics,
)
from dafka.kafka.protocol.tables import VERSION_MAX, Request

FIRST_VERSIONS: Mapping[ApiKey, int] = MappingProxyType(
    {ApiKey.PRODUCE: 13, ApiKey.FETCH: 13, ApiKey.OFFSET_COMMIT: 10, ApiKey.OFFSET_FETCH: 10}
)
"""The first version of each request that names topics by id instead of by name."""

_Part: TypeAlias = TopicProduceData | FetchTopic | ForgottenTopic | OffsetCommitRequestTopic | OffsetFetchRequestTopics


def uuid_of(topic: Topic) -> uuid.UUID:
    """Return the id of a topic as clients see it."""
    return uuid.UUID(int=int(topic.topic_id, 16))


def id_of(topic_id: uuid.UUID) -> str:
    """Return the id of a topic as brokers know it."""
    return topic_id.hex.upper()


def find_by_id(table: LogTable, topic_id: uuid.UUID) -> Topic | None:
    """Return the topic with an id, if clients may use it; None if there is none."""
    return table.find_client_topic_by_id(id_of(topic_id))


def uses_topic_ids(api_key: ApiKey, api_version: int) -> bool:
    """Return whether requests of an API in a version name topics by id."""
    return api_version >= FIRST_VERSIONS.get(api_key, VERSION_MAX)


def name_topics(table: LogTable, api_version: int, request: Request) -> None:
    """Add the names of topics to a request that names them by id. The name stays empty if there is no such topic."""
    if not uses_topic_ids(request.API_KEY, api_version):
        return
    for each in _topics_in(request):
        topic = find_by_id(table, each.topic_id)
        if topic is None:
            continue
        if isinstance(each, FetchTopic | ForgottenTopic):
            each.topic = topic.name
        else:
            each.name = topic.name


def _topics_in(request: Request) -> Iterable[_Part]:
    if isinstance(request, ProduceRequest):
        return request.topic_data
    if isinstance(request, FetchRequest):
        return [*request.topics, *request.forgotten_topics_data]
    if isinstance(request, OffsetCommitRequest):
        return request.topics
    assert isinstance(request, OffsetFetchRequest)
    return [topic for group in request.groups for topic in group.topics or ()]
