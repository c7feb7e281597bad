"""What has happened to one log, as somebody knows who sees all brokers; it checks each promise and steers nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dafka.broker.core.replication.epoch_tree import EpochTree
from dafka.broker.core.replication.records import NO_EPOCH_END, EpochEnd, EpochStart, LeaderAndEpoch
from dafka.broker.core.replication.settings import Availability
from tests.broker.core.entries import epoch_end

if TYPE_CHECKING:
    from tests.broker.core.replication.brokers import KeptLog
    from tests.broker.core.replication.read_log import Indexed, ReadLog
    from tests.broker.core.replication.transactions import Transactions


class Violation(AssertionError):  # noqa: N818 (the name in all simulations)
    """A promise is broken."""


class History:
    """One log, with its first replicas."""

    def __init__(
        self, log: str, replicas: tuple[str, ...], availability: Availability, transactions: Transactions
    ) -> None:
        self.log = log
        self.replicas = replicas
        self.availability = availability
        first = LeaderAndEpoch(0, replicas[0])
        # All rows that are durable at their leaders, and since when.
        self.epoch_tree = EpochTree([EpochStart(log, first, NO_EPOCH_END, replicas)])
        self.begun_at: dict[LeaderAndEpoch, float] = {}
        self.committed = epoch_end(first, 0)  # how far any broker has let readers read (majority)
        self.acknowledged: set[str] = set()  # the records that clients were told are durable
        self.transactions = transactions
        self._contents: dict[LeaderAndEpoch, list[Indexed]] = {}
        self._stable: dict[tuple[LeaderAndEpoch, bool], int] = {}
        self._leaders: dict[int, str] = {0: replicas[0]}

    def check_row(self, row: EpochStart, now: float) -> None:
        """Check a branch that begins: it is the only one of its epoch, and continues all that was committed."""
        leader = self._leaders.setdefault(row.leader_epoch.epoch, row.leader_epoch.leader)
        if leader != row.leader_epoch.leader:
            raise Violation(f"{leader} and {row.leader_epoch.leader} lead in the epoch {row.leader_epoch.epoch}")
        if self.epoch_tree.starts.setdefault(row.leader_epoch, row) != row:
            raise Violation(f"the branch {row.leader_epoch} has begun twice")
        self.begun_at[row.leader_epoch] = now
        # A late one never leads: most replicas have promised to follow another one.
        is_late = row.leader_epoch < self.committed.leader_epoch
        if (
            self.availability is Availability.MAJORITY
            and not is_late
            and not self._continues(row.parent, self.committed)
        ):
            raise Violation(f"{row} lacks what was committed up to {self.committed}")

    def _continues(self, tip: EpochEnd, earlier: EpochEnd) -> bool:
        fork = self.epoch_tree.common_end(tip, earlier)
        # The end of a branch is the same place as the beginning of the next one.
        return fork is not None and fork.end_offset >= earlier.end_offset

    def check_stored(self, branch: LeaderAndEpoch, place: int, ids: list[Indexed]) -> None:
        """Check records that become durable: in a branch, each offset has one record."""
        found = self._contents.setdefault(branch, [])
        shared = found[place : place + len(ids)]
        if place > len(found) or shared != ids[: len(shared)]:
            raise Violation(f"records of the branch {branch} have changed at {place}")
        found.extend(ids[len(shared) :])

    def check_readable(self, kept: KeptLog, offset: int) -> None:
        """Check that readers never see another record at an offset, and that two sides never both commit (majority)."""
        tip = kept.replica.local_epochs.log_end()
        if offset > tip.end_offset:
            raise Violation(f"{kept.broker.name} lets readers read up to {offset}, and holds {tip}")
        if self.availability is not Availability.MAJORITY:
            return
        if kept.readable > offset:
            raise Violation(f"{kept.broker.name} lets readers read up to {offset}, after {kept.readable}")
        kept.readable = offset
        chain = self.epoch_tree.chain(tip)
        assert chain is not None
        place = next(each for each in chain if self.epoch_tree.starts[each.leader_epoch].parent.end_offset <= offset)
        end = epoch_end(place.leader_epoch, offset)
        if not all(map(kept.holds, [end, *(each for each in chain if each.leader_epoch < place.leader_epoch)])):
            raise Violation(f"{kept.broker.name} lets readers read what it does not hold")
        if self._continues(end, self.committed):
            self.committed = end
        elif not self._continues(self.committed, end):
            raise Violation(f"{kept.broker.name} commits {end}, and {self.committed} was committed")
        for row in self.epoch_tree.starts.values():
            if row.leader_epoch > end.leader_epoch and not self._continues(row.parent, end):
                raise Violation(f"{kept.broker.name} commits {end}, and {row} has begun without it")

    def check_committed(self, kept: KeptLog, read: ReadLog, *, from_offset: int, is_leader: bool) -> None:
        """Check what readers of committed records see at a broker.

        They see all records of no transaction or of committed ones, and none of aborted ones. The last stable offset
        never goes back, also where another broker has begun to lead.
        """
        stable, broker = read.state.last_stable_offset, kept.broker.name
        if stable < kept.stable:
            raise Violation(f"the last stable offset at {broker} goes back from {kept.stable} to {stable}")
        kept.stable = stable
        # A follower may hear sooner than its leader that enough replicas hold something.
        place = (read.leader_epoch, is_leader)
        before = max(
            (each for shown, each in self._stable.items() if shown[0] < read.leader_epoch or shown == place), default=0
        )
        if is_leader and stable < before:
            raise Violation(f"the last stable offset of the leader {broker} is {stable}, after {before}")
        self._stable[place] = max(stable, self._stable.get(place, 0))
        records = kept.records()
        for offset, is_visible in read.visible(records, from_offset):
            number = records[offset].transaction
            decision = True if number is None else self.transactions.decisions.get(number)
            if decision is None:
                raise Violation(f"{broker} has the last stable offset {stable}, and {number} is undecided")
            if is_visible != decision:
                kind = "a committed record is not visible" if decision else "an aborted record is visible"
                raise Violation(f"{kind} at the offset {offset} of {broker}")

    def check_lease(self, branch: LeaderAndEpoch, broker: str) -> None:
        if self.committed.leader_epoch > branch:
            raise Violation(f"{broker} holds a lease of {branch}, and {self.committed} was committed")

    def check_table(self, broker: str, table: EpochTree, rows: set[LeaderAndEpoch]) -> None:
        for branch in rows:
            if table.starts.get(branch) != self.epoch_tree.starts[branch]:
                raise Violation(f"{broker} does not know the row of {branch} in time")

    def check_end(self, kept_logs: list[KeptLog], wanted: int) -> None:
        """Check the log after everything has healed: who leads it, who keeps it, and that nothing is missing."""
        leaders = [each for each in kept_logs if each.led is not None and each.replica.may_append]
        if len(leaders) != 1:
            raise Violation(f"{len(leaders)} brokers lead {self.log} at the end")
        [leader] = leaders
        self._check_replicas(leader, kept_logs, wanted)
        log = leader.records()
        if len(set(log)) != len(log):
            raise Violation("a record is in the log twice")
        missing = self.acknowledged.difference(log)
        if missing:
            raise Violation(f"{len(missing)} acknowledged records are lost, such as {min(missing)}")
        known = set(log)
        for each in kept_logs:
            for branch, (_, ids) in each.branches.items():
                if not known.issuperset(each for each in ids if each.transaction is None):
                    raise Violation(f"records of the branch {branch} are lost")
        self._check_order(log)
        self._check_transactions(leader, kept_logs)

    def _check_transactions(self, leader: KeptLog, kept_logs: list[KeptLog]) -> None:
        if not self.transactions.is_quiet:
            raise Violation("a transaction has not ended at the end")
        for each in kept_logs if leader.world.has_transactions else ():
            is_kept = each.broker.name in leader.replica.replicas
            if is_kept and each.check_committed(is_whole=True) != len(leader.records()):
                raise Violation(f"the last stable offset at {each.broker.name} is not the end of the log")

    def _check_replicas(self, leader: KeptLog, kept_logs: list[KeptLog], wanted: int) -> None:
        replicas = leader.replica.replicas
        if any(each.replica.replicas != replicas or each.replica.leader != leader.broker.name for each in kept_logs):
            raise Violation(f"brokers differ in who keeps or leads {self.log}")
        if leader.world.balances and len(replicas) != wanted:
            raise Violation(f"{self.log} has the replicas {replicas} at the end, and {wanted} are wanted")
        log = leader.records()
        for each in kept_logs:
            if each.broker.name in replicas and each.records() != log:
                raise Violation(f"the replicas {leader.broker.name} and {each.broker.name} differ at the end")
            if each.broker.name in replicas and each.replica.high_watermark != len(log):
                raise Violation(f"readers at {each.broker.name} may not read to the end")
        if set(leader.replica.in_sync()) != set(replicas):
            raise Violation(f"not all replicas of {self.log} are in sync at the end")

    @staticmethod
    def _check_order(log: list[Indexed]) -> None:
        last: dict[str, int] = {}
        for record in log:
            producer, number = record.split(":")
            if last.get(producer, -1) >= int(number):
                raise Violation(f"records of the producer {producer} have changed their order")
            last[producer] = int(number)
