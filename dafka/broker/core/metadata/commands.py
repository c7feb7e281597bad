"""The commands in the log of metadata. What a cluster is, is what they give when they are applied in order.

The broker that leads this log is the controller. A command names what it changes by an id that is never used again, so
a command that arrives twice changes nothing the second time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar, TypeAlias

import attrs

from dafka.broker.core.acls import Acl
from dafka.broker.core.client_quotas import QuotaEntity
from dafka.broker.core.metadata.features import FIRST_LEVEL, SUPPORTED, FeatureLevels, FeatureSupport
from dafka.broker.core.metadata.log_replicas import Reason
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.scram_credentials import ScramCredential, ScramMechanism
from dafka.broker.core.typed_json import convert, encode_json
from dafka.errors import StorageFormatError
from dafka.protocol.format_errors import UnknownFieldError, format_errors

COMMAND_VERSION = 1
"""The version of the records in the log of metadata."""

COMMAND_ACLS_MAX = 1000
"""How many ACLs one command creates or deletes."""


@attrs.frozen
class OpenCluster:
    """Serve clients: all brokers that the cluster begins with are registered. They support the feature level."""

    KIND: ClassVar[str] = "open-cluster"
    feature_level: int = 1


@attrs.frozen
class RegisterBroker:
    """A store belongs to the cluster, and its broker has a number. Each start of the broker registers it again.

    The requested number is -1 if the broker takes any that is free. The controller replaces it. It also decides whether
    the store takes the place of another one.

    Attributes:
        store_id: The id of the store.
        number: The number of the broker.
        starts: The latest start numbers that the store has written. The last accepted one must be among them.
        replaces: The id that the store had before, and has given up; empty if there is none.
        features: The feature levels that the broker supports.
    """

    KIND: ClassVar[str] = "register-broker"
    store_id: str
    number: int = -1
    starts: tuple[str, ...] = ()
    replaces: str = ""
    features: FeatureLevels = FIRST_LEVEL


@attrs.frozen
class DrainBroker:
    """Start or stop moving the logs of a broker to others."""

    KIND: ClassVar[str] = "drain-broker"
    store_id: str
    is_draining: bool


@attrs.frozen
class ForgetBroker:
    """Remove a broker whose store is lost. The store never belongs to the cluster again, and its number is free.

    The controller refuses it while logs have no quorum without the broker, unless the user `accepts_loss`.
    """

    KIND: ClassVar[str] = "forget-broker"
    store_id: str
    accepts_loss: bool = False


@attrs.frozen
class SetFeatureLevel:
    """Raise the feature level of the cluster, to one that all registered brokers support."""

    KIND: ClassVar[str] = "set-feature-level"
    level: int


@attrs.frozen
class CreateTopic:
    """Create a topic. The controller chooses the replicas, unless an operator has assigned them."""

    KIND: ClassVar[str] = "create-topic"
    topic: Topic
    is_assigned: bool = False


@attrs.frozen
class AddLogs:
    """Add logs to a topic, up to a number. `placement` has the replicas of the added ones.

    The controller chooses them, unless the placement `is_assigned` by an operator.
    """

    KIND: ClassVar[str] = "add-logs"
    topic_id: str
    log_count: int
    placement: tuple[tuple[str, ...], ...] = ()
    is_assigned: bool = False


@attrs.frozen
class AlterSettings:
    """Replace all settings of a topic."""

    KIND: ClassVar[str] = "alter-settings"
    topic_id: str
    settings: Mapping[str, str]


@attrs.frozen
class ChangeReplicas:
    """Give a log other replicas, the preferred leader first. Its leader makes the change.

    Without replicas, a change under way is cancelled, and the number of replicas is that of the topic again. The
    controller then fills them in. It also chooses the generation, which is one more than that of the last change.
    """

    KIND: ClassVar[str] = "change-replicas"
    topic_id: str
    log: int
    replicas: tuple[str, ...] = ()
    reason: Reason = Reason.ASKED
    assigned_count: int = 0
    generation: int = 0


@attrs.frozen
class ReplicasChanged:
    """The leader of a log has made a change: the log has the ordered replicas from a leader epoch on."""

    KIND: ClassVar[str] = "replicas-changed"
    topic_id: str
    log: int
    generation: int
    epoch: int


@attrs.frozen
class RecoverLog:
    """Continue a log with what one broker stores of it, because a quorum of its replicas is lost for good.

    Records that only others have are lost. The controller refuses it while the log has a quorum.
    """

    KIND: ClassVar[str] = "recover-log"
    topic_id: str
    log: int
    store_id: str


@attrs.frozen
class DeleteTopic:
    """Delete a topic, whose name is free after `CloseTopic`. `last_epoch` is the latest leader epoch of its logs."""

    KIND: ClassVar[str] = "delete-topic"
    topic_id: str
    last_epoch: int = 0


@attrs.frozen
class CloseTopic:
    """Delete the records of a deleted topic.

    `producer_ends` has the sequence after the last deleted record of each producer partition, by address.
    """

    KIND: ClassVar[str] = "close-topic"
    topic_id: str
    producer_ends: Mapping[str, int]


@attrs.frozen
class CreateAcls:
    """Add ACLs: all of them, or none. What exists already stays."""

    KIND: ClassVar[str] = "create-acls"
    acls: tuple[Acl, ...]


@attrs.frozen
class DeleteAcls:
    """Remove ACLs."""

    KIND: ClassVar[str] = "delete-acls"
    acls: tuple[Acl, ...]


@attrs.frozen
class SetScramCredential:
    """Give a user a credential. A user that does not exist is added, and a former credential is replaced."""

    KIND: ClassVar[str] = "set-scram-credential"
    credential: ScramCredential


@attrs.frozen
class DeleteScramCredential:
    """Take a credential from a user. A user without any does not exist."""

    KIND: ClassVar[str] = "delete-scram-credential"
    user: str
    mechanism: ScramMechanism


@attrs.frozen
class AlterClientQuota:
    """Set and remove limits of an entity, by the name of what they limit. Limits are texts of numbers."""

    KIND: ClassVar[str] = "alter-client-quota"
    entity: QuotaEntity
    limits: Mapping[str, str] = attrs.field(factory=dict)
    removed: tuple[str, ...] = ()


@attrs.frozen
class AlterGroupSettings:
    """Replace all settings of a group, which need not exist."""

    KIND: ClassVar[str] = "alter-group-settings"
    group_id: str
    settings: Mapping[str, str]


SNAPSHOTS_KEPT = 10
"""How many snapshots of the state stay. The log of metadata begins at the first of them."""


@attrs.frozen
class SnapshotTaken:
    """Most voters have stored the state at this offset of the log, with this checksum."""

    KIND: ClassVar[str] = "snapshot-taken"
    offset: int
    checksum: str


Command: TypeAlias = (
    OpenCluster
    | RegisterBroker
    | DrainBroker
    | ForgetBroker
    | SetFeatureLevel
    | CreateTopic
    | AddLogs
    | AlterSettings
    | ChangeReplicas
    | ReplicasChanged
    | RecoverLog
    | DeleteTopic
    | CloseTopic
    | CreateAcls
    | DeleteAcls
    | SetScramCredential
    | DeleteScramCredential
    | AlterClientQuota
    | AlterGroupSettings
    | SnapshotTaken
)

_COMMANDS: tuple[type[Command], ...] = Command.__args__
_KINDS: dict[str, type[Command]] = {each.KIND: each for each in _COMMANDS}


@attrs.frozen
class Order:
    """A command, and who ordered it.

    Attributes:
        command: The command.
        request_id: Identifies the request, which its sender can repeat.
        ordered_by: Who ordered it: a user with the address of the client, an address, or a broker.
        ordered_at: The controller's time, in ms since 1970.
        controller_epoch: The leader epoch of the controller that has written it.
    """

    command: Command
    request_id: str = ""
    ordered_by: str = ""
    ordered_at: int = 0
    controller_epoch: int = 0


def name_requester(user: str | None, host: str) -> str:
    """Return who orders a command: a user, if the client has authenticated, and the address of the client."""
    return f"{user} at {host}" if user else host


def encode_order(order: Order) -> bytes:
    """Return the value of a record in the log of metadata. The same format is used in messages to the controller."""
    fields = {each.name: getattr(order, each.name) for each in attrs.fields(Order)}
    return encode_json({"version": COMMAND_VERSION, "kind": order.command.KIND, **fields})


def decode_order(value: bytes, support: FeatureSupport = SUPPORTED) -> Order:
    """Return an order. Raise `StorageFormatError` if it is malformed, or has what this version of dafka does not know.

    A broker must not skip an order that it cannot read, because its state would differ from that of the others.
    """
    with format_errors("a command in the log of metadata"):
        fields = json.loads(value)
        version, kind = fields.pop("version"), fields.pop("kind")
        is_known = kind in _KINDS and support.level_of(kind) <= support.levels.highest
        if version > COMMAND_VERSION or not is_known:
            raise _unknown(f"a command {kind!r}")
        try:
            found: dict[str, Any] = {
                "command": convert(_KINDS[kind], fields.pop("command")),
                "request_id": convert(str, fields.pop("request_id")),
                "ordered_by": convert(str, fields.pop("ordered_by")),
                "ordered_at": convert(int, fields.pop("ordered_at")),
                "controller_epoch": convert(int, fields.pop("controller_epoch")),
            }
        except UnknownFieldError as error:
            raise _unknown(f"a command {kind!r} with a field {error}") from None
        if fields:
            raise _unknown(f"a command with a field {min(fields)}")
        return Order(**found)


def _unknown(what: str) -> StorageFormatError:
    return StorageFormatError(
        f"the log of metadata has {what} that this version of dafka does not know: update dafka on this broker"
    )
