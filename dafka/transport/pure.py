"""The loops that move messages between a list and a ZeroMQ socket, in Python: what serves without the accelerator.

They are the reference for it: the C files in `dafka/transport/accelerator/` do the same, message by message.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import zmq

from dafka.wire.batch import FrameRun, expand

FRAME_BYTES = 64
"""What keeping a frame costs beyond its octets, about: many empty frames are not for nothing."""

_NOBLOCK = int(zmq.NOBLOCK)


class PureLoops:
    """The loops over pyzmq's own calls."""

    name = "pure Python"

    def receive(self, socket: zmq.Socket[bytes], count_max: int, bytes_max: int) -> list[list[bytes]]:
        """See `Loops.receive`."""
        receive = socket.recv
        messages: list[list[bytes]] = []
        size = 0
        try:
            while len(messages) < count_max and size < bytes_max:
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
                messages.append(frames)
        except zmq.Again:
            pass
        return messages

    def receive_runs(self, socket: zmq.Socket[bytes], count_max: int, bytes_max: int) -> list[list[bytes] | FrameRun]:
        """See `Loops.receive_runs`; gathers none."""
        return [*self.receive(socket, count_max, bytes_max)]

    def send(self, socket: zmq.Socket[bytes], messages: Iterable[Sequence[bytes] | FrameRun]) -> int:
        """See `Loops.send`."""
        send = socket.send
        more, last = _NOBLOCK | int(zmq.SNDMORE), _NOBLOCK
        count = 0
        for frames in expand(messages):
            try:
                for frame in frames[:-1]:
                    send(frame, more)
                send(frames[-1], last)
            except zmq.Again:
                continue
            count += 1
        return count
