"""What one broker decides about its logs, each decision against its rule, in all cases; everything around is faked."""

from __future__ import annotations

import time
from functools import partial
from itertools import product
from random import Random
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from dafka.broker.core.metadata.brokers import BROKERS_TOPIC, BrokerRegistration, Brokers, decode_broker
from dafka.broker.core.metadata.leader_and_isr import LeaderAndIsr
from dafka.broker.core.metadata.store_check import StoreClaim
from dafka.broker.core.metadata.wall_clocks import DIFFERENCE_MS_MAX
from dafka.broker.core.partition_address import INDEX_TOPIC
from dafka.broker.core.positions import Offset, RecordSequence
from dafka.broker.core.replication.checkpoints import CHECKPOINTS_TOPIC, Checkpoint, encode_checkpoint
from dafka.broker.core.replication.epoch_tree import EpochTree
from dafka.broker.core.replication.leader_lease import ROUNDS_MAX
from dafka.broker.core.replication.records import BRANCHES_TOPIC, NO_EPOCH_END, EpochStart, LeaderAndEpoch
from dafka.broker.core.replication.settings import Availability
from dafka.broker.core.rounds import Round, RoundKind, RoundReply, read_round
from dafka.broker.replication import leases as leases_module
from dafka.broker.replication.checkpoints import Checkpoints
from dafka.broker.replication.leader import IN_SYNC_S, LedLogs
from dafka.broker.replication.leases import LeaderLeases
from dafka.broker.replication.membership import Membership
from dafka.broker.replication.pending_logs import READ_AGAIN_S, PendingLogs
from dafka.config.settings import BrokerConfig
from dafka.records import Partition
from dafka.storage import PartitionInfo
from tests.broker.core.entries import epoch_end
from tests.seeds import each_seed

CONFIG = BrokerConfig(leader_timeout_ms=1000, heartbeat_ms=250)
LEASE_S = 0.75
TIME_MS = 1_700_000_000_000
HERE, INDEX = Partition("orders", "p"), Partition(INDEX_TOPIC, "a/1D/0/5")


@attrs.define(eq=False)
class ReplicatedLog:
    """A log with a replica, as a key."""

    replica: Any
    name: str = "1D/0"
    topic: str = "orders"
    topic_id: str = "1D"
    number: int = 0


class Leases:
    """The lease rounds of the broker `a`, which has the replicas `b` and `c`."""

    def __init__(self) -> None:
        self.brokers = Brokers(BrokerRegistration(address="a"), 1.0)
        for each in "bc":
            self.brokers.record_registration(BrokerRegistration(address=each))
            self.brokers.record_heartbeat(each, trio.current_time())
        self.brokers.check_alive(trio.current_time())
        replica = SimpleNamespace(heard_since=lambda heard_since: heard_since("b"))
        self.state = SimpleNamespace(applied=7, forgotten_ids=set())
        self.sent: list[Any] = []
        self.storage = SimpleNamespace(
            can_write=True, durable_end=lambda partition: self.ends[partition], ends=lambda _topic: {}
        )
        self.ends: dict[Partition, int] = {Partition(BRANCHES_TOPIC, "a"): 3}
        self.untrusted: set[tuple[str, str]] = set()
        self.control = SimpleNamespace(is_durable=True)
        self.identity: Any = SimpleNamespace(
            claim=StoreClaim(("s",)),
            is_trusted=lambda broker, start: (broker, start) not in self.untrusted,
            make_round=lambda _number, can_write: ("round", can_write) if self.identity.claim else None,
        )
        parts: dict[str, Any] = {
            "tables": SimpleNamespace(
                brokers=self.brokers,
                state=self.state,
                log_table=SimpleNamespace(topics={"orders": SimpleNamespace(topic_id="1D")}),
                logs=SimpleNamespace(find=lambda _name: SimpleNamespace(replica=replica)),
            ),
            "storage": self.storage,
            "mesh": SimpleNamespace(address="a", publish=self.sent.extend),
        }
        parts |= {"identity": self.identity, "control": self.control}
        self.leases = LeaderLeases(config=CONFIG, **parts)
        self.log: Any = SimpleNamespace(topic="orders", number=0, leadership=LeaderAndIsr("a", is_led=True))

    def answer(
        self, *brokers: str, ago: int = 0, control_end: int = 0, applied: int = 0, times_ms: tuple[int, ...] = (0, 0)
    ) -> None:
        number = self.leases._rounds._next - 1 - ago
        replies = [RoundReply(number, control_end, applied, each, "s") for each in times_ms]
        self.leases.process_rounds({}, zip(brokers, replies, strict=False))


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases_module, "_slept_s", lambda: 0.0)
    monkeypatch.setattr(leases_module, "now_ms", lambda: TIME_MS)


