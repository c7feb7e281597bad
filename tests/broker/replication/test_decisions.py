"""What one broker decides about its logs, each decision against its rule, in all cases; everything around is faked."""

from __future__ import annotations

from itertools import product
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from dafka.broker.core.metadata.brokers import BrokerRegistration, Brokers
from dafka.broker.core.metadata.leader_and_isr import LeaderAndIsr
from dafka.broker.core.metadata.store_check import StoreClaim
from dafka.broker.core.partition_address import INDEX_TOPIC
from dafka.broker.core.positions import Offset, RecordSequence
from dafka.broker.core.replication.checkpoints import CHECKPOINTS_TOPIC, Checkpoint, encode_checkpoint
from dafka.broker.core.replication.epoch_tree import EpochTree
from dafka.broker.core.replication.leader_lease import ROUNDS_MAX
from dafka.broker.core.replication.records import BRANCHES_TOPIC, NO_EPOCH_END, EpochStart, LeaderAndEpoch
from dafka.broker.core.replication.settings import Availability
from dafka.broker.core.rounds import Round, RoundKind, RoundReply
from dafka.broker.replication import leases as leases_module
from dafka.broker.replication.checkpoints import Checkpoints
from dafka.broker.replication.leader import LedLogs
from dafka.broker.replication.leases import LeaderLeases
from dafka.broker.replication.membership import Membership
from dafka.broker.replication.pending_logs import READ_AGAIN_S, PendingLogs
from dafka.config.settings import BrokerConfig
from dafka.records import Partition
from dafka.storage import PartitionInfo
from tests.seeds import each_seed

CONFIG = BrokerConfig(leader_timeout_ms=1000, heartbeat_ms=250)
LEASE_S = 0.75
HERE, INDEX = Partition("orders", "p"), Partition(INDEX_TOPIC, "a/1D/0/5")


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
        self.ends = {Partition(BRANCHES_TOPIC, "a"): 3}
        self.untrusted: set[tuple[str, str]] = set()
        self.control = SimpleNamespace(is_durable=True)
        self.identity = SimpleNamespace(
            claim=StoreClaim(("s",)),
            is_trusted=lambda broker, start: (broker, start) not in self.untrusted,
            make_round=lambda number, can_write: None,
        )
        parts: dict[str, Any] = {
            "tables": SimpleNamespace(
                brokers=self.brokers,
                state=self.state,
                log_table=SimpleNamespace(topics={"orders": SimpleNamespace(topic_id="1D")}),
                logs=SimpleNamespace(find=lambda _name: SimpleNamespace(replica=replica)),
            ),
            "storage": SimpleNamespace(can_write=True, durable_end=self.ends.__getitem__, ends=lambda _topic: {}),
            "mesh": SimpleNamespace(address="a", publish=self.sent.extend),
        }
        parts |= {"identity": self.identity, "control": self.control}
        self.leases = LeaderLeases(config=CONFIG, **parts)
        self.log: Any = SimpleNamespace(topic="orders", number=0, leadership=LeaderAndIsr("a", is_led=True))

    def answer(self, broker: str, *, ago: int = 0, control_end: int = 0, applied: int = 0) -> None:
        number = self.leases._rounds._next - 1 - ago
        self.leases.process_rounds({}, [(broker, RoundReply(number, control_end, applied, 0, "s"))])


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases_module, "_slept_s", lambda: 0.0)


