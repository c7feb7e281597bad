"""The loops in C return what those in Python return for any messages, and a setting selects either."""

from __future__ import annotations

import errno
import importlib
import sys
import tracemalloc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any, TypeAlias

import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from dafka.errors import ConfigError
from dafka.packed_bytes import PackedContents, pack
from dafka.records import Partition, RecordBatch
from dafka.transport import choose_loops, loops
from dafka.transport.loops import FRAME_BYTES, TALLIED_BYTES_MIN, VARIABLE, Loops, PureLoops, Tally
from dafka.wire import NUMBER_8_MAX, BatchDecoder, BatchEncoder, Dialect, Head, Record, RecordRun, encode
from dafka.wire.batch import EncodedRun, iter_frames
from tests.waiting import DEADLINE_S, poll_until
from tests.wire.record_traffic import Frames, Reference, alike, traffic

RawSocket: TypeAlias = "zmq.Socket[bytes]"

BYTES_MAX = 1 << 30
COMPILED = loops.load_compiled()
needs_compiled = pytest.mark.skipif(isinstance(COMPILED, str), reason=str(COMPILED))


@pytest.fixture(
    scope="module",
    params=[pytest.param(COMPILED, marks=needs_compiled, id="compiled"), pytest.param(PureLoops(), id="pure")],
)
def each(request: pytest.FixtureRequest) -> Loops:
    found: Loops = request.param
    return found


@contextmanager
def joined() -> Iterator[tuple[RawSocket, RawSocket]]:
    context: zmq.Context[RawSocket] = zmq.Context()
    near, far = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    near.set_hwm(0)
    far.set_hwm(0)
    near.bind("inproc://here")
    far.connect("inproc://here")
    try:
        yield near, far
    finally:
        context.destroy(0)


def send_raw(socket: RawSocket, messages: Iterable[Frames]) -> None:
    for frames in messages:
        socket.send_multipart(frames, zmq.NOBLOCK)


def received(socket: RawSocket) -> list[list[bytes]]:
    return PureLoops().receive(socket, 100_000, BYTES_MAX)


def records(dialect: Dialect, first: int, count: int, address: str = "P") -> list[list[bytes]]:
    return [encode(Record(address, "t", first + number, b"%d" % number), dialect) for number in range(count)]


# Receiving


def check_received(loops: Loops, messages: Sequence[Frames]) -> None:
    """Assert that `receive` returns the messages, and `receive_runs` what the codec decodes from single messages."""
    with joined() as (near, far):
        send_raw(near, messages)
        assert loops.receive(far, len(messages) + 1, BYTES_MAX) == [list(frames) for frames in messages]
        send_raw(near, messages)
        sourced = loops.receive_sourced(far, len(messages) + 1, BYTES_MAX)
        assert sourced == [(-1, list(frames)) for frames in messages]
        send_raw(near, messages)
        items = loops.receive_runs(far, len(messages) + 1, len(messages) + 1, BYTES_MAX)
        assert received(far) == []
    assert sorted(map(list, iter_frames(items))) == sorted(map(list, messages))
    decoder, reference = BatchDecoder(), Reference()
    assert alike(decoder.decode(items)) == alike(reference.decode(messages))
    assert (decoder.discarded, decoder.dialects) == (reference.discarded, reference.dialects)


@settings(max_examples=50)
@given(drained=traffic())
def test_received_runs_decode_like_single_messages(each: Loops, drained: list[Frames]) -> None:
    check_received(each, [frames for frames in drained if frames])


HOSTILE = st.lists(
    st.lists(
        st.builds(
            lambda start, body, sequence: start + body + sequence,
            st.sampled_from([b"", b"M", b"D", b"Mt", b"Mt\0\1\1P\1t", b"\xaa\xa5M\1\1P\1t", b"H"]),
            st.sampled_from([b"", b"\0", b"P", b"\0\0"]),
            st.sampled_from([b"", *(number.to_bytes(8, "big") for number in (0, 1, 2, NUMBER_8_MAX))]),
        ),
        min_size=1,
        max_size=5,
    ),
    max_size=30,
)


@settings(max_examples=50)
@given(messages=HOSTILE)
def test_malformed_messages_are_received_whole_and_decode_like_single_messages(
    each: Loops, messages: list[list[bytes]]
) -> None:
    check_received(each, messages)


