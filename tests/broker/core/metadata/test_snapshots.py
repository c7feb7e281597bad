"""A snapshot stands for all commands before it, and no broker takes another one for it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka.broker.core.metadata import snapshots
from dafka.broker.core.metadata.cluster_state import ClusterState
from dafka.broker.core.metadata.commands import SNAPSHOTS_KEPT, DrainBroker, Order, SnapshotTaken
from dafka.broker.core.metadata.snapshots import (
    Snapshot,
    Snapshots,
    compress_snapshot,
    decompress_snapshot,
    parse_snapshot,
    read_snapshot_file,
    write_snapshot_file,
)
from dafka.broker.core.positions import Offset
from dafka.errors import StateDiffersError, StorageFormatError
from tests.broker.core.metadata.test_cluster_state import SUPPORT, begin, draw_orders, parts
from tests.seeds import each_seed

EVERY = 5


@pytest.fixture(autouse=True, scope="module")
def _often() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshots, "SNAPSHOT_OFFSETS", EVERY)
        yield


def snapshot_of(state: ClusterState) -> Snapshot:
    return Snapshot(state.applied, dict(state.records))


def store(stored: dict[bytes, bytes], state: ClusterState) -> None:
    for key, value in state.take_records():
        if value is None:
            stored.pop(key, None)
        else:
            stored[key] = value


@each_seed(50)
def test_a_snapshot_stands_for_the_commands_before_it(seed: int) -> None:
    state, orders = begin(), draw_orders(seed)
    before, after = orders[: seed % 60], orders[seed % 60 :]
    for order in before:
        state.apply(order)
    snapshot = snapshot_of(state)
    assert decompress_snapshot(compress_snapshot(snapshot)) == snapshot
    again = snapshot.restore(SUPPORT)
    assert (parts(again), snapshot_of(again).checksum) == (parts(state), snapshot.checksum)
    for order in after:
        assert again.apply(order) == state.apply(order)
    assert (parts(again), snapshot_of(again).text) == (parts(state), snapshot_of(state).text)


@given(st.integers(0, 20), st.data())
def test_a_file_has_a_whole_snapshot_or_is_refused(seed: int, data: st.DataObject) -> None:
    state = begin()
    for order in draw_orders(seed):
        state.apply(order)
    text = write_snapshot_file(snapshot_of(state))
    assert read_snapshot_file(text) == snapshot_of(state)
    lines = text.splitlines(keepends=True)
    del lines[data.draw(st.integers(0, len(lines) - 1))]
    cut_short = text[: data.draw(st.integers(0, len(text) - 2))]
    for damaged in ("".join(lines), cut_short, text.replace("cluster_id", "0"), "", "5", "{}\n{}"):
        with pytest.raises(StorageFormatError, match=r"it is no snapshot of a cluster|damaged|malformed"):
            read_snapshot_file(damaged)


@each_seed(50)
def test_a_broker_that_is_behind_learns_from_a_snapshot_what_has_changed(seed: int) -> None:
    behind, ahead, stored, orders = begin(), begin(), dict[bytes, bytes](), draw_orders(seed)
    known, missed = orders[: seed % 60], orders[seed % 60 :]
    for order in known:
        behind.apply(order)
        ahead.apply(order)
    store(stored, behind)
    names = {*behind.topics, *behind.deleting}
    behind.take_changed()
    closed = {each.topic.topic_id for each in behind.take_closed()}
    for order in missed:
        ahead.apply(order)
    behind.restore(ahead.records)
    store(stored, behind)
    assert parts(behind) == parts(ahead)
    assert stored == ahead.records
    assert {*behind.take_changed()} == {*names, *ahead.topics}
    assert {each.topic.topic_id for each in behind.take_closed()} == {
        each.topic.topic_id for each in ahead.take_closed()
    } - closed


@given(st.lists(st.integers(1, 2 * EVERY), min_size=1, max_size=20), st.data())
def test_brokers_take_the_same_snapshots_however_they_read_the_log(steps: list[int], data: st.DataObject) -> None:
    ends = [sum(steps[: n + 1]) for n in range(len(steps))]
    found = []
    for _ in range(2):  # control batches in the log are passed with others, or by themselves
        state, own = begin(), Snapshots()
        for end in ends:
            if data.draw(st.booleans()):
                own.advance(state, Offset(max(end - 1, state.applied)))
            own.advance(state, Offset(end))
            state.apply(Order(DrainBroker("a", is_draining=end % 2 == 0)))
        found.append([(each, own.checksum(each)) for each in own.offsets])
    assert found[0] == found[1]
    assert [offset for offset, _ in found[0]] == [*range(EVERY, ends[-1] + 1, EVERY)]


def test_snapshots_are_kept_and_dropped_as_their_broker_stores_them() -> None:
    state, own, stored = begin(), Snapshots(), dict[bytes, bytes]()

    def save() -> None:
        for key, value in own.take_changes():
            if value is None:
                del stored[key]
            else:
                stored[key] = value

    for number in range(1, 30):
        own.advance(state, Offset(number * EVERY))
        own.drop_before(3 * EVERY)
        save()
        kept = own.offsets
        assert kept == [each * EVERY for each in range(3, number + 1)][-2 * SNAPSHOTS_KEPT :]
    again = Snapshots()
    again.load(stored)
    assert again.offsets == kept
    assert not again.take_changes()
    assert again.find_before(kept[-1] - 1) == again.find_before(kept[-2]) == stored[b"%020d" % kept[-2]]
    assert again.checksum(kept[-2]) == own.checksum(kept[-2])
    assert again.find_before(kept[0] - 1) is None
    with pytest.raises(StorageFormatError, match="the key of a snapshot is malformed"):
        again.load({b"damaged": b"x"})


def test_a_state_that_differs_is_noticed() -> None:
    state, own = begin(), Snapshots()
    own.advance(state, Offset(EVERY))
    own.agree(SnapshotTaken(EVERY, own.checksum(EVERY)))
    own.agree(SnapshotTaken(2 * EVERY, "of a snapshot that this broker does not have"))
    with pytest.raises(StateDiffersError, match=r"differs from that of the other brokers at offset 5 .* nothing is d"):
        own.agree(SnapshotTaken(EVERY, "0" * 64))


def test_only_the_last_snapshots_that_were_agreed_on_count() -> None:
    state = begin()
    for number in (1, 2, 2, 1, *range(3, 14)):
        state.apply(Order(SnapshotTaken(number, str(number))))
    assert [each.offset for each in state.snapshots] == [*range(4, 14)]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}\n",
        b'{"version": 1, "offset": "1"}\n',
        b'{"version": 1, "offset": 1}',
        b'{"version": 1, "offset": 1}\n["b",{}]\n["a",{}]\n',
        b'{"version": 1, "offset": 1}\n[1,{}]\n',
    ],
)
def test_a_malformed_snapshot_is_refused(text: bytes) -> None:
    with pytest.raises(StorageFormatError, match="a snapshot of the cluster is malformed"):
        parse_snapshot(text)
    with pytest.raises(StorageFormatError, match="a snapshot of the cluster is malformed"):
        decompress_snapshot(bytes(64) + zlib.compress(text))


def test_a_snapshot_of_a_newer_version_or_that_is_cut_short_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = compress_snapshot(snapshot_of(begin()))
    with pytest.raises(StorageFormatError, match="update dafka"):
        parse_snapshot(b'{"version": 2, "offset": 1}\n')
    for damaged in (data[:-1], data[::-1], b"", b"0" * 64 + data[64:]):
        with pytest.raises(StorageFormatError, match="damaged"):
            decompress_snapshot(damaged)
    monkeypatch.setattr(snapshots, "SNAPSHOT_BYTES_MAX", 10)
    with pytest.raises(StorageFormatError, match="damaged or too large"):
        decompress_snapshot(data)
