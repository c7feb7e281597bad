"""Records that are forwarded to a leader are appended once and in order, whatever happens to requests and replies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from dafka.batches import BatchHeader, check_crc, encode_batch, iter_batches
from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.leader_and_isr import LeaderAndIsr
from dafka.http.forwarding.broker_client import BrokerError
from dafka.http.forwarding.broker_link import Reply
from dafka.http.forwarding.remote_appends import LANES_MAX, Lane, Lanes, RemoteAppend, RemoteAppends
from dafka.http.forwarding.remote_logs import RemoteLogs
from dafka.http.logs.log_access import LEADER_WAIT_S
from dafka.http.server.errors import STATUSES, LeaderMovedError, WebError
from tests.http.running import make_log, outcome
from tests.seeds import each_seed

TOPIC, B = "orders", "b" * 32
REMEMBERED = 5
"""How many batches of a producer a leader remembers."""

OK, LOSE_REQUEST, LOSE_REPLY = "ok", "lose request", "lose reply"
FOR_NOW = ["not_leader", "topic_not_found", "log_not_found", "leader_unavailable"]
FORGOTTEN = "conflict"
"""The leader has lost records of the producer, with a part of the cluster."""
FOR_GOOD = ["bad_request", "too_large", "storage_failed"]


def batch(value: int, producer_id: int = -1, sequence: int = -1, count: int = 1) -> tuple[BatchHeader, bytes]:
    """Return a batch whose timestamp tells which one it is."""
    data = encode_batch(
        0,
        [b"x"] * count,
        timestamps=value,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=sequence,
    )
    return check_crc(data), data


@attrs.define
class Leader:
    """Stands for the leader of a log and the connection to it. What happens to the next requests is scripted."""

    nursery: trio.Nursery
    script: list[str]
    reply_s: float = 0.001
    held: list[int] = attrs.field(factory=list)
    """The timestamps of the records, in the order of their offsets."""
    requests: int = 0
    producers: dict[int, list[tuple[int, int, int]]] = attrs.field(factory=dict)
    """For each producer, the base sequence, the end sequence and the offset of its latest batches."""
    forgotten: set[int] = attrs.field(factory=set)
    _lost: trio.Event = attrs.field(factory=trio.Event)
    _replies: list[Reply] = attrs.field(factory=list)

    # As `Leaders`

    async def retry_on_leader_change(
        self, _log: Log, call: Callable[[Leader], Awaitable[None]], deadline: float
    ) -> None:
        self._lost, self._replies = trio.Event(), []
        failure: BrokerError | None = None
        with trio.CancelScope(deadline=deadline):
            try:
                await call(self)
            except BrokerError as error:
                failure = error
        if failure is not None:
            raise failure

    async def wait_leader_change(self, _log: Log, wait_s: float) -> None:
        await trio.sleep(wait_s)

    def unavailable(self, _log: Log, problem: str) -> WebError:
        return WebError("leader_unavailable", problem)

    # As `BrokerLink`

    def publish(self, topic: str, log: int, data: bytes, notify: Callable[[], None]) -> Reply:
        assert (topic, log) == (TOPIC, 0)
        self.requests += 1
        reply = Reply(notify)
        reply.is_sent = True
        self._replies.append(reply)
        what = self.script.pop(0) if self.script and not self._lost.is_set() else OK
        found: int | WebError | None = WebError(what, what) if what in STATUSES else None
        if what in {OK, LOSE_REPLY, FORGOTTEN} and not self._lost.is_set():
            found = self._append(data, is_forgotten=what == FORGOTTEN)
        if what in {LOSE_REQUEST, LOSE_REPLY}:
            self._lost.set()
        self.nursery.start_soon(partial(self._answer, reply, found, is_lost=self._lost.is_set()))
        return reply

    async def _answer(self, reply: Reply, found: int | WebError | None, *, is_lost: bool) -> None:
        await trio.sleep(self.reply_s * (1 + self.requests / 1000))
        if reply.arrived.is_set():
            return
        if is_lost:
            for each in self._replies:
                if not each.arrived.is_set():
                    each.fail(BrokerError("has ended the connection"))
        elif isinstance(found, WebError):
            reply.fail(found)
        else:
            reply.set(found)

    def _append(self, data: bytes, *, is_forgotten: bool) -> int | WebError | None:
        """Append batches as a leader does: those of a producer once and in order."""
        first = len(self.held)
        for _, header in iter_batches(data):
            if header.producer_id >= 0:
                known = self.producers.setdefault(header.producer_id, [])
                for base, end, offset in known:
                    if (base, end) == (header.base_sequence, header.base_sequence + header.count):
                        return offset
                if is_forgotten or header.producer_id in self.forgotten:
                    self.forgotten.add(header.producer_id)
                    return WebError(FORGOTTEN, "a gap")
                expected = known[-1][1] if known else 0
                if header.base_sequence != expected:
                    return None if header.base_sequence < expected else WebError("conflict", "a gap")
                known.append((header.base_sequence, header.base_sequence + header.count, len(self.held)))
                del known[:-REMEMBERED]
            self.held += [header.base_timestamp] * header.count
        return first


@attrs.frozen
class Scene:
    leader: Leader
    appends: RemoteAppends
    ended: list[RemoteAppend]


def open_scene(
    nursery: trio.Nursery, script: Sequence[str], reply_s: float = 0.001, lane_count: int = LANES_MAX
) -> Scene:
    leader, ended, lanes = Leader(nursery, [*script], reply_s), list[RemoteAppend](), Lanes()
    for _ in range(LANES_MAX - lane_count):
        lanes.take()
    leaders: Any = leader
    return Scene(leader, RemoteAppends(make_log(leader=B), leaders, append_nowhere, ended.append, lanes), ended)


def append_nowhere(_log: Log, _batches: object) -> Any:
    raise AssertionError("this broker does not become the leader")


FAILURES = {"plain": {*FOR_GOOD}, "own producer": {*FOR_GOOD, FORGOTTEN}}
FAILURES["two batches"] = {*FAILURES["own producer"], LOSE_REQUEST, LOSE_REPLY}
"""What can happen to a request so that records of a kind, or earlier ones of their producer, are refused."""


@each_seed(200)
def test_records_are_appended_once_and_in_order(seed: int) -> None:
    draw = Random(seed)
    kinds = draw.choices([*FAILURES], k=draw.randint(1, 8))
    happens = draw.sample([LOSE_REQUEST, LOSE_REPLY, FORGOTTEN, *FOR_NOW, *FOR_GOOD], draw.randint(0, 3))
    script = draw.choices([OK, *happens], k=12)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            scene = open_scene(nursery, script, lane_count=draw.choice([2, LANES_MAX]))
            sequence, added = 0, []
            for number, kind in enumerate(kinds):
                batches = [batch(number)]
                if kind == "own producer":
                    batches, sequence = [batch(number, 7, sequence)], sequence + 1
                elif kind == "two batches":
                    batches = [batch(number), batch(number)]
                added.append(scene.appends.add(batches))
            with trio.fail_after(3 * LEADER_WAIT_S):
                await scene.appends.run()
            found = [await outcome(each.wait_offset()) for each in added]
        held = scene.leader.held
        assert sorted(scene.ended, key=added.index) == added
        assert happens or held == sorted(held)
        for number, (kind, told, append) in enumerate(zip(kinds, found, added, strict=True)):
            count = 2 if kind == "two batches" else 1
            assert append.is_durable == (not isinstance(told, str))
            assert append.record_count == count
            assert held.count(number) in {0, count}, "at most once"
            if isinstance(told, int):
                assert held[told : told + count] == [number] * count
            elif told in FOR_GOOD and not {LOSE_REPLY, LOSE_REQUEST} & {*script}:
                assert held.count(number) == 0
            if isinstance(told, str):
                assert told in {*FOR_GOOD, FORGOTTEN, "leader_changed"}
                assert FAILURES[kind] & {*script}, "what was lost, or refused for now, is sent again"

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def test_steady_stream_is_forwarded_for_longer_than_a_leader_is_waited_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Records are always under way, so that no moment comes at which nothing waits for an answer."""
    async with trio.open_nursery() as nursery:
        scene = open_scene(nursery, [], reply_s=0.9 * LEADER_WAIT_S)
        added = [scene.appends.add([batch(0)])]
        nursery.start_soon(scene.appends.run)
        while trio.current_time() < 3 * LEADER_WAIT_S:
            await trio.sleep(LEADER_WAIT_S / 20)
            added.append(scene.appends.add([batch(len(added))]))
    assert {await each.wait_offset() for each in added} == {*range(len(added))}
    assert len(scene.ended) == len(added)