async def test_an_answer_counts_from_the_start_of_its_round_if_its_broker_is_trusted(
    steady: None, autojump_clock: MockClock
) -> None:
    for is_forgotten, is_trusted, ago, known_end in product((True, False), (True, False), (0, 1, ROUNDS_MAX), (0, 2)):
        world, begun = Leases(), trio.current_time()
        world.state.forgotten_ids = {"b"} if is_forgotten else set()
        world.untrusted = set() if is_trusted else {("b", "s")}
        for _ in range(ago + 1):
            world.leases.begin_round()
            await trio.sleep(0.25 if ago < 2 else 0)
        world.answer("b", ago=ago, control_end=2)
        world.leases.record_learned(Partition(BRANCHES_TOPIC, "b"), known_end)
        counts = not is_forgotten and is_trusted and ago < ROUNDS_MAX and known_end == 2
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
        world.brokers.check_alive(trio.current_time() + (0 if is_alive else 10))
        world.leases.process_rounds({"b": Round(9, kind, StoreClaim(("t",)))}, [])
        is_followed = is_alive and can_write and (kind is RoundKind.WRITABLE or not can_elect)
        assert bool(world.sent) == (has_claim and is_durable and is_followed)


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
    for index_end, end, is_stored, is_malformed in product((4, 5, 6), (2, 3, 4), (True, False), (True, False)):
        written: list[Any] = []
        ends = {INDEX: 5, HERE: 3}
        fake: Any = SimpleNamespace(
            write_state=lambda *change, written=written: written.append(change), durable_end=ends.__getitem__
        )
        checkpoints = Checkpoints(fake, fake)
        found = Checkpoint(RecordSequence(index_end), Offset(9), Offset(0), Offset(0), None, {"p": end})
        value = b"{" if is_malformed else encode_checkpoint(found)
        stored = {each: PartitionInfo(0, ends[each]) for each in ends if is_stored or each is HERE}
        key = INDEX.address.encode()
        problem = checkpoints.load({key: value}, stored, lambda _: "orders")
        is_usable = is_stored and not is_malformed
        assert bool(problem) == (is_usable and (index_end > 5 or end > 3))
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
    for size, heard, availability, has_begun, is_committed, may_serve, has_led, is_active, has_racks in product(
        (1, 2, 3, 4), range(1, 5), Availability, either, either, either, either, either, either
    ):
        brokers = Brokers(BrokerRegistration(address="a", rack="r"), 1.0)
        for each in names:
            brokers.record_registration(BrokerRegistration(address=each))
            if each in names[:heard]:
                brokers.record_heartbeat(each, 0.0)
        brokers.check_alive(0.1)
        voters, epoch = tuple(names[:size]), LeaderAndEpoch(5, "a")
        start = EpochStart("1D/0", epoch, NO_EPOCH_END, (*voters, "new"), ("new",))
        replica = SimpleNamespace(
            latest=start,
            led_epoch=epoch if has_led else None,
            high_watermark=8 if is_committed else 7,
            shared_end=6,
            may_serve=lambda _unwritable, may_serve=may_serve: may_serve,
            leader="a",
            is_quorum_active=is_active,
            replicas=voters,
            availability=availability,
            epoch_tree=EpochTree([start]),
            in_sync=lambda within_s: ("a", "new"),
        )
        log: Any = SimpleNamespace(name="1D/0", topic="orders", topic_id="1D", number=0, replica=replica)
        state = SimpleNamespace(
            topic="orders",
            number=0,
            leadership=LeaderAndIsr(""),
            high_watermark=0,
            can_diverge=availability is Availability.BRANCH,
            shared_offset=0,
            drop_shared_batches=lambda: None,
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
        assert (state.leadership.is_led, state.leadership.leader) == (is_led, "a" if is_led else "")
        assert (state.leadership.in_sync, state.leadership.learners) == (("a",), ("new",))
        assert state.leadership.presumed_leader == ("" if is_led or is_active else "a")
        assert (state.leadership.is_follower_readable, state.high_watermark) == (has_racks, 8 if is_led else 0)
        assert list(led_logs._to_follow) == ["1D/0"] * (not has_led and not has_racks)
        assert state.shared_offset == (6 if is_led and state.can_diverge else 0)


@pytest.mark.parametrize("is_running", [True, False])
async def test_only_brokers_that_were_known_before_the_start_are_expected_to_live(is_running: bool) -> None:
    brokers = Brokers(BrokerRegistration(address="a", number=0), 1.0)
    registered = {each: SimpleNamespace(store_id=each, number=n, is_draining=n == 1) for n, each in enumerate("abc")}
    state = SimpleNamespace(brokers=registered, forgotten_ids=set())
    tables: Any = SimpleNamespace(brokers=brokers, state=state, logs=SimpleNamespace(renumber=lambda _: None))
    fake: Any = SimpleNamespace(write_state=lambda *_: None)
    membership = Membership(tables, fake, fake, fake, CONFIG)
    if is_running:
        membership.start()
    membership.apply_state()
    membership.learn(BrokerRegistration(address="b", number=9, rack="r"))
    membership.learn(BrokerRegistration(address="stranger"))
    brokers.check_alive(trio.current_time())
    assert brokers.alive == ({"a"} if is_running else {"a", "b", "c"})
    assert [(each.address, each.number, each.rack, each.is_draining) for each in brokers.all()] == [
        ("a", 0, "", False),
        ("b", 1, "r", True),
        ("c", 2, "", False),
    ]
