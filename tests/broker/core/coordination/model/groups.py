"""A simulated group: members that come, go, hang and restart, a network that loses, and a broker that crashes.

The members do what Kafka's clients do. The broker keeps only what it wrote before it crashed: a crash can come between
any two actions.
"""

import itertools
import random
from collections.abc import Callable
from typing import Any

from dafka.broker.core.coordination.effects import Action, Answer, WriteState
from dafka.broker.core.coordination.state_records import StateRecord
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.coordinator import CommitRequest, GroupCoordinator, OffsetToCommit
from dafka.broker.core.groups.group import GroupState
from dafka.broker.core.groups.results import JoinRequest, JoinResult, LeavingMember, SyncRequest, SyncResult
from dafka.broker.core.groups.settings import GroupSettings
from dafka.broker.core.topic_partition import TopicPartition
from tests.broker.core.coordination.model.events import Events, ViolationError

GROUP = "crowd"
SESSION_MS = 6_000
REBALANCE_MS = 9_000
REQUEST_TIMEOUT_MS = 15_000
BUSY_MS = 60_000
QUIET_MS = 400_000
"""Longer than a new member may wait, so that every request must have been answered at the end."""

SETTINGS = GroupSettings(group_initial_rebalance_delay_ms=3_000)
LOGS = [TopicPartition("orders", number) for number in range(12)]


def encode_logs(logs: list[TopicPartition]) -> bytes:
    return ",".join(str(log.partition) for log in logs).encode()


def decode_logs(data: bytes) -> list[TopicPartition]:
    return [LOGS[int(number)] for number in data.decode().split(",") if number]