@pytest.mark.parametrize("dialect", Dialect)
def test_interleaved_answers_of_several_nodes_become_one_run_for_each_node(each: Loops, dialect: Dialect) -> None:
    """The messages do not name the node that sends them, but each node sends in order."""
    count, steps = 300, 7
    nodes = [records(dialect, 50 * number, count) for number in range(4)]
    messages = [frames for first in range(0, count, steps) for node in nodes for frames in node[first : first + steps]]
    check_received(each, messages)
    with joined() as (near, far):
        send_raw(near, messages)
        inbound = BatchDecoder().decode(each.receive_runs(far, len(messages), len(messages), BYTES_MAX))
    assert sum(len(run.batch) for run in inbound if isinstance(run, RecordRun)) == 4 * count
    assert len(inbound) <= 4


@needs_compiled
@pytest.mark.parametrize("dialect", Dialect)
def test_interleaved_partitions_become_runs_at_the_positions_of_their_first_records(dialect: Dialect) -> None:
    streams = [records(dialect, 10 * number, 40, f"P{number}") for number in range(30)]
    head = encode(Head("P", "t", 3), dialect)
    messages = [*streams[0][:1], head, *(frames for step in zip(*streams, strict=True) for frames in step)]
    assert not isinstance(COMPILED, str)
    check_received(COMPILED, messages)
    with joined() as (near, far):
        send_raw(near, messages)
        items = COMPILED.receive_runs(far, len(messages), len(messages), BYTES_MAX)
    assert [type(item) for item in items[:4]] == [list, list, EncodedRun, EncodedRun]
    assert len(items) == 32


def test_the_last_sequence_ends_a_run(each: Loops) -> None:
    check_received(each, [*records(Dialect.RFC46, NUMBER_8_MAX - 1, 2), *records(Dialect.RFC46, 0, 2)])


@pytest.mark.parametrize("dialect", Dialect)
def test_contents_of_all_sizes_are_unchanged_in_runs(each: Loops, dialect: Dialect) -> None:
    random = Random(2)
    sizes = [0, 0, 1, 100, 100, 4096, 4097, 9000, 0, 70_000, 5, 5]
    check_received(
        each,
        [encode(Record("P", "t", 7 + number, random.randbytes(size)), dialect) for number, size in enumerate(sizes)],
    )


def test_a_message_of_thousands_of_frames_is_received_whole(each: Loops) -> None:
    many = [b"M", *(b"%d" % number for number in range(5000))]
    with joined() as (near, far):
        send_raw(near, [many, [b"next"]])
        assert each.receive(far, 10, BYTES_MAX) == [many, [b"next"]]
        send_raw(near, [many, [b"next"]])
        assert each.receive_runs(far, 10, 10, BYTES_MAX) == [many, [b"next"]]


def test_receiving_stops_at_the_limits_of_messages_and_bytes(each: Loops) -> None:
    messages = records(Dialect.RFC46, 0, 100)
    size = sum(map(len, messages[30])) + 3 * FRAME_BYTES
    with joined() as (near, far):
        send_raw(near, messages)
        assert list(map(list, iter_frames(each.receive_runs(far, 30, 30, BYTES_MAX)))) == messages[:30]
        assert list(map(list, iter_frames(each.receive_runs(far, 100, 100, 2 * size + 1)))) == messages[30:33]
        assert each.receive(far, 100, 1) == messages[33:34]
        assert each.receive(far, 0, BYTES_MAX) == []
        assert each.receive_sourced(far, 2, BYTES_MAX) == [(-1, frames) for frames in messages[34:36]]
        assert each.receive_sourced(far, 100, 2 * size + 1) == [(-1, frames) for frames in messages[36:39]]