async def test_a_leader_that_does_not_answer_is_waited_for_in_limits(autojump_clock: trio.testing.MockClock) -> None:
    for batches, code in (
        ([batch(0)], "leader_unavailable"),
        ([batch(0, 7, 0)], "leader_unavailable"),
        ([batch(0), batch(1)], "leader_changed"),
    ):
        async with trio.open_nursery() as nursery:
            scene = open_scene(nursery, [], reply_s=100 * LEADER_WAIT_S)
            added = scene.appends.add(batches)
            nursery.start_soon(scene.appends.run)
            await trio.sleep(LEADER_WAIT_S - 0.5)
            assert not added.ended.is_set()
            await trio.sleep(1)
            assert added.ended.is_set()
            assert await outcome(added.wait_offset()) == code
            nursery.cancel_scope.cancel()


async def test_a_refusal_for_now_that_lasts_is_told_in_the_end(autojump_clock: trio.testing.MockClock) -> None:
    for code in FOR_NOW:
        async with trio.open_nursery() as nursery:
            scene = open_scene(nursery, [code] * 10_000)
            added = scene.appends.add([batch(0)])
            await scene.appends.run()
            with pytest.raises(WebError) as refused:
                await added.wait_offset()
            message = code if code == "leader_unavailable" else "does not answer"
            assert (refused.value.code, refused.value.message) == ("leader_unavailable", message)
            assert scene.leader.held == []