async def test_time_passes_for_leases_while_the_machine_sleeps(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = {time.CLOCK_BOOTTIME: 1030.0, time.CLOCK_MONOTONIC: 1000.0}
    for platform, slept_s in (("linux", 30.0), ("darwin", 0.0)):
        with monkeypatch.context() as patched:
            patched.setattr(leases_module, "sys", SimpleNamespace(platform=platform))
            patched.setattr(time, "clock_gettime", clocks.__getitem__)
            assert leases_module.lease_time() == trio.current_time() + slept_s


async def test_a_round_asks_all_others_and_tells_whether_this_broker_can_write(
    steady: None, autojump_clock: MockClock
) -> None:
    heartbeat: list[Any] = ["heartbeat"]
    for is_alone, can_write, has_claim, beats in product((True, False), repeat=4):
        world = Leases()
        world.storage.can_write, world.identity.claim = can_write, StoreClaim(("s",)) if has_claim else None
        if is_alone:
            world.brokers._known.clear()
        world.leases.begin_round(heartbeat if beats else ())
        asked = [("round", can_write)] if has_claim and not is_alone else []
        assert world.sent == [*heartbeat * beats, *asked]
    world = Leases()
    world.leases.begin_round()
    world.answer("b")
    assert world.leases.holds_lease(world.log)
    world.storage.can_write = False
    world.leases.begin_round()
    assert not world.leases.holds_lease(world.log), "others can elect another leader as soon as they hear it"


async def test_an_answer_counts_from_the_start_of_its_round_if_its_broker_is_trusted(
    steady: None, autojump_clock: MockClock
) -> None:
    either = (True, False)
    for is_forgotten, is_trusted, ago, known_end, is_led, is_known_before, is_restored in product(
        either, either, (0, 1, ROUNDS_MAX), (0, 2), either, either, either
    ):
        world, begun = Leases(), trio.current_time()
        world.log.leadership = LeaderAndIsr("a", is_led=is_led)
        learned = [(BROKERS_TOPIC, 9), (BRANCHES_TOPIC, known_end)]
        if is_restored:
            world.storage.ends = {BRANCHES_TOPIC: {Partition(BRANCHES_TOPIC, "b"): known_end}}.__getitem__
            world.leases.start()
            del learned[1]
        world.state.forgotten_ids = {"b"} if is_forgotten else set()
        world.untrusted = set() if is_trusted else {("b", "s")}
        for _ in range(ago + 1):
            world.leases.begin_round()
            await trio.sleep(0.25 if ago < 2 else 0)
        for is_before in (True, False):
            for topic, learned_end in learned if is_before == is_known_before else ():
                world.leases.record_learned(Partition(topic, "b"), learned_end)
            if is_before:
                world.answer("b", ago=ago, control_end=2)
        counts = is_led and not is_forgotten and is_trusted and ago < ROUNDS_MAX and known_end == 2
        end = begun + LEASE_S if counts else trio.current_time()
        for _ in range(5):
            assert world.leases.holds_lease(world.log) == (trio.current_time() < end)
            await trio.sleep(0.125)


async def test_a_round_is_answered_by_a_broker_with_an_accepted_store_and_no_vote_on_its_way(
    steady: None, autojump_clock: MockClock
) -> None:
    either = (True, False)
    for has_claim, is_durable, is_alive, can_write, can_elect, kind in product(
        either, either, either, either, either, (RoundKind.WRITABLE, RoundKind.UNWRITABLE)
    ):
        world = Leases()
        world.identity.claim = StoreClaim(("s",)) if has_claim else None
        world.control.is_durable = is_durable
        world.brokers.record_storage("b", can_write=can_write)
        world.brokers.record_storage("c", can_write=can_elect)
        if not is_alive:
            world.brokers._heard.clear()
        world.brokers.check_alive(trio.current_time())
        world.leases.process_rounds({"b": Round(9, kind, StoreClaim(("t",)))}, [])
        is_followed = is_alive and can_write and (kind is RoundKind.WRITABLE or not can_elect)
        replies = [read_round(each) for each in world.sent]
        is_answered = has_claim and is_durable and is_followed
        assert replies == [RoundReply(9, 3, 7, TIME_MS, "s")] * is_answered
        world.brokers.check_alive(trio.current_time())
        assert world.brokers.is_alive("b"), "it was heard"
        assert ("b" in world.brokers.unwritable) == (kind is RoundKind.UNWRITABLE)


async def test_who_waits_for_a_lease_goes_on_as_soon_as_it_is_held_or_the_log_is_not_led(
    steady: None, autojump_clock: MockClock
) -> None:
    for end in ("answered", "learned", "another leads"):
        world, done = Leases(), trio.Event()
        world.leases.begin_round()

        async def wait(world: Leases = world, done: trio.Event = done) -> None:
            await world.leases.wait_lease(world.log)
            done.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            for _ in range(2):
                world.leases.begin_round()
                await trio.testing.wait_all_tasks_blocked()
                assert not done.is_set()
            if end == "another leads":
                world.log.leadership = LeaderAndIsr("b", is_led=False)
                world.leases.begin_round()
            else:
                reply = RoundReply(world.leases._rounds._next - 1, 0 if end == "answered" else 2, 7, 0, "s")
                late = attrs.evolve(reply, number=0)
                world.leases.process_rounds({}, [("b", reply), ("c", late)])
                world.leases.record_learned(Partition(BRANCHES_TOPIC, "b"), 2)
            await trio.testing.wait_all_tasks_blocked()
            assert done.is_set()


async def test_the_time_of_a_broker_is_checked_against_those_of_the_others(
    steady: None, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limit, hour = DIFFERENCE_MS_MAX, 3_600_000

    def time_ms(ahead_ms: int) -> int:
        return round(trio.current_time() * 1000) + ahead_ms

    def set_clock(ahead_ms: int) -> None:
        monkeypatch.setattr(leases_module, "now_ms", partial(time_ms, ahead_ms))

    for own, *others in product((0, hour), (None, 0, limit, limit + 1, hour + 2), (None, 0, hour + 4)):
        assert own is not None
        world = Leases()
        set_clock(own)
        world.leases.begin_round()
        for name, each in zip("bc", others, strict=True):
            if each is not None:
                world.answer(name, times_ms=(time_ms(each),))
        await trio.sleep(3)
        differences = sorted(each - own for each in others if each is not None)
        far = [each for each in differences if abs(each) > limit]
        assert world.leases.is_clock_right() == (len(differences) > len(far))
        is_odd = 2 * len(far) > 1 + len(differences)
        assert world.leases.time_ms() == time_ms(own + (differences[0] if is_odd else 0))
        for count in range(1, 3):
            for _ in range(2):
                world.leases.begin_round()
            assert caplog.text.count("the clock of this broker") == count * (len(far) == 2), "again if it was right"
            set_clock(others[0] or 0)
            world.leases.begin_round()
            set_clock(own)
        caplog.clear()


async def test_metadata_is_waited_for_until_as_much_is_applied_as_by_each_living_broker(
    steady: None, autojump_clock: MockClock
) -> None:
    for applied_there, applied_here, is_heard, is_alive in product((6, 7, 8), (7, 8), (True, False), (True, False)):
        world, begun = Leases(), trio.current_time()
        if not is_alive:
            world.brokers.check_alive(begun + 10)
        world.leases.begin_round()
        world.answer("c")
        if is_heard:
            world.answer("b", applied=applied_there)
        world.state.applied = applied_here
        await world.leases.wait_metadata()
        has_applied = is_heard and applied_here >= applied_there
        assert trio.current_time() - begun == (0 if has_applied or not is_alive else 2)


def test_checkpoints_are_taken_that_the_storage_meets() -> None:
    """What was forgotten before the start is an older copy; partitions that are not stored are as they should be."""
    for index_end, end, is_stored, has_records, is_malformed in product(
        (4, 5, 6), (2, 3, 4), (True, False), (True, False), (True, False)
    ):
        written: list[Any] = []
        ends = {INDEX: 5, HERE: 3}
        fake: Any = SimpleNamespace(
            write_state=lambda *change, written=written: written.append(change), durable_end=ends.__getitem__
        )
        checkpoints = Checkpoints(fake, fake)
        found = Checkpoint(RecordSequence(index_end), Offset(9), Offset(0), Offset(0), None, {"p": end})
        value = b"{" if is_malformed else encode_checkpoint(found)
        stored = {each: PartitionInfo(0, ends[each]) for each in ends if (is_stored if each is INDEX else has_records)}
        key = INDEX.address.encode()
        problem = checkpoints.load({key: value}, stored, lambda _: "orders")
        is_usable = is_stored and not is_malformed
        assert bool(problem) == (is_usable and (index_end > 5 or (has_records and end > 3)))
        assert written == ([] if is_stored else [(CHECKPOINTS_TOPIC, [(key, None)])])
        for is_first in (True, False):
            is_taken = is_usable and is_first and index_end <= 5 and end <= 3
            assert checkpoints.take("orders", [INDEX]) == ({INDEX: found} if is_taken else {})
    ends[HERE] = 2
    checkpoints.load({key: encode_checkpoint(found)}, stored, lambda _: "")
    assert checkpoints.take("orders", [INDEX]) == {}, "it has lost records since"


@each_seed(100)
def test_each_log_that_waits_is_taken_once_and_failed_ones_again(seed: int) -> None:
    async def run() -> None:
        draw, pending = Random(seed), PendingLogs[int]()
        waiting, failed, has_put = dict[int, None](), dict[int, None](), False
        for _ in range(40):
            log = draw.randrange(4)
            match draw.choice(["put", "fail", "discard", "take"]):
                case "put":
                    pending.put(log)
                    waiting[log], has_put = None, True
                case "fail":
                    pending.put_failed(log)
                    failed[log] = None
                case "discard":
                    pending.discard(log)
                    for each in (waiting, failed):
                        each.pop(log, None)
                case "take" if waiting or failed:
                    begun = trio.current_time()
                    assert sorted(await pending.take()) == sorted(waiting | failed)
                    assert trio.current_time() - begun == (0 if has_put else READ_AGAIN_S)
                    waiting, failed, has_put = {}, {}, False
            assert list(pending) == list(waiting)

    trio.run(run, clock=MockClock(autojump_threshold=0))


def test_clients_see_a_leader_that_may_serve_and_hears_most_voters() -> None:
    names = "abcd"
    either = (True, False)
    for size, heard, availability, has_begun, is_committed, may_serve, has_led, is_active, has_racks, leader in product(
        (1, 2, 3, 4), range(1, 5), Availability, either, either, either, either, either, either, "ab"
    ):
        if has_led and leader == "b":
            continue
        brokers = Brokers(BrokerRegistration(address="a", rack="r"), 1.0)
        for each in names:
            brokers.record_registration(BrokerRegistration(address=each))
            if each in names[:heard]:
                brokers.record_heartbeat(each, 0.0)
        brokers.record_storage("b", can_write=False)
        brokers.check_alive(0.1)
        unwritable = frozenset("b" if heard > 1 else "")
        voters, epoch = tuple(names[:size]), LeaderAndEpoch(5, leader)
        start = EpochStart("1D/0", epoch, epoch_end(LeaderAndEpoch(3, "c"), 4), (*voters, "new"), ("new",))
        side = EpochStart("1D/0", LeaderAndEpoch(4, "c"), epoch_end(LeaderAndEpoch(3, "c"), 2), voters)
        late = EpochStart("1D/0", LeaderAndEpoch(6, "d"), epoch_end(epoch, 20), voters)
        tree = EpochTree([EpochStart("1D/0", LeaderAndEpoch(3, "c"), NO_EPOCH_END, voters), side, start])
        replica = SimpleNamespace(
            latest=start,
            led_epoch=epoch if has_led else None,
            high_watermark=8 if is_committed else 7,
            shared_end=6,
            may_serve=lambda found, may_serve=may_serve, unwritable=unwritable: may_serve and found == unwritable,
            leader=leader,
            is_quorum_active=is_active,
            replicas=voters[::-1],
            preference=SimpleNamespace(rank=lambda replicas: replicas[::-1]),
            availability=availability,
            epoch_tree=tree,
            in_sync=lambda within_s: ("a", "new") if within_s == IN_SYNC_S else (),
        )
        log: Any = ReplicatedLog(replica)
        state = SimpleNamespace(
            topic="orders",
            number=0,
            leadership=LeaderAndIsr("", is_led=False),
            high_watermark=0,
            can_diverge=availability is Availability.BRANCH,
            shared_offset=0,
            drop_shared_batches=lambda: None,
            divergences={},
        )
        tables: Any = SimpleNamespace(
            log_table=SimpleNamespace(find_log=lambda *_, state=state: state, leads=lambda _, it=has_begun: it),
            brokers=brokers,
            logs=SimpleNamespace(observed_topics=()),
        )
        fake: Any = SimpleNamespace(notify=lambda _log: None)
        led_logs = LedLogs(tables, fake, fake, fake, fake, lambda _: None)
        led_logs._ready_from["1D/0"], led_logs._has_racks = 8, has_racks
        if has_racks:  # and it was read here for clients before
            led_logs._followed["1D/0"] = epoch
        led_logs.refresh(log)
        is_quorum = availability is Availability.BRANCH or 2 * min(size, heard) > size
        is_led = has_begun and has_led and is_committed and may_serve and is_quorum
        is_known = is_led or (leader == "b" and heard > 1)
        assert (state.leadership.is_led, state.leadership.leader) == (is_led, leader if is_known else "")
        assert (state.leadership.in_sync, state.leadership.learners) == (("a",), ("new",))
        assert state.leadership.presumed_leader == ("" if is_known or is_active else leader)
        assert list(led_logs.divergent._to_merge) == [log] * is_led
        can_split = state.can_diverge and (is_led or has_racks)
        assert state.divergences == ({4: (3, 2)} if can_split else {})
        for known, found in (({}, {}), ({late}, {4: (3, 2), 6: (5, 20)})):
            state.divergences = {}
            for row in known:
                tree.add(row)
            led_logs.refresh(log)
            assert state.divergences == (found if can_split else {}), "they are found again if there is another epoch"
        assert (state.leadership.is_follower_readable, state.high_watermark) == (has_racks, 8 if is_led else 0)
        assert list(led_logs._to_follow) == ["1D/0"] * (not has_led and not has_racks)
        assert state.shared_offset == (6 if is_led and state.can_diverge else 0)


@pytest.mark.parametrize("is_running", [True, False])
async def test_only_brokers_that_were_known_before_the_start_are_expected_to_live(is_running: bool) -> None:
    """What the cluster has decided of a broker counts, and not what the broker says."""
    brokers = Brokers(BrokerRegistration(address="a"), 1.0)
    brokers.record_registration(BrokerRegistration(address="former"))
    registered = {each: SimpleNamespace(store_id=each, number=n, is_draining=n < 2) for n, each in enumerate("abc")}
    state = SimpleNamespace(brokers=registered, forgotten_ids={"former"})
    renumbered, written = list[int](), list[BrokerRegistration]()
    tables: Any = SimpleNamespace(brokers=brokers, state=state, logs=SimpleNamespace(renumber=renumbered.append))
    fake: Any = SimpleNamespace(
        write_state=lambda topic, rows: written.extend(decode_broker(key.decode(), value) for key, value in rows)
    )
    membership = Membership(tables, fake, fake, fake, CONFIG)
    if is_running:
        membership.start()
    for _ in range(2):
        membership.apply_state()
        membership.learn(BrokerRegistration(address="b", number=9, rack="r"))
        membership.learn(BrokerRegistration(address="stranger"))
    membership.apply_state()
    assert renumbered == [0]
    assert [(each.number, each.is_draining) for each in written] == [(-1, False), (0, True)] * is_running
    brokers.check_alive(trio.current_time())
    assert brokers.alive == ({"a"} if is_running else {"a", "b", "c"})
    assert [(each.address, each.number, each.rack, each.is_draining) for each in brokers.all()] == [
        ("a", 0, "", True),
        ("b", 1, "r", True),
        ("c", 2, "", False),
    ]