def test_messages_come_with_the_descriptor_that_they_arrived_on(each: Loops) -> None:
    context: zmq.Context[RawSocket] = zmq.Context()
    receiver = context.socket(zmq.PULL)
    monitor = receiver.get_monitor_socket(zmq.EVENT_ACCEPTED)
    port = receiver.bind_to_random_port("tcp://127.0.0.1")
    senders = [context.socket(zmq.PUSH) for _ in range(2)]
    descriptors = []
    try:
        for number, sender in enumerate(senders):
            sender.connect(f"tcp://127.0.0.1:{port}")
            descriptors.append(int.from_bytes(monitor.recv_multipart()[0][2:], sys.byteorder))
            sender.send_multipart([b"%d" % number, b"", b"x" * 5000, b"last"])
            assert receiver.poll(1000 * DEADLINE_S)
            expected = [(descriptors[-1], [b"%d" % number, b"", b"x" * 5000, b"last"])]
            assert each.receive_sourced(receiver, 10, BYTES_MAX) == expected
        assert descriptors[0] != descriptors[1]
    finally:
        for sender in senders:
            sender.close()
        receiver.disable_monitor()
        context.destroy(0)


def test_receiving_runs_stops_at_the_limit_of_items(each: Loops) -> None:
    singles = [[b"x%d" % number] for number in range(5)]
    with joined() as (near, far):
        send_raw(near, [*singles, *records(Dialect.RFC46, 0, 50), *singles])
        assert each.receive_runs(far, 1000, 3, BYTES_MAX) == singles[:3]
        head = each.receive_runs(far, 1000, 3, BYTES_MAX)
        assert head[:2] == singles[3:]
        rest = each.receive_runs(far, 1000, 1000, BYTES_MAX)
        frames = list(map(list, iter_frames([*head[2:], *rest])))
        assert frames == [*records(Dialect.RFC46, 0, 50), *singles]


def test_empty_frames_count_towards_the_limit_of_bytes(each: Loops) -> None:
    with joined() as (near, far):
        send_raw(near, [[b""] * 1000] * 10)
        assert len(each.receive(far, 10, 3000 * FRAME_BYTES)) == 3


# Sending


@pytest.mark.parametrize("dialect", Dialect)
def test_sent_runs_and_messages_arrive_as_the_codec_encodes_them(each: Loops, dialect: Dialect) -> None:
    random = Random(1)
    contents = [random.randbytes(size) for size in (0, 1, 29, 30, 33, 34, 100, 9000, 70_000, 1_100_000)]
    run = RecordRun(RecordBatch(Partition("t", "P" * 32), NUMBER_8_MAX - 9, contents))
    direct = RecordRun(RecordBatch(Partition("t", "P"), 255, tuple(contents[:3])), "R")
    packed = RecordRun(RecordBatch(Partition("t" * 40, "P"), 3, pack(contents * 20)), "R")
    encoded = BatchEncoder(dialect).encode([run, Head("P", "t", 3), direct, packed])
    expected = [list(frames) for frames in iter_frames(encoded)]
    with joined() as (near, far):
        assert each.send(near, iter(encoded)) == len(expected) == 214
        assert received(far) == expected
        assert each.send(near, []) == 0


def test_a_message_that_cannot_be_queued_is_dropped_whole(each: Loops) -> None:
    context: zmq.Context[RawSocket] = zmq.Context()
    with context, context.socket(zmq.PUSH) as push:
        messages: list[Frames | EncodedRun] = [[b"a", b"b"], EncodedRun(None, b"M", 0, [b"0", b"1"])]
        assert each.send(push, messages) == 0
        with context.socket(zmq.PULL) as pull:
            pull.bind("inproc://here")
            push.connect("inproc://here")
            assert each.send(push, messages) == 3
            assert received(pull) == [list(frames) for frames in iter_frames(messages)]


