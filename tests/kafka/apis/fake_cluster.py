"""A broker of a cluster that exists only in its tables: handlers of requests see it as they see a running one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import trio

from dafka import Config
from dafka.batches import BatchHeader, decode_run
from dafka.broker.connections.memory import Memory
from dafka.broker.core.cluster_status import MetadataQuorum
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.log import Log
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.log.producer_state import Producer
from dafka.broker.core.metadata.brokers import BrokerRegistration, Brokers
from dafka.broker.core.metadata.cluster_state import ClusterState
from dafka.broker.core.metadata.leader_and_isr import LeaderAndIsr
from dafka.broker.core.metadata.log_replicas import LogReplicas, Reason
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.positions import FIRST_OFFSET, FIRST_SEQUENCE, Offset
from dafka.broker.log.appending import ClientAppender
from dafka.broker.log.durable_waits import DurableWaits
from dafka.broker.log.reader import LogRecords
from dafka.broker.log.waiters import LogWaiters
from dafka.errors import NotLeaderError
from dafka.kafka.apis.produce import begin_produce
from dafka.kafka.apis.shared.registry import HANDLERS, RequestContext
from dafka.kafka.protocol.apis import REQUESTS, RESPONSES
from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.frames import RequestHeader, decode_response, encode_response
from dafka.kafka.protocol.tables import Response
from dafka.kafka.server.kafka_server import KafkaServer
from dafka.records import RecordBatch
from tests.kafka.apis.door import Log as LogName
from tests.kafka.apis.door import build, logs_in, of_logs, plain

OWN, SECOND, THIRD = "b" * 32, "c" * 32, "a" * 32
"""The addresses of the brokers 0, 1 and 2."""

ENDPOINT = ("own.example", 9092)


class FakeBroker:
    """The part of a broker, and of its administration, that handlers use."""

    def __init__(self) -> None:
        self.address = OWN
        self.cluster_id, self.controller_address = "C" * 32, OWN
        self.quorum = MetadataQuorum(OWN, {OWN: True, SECOND: True, THIRD: False})
        self.log_table = LogTable(OWN)
        self.topics, self.logs, self.find_log = self.log_table.topics, self.log_table.logs, self.log_table.find_log
        self.find_topic = self.topics.get
        own = BrokerRegistration(address=OWN, number=0, rack="one", kafka_listener="127.0.0.1:1")
        self.brokers = Brokers(own, 1.0)
        self.has_lease = True
        self.created: list[tuple[Any, ...]] = []
        self.added: list[list[Sequence[str]]] = []
        self.moved: list[tuple[Log, tuple[str, ...]]] = []
        self.deleted: list[tuple[Log, int]] = []
        self.deletion = SimpleNamespace(delete_before=self._delete_before)
        self.appended: Callable[[bool], Awaitable[int]] | None = None
        self.reader = SimpleNamespace(read_joined=self._read, find_offset_by_time=self._find_nothing)
        self.watchers = LogWaiters()
        self.storage = SimpleNamespace(
            problem="",
            waits=DurableWaits(),
            wait_capacity=trio.lowlevel.checkpoint,
            durable_end=lambda _partition: 0,
        )
        self.leases = SimpleNamespace(wait_metadata=trio.lowlevel.checkpoint, holds_lease=self._holds_lease)
        self.replicator = SimpleNamespace()
        self.ordered: dict[Log, LogReplicas] = {}
        self.admin: Any = self
        self.tables = SimpleNamespace(state=ClusterState())

    async def create_topic(
        self,
        name: str,
        log_count: int = 1,
        settings: Mapping[str, str] | None = None,
        replica_count: int = 0,
        *,
        placement: Sequence[Sequence[str]] = (),
        ordered_by: str = "",
    ) -> None:
        self.created.append((name, log_count, replica_count, list(placement)))
        self.log_table.add_topic(Topic(name, f"{len(self.created):032x}", log_count, dict(settings or {})))
        for log, replicas in zip(self.log_table.logs(name), placement, strict=False):
            log.leadership = LeaderAndIsr(replicas[0], replicas=tuple(replicas), is_led=replicas[0] == OWN)

    async def change_topic(
        self, name: str, *, log_count: int, placement: Sequence[Sequence[str]] = (), ordered_by: str = ""
    ) -> None:
        self.added.append(list(placement))
        before = self.topics[name]
        self.log_table.add_topic(Topic(name, before.topic_id, log_count))
        for log in self.log_table.logs(name)[before.log_count :]:
            log.leadership = LeaderAndIsr(OWN, replicas=(OWN, SECOND), is_led=True)

    async def change_replicas(self, log: Log, replicas: Sequence[str], *, ordered_by: str = "") -> None:
        self.moved.append((log, tuple(replicas)))
        present = self.ordered.get(log, LogReplicas(log.leadership.replicas))
        wanted = tuple(replicas) or present.former
        self.ordered[log] = present.order(wanted, present.generation + 1, Reason.ASKED, len(replicas))

    def replica_changes(self) -> dict[Log, LogReplicas]:
        return {log: each for log, each in self.ordered.items() if each.is_changing and not log.is_gone}

    async def _delete_before(self, log: Log, offset: int) -> None:
        self.deleted.append((log, offset))

    def _holds_lease(self, log: Log) -> bool:
        return self.has_lease and log.leadership.is_led

    def next_sequence(self, _log: Log) -> int:
        return 0

    def place(self, log: Log, batches: Sequence[tuple[BatchHeader, bytes]], **_how: Any) -> RecordBatch:
        return decode_run(log.leader_partition, batches)

    def append_placed(self, log: Log, _records: RecordBatch) -> SimpleNamespace:
        async def wait_offset(*, all_replicas: bool = True) -> int:
            assert self.appended is not None
            return await self.appended(all_replicas)

        return SimpleNamespace(log=log, durable=done(), wait_offset=wait_offset)

    async def find_outcome(self, appended: SimpleNamespace, *, all_replicas: bool = True) -> int:
        """Find that records whose log got another leader are not in the log."""
        await trio.lowlevel.checkpoint()
        raise NotLeaderError("another broker leads the log", appended.log.leadership.leader)

    async def _read(self, log: Log, offset: int, end_offset: int, bytes_max: int, **_: object) -> LogRecords:
        await trio.lowlevel.checkpoint()
        return LogRecords(b"%d-%d" % (offset, end_offset), Offset(end_offset))

    async def _find_nothing(self, _log: Log, _time_ms: int) -> None:
        await trio.lowlevel.checkpoint()


class FakeCluster:
    """Three brokers, of which the first one serves the client. The third one has no listener for clients of Kafka.

    Attributes:
        broker: The broker that serves the client.
        listener: Its listener.
        log: The only log of the topic `t`, which the broker leads. It has ten records, of which replicas have eight.
    """

    def __init__(self, broker: FakeBroker | None = None) -> None:
        self.broker = broker or FakeBroker()
        brokers = self.broker.brokers
        brokers.record_registration(
            BrokerRegistration(address=SECOND, number=1, rack="two", kafka_listener="[fd00::1]:9093")
        )
        brokers.record_registration(BrokerRegistration(address=THIRD, number=2))
        self.live(SECOND, THIRD)
        self.broker.log_table.add_topic(Topic("t", "f" * 32))
        found = self.broker.find_log("t", 0)
        assert found is not None
        self.log = found
        self.lead()
        self.log.index.append("native", FIRST_SEQUENCE, 10, is_open=True)
        self.log.high_watermark = Offset(8)
        config, memory = Config(), Memory(2**30)
        node: Any = self.broker
        outcomes: Any = SimpleNamespace(find=self.broker.find_outcome)
        unpacking = memory.make_pool(2**20)
        served = SimpleNamespace(
            node=node,
            config=config,
            memory=memory,
            listeners=[],
            security=SimpleNamespace(users=None),
            appender=ClientAppender(
                node.log_table,
                node.brokers,
                config,
                node.storage,
                node,
                node.watchers,
                outcomes,
                unpacking,
                refuse_transaction,
                lambda: 10**13,
            ),
            reads_of=lambda _source: trio.CapacityLimiter(1),
        )
        self.listener = KafkaServer(cast(Any, served))

    def live(self, *addresses: str) -> None:
        brokers = self.broker.brokers
        for address in (SECOND, THIRD):
            brokers.record_heartbeat(address, 0.0 if address in addresses else -9.0)
        brokers.check_alive(0.5)

    def lead(self, *, epoch: int = 5, replicas: tuple[str, ...] = (OWN, SECOND), **others: Any) -> None:
        others.setdefault("in_sync", replicas)
        self.log.leadership = LeaderAndIsr(OWN, epoch, is_led=True, replicas=replicas, **others)
        self.log.epochs = [(0, FIRST_OFFSET), (epoch, Offset(6))]

    def follow(self, leader: str = SECOND, *, epoch: int = 5, **others: Any) -> None:
        self.log.leadership = LeaderAndIsr(leader, epoch, is_led=False, replicas=(OWN, SECOND), **others)

    def client(self, api: ApiKey, version: int) -> RequestContext:
        header = RequestHeader(api, version, 1, "test")
        return RequestContext(self.listener, header, "192.0.2.1", ENDPOINT, "somebody", self)

    async def ask(self, api: ApiKey, version: int, **values: Any) -> Any:
        context, request = self.client(api, version), cast(Any, build(REQUESTS[api], values))
        response: Response | None
        if api is ApiKey.PRODUCE:
            response = await (await begin_produce(context, request)).wait()
        else:
            response = await HANDLERS[api](context, request)
        assert response is not None
        return plain(decode_response(encode_response(context.header, response)[4:], RESPONSES[api], version))

    async def ask_logs(
        self, api: ApiKey, version: int, logs: Mapping[LogName, dict[str, Any]], **values: Any
    ) -> dict[LogName, dict[str, Any]]:
        """Ask about logs by their topics and numbers, and return what the response says about each; see `of_logs`."""
        return logs_in(api, await self.ask(api, version, **of_logs(api, logs, **values)))

    async def ask_log(self, api: ApiKey, version: int, asked: dict[str, Any], **values: Any) -> dict[str, Any]:
        return (await self.ask_logs(api, version, {("t", 0): asked}, **values))["t", 0]


def refuse_transaction(_log: Log, _transactional_id: str, _producer: Producer) -> ErrorCode:
    return ErrorCode.INVALID_TXN_STATE


def done() -> trio.Event:
    event = trio.Event()
    event.set()
    return event
