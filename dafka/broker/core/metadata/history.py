"""What the commands in the log of metadata have changed, in words."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import attrs

from dafka.broker.core.acls import Acl
from dafka.broker.core.metadata.cluster_state import ClusterState
from dafka.broker.core.metadata.commands import (
    AddLogs,
    AlterClientQuota,
    AlterGroupSettings,
    AlterSettings,
    ChangeReplicas,
    CloseTopic,
    Command,
    CreateAcls,
    CreateTopic,
    DeleteAcls,
    DeleteScramCredential,
    DeleteTopic,
    DrainBroker,
    ForgetBroker,
    OpenCluster,
    Order,
    RecoverLog,
    RegisterBroker,
    ReplicasChanged,
    SetFeatureLevel,
    SetScramCredential,
    SnapshotTaken,
)
from dafka.broker.core.metadata.outcome import Outcome
from dafka.broker.core.positions import FIRST_OFFSET, Offset
from dafka.text import counted, escape_unprintable


@attrs.frozen
class Change:
    """A command in the log of metadata.

    Attributes:
        offset: Its offset.
        order: The command, with who ordered it.
        description: What it changes.
        outcome: Whether it has taken effect.
    """

    offset: Offset
    order: Order
    description: str
    outcome: Outcome


RECENT_MAX = 1000
"""How many changes are remembered."""


class RecentChanges:
    """The last changes that one broker has applied, so that they are read again only after a restart.

    All changes from the offset `begin` on are remembered.
    """

    def __init__(self) -> None:
        self.begin = FIRST_OFFSET
        self._changes: deque[Change] = deque()

    def restart(self, offset: Offset) -> None:
        """Forget all changes. The next ones begin at an offset."""
        self.begin, self._changes = offset, deque()

    def apply(self, state: ClusterState, offset: Offset, order: Order) -> Outcome:
        """Apply an order to a state, and remember it."""
        (change,) = apply_orders(state, [(offset, order)])
        self._changes.append(change)
        if len(self._changes) > RECENT_MAX:
            self.begin = Offset(self._changes.popleft().offset + 1)
        return change.outcome

    def put_before(self, changes: Sequence[Change], begin: Offset) -> None:
        """Remember all changes between an offset and the remembered ones, if there is space for them."""
        if len(self._changes) + len(changes) <= RECENT_MAX:
            self._changes.extendleft(reversed(changes))
            self.begin = begin

    def between(self, begin: Offset, end: Offset) -> list[Change]:
        """Return the remembered changes in a range of offsets."""
        return [each for each in self._changes if begin <= each.offset < end]


def apply_orders(state: ClusterState, orders: Iterable[tuple[Offset, Order]]) -> Iterator[Change]:
    """Apply orders to the state before them, and describe each one by the names that it has there."""
    for offset, order in orders:
        description = describe_command(order.command, state)
        yield Change(offset, order, description, state.apply(order))


def describe_command(command: Command, state: ClusterState) -> str:
    """Return what a command changes in a state."""
    describe = _DESCRIPTIONS.get(type(command))
    return command.KIND.replace("-", " ") if describe is None else describe(command, state)


def _broker(state: ClusterState, store_id: str) -> str:
    found = state.brokers.get(store_id)
    return f"broker {store_id}" if found is None else f"broker {found.number}"


def _topic(state: ClusterState, topic_id: str) -> str:
    topic, deletion = state.find_id(topic_id), state.find_deleting(topic_id)
    if topic is not None:
        return f"topic {topic.name}"
    return f"the topic with the id {topic_id}" if deletion is None else f"topic {deletion.topic.name}"


def _create(command: CreateTopic, _: ClusterState) -> str:
    topic = command.topic
    settings = "".join(f", {name}={value}" for name, value in sorted(topic.settings.items()))
    return f"create topic {topic.name}, logs: {topic.log_count}{settings}"


def _drain(command: DrainBroker, state: ClusterState) -> str:
    return f"{'drain' if command.is_draining else 'stop draining'} {_broker(state, command.store_id)}"


def _forget(command: ForgetBroker, state: ClusterState) -> str:
    loss = ", and accept the loss of records" if command.accepts_loss else ""
    return f"forget {_broker(state, command.store_id)}{loss}"


def _alter(command: AlterSettings, state: ClusterState) -> str:
    topic = state.find_id(command.topic_id)
    before = {} if topic is None else topic.settings
    changed = [f"{name}={value}" for name, value in command.settings.items() if before.get(name) != value]
    changed += [f"{name} to its default" for name in before if name not in command.settings]
    return f"set {', '.join(sorted(changed)) or 'nothing new'} for {_topic(state, command.topic_id)}"


def _move(command: ChangeReplicas, state: ClusterState) -> str:
    brokers = ", ".join(_broker(state, each) for each in command.replicas)
    return f"move log {command.log} of {_topic(state, command.topic_id)} to {brokers}: {command.reason.sentence}"


def _recover_log(command: RecoverLog, state: ClusterState) -> str:
    log = f"log {command.log} of {_topic(state, command.topic_id)}"
    return f"continue {log} from {_broker(state, command.store_id)} alone"


def _acls(verb: str, acls: Sequence[Acl]) -> str:
    shown = ", ".join(map(str, acls[:_ACLS_SHOWN])) + (", ..." if len(acls) > _ACLS_SHOWN else "")
    return escape_unprintable(f"{verb} {counted(len(acls), 'ACL')}: {shown}")


def _set_credential(command: SetScramCredential, state: ClusterState) -> str:
    user, mechanism = command.credential.user, command.credential.mechanism
    verb = "change the credential" if mechanism in state.access.find_credentials(user) else "add a credential"
    return f"{verb} of user {user} for {mechanism.sasl_name}"


def _alter_quota(command: AlterClientQuota, _: ClusterState) -> str:
    changed = [f"{name}={limit}" for name, limit in sorted(command.limits.items())]
    changed += [f"no {name}" for name in command.removed]
    entity = ", ".join(f"{each.kind.value} {each.name or 'by default'}" for each in command.entity.parts)
    return escape_unprintable(f"set the quotas {', '.join(changed)} of {entity}")


def _alter_group(command: AlterGroupSettings, _: ClusterState) -> str:
    settings = ", ".join(f"{name}={value}" for name, value in sorted(command.settings.items())) or "defaults"
    return escape_unprintable(f"set the settings of group {command.group_id}: {settings}")


_ACLS_SHOWN = 3
"""How many ACLs of a command its description names."""

_DESCRIPTIONS: dict[type[Command], Callable[[Any, ClusterState], str]] = {
    OpenCluster: lambda _, __: "open the cluster for clients",
    RegisterBroker: lambda command, _: f"register broker {command.number} with the store {command.store_id}",
    DrainBroker: _drain,
    ForgetBroker: _forget,
    SetFeatureLevel: lambda command, _: f"raise the feature level to {command.level}",
    CreateTopic: _create,
    AddLogs: lambda command, state: f"extend {_topic(state, command.topic_id)}, logs: {command.log_count}",
    AlterSettings: _alter,
    ChangeReplicas: _move,
    ReplicasChanged: lambda command, state: f"log {command.log} of {_topic(state, command.topic_id)} has moved",
    RecoverLog: _recover_log,
    DeleteTopic: lambda command, state: f"delete {_topic(state, command.topic_id)}",
    CloseTopic: lambda command, state: f"free the name of {_topic(state, command.topic_id)}",
    CreateAcls: lambda command, _: _acls("create", command.acls),
    DeleteAcls: lambda command, _: _acls("delete", command.acls),
    SetScramCredential: _set_credential,
    DeleteScramCredential: lambda command, _: (
        f"delete the credential of user {command.user} for {command.mechanism.sasl_name}"
    ),
    AlterClientQuota: _alter_quota,
    AlterGroupSettings: _alter_group,
    SnapshotTaken: lambda command, _: f"agree on the state at offset {command.offset}",
}
