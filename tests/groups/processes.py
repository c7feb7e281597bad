"""Simulated processes: a member, its program, its reader, and a clock of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from dafka.protocol.groups import Append, Assign, GroupAction, GroupMember, GroupSettings, GroupView, Revoke
from dafka.protocol.groups.member import Survey
from dafka.protocol.groups.records import READ_BACK_RECORDS
from dafka.records import Partition
from tests.groups.checker import Checker
from tests.groups.world import Store, World

TOPIC = "orders"
LEASE_S = 4.0
HANDOVER_S = 1.0
RETRY_S = 0.25
"""Seconds until a store that has not answered a survey is asked again."""


class OwnLog:
    """The partition that a member publishes."""

    def __init__(self, address: str, process: Process) -> None:
        self.address = address
        self.values: list[bytes] = []
        self.is_open = True
        self._process = process

    @property
    def host(self) -> str:
        return self._process.host

    def acknowledge(self, store: str, end: int) -> None:
        self._process.receive(partial(self._process.acknowledged, self.address, store, end))


class Process:
    """A process, which may freeze, and die once."""

    def __init__(
        self,
        host: str,
        world: World,
        checker: Checker,
        make_member: Callable[..., GroupMember] = GroupMember,
        make_view: Callable[[], GroupView] = GroupView,
    ) -> None:
        self.host = host
        self.is_alive = True
        self.is_frozen = False
        self._world = world
        self._checker = checker
        self._make_member = make_member
        self._rate = world.draw.uniform(0.96, 1.04)
        self._clock_offset = world.draw.uniform(0.0, 1000.0)
        self._waiting: list[Callable[[], None]] = []
        self._lives = 0
        self._read: dict[str, int] = {}
        self._survey = 0
        self._answers: dict[str, dict[str, int]] = {}
        self._timer = 0
        self.view = make_view()
        self.log: OwnLog
        self._handed: dict[Partition, int] = {}
        self._busy = False
        self._pending_commits: list[tuple[GroupMember, int, dict[Partition, int]]] = []
        for store in world.stores:
            store.followers.append(self)
        self._join()
        self._look()

    # Time

    @property
    def now(self) -> float:
        return self._world.now

    @property
    def handover_s(self) -> float:
        return HANDOVER_S * 0.9

    def clock(self) -> float:
        return self._clock_offset + self._world.now * self._rate

    def receive(self, call: Callable[[], None]) -> None:
        """Do something now, or when the process is no longer frozen; never if it is dead."""
        if not self.is_alive:
            return
        if self.is_frozen:
            self._waiting.append(call)
        else:
            call()

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        self._world.later(delay_s / self._rate, lambda: self.receive(call))

    def freeze(self) -> None:
        self.is_frozen = True

    def thaw(self) -> None:
        self.is_frozen = False
        waiting, self._waiting = self._waiting, []
        if self._world.draw.random() < 0.5:
            self._world.draw.shuffle(waiting)
        for call in waiting:
            self.receive(call)

    def die(self) -> None:
        self.is_alive = False
        self.log.is_open = False
        for store in self._world.stores:
            store.followers.remove(self)

    def leave(self) -> None:
        if not self.member.is_over:
            self._carry_out(self.member.leave(self.clock()))
        self.is_alive = False
        for store in self._world.stores:
            store.followers.remove(self)

    # The member

    def _join(self) -> None:
        self._lives += 1
        address = f"{self.host}.{self._lives}"
        settings = GroupSettings(
            topics=(TOPIC,), lease_s=LEASE_S, handover_s=HANDOVER_S, stores=self._world.plan.required
        )
        if self._lives > 1:
            self.log.is_open = False
        self.log = OwnLog(address, self)
        self.member = self._make_member(address, settings, self.view, lambda partition: 0)
        self._survey += 1
        now = self.clock()
        self._carry_out(self.member.start(now))
        self._carry_out(self.member.partitions_known(self._known(), now))

    def _known(self) -> list[Partition]:
        """Return the data partitions that this process has heard of: one of them only later than others."""
        names = list(self._world.ends)
        if not self._world.is_calm and self._world.draw.random() < 0.2:
            names = names[1:]
        return [Partition(TOPIC, name) for name in names]

    def _look(self) -> None:
        """Note what a node notices by and by: stores, partitions."""
        linked = sum(each.is_up and self._world.is_linked(self.host, each.name) for each in self._world.stores)
        self._carry_out(self.member.record_stores(linked, self.clock()))
        self._carry_out(self.member.partitions_known(self._known(), self.clock()))
        if self._world.is_calm and not self._busy:
            self._save()
        self._work()
        self.later(self._world.draw.uniform(0.2, 0.6), self._look)

    def acknowledged(self, address: str, store: str, end: int) -> None:
        if address == self.member.address:
            self._carry_out(self.member.acknowledged({store: end}, self.clock()))

    def _carry_out(self, actions: Sequence[GroupAction]) -> None:
        for action in actions:
            if isinstance(action, Append):
                self._publish(action.value)
            elif isinstance(action, Survey):
                self._begin_survey()
            elif isinstance(action, Assign):
                self._handed[action.partition] = action.sequence
                self._checker.assigned(self, action.partition, action.sequence)
                self.later(0.0, self._work)
            elif isinstance(action, Revoke):
                self._checker.revoked(self, action.partition)
                self.later(0.0, partial(self._revoked, self.member, action.partition))
        self._checker.confirm(self, self._take_confirmed())
        if self.member.is_over and self.is_alive and self.log.address == self.member.address:
            self.later(0.0, partial(self._rejoin, self.member))
        self._set_timer()

    def _publish(self, value: bytes) -> None:
        """Send a record to all stores. Some go out late: stores fetch them when they look."""
        self.log.values.append(value)
        is_late = self._world.draw.random() < 0.05
        first, values = (0, []) if is_late else (len(self.log.values) - 1, [value])
        for store in self._world.stores:
            self._world.send(self.host, store.name, partial(store.receive, self.log, first, values))

    def _rejoin(self, over: GroupMember) -> None:
        if self.member is over:
            self._handed.clear()
            self._join()

    def _revoked(self, member: GroupMember, partition: Partition) -> None:
        if member is self.member:
            self._carry_out(member.handed_out(partition, self._handed.get(partition, 0), self.clock()))

    def _set_timer(self) -> None:
        self._timer += 1
        number, due = self._timer, self.member.deadline()
        if due < float("inf"):
            late_s = self._world.draw.expovariate(1 / 0.005)
            self.later(due - self.clock() + late_s, partial(self._tick, number))

    def _tick(self, number: int) -> None:
        if number == self._timer:
            self._carry_out(self.member.tick(self.clock()))

    # The reader

    def hint(self, store: Store, address: str) -> None:
        """Fetch what a store says that it holds."""
        self.receive(lambda: self._fetch(store, address, len(store.logs.get(address, []))))

    def _fetch(self, store: Store, address: str, end: int) -> None:
        def answer() -> None:
            first = self._read.get(address, max(end - READ_BACK_RECORDS, 0))
            values = store.logs[address][first:]
            self._world.send(store.name, self.host, lambda: self.receive(lambda: self._take(address, first, values)))

        if self._read.get(address, -1) < end:
            self._world.send(self.host, store.name, answer)

    def _take(self, address: str, first: int, values: list[bytes]) -> None:
        read = self._read.get(address, first)
        if first > read:
            return
        new = values[read - first :]
        self._read[address] = read + len(new)
        if new:
            self.view.receive(address, read, new, self.clock())
            self._carry_out(self.member.view_changed(self.clock()))
        self._check_survey()

    def _begin_survey(self) -> None:
        self._survey += 1
        self._answers = {}
        self._ask(self._survey)

    def _ask(self, number: int) -> None:
        if number != self._survey:
            return
        for store in self._world.stores:
            if store.name not in self._answers:
                self._world.send(self.host, store.name, partial(self._answer, store, number))
        for store in self._world.stores:
            for address, end in self._answers.get(store.name, {}).items():
                self._fetch(store, address, end)
        self.later(RETRY_S, partial(self._ask, number))

    def _answer(self, store: Store, number: int) -> None:
        if store.is_up:
            ends = {address: len(values) for address, values in store.logs.items()}
            self._world.send(store.name, self.host, lambda: self.receive(lambda: self._heads(store, number, ends)))

    def _heads(self, store: Store, number: int, ends: dict[str, int]) -> None:
        if number == self._survey:
            self._answers[store.name] = ends
            for address, end in ends.items():
                self._fetch(store, address, end)
            self._check_survey()

    def _check_survey(self) -> None:
        """Tell the member when enough stores have answered, and all that they held has been read."""
        complete = [
            ends
            for ends in self._answers.values()
            if all(self._read.get(address, -1) >= end for address, end in ends.items())
        ]
        if self._answers and len(complete) >= self.member.quorum:
            self._answers = {}
            self._survey += 1
            self._carry_out(self.member.survey_done(len(complete), self.clock()))

    # The program

    def _work(self) -> None:
        """Hand a few records of one partition to the program, if it has nothing to do."""
        if self._busy or not self.is_alive:
            return
        now, ends = self.clock(), self._world.ends
        ready = [
            each
            for each in self.member.held()
            if self.member.may_hand_out(each, now) and self._handed[each] < ends[each.address]
        ]
        if not ready:
            return
        partition = self._world.draw.choice(ready)
        first = self._handed[partition]
        end = min(first + self._world.draw.randint(1, 10), ends[partition.address])
        self._handed[partition] = end
        self._checker.handed_out(self, partition, first, end)
        self._busy = True
        slow = self._world.draw.random() < 0.02 and not self._world.is_calm
        self.later(self._world.draw.uniform(0.0, 3.0 if slow else 0.05), partial(self._handled, partition, end))

    def _handled(self, partition: Partition, end: int) -> None:
        self._busy = False
        self._checker.handled(self, partition, end)
        if self._world.is_calm or self._world.draw.random() < 0.7:
            self._save()
        self._work()

    def _save(self) -> None:
        """Save how far the program has come, as `Consumer.save_positions` does."""
        positions = {each: self._handed[each] for each in self.member.held()}
        self._checker.saving(self, positions)
        actions = self.member.commit(positions, self.clock())
        if not self.member.is_over:
            self._pending_commits.append((self.member, self.member.end_sequence, positions))
        self._carry_out(actions)

    def _take_confirmed(self) -> list[dict[Partition, int]]:
        """Return the positions that are saved for certain now."""
        confirmed = [
            saved
            for member, end, saved in self._pending_commits
            if member is self.member and member.confirmed_end >= end and not member.is_over
        ]
        self._pending_commits = [
            (member, end, saved)
            for member, end, saved in self._pending_commits
            if member is self.member and member.confirmed_end < end
        ]
        return confirmed
