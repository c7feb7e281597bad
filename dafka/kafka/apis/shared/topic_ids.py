"""The names of topics in requests that name topics by id (KIP-516).

A request gets the names of its topics before it is authorized. A topic that does not exist keeps an empty name.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import TypeAlias

from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.metadata.topics import Topic
from dafka.kafka.protocol.apis import uses_topic_ids
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
from dafka.kafka.protocol.tables import Request

_Part: TypeAlias = TopicProduceData | FetchTopic | ForgottenTopic | OffsetCommitRequestTopic | OffsetFetchRequestTopics


def uuid_of(topic: Topic) -> uuid.UUID:
    """Return the id of a topic as clients see it."""
    return parse_id(topic.topic_id)


def parse_id(topic_id: str) -> uuid.UUID:
    """Return the id that brokers have of a topic as clients see it."""
    return uuid.UUID(int=int(topic_id, 16))


def id_of(topic_id: uuid.UUID) -> str:
    """Return the id of a topic as brokers know it."""
    return topic_id.hex.upper()


def find_by_id(table: LogTable, topic_id: uuid.UUID) -> Topic | None:
    """Return the topic with an id, if clients may use it; None if there is none."""
    return table.find_client_topic_by_id(id_of(topic_id))


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
