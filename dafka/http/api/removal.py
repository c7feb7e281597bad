"""Routes for brokers that are removed or lost: what it means for their logs, forgetting them, and recovering logs."""

from __future__ import annotations

from typing import Annotated

from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.cluster_state import METADATA_TOPIC
from dafka.http.api.brokers import (
    BrokerNumber,
    Replicas,
    describe_leadership,
    find_broker,
    find_number,
    find_numbered_log,
    numbers_of,
    read_log_number,
)
from dafka.http.api.registry import RequiredPermission, Route
from dafka.http.server.documents import Count, Document, doc
from dafka.http.server.messages import Request


class BrokerLog(Document):
    """A log that a broker stores."""

    topic: Annotated[str, doc("The name of the topic.")]
    log: Annotated[Count, doc("The number of the log.")]
    is_led: Annotated[bool, doc("Whether the broker leads it.")]
    others: Annotated[list[BrokerNumber], doc("The living brokers that also store it.")]
    has_quorum: Annotated[
        bool,
        doc("Whether it has a leader and acknowledges records without the broker. If not, its records can be lost."),
    ]


class BrokerLogs(Document):
    """The logs that a broker stores."""

    logs: list[BrokerLog]


class Forgetting(Document):
    """How a broker is forgotten."""

    accept_loss: Annotated[
        bool, doc("Whether to forget it although logs have no quorum without it. Their records can be lost.")
    ] = False
    dry_run: Annotated[bool, doc("Whether only to check that it can be forgotten.")] = False


class Recovery(Document):
    """How a log is recovered."""

    broker: Annotated[BrokerNumber, doc("The broker from which the log continues.")]
    dry_run: Annotated[bool, doc("Whether only to check that the log can be recovered.")] = False


class ForgottenBroker(Document):
    """A broker that was forgotten."""

    number: Annotated[BrokerNumber, doc("The number that it had. Another broker can have it now.")]
    address: Annotated[str, doc("Its node address. Its store never belongs to the cluster again.")]


@Route(
    "GET /brokers/{number}/logs",
    RequiredPermission.ADMINISTRATOR,
    name="listBrokerLogs",
    tag="Cluster",
    errors=("broker_not_found",),
)
async def list_broker_logs(request: Request) -> BrokerLogs:
    """List the logs that a broker stores: what moves if it is drained, and what is lost if it is forgotten."""
    node, found = request.broker.node, find_broker(request)
    return BrokerLogs(
        [
            BrokerLog(each.log.topic, each.log.number, each.is_led, numbers_of(node, each.others), each.has_quorum)
            for each in node.admin.describe_removal(found.address)
        ]
    )


@Route(
    "POST /brokers/{number}/forget",
    RequiredPermission.ADMINISTRATOR,
    name="forgetBroker",
    tag="Cluster",
    errors=("broker_not_found", "controller_unavailable"),
)
async def forget_broker(request: Request, document: Forgetting) -> ForgottenBroker:
    """Forget a broker whose storage is lost.

    Its number is free then, and other brokers replace its replicas. Its store never belongs to the cluster again. The
    request is refused while the broker is alive, or a log has no quorum without it.
    """
    node, found = request.broker.node, find_broker(request)
    await node.admin.forget_broker(
        found.address,
        accepts_loss=document.accept_loss,
        is_dry_run=document.dry_run,
        ordered_by=request.requester,
    )
    return ForgottenBroker(found.number, found.address)


def _find_log(request: Request) -> Log:
    """Return the log that a request names, which can be an internal one, but not that of metadata."""
    topic, number = request.arguments["topic"], read_log_number(request)
    found = None if topic == METADATA_TOPIC else request.broker.node.log_table.find_log(topic, number)
    return find_numbered_log(request) if found is None else found


@Route(
    "POST /topics/{topic}/logs/{log}/recover",
    RequiredPermission.ADMINISTRATOR,
    name="recoverLog",
    tag="Cluster",
    errors=("log_not_found", "broker_not_found"),
    awaits_metadata=True,
)
async def recover_log(request: Request, document: Recovery) -> Replicas:
    """Continue a log with what one broker stores of it, because a quorum of its replicas is lost for good.

    Records that only other brokers have are lost. If all brokers that have stored the log are forgotten, it continues
    without records. The log then gets further replicas again. The request is refused while the log has a quorum. The
    topic can be `$coordinators`, which has the positions of groups and the states of transactions.
    """
    node, log = request.broker.node, _find_log(request)
    found = find_number(node, document.broker)
    await node.admin.recover_log(log, found.address, is_dry_run=document.dry_run, ordered_by=request.requester)
    return Replicas(**describe_leadership(node, log))
