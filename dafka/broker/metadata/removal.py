"""What it means for logs when brokers are removed or lost, and what the controller refuses for that reason."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from dafka.broker.core.cluster_status import find_holders
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.cluster_state import METADATA_TOPIC
from dafka.broker.core.metadata.commands import Command, ForgetBroker, RecoverLog
from dafka.broker.core.metadata.outcome import Outcome
from dafka.broker.core.metadata.topic_settings import availability_of
from dafka.broker.core.partition_address import name_log
from dafka.broker.core.replication.divergence import RULES
from dafka.broker.core.replication.settings import Availability
from dafka.broker.core.tables import BrokerTables
from dafka.text import counted

_NAMED_MAX = 10
"""How many logs a reason names."""


@attrs.frozen
class BrokerLog:
    """A log that a broker stores.

    Attributes:
        log: The log.
        is_led: Whether the broker leads it.
        others: The living brokers that also store it.
        has_quorum: Whether it has a quorum without the broker.
    """

    log: Log
    is_led: bool
    others: tuple[str, ...]
    has_quorum: bool


def list_logs(tables: BrokerTables, store_id: str) -> list[BrokerLog]:
    """Return the logs that a broker stores, without the log of metadata."""
    others = tables.brokers.alive - {store_id}
    found = []
    for log in tables.log_table.all_logs():
        topic, leadership = tables.log_table.topics.get(log.topic), log.leadership
        if topic is None or store_id not in leadership.replicas or log.topic == METADATA_TOPIC:
            continue
        rule, voters = RULES[Availability(availability_of(topic))], leadership.voters
        has_quorum = store_id not in voters or rule.can_elect(voters, others)
        kept = tuple(each for each in leadership.replicas if each in others)
        found.append(BrokerLog(log, leadership.leader == store_id, kept, has_quorum))
    return found


def find_obstacle(tables: BrokerTables, command: Command) -> Outcome | None:
    """Return why a command cannot take effect now, as the controller sees the brokers; None if it can."""
    reason = ""
    if isinstance(command, ForgetBroker):
        reason = _refuse_forgetting(tables, command)
    elif isinstance(command, RecoverLog):
        reason = _refuse_recovery(tables, command)
    return (
        Outcome(ErrorCode.INVALID_REQUEST, reason) if reason else tables.state.members.find_level_obstacle(command.KIND)
    )


def _refuse_forgetting(tables: BrokerTables, command: ForgetBroker) -> str:
    known = tables.state.brokers.get(command.store_id)
    if known is None:
        return ""  # the state has the answer
    if tables.brokers.is_alive(command.store_id):
        return f"broker {known.number} is alive: drain it, and stop it before it is forgotten"
    stuck = [each.log for each in list_logs(tables, command.store_id) if not each.has_quorum]
    if not stuck or command.accepts_loss:
        return ""
    return (
        f"without broker {known.number}, {counted(len(stuck), 'log')} would have no quorum, so that records can be "
        f"lost: {_name_logs(stuck)}; it is forgotten nevertheless if you accept the loss"
    )


def _refuse_recovery(tables: BrokerTables, command: RecoverLog) -> str:
    known = tables.state.brokers.get(command.store_id)
    topic = tables.state.find_topic_of(command.topic_id, command.log)
    if known is None or topic is None:
        return ""  # the state has the answer
    name, log = f"log {command.log} of {topic.name}", tables.logs.find(name_log(topic.topic_id, command.log))
    if log is None:
        return f"{name} is not replicated, or not read yet"
    if RULES[log.replica.availability].can_elect(log.replica.newest.voters, tables.brokers.alive):
        return f"{name} has a quorum, so it continues without a recovery"
    if not tables.brokers.is_alive(command.store_id):
        return f"broker {known.number} is not alive: start it first"
    state = tables.log_table.find_log(topic.name, command.log, topic.topic_id)
    holders = [] if state is None else find_holders(state, tables)
    if holders and known not in holders:
        numbers = ", ".join(str(each) for each in sorted(each.number for each in holders))
        return f"broker {known.number} has never stored {name}, but {numbers}"
    return ""


def _name_logs(logs: Sequence[Log]) -> str:
    named = ", ".join(f"{each.topic}/{each.number}" for each in logs[:_NAMED_MAX])
    return named if len(logs) <= _NAMED_MAX else f"{named}, and {len(logs) - _NAMED_MAX} others"
