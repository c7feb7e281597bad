"""The loops that move messages between a list and a ZeroMQ socket, in Python: what serves without the accelerator.

They are the reference for it: the C files in `dafka/transport/accelerator/` do the same, message by message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import zmq
from zmq.backend import Socket as Backend

from dafka.wire import NUMBER_8_MAX, Command
from dafka.wire.batch import EncodedRun, iter_frames
from dafka.wire.primitives import NUMBER_8

FRAME_BYTES = 64
"""What keeping a frame costs beyond its octets, about: many empty frames are not for nothing."""

_NOBLOCK = int(zmq.NOBLOCK)
_RECORD_IDS = (Command.RECORD.value, Command.DIRECT_RECORD.value)


class PureLoops:
    """The loops over pyzmq's own calls."""

    name = "pure Python"
    receive_count_max = 1000

    def receive(self, socket: zmq.Socket[bytes], count_max: int, bytes_max: int) -> list[list[bytes]]:
        """See `Loops.receive`."""
        return list(_drain(socket, count_max, bytes_max))

    def receive_runs(self, socket: zmq.Socket[bytes], count_max: int, bytes_max: int) -> list[list[bytes] | EncodedRun]:
        """See `Loops.receive_runs`. Gathers those that follow each other: comparing is quicker than reading."""
        items: list[list[bytes] | EncodedRun] = []
        expected: list[bytes] | None = None
        contents: list[bytes] | None = None
        stem, sequence = b"", 0
        for frames in _drain(socket, count_max, bytes_max):
            heading = frames[:-1]
            if heading == expected:
                if contents is None:
                    contents = []
                    items.append(EncodedRun(heading[0] if len(heading) == 2 else None, stem, sequence, contents))
                contents.append(frames[-1])
            else:
                items.append(frames)
                contents = expected = None
                if not 1 <= len(heading) <= 2 or heading[0][:1] not in _RECORD_IDS or len(heading[-1]) <= NUMBER_8.size:
                    continue
                stem = heading[-1][: -NUMBER_8.size]
                (sequence,) = NUMBER_8.unpack_from(heading[-1], len(stem))
            sequence += 1
            if sequence > NUMBER_8_MAX:
                expected = None
            else:
                heading[-1] = stem + NUMBER_8.pack(sequence)
                expected = heading
        return items

    def send(self, socket: zmq.Socket[bytes], messages: Iterable[Sequence[bytes] | EncodedRun]) -> int:
        """See `Loops.send`."""
        send = Backend.send  # what `zmq.Socket.send` adds is for sockets of other kinds, and takes longer than sending
        more, last = _NOBLOCK | int(zmq.SNDMORE), _NOBLOCK
        count = 0
        for frames in iter_frames(messages):
            try:
                for frame in frames[:-1]:
                    send(socket, frame, more)
                send(socket, frames[-1], last)
            except zmq.Again:
                continue
            count += 1
        return count


def _drain(socket: zmq.Socket[bytes], count_max: int, bytes_max: int) -> Iterator[list[bytes]]:
    """The frames of each message that is here, up to the two limits."""
    receive = socket.recv
    size = 0
    try:
        for _ in range(count_max):
            if size >= bytes_max:
                return
            # A frame that is not copied knows whether more follow; asking the socket costs half as much again.
            frame = receive(_NOBLOCK, False)
            octets = frame.bytes
            size += len(octets) + FRAME_BYTES
            frames = [octets]
            while frame.more:
                frame = receive(_NOBLOCK, False)
                octets = frame.bytes
                size += len(octets) + FRAME_BYTES
                frames.append(octets)
            yield frames
    except zmq.Again:
        return
