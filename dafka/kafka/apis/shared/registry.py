"""Registers the functions that authorize and handle requests."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeAlias, TypeVar

import attrs
import trio

from dafka.broker.access.permissions import Permissions
from dafka.broker.broker import Broker
from dafka.broker.core.client_quotas import QuotaKey
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.topics import Topic
from dafka.kafka.apis.shared.topic_ids import find_by_id, id_of
from dafka.kafka.protocol.apis import uses_topic_ids
from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.frames import RequestHeader
from dafka.kafka.protocol.tables import NIL, VERSION_MAX, Request, Response
from dafka.kafka.server.cluster_view import ClusterView
from dafka.kafka.server.kafka_server import KafkaServer

Handler: TypeAlias = Callable[["RequestContext", Any], Awaitable[Response | None]]
"""Handles a request. It returns None for no response, only for Produce with acks=0."""

ResponsePatch: TypeAlias = Callable[[Any], None]
"""Adds the refused parts to a response."""

Decision: TypeAlias = Response | ResponsePatch | None
"""The decision of an authorization: a response if nothing is permitted, None if everything is."""

Authorization: TypeAlias = Callable[[Permissions, "RequestContext", Any], Decision]
"""Removes the unauthorized parts of a request, and decides what is done with it."""

_H = TypeVar("_H", bound=Handler)

HANDLERS: dict[ApiKey, Handler] = {}
"""The handlers of requests that are handled one by one, by API. Produce is not among them."""

_STRICT_VERSIONS = {ApiKey.CREATE_TOPICS: 6, ApiKey.DELETE_TOPICS: 5, ApiKey.CREATE_PARTITIONS: 3}
"""The first versions whose clients know THROTTLING_QUOTA_EXCEEDED."""

AUTHORIZATIONS: dict[ApiKey, Authorization] = {}
"""The authorization of each API that needs an authenticated user."""


@attrs.define
class RequestContext:
    """The context of a request: the client's connection, as handlers see it.

    `source` is what limits count: the user, or the address of a client that has not authenticated. `endpoint` is the
    host and port at which the client reaches the broker. If `is_proved`, a certificate or a token names the user, whom
    the broker need not know. `connection` identifies the connection. The client waits for `throttle_s` before its next
    request is read, because of its quotas.
    """

    server: KafkaServer
    header: RequestHeader
    host: str
    endpoint: tuple[str, int]
    source: str
    connection: Hashable
    has_left: Callable[[], bool] = lambda: False
    is_proved: bool = False
    throttle_s: float = 0.0

    @property
    def user(self) -> str:
        """The name of the user; empty if the client has not authenticated."""
        return "" if self.source == self.host else self.source

    def spend(self, key: QuotaKey, amount: float) -> None:
        """Charge the client for what it has used. It waits if that is more than its quota."""
        meter, now = self.server.quota_meter, trio.current_time()
        self._throttle(key, meter.spend(key, self.user, self.header.client_id, amount, now))

    def limit_response(self, bytes_max: int) -> int:
        """Return how large a response with records can be: a larger one would make a client with a quota wait for long.

        A single batch can be larger, whatever the client accepts: the size is at least 1.
        """
        meter, now = self.server.quota_meter, trio.current_time()
        window = meter.find_window(QuotaKey.CONSUMER_BYTE_RATE, self.user, self.header.client_id, now)
        return int(max(min(bytes_max, window), 1))

    def spend_mutations(self, log_count: int) -> bool:
        """Charge the client for logs that it creates or deletes.

        Return whether it may: a client that knows the error for it must try again later, and other clients only wait.
        """
        key, api = QuotaKey.CONTROLLER_MUTATION_RATE, self.header.api_key
        if self.header.api_version < _STRICT_VERSIONS.get(api, VERSION_MAX):
            self.spend(key, log_count)
            return True
        meter, now = self.server.quota_meter, trio.current_time()
        is_permitted, wait_s = meter.spend_unless_exhausted(key, self.user, self.header.client_id, log_count, now)
        self._throttle(key, wait_s)
        return is_permitted

    def _throttle(self, key: QuotaKey, wait_s: float) -> None:
        if wait_s > 0:
            self.server.counters.throttled[key.value] += 1
            self.throttle_s = max(self.throttle_s, wait_s)

    @property
    def broker(self) -> Broker:
        """The broker and its coordinators."""
        return self.server.broker

    def view_cluster(self) -> ClusterView:
        """Return the cluster as the client sees it."""
        node = self.broker.node
        return ClusterView(node.brokers, self.endpoint, node.cluster_id, node.controller_address)

    def find_permissions(self) -> Permissions | None:
        """Return what the client may do at this moment; None if there are no users, and everybody may do everything."""
        users = self.broker.security.users
        if users is None:
            return None
        user = users.find(self.source, is_proved=self.is_proved)
        return Permissions() if user is None else users.permissions_of(user, self.host)

    def may_read(self, topic: str) -> bool:
        """Return whether the client may read a topic."""
        permissions = self.find_permissions()
        return permissions is None or permissions.may_read(topic)

    def may_use_group(self, group_id: str) -> bool:
        """Return whether the client may use a group."""
        permissions = self.find_permissions()
        return permissions is None or permissions.may_use_group(group_id)

    def find_topic(self, name: str | None, topic_id: uuid.UUID) -> Topic | None:
        """Return a topic by name, or by id if there is no name; None if it does not exist."""
        node = self.broker.node
        return find_by_id(node.log_table, topic_id) if name is None else node.find_topic(name)

    def find_log(self, name: str, topic_id: uuid.UUID, number: int) -> Log | None:
        """Return a log of the topic with a name, and with an id unless that is `NIL`; None if it does not exist."""
        return self.broker.node.find_log(name, number, None if topic_id == NIL else id_of(topic_id))

    def find_missing_error(self, name: str) -> ErrorCode:
        """Return the error for a log that does not exist. The name of its topic is empty if its id is unknown."""
        is_by_id = not name and uses_topic_ids(self.header.api_key, self.header.api_version)
        return ErrorCode.UNKNOWN_TOPIC_ID if is_by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def explain_level(self, needed: int) -> str:
        """Return why the cluster does not serve what belongs to a feature level; empty if it does."""
        level = self.broker.node.tables.state.members.feature_level
        if level >= needed:
            return ""
        return f"the cluster has the feature level {level}, and this needs {needed}: `dafka cluster upgrade`"


def handles(
    request: type[Request], authorization: Authorization, *, awaits_metadata: bool = False
) -> Callable[[_H], _H]:
    """Register the function that handles a request, and its authorization.

    A handler that `awaits_metadata` changes topics or what clients may do, or shows what was just changed. It runs when
    the broker's view of the metadata is current, unless the client has left by then: it can have sent the request again
    to another broker, and a topic of the same name can have been made since.
    """

    def register(handler: _H) -> _H:
        async def handle_when_metadata_is_known(context: RequestContext, asked: Any) -> Response | None:
            await context.broker.node.leases.wait_metadata()
            if context.has_left():
                context.server.counters.late_requests += 1
                return None
            return await handler(context, asked)

        AUTHORIZATIONS[request.API_KEY] = authorization
        HANDLERS[request.API_KEY] = handle_when_metadata_is_known if awaits_metadata else handler
        return handler

    return register