@attrs.define
class Here:
    """Stands for this broker, which has become the leader. It refuses what comes first."""

    refusals: list[WebError]
    failures: list[WebError] = attrs.field(factory=list)
    """Why records that it has taken do not become durable."""
    taken: int = 0

    def append(self, _log: Log, _batches: object) -> Any:
        if self.refusals:
            raise self.refusals.pop(0)
        self.taken += 1
        return SimpleNamespace(wait_offset=partial(self._wait_offset, 40 + self.taken))

    async def _wait_offset(self, offset: int) -> int:
        if self.failures:
            raise self.failures.pop(0)
        return offset


async def test_a_deleted_topic_is_told_and_so_is_a_leader_here(autojump_clock: trio.testing.MockClock) -> None:
    log, ended = make_log(leader=B), list[RemoteAppend]()
    here = Here([LeaderMovedError(log), WebError("leader_unavailable", "too few")])
    async with trio.open_nursery() as nursery:
        leaders: Any = Leader(nursery, [])
        appends = RemoteAppends(log, leaders, here.append, ended.append, Lanes())
        log.leadership = LeaderAndIsr("a" * 32, 2, is_led=True)
        added = [appends.add([batch(1)]), appends.add([batch(2)])]
        await appends.run()
        here.refusals += [WebError("conflict", "lost"), WebError("too_large", "no")]
        added.append(appends.add([batch(3)]))
        await appends.run()
        here.failures += [LeaderMovedError(log), WebError("leader_changed", "lost")]
        added += [appends.add([batch(each)]) for each in (5, 6)]
        await appends.run()
        log.leadership, log.is_gone = LeaderAndIsr(B, 3, is_led=False), True
        added.append(appends.add([batch(4)]))
        await appends.run()
        found = [await outcome(each.wait_offset()) for each in added]
    assert found == [41, 42, "too_large", 45, "leader_changed", "topic_not_found"]
    assert sorted(ended, key=added.index) == added


async def test_memory_of_records_is_given_back_however_they_end(autojump_clock: trio.testing.MockClock) -> None:
    config = SimpleNamespace(store=SimpleNamespace(pending_bytes_max=len(batch(0)[1])))
    broker: Any = SimpleNamespace(node=None, config=config)
    client: Any = None
    for script in ([OK], [LOSE_REPLY], *([each] for each in FOR_GOOD), ["not_leader"] * 10_000):
        logs, log = RemoteLogs(broker, client, append_nowhere), make_log(leader=B)
        async with trio.open_nursery() as nursery:
            leader: Any = Leader(nursery, script)
            logs._leaders = leader
            await nursery.start(logs.run)
            for _ in range(3):
                append = logs.append(log, [batch(0)])
                with trio.fail_after(2 * LEADER_WAIT_S):
                    await logs.wait_capacity()
                assert append.ended.is_set()
            nursery.cancel_scope.cancel()


def test_lanes_are_used_again_and_limited() -> None:
    lanes = Lanes()
    taken = [lanes.take() for _ in range(LANES_MAX)]
    used = [each for each in taken if each is not None]
    assert (len(used), lanes.take(), lanes.has_free_lane) == (LANES_MAX, None, False)
    assert len({each.producer_id for each in used}) == LANES_MAX
    lanes.give_back(used[0], 3)
    assert lanes.has_free_lane
    again = lanes.take()
    assert again is used[0]
    assert again.next_sequence == 3
    assert lanes.take() is None
    lanes.give_back(used[1], 0)
    fresh = lanes.take()
    assert isinstance(fresh, Lane)
    assert fresh.producer_id not in {each.producer_id for each in used}
    assert fresh.next_sequence == 0
    lanes.give_back(fresh, 2**30)
    assert lanes.take() is not fresh, "a producer ends before its sequences are used up"