class Client:
    """A member as a client library runs it. `serial` tells its present life from former ones."""

    def __init__(self, world: "GroupWorld", name: str, instance_id: str | None) -> None:
        self.world = world
        self.name = name
        self.instance_id = instance_id
        self.random = world.random
        self.assignor_names = ["range", *self.random.sample(["sticky", "cooperative"], self.random.randint(0, 2))]
        self.random.shuffle(self.assignor_names)
        self.alive = False
        self.serial = 0
        self.start()

    def start(self) -> None:
        self.alive = True
        self.member_id = ""
        self.generation_id = -1
        self.owned: list[TopicPartition] | None = None
        self.join()

    def stop(self) -> None:
        self.alive = False
        self.serial += 1
        self.owned = None

    def request(self, function: Callable[[int], list[Action]], receive: Callable[[Any], None]) -> None:
        """Send a request. Without an answer in time, the client begins again."""
        self.serial += 1
        serial = self.serial

        def lost() -> None:
            if self.serial == serial:
                self.join()

        self.world.send(function, lambda result: receive(result) if self.serial == serial else None)
        self.world.events.call_in(REQUEST_TIMEOUT_MS + REBALANCE_MS, lost)

    def retry(self, step: Callable[[], None]) -> None:
        self.serial += 1
        serial = self.serial
        self.world.events.call_in(self.random.randint(10, 100), lambda: step() if self.serial == serial else None)

    def join(self) -> None:
        self.owned = None
        request = JoinRequest(
            group_id=GROUP,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            client_id=self.name,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            protocol_type="consumer",
            protocols=tuple((name, self.name.encode()) for name in self.assignor_names),
            requires_known_member_id=self.world.requires_known_member_id,
            supports_skipping_assignment=self.name < "c5",
        )
        self.request(lambda token: self.world.broker.join_group(token, request, self.world.now_ms), self.joined)

    def joined(self, result: JoinResult) -> None:
        match result.error_code:
            case ErrorCode.NONE:
                self.member_id, self.generation_id = result.member_id, result.generation_id
                self.world.check_joined(self, result)
                self.sync(result)
            case ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = result.member_id
                self.join()
            case ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = ""
                self.retry(self.join)
            case ErrorCode.REBALANCE_IN_PROGRESS:
                self.retry(self.join)
            case ErrorCode.FENCED_INSTANCE_ID:
                self.world.check_fenced(self)
            case _:
                raise ViolationError(f"{self.name} joins and is answered {result.error_code.name}")

    def sync(self, joined: JoinResult) -> None:
        assignments: dict[str, list[TopicPartition]] = {}
        if joined.leader == self.member_id and not joined.skip_assignment:
            members = sorted(member.member_id for member in joined.members)
            assignments = {member_id: LOGS[at :: len(members)] for at, member_id in enumerate(members)}
        request = SyncRequest(
            group_id=GROUP,
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocol_name=joined.protocol_name,
            assignments=tuple((member_id, encode_logs(logs)) for member_id, logs in assignments.items()),
        )
        self.request(lambda token: self.world.broker.sync_group(token, request, self.world.now_ms), self.synced)

    def synced(self, result: SyncResult) -> None:
        if result.error_code is ErrorCode.NONE:
            self.owned = decode_logs(result.assignment)
            self.world.check_synced(self)
            self.idle()
        else:
            self.handle_error(result.error_code)

    def handle_error(self, error: ErrorCode) -> None:
        if error is ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        elif error is ErrorCode.FENCED_INSTANCE_ID:
            self.world.check_fenced(self)
            return
        elif error not in {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION}:
            raise ViolationError(f"{self.name} is answered {error.name}")
        self.retry(self.join)

    def idle(self) -> None:
        """Wait, and then commit or send a heartbeat."""
        self.serial += 1
        serial = self.serial
        step = self.commit if self.owned and self.random.random() < 0.3 else self.beat
        self.world.events.call_in(SESSION_MS // 4, lambda: step() if self.serial == serial else None)

    def beat(self) -> None:
        world = self.world

        def answered(error: ErrorCode) -> None:
            if error is ErrorCode.NONE:
                self.idle()
            else:
                self.handle_error(error)

        self.request(
            lambda token: [
                Answer(
                    token,
                    world.broker.heartbeat(GROUP, self.generation_id, self.member_id, self.instance_id, world.now_ms),
                )
            ],
            answered,
        )

    def commit(self) -> None:
        assert self.owned
        log, value = self.random.choice(self.owned), next(self.world.values)
        request = CommitRequest(
            group_id=GROUP,
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            offsets={log: OffsetToCommit(value)},
        )

        def noted(errors: dict[TopicPartition, ErrorCode]) -> None:
            if not errors[log]:
                self.world.record_acknowledged(log, value)

        def answered(errors: dict[TopicPartition, ErrorCode]) -> None:
            noted(errors)
            if errors[log]:
                self.handle_error(errors[log])
            else:
                self.idle()

        if self.random.random() < 0.5:
            self.request(lambda token: self.world.commit(token, request), answered)
        else:  # and go on without waiting
            self.world.send(lambda token: self.world.commit(token, request), noted)
            self.idle()

    def leave(self) -> None:
        leaving = (LeavingMember(self.member_id, self.instance_id),)
        if self.member_id:
            self.world.send(
                lambda token: self.world.broker.leave_group(token, GROUP, leaving, self.world.now_ms), lambda _: None
            )
        self.stop()


class GroupWorld:
    """One group, its members, and what must hold.

    Args:
        seed: Determines everything.
        make_coordinator: Makes the coordinator under test.
    """

    def __init__(self, seed: int, make_coordinator: Callable[..., GroupCoordinator] = GroupCoordinator) -> None:
        self.random = random.Random(seed)
        self.make_coordinator = make_coordinator
        self.events = Events()
        self.ids = itertools.count()
        self.values = itertools.count(1)
        self.tokens = itertools.count()
        self.requires_known_member_id = self.random.random() < 0.7
        self.loss = self.random.choice([0, 0.02, 0.1])
        self.slowness = self.random.choice([0, 0.02, 0.2])
        self.crash_rate = self.random.choice([0, 0, 0.05, 0.2])
        self.log: list[StateRecord] = []
        self.waiting: dict[int, tuple[Callable[[Any], None], int]] = {}
        self.accepted: dict[TopicPartition, list[int]] = {log: [] for log in LOGS}
        self.acknowledged: dict[TopicPartition, int] = {}
        self.assigned: dict[int, dict[TopicPartition, str]] = {}
        self.protocols: dict[int, str | None] = {}
        self.rosters: dict[int, set[str]] = {}
        self.broker = self.make_broker()
        self.clients: list[Client] = []

    @property
    def now_ms(self) -> int:
        return self.events.now_ms

    def make_broker(self) -> GroupCoordinator:
        broker = self.make_coordinator(SETTINGS, lambda: str(next(self.ids)))
        for record in self.log:
            broker.restore(record)
        broker.start(self.now_ms)
        return broker

    def send(self, function: Callable[[int], list[Action]], receive: Callable[[Any], None]) -> None:
        """Send a request over a network that may lose it, or its answer."""
        token = next(self.tokens)

        def arrive() -> None:
            if self.random.random() >= self.loss:
                self.waiting[token] = receive, self.now_ms
                self.execute(function(token))

        delay_ms = 12_000 if self.random.random() < self.slowness else 30
        self.events.call_in(self.random.randint(1, delay_ms), arrive)

    def commit(self, token: int, request: CommitRequest) -> list[Action]:
        actions = self.broker.commit_offsets(token, request, self.now_ms)
        current = self.broker.describe_group(GROUP).generation_id
        if any(isinstance(each, WriteState) for each in actions) and request.generation_id != current:
            raise ViolationError(f"a commit of generation {request.generation_id} is accepted in {current}")
        if any(isinstance(each, WriteState) for each in actions):
            for log, committed in request.offsets.items():
                self.accepted[log].append(committed.offset)
        return actions

    def record_acknowledged(self, log: TopicPartition, value: int) -> None:
        self.acknowledged[log] = max(self.acknowledged.get(log, 0), self.accepted[log].index(value))

    def execute(self, actions: list[Action]) -> None:
        crash_at = self.random.randrange(len(actions)) if actions and self.random.random() < self.crash_rate / 3 else -1
        for at, action in enumerate(actions):
            if at == crash_at:
                self.crash()
                return
            if isinstance(action, WriteState):
                self.log += action.records
            elif isinstance(action, Answer):
                self.deliver(action)

    def deliver(self, action: Answer) -> None:
        assert isinstance(action.token, int)
        if action.token not in self.waiting:
            raise ViolationError(f"request {action.token} is answered twice, with {action.result}")
        receive, _ = self.waiting.pop(action.token)
        result = action.result
        if self.random.random() >= self.loss:
            self.events.call_in(self.random.randint(1, 30), lambda: receive(result))

    def advance(self) -> int | None:
        deadline_ms = self.broker.next_deadline_ms()
        if deadline_ms is not None and deadline_ms <= self.now_ms:
            self.execute(self.broker.advance(self.now_ms))
            deadline_ms = self.broker.next_deadline_ms()
            if deadline_ms is not None and deadline_ms <= self.now_ms:
                raise ViolationError("a deadline stays in the past")
        return deadline_ms

    def crash(self) -> None:
        self.waiting.clear()
        if self.random.random() < 0.5:
            self.compact()
        self.broker = self.make_broker()
        self.check_offsets()

    def compact(self) -> None:
        last = {(record.topic, record.key): at for at, record in enumerate(self.log)}
        self.log = [
            record
            for at, record in enumerate(self.log)
            if last[record.topic, record.key] == at and record.value is not None
        ]

    def check_offsets(self) -> None:
        """Check that no acknowledged commit is lost: what is there was accepted then or later."""
        fetched = self.broker.fetch_offsets(GROUP, list(self.acknowledged))
        for log, at in self.acknowledged.items():
            accepted = self.accepted[log]
            if fetched[log].offset not in accepted[at:]:
                raise ViolationError(f"{log}: offset {accepted[at]} was acknowledged; it is {fetched[log].offset}")

    def check_joined(self, client: Client, result: JoinResult) -> None:
        name = self.protocols.setdefault(result.generation_id, result.protocol_name)
        if name != result.protocol_name or name not in client.assignor_names:
            raise ViolationError(f"generation {result.generation_id}: {name} and {result.protocol_name}")
        names = {member.group_instance_id or member.member_id for member in result.members}
        if names and self.rosters.setdefault(result.generation_id, names) != names:
            raise ViolationError(f"generation {result.generation_id} has members {names} and others before")

    def check_synced(self, client: Client) -> None:
        """Check that no two members of a generation own the same log."""
        assert client.owned is not None
        owners = self.assigned.setdefault(client.generation_id, {})
        name = client.instance_id or client.member_id
        for log in client.owned:
            if owners.setdefault(log, name) != name:
                raise ViolationError(f"generation {client.generation_id}: {log} belongs to {owners[log]} and {name}")

    def check_fenced(self, client: Client) -> None:
        """Stop a client that is fenced. Only another one with its name can fence it, and the later one goes on."""
        others = [each for each in self.clients if each.instance_id == client.instance_id and each is not client]
        if client.instance_id is None:
            raise ViolationError(f"{client.name} is fenced by nobody")
        if any(other.alive for other in others):
            client.stop()
        else:  # its own JoinGroup, whose answer it lost
            client.member_id = ""
            client.retry(client.join)

    def change(self) -> None:
        """Let something happen to the crowd."""
        if self.now_ms >= BUSY_MS:
            return
        living = [client for client in self.clients if client.alive]
        number = self.random.random()
        if number < 0.4 and len(living) < 8:
            name = f"c{len(self.clients)}"
            instance_id = f"static-{name}" if self.random.random() < 0.3 else None
            if self.random.random() < 0.1:  # somebody has configured two clients alike
                instance_id = next((client.instance_id for client in living if client.instance_id), None)
            self.clients.append(Client(self, name, instance_id))
        elif number < 0.6 and living:
            self.random.choice(living).leave()
        elif number < 0.75 and living:
            self.random.choice(living).stop()
        elif number < 0.9:
            stopped = [client for client in self.clients if client.instance_id and not client.alive]
            if stopped:
                self.random.choice(stopped).start()
        elif self.random.random() < self.crash_rate * 4:
            self.crash()
        self.events.call_in(self.random.choice([10, 500, 3_000, 8_000]), self.change)

    def run(self) -> int:
        """Play everything; return how many events there were.

        Raises:
            ViolationError: A promise is broken.
        """
        self.change()
        self.events.run_until(BUSY_MS, self.advance)
        self.loss = self.crash_rate = self.slowness = 0
        for client in self.clients:
            if client.alive and self.random.random() < 0.2:
                client.stop()
        self.clients.append(Client(self, "last", None))
        self.events.call_in(QUIET_MS // 2, self.random.choice(self.clients).stop)
        self.clients.append(Client(self, "very last", None))
        self.events.run_until(BUSY_MS + QUIET_MS, self.advance)
        self.check_settled()
        return self.events.count

    def check_settled(self) -> None:
        living = [client for client in self.clients if client.alive]
        group = self.broker.describe_group(GROUP)
        if group.state != GroupState.STABLE.value:
            raise ViolationError(f"the group is {group.state}")
        if {client.member_id for client in living} != {member.member_id for member in group.members}:
            raise ViolationError("the members of the group are not the living ones")
        if {client.generation_id for client in living} != {group.generation_id}:
            raise ViolationError("living members are in different generations")
        owned = sorted(log for client in living for log in client.owned or ())
        if owned != LOGS:
            raise ViolationError(f"{owned} are assigned")
        waiting = [
            token for token, (_, since_ms) in self.waiting.items() if since_ms < self.now_ms - REQUEST_TIMEOUT_MS
        ]
        if waiting:
            raise ViolationError(f"requests {waiting} were never answered")
        self.check_offsets()