@needs_compiled
@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ([b"a", "b"], TypeError),
        ([b"a", None], TypeError),
        (None, TypeError),
        ([], IndexError),
        (EncodedRun(None, b"M", 0, [b"0", "1"]), TypeError),  # type: ignore[list-item]
        (EncodedRun(None, "M", 0, [b"0"]), TypeError),  # type: ignore[arg-type]
        (EncodedRun("t", b"M", 0, [b"0"]), TypeError),  # type: ignore[arg-type]
        (EncodedRun(None, b"M", "0", [b"0"]), TypeError),  # type: ignore[arg-type]
        (EncodedRun(None, b"M", -1, [b"0"]), OverflowError),
        (EncodedRun(None, b"M", NUMBER_8_MAX, [b"0", b"1"]), OverflowError),
        (EncodedRun(None, b"M", 0, None), TypeError),  # type: ignore[arg-type]
        (EncodedRun(None, b"M", 0, PackedContents(b"abc", (2).to_bytes(4, "big"))), ValueError),
        (EncodedRun(None, b"M", 0, PackedContents(b"abc", (4).to_bytes(4, "big"))), ValueError),
        (EncodedRun(None, b"M", 0, PackedContents("abc", (3).to_bytes(4, "big"))), TypeError),  # type: ignore[arg-type]
        (EncodedRun(None, b"M", NUMBER_8_MAX, pack([b"0", b"1"])), OverflowError),
    ],
)
def test_an_invalid_message_is_refused_before_any_frame_is_sent(message: Any, kind: type[Exception]) -> None:
    assert not isinstance(COMPILED, str)
    with joined() as (near, far):
        with pytest.raises(kind):
            COMPILED.send(near, [[b"before"], message, [b"after"]])
        assert COMPILED.send(near, [[b"next"]]) == 1
        assert received(far) == [[b"before"], [b"next"]]


@needs_compiled
def test_an_error_of_the_iterator_is_passed_on() -> None:
    assert not isinstance(COMPILED, str)

    def messages() -> Iterator[list[bytes]]:
        yield [b"0"]
        raise RuntimeError("no more")

    with joined() as (near, far):
        with pytest.raises(RuntimeError, match="no more"):
            COMPILED.send(near, messages())
        assert received(far) == [[b"0"]]


# Errors and memory


def test_errors_of_libzmq_raise_the_exceptions_of_pyzmq(each: Loops) -> None:
    context: zmq.Context[RawSocket] = zmq.Context()
    subscriber, publisher, closed = (context.socket(kind) for kind in (zmq.SUB, zmq.PUB, zmq.PUB))
    closed.close()
    with pytest.raises(zmq.ZMQError) as caught:
        each.send(closed, [[b""]])
    assert caught.value.errno == errno.ENOTSOCK
    with pytest.raises(zmq.ZMQError) as caught:
        each.receive_runs(closed, 1, 1, 1)
    assert caught.value.errno == errno.ENOTSOCK
    with pytest.raises(zmq.ZMQError) as caught:
        each.send(subscriber, [[b""]])
    assert caught.value.errno == errno.ENOTSUP
    with pytest.raises(zmq.ZMQError) as caught:
        each.receive(publisher, 1, 1)
    assert caught.value.errno == errno.ENOTSUP
    context.destroy(0)


def test_a_tally_counts_the_large_frames_that_libzmq_keeps(each: Loops) -> None:
    tally, other = each.open_tally(), each.open_tally()
    with joined() as (near, far):
        run = EncodedRun(None, bytes(60), 0, [bytes(5000)] * 10)
        each.send(near, [[b"topic", bytes(TALLIED_BYTES_MIN - 1)], [b"topic", bytes(70_000)], run], tally)
        each.send(near, [[bytes(TALLIED_BYTES_MIN)]], tally)
        each.send(near, [[bytes(3000)]], other)
        each.send(near, [[bytes(3000)]])
        assert (tally.count_bytes(), other.count_bytes()) == (70_000 + TALLIED_BYTES_MIN, 3000)
        assert len(received(far)) == 15
        wait_for_count(other, 0)  # its frame was sent last, so all others have come back
        assert tally.count_bytes() == 0


def test_a_tally_outlives_its_socket(each: Loops) -> None:
    tally = each.open_tally()
    with joined() as (near, _):
        each.send(near, [[bytes(70_000)]] * 3, tally)
        assert tally.count_bytes() == 210_000
    wait_for_count(tally, 0)


def wait_for_count(tally: Tally, count: int) -> None:
    """Wait until libzmq's threads, and pyzmq's, have returned all frames but this many bytes of them."""
    poll_until(lambda: tally.count_bytes() == count)


