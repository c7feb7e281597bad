"""Which loops move messages in and out of sockets: the compiled ones where they are to be had, else those in Python.

The environment variable `DAFKA_ACCELERATOR` forces either: `on` the compiled ones, `off` those in Python.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Protocol

import zmq

from dafka.errors import ConfigError
from dafka.transport.compiled import load_compiled
from dafka.transport.pure import PureLoops
from dafka.wire.batch import EncodedRun

VARIABLE = "DAFKA_ACCELERATOR"

_PURE = PureLoops()


class Loops(Protocol):
    """The inner loops of a socket. None of them waits, and errors of libzmq are pyzmq's exceptions.

    Attributes:
        name: what `dafka --version` calls them.
        receive_count_max: messages to be drained in one call, a few milliseconds' work; then others get their turn.
    """

    receive_count_max: int

    @property
    def name(self) -> str:
        """`compiled` or `pure Python`."""

    def receive(self, socket: zmq.Socket[bytes], count_max: int, bytes_max: int) -> list[list[bytes]]:
        """The messages that are here: up to `count_max`, and none after `bytes_max` octets have been reached."""

    def receive_runs(self, socket: zmq.Socket[bytes], count_max: int, bytes_max: int) -> list[list[bytes] | EncodedRun]:
        """The same, where consecutive records of a partition may come as one, where the first of them stood."""

    def send(self, socket: zmq.Socket[bytes], messages: Iterable[Sequence[bytes] | EncodedRun]) -> int:
        """Queues messages; gives how many. One that is not taken is dropped."""


def choose_loops() -> Loops:
    """The loops that a socket made now uses.

    Raises `ConfigError` where `DAFKA_ACCELERATOR` asks for what is not to be had, or says neither `on` nor `off`.
    """
    choice = os.environ.get(VARIABLE, "")
    if choice not in ("", "on", "off"):
        raise ConfigError(f"{VARIABLE}: expected on or off, not {choice!r}")
    if choice == "off":
        return _PURE
    compiled = load_compiled()
    if not isinstance(compiled, str):
        return compiled
    if choice == "on":
        raise ConfigError(f"{VARIABLE}: the accelerator cannot be used: {compiled}")
    return _PURE