@needs_compiled
def test_memory_and_references_are_released() -> None:
    assert not isinstance(COMPILED, str)
    content, topic, header_prefix = bytes(100), b"M" + bytes(50), bytes(60)
    run = EncodedRun(topic, header_prefix, 7, [content] * 500)
    packed = pack([content] * 100)
    large, tally = bytes(9000), COMPILED.open_tally()
    counted = (large, content, topic, header_prefix, run.contents, packed.data, packed.lengths, EncodedRun)

    def move(socket: RawSocket, other: RawSocket) -> int:
        for _ in range(20):
            COMPILED.send(socket, [run, EncodedRun(None, header_prefix, 0, packed), [topic, header_prefix], [b"x"] * 5])
            COMPILED.receive_runs(other, 1000, 1000, BYTES_MAX)
            COMPILED.send(socket, [[topic, header_prefix], [b"x"] * 5, [large, large]], tally)
            COMPILED.receive_sourced(other, 1000, BYTES_MAX)
            with pytest.raises(TypeError):
                COMPILED.send(socket, [[content, None]])  # type: ignore[list-item]
            with pytest.raises(TypeError):
                COMPILED.send(socket, [EncodedRun(topic, header_prefix, 0, [content, None])])  # type: ignore[list-item]
        return tracemalloc.get_traced_memory()[0]

    with joined() as (near, far):
        tracemalloc.start()
        try:
            move(near, far)
            before, references = move(near, far), [sys.getrefcount(each) for each in counted]
            assert move(near, far) - before < 10_000
        finally:
            tracemalloc.stop()
        assert [sys.getrefcount(each) for each in counted] == references


# Choosing


def test_the_environment_selects_the_loops_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "off")
    assert choose_loops().name == "pure Python"
    monkeypatch.setenv(VARIABLE, "maybe")
    with pytest.raises(ConfigError, match=r"^DAFKA_ACCELERATOR: expected on or off, not 'maybe'$"):
        choose_loops()


@needs_compiled
def test_the_loops_in_c_are_used_if_they_are_available(monkeypatch: pytest.MonkeyPatch) -> None:
    for choice in ("", "on"):
        monkeypatch.setenv(VARIABLE, choice)
        assert choose_loops() is COMPILED


def test_without_the_accelerator_the_loops_in_python_are_used_unless_it_is_required(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loops, "load_compiled", lambda: "it is not here")
    monkeypatch.setenv(VARIABLE, "")
    assert choose_loops().name == "pure Python"
    monkeypatch.setenv(VARIABLE, "on")
    with pytest.raises(ConfigError, match=r"^DAFKA_ACCELERATOR: the accelerator cannot be used: it is not here$"):
        choose_loops()


def test_an_accelerator_that_was_not_built_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dafka.transport._accelerator", None)
    assert loops.load_compiled.__wrapped__() == "it was not built; reinstall dafka with a C compiler and Python.h"


@needs_compiled
def test_an_accelerator_that_cannot_be_used_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_name: str) -> None:
        raise ImportError("odd")

    load = loops.load_compiled.__wrapped__
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "zmq.backend.cython._zmq", None)
        assert str(load()).startswith("libzmq cannot be found: ")
    with monkeypatch.context() as patch:
        patch.setattr(zmq, "zmq_version_info", lambda: (4, 0, 0))
        assert str(load()).startswith("libzmq cannot be found: expected version ")
    with monkeypatch.context() as patch:
        patch.setattr("importlib.import_module", fail)
        assert load() == "it cannot be loaded: odd"
    with monkeypatch.context() as patch:
        patch.setattr(loops, "_INTERFACE", -1)
        assert load() == "it was built from the sources of another version; reinstall dafka"


@needs_compiled
def test_invalid_arguments_of_the_accelerator_raise_errors() -> None:
    module = importlib.import_module("dafka.transport._accelerator")
    with pytest.raises(OSError, match="not loaded from"):
        module.connect("/no/such/library.so", EncodedRun, PackedContents, ValueError)
    with pytest.raises(TypeError):
        module.connect(None, EncodedRun, PackedContents, ValueError)
    with pytest.raises(TypeError):
        module.receive("no handle", 1, 1, 1, 1, False)
    with pytest.raises(ValueError, match="expected numbers of bytes that are not negative"):
        module.receive(1, 1, 1, -1, 1, False)
    with pytest.raises(TypeError):
        module.receive_sourced("no handle", 1, 1, 1)
    with pytest.raises(ValueError, match="expected numbers of bytes that are not negative"):
        module.receive_sourced(1, 1, 1, -1)
