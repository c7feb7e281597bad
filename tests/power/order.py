"""The order that the system calls of a process must keep: nothing is promised before it is durable."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from dafka.wire.commands import SIGNATURE, VERSION
from tests.power.system_calls import Call

CONTENT = b"record-%06d;"
"""The beginning of the content of a record."""

_CONTENT = re.compile(rb"record-(\d{6});")
_ACK = re.compile(re.escape(SIGNATURE) + b"K" + bytes([VERSION]) + rb"(.)", re.DOTALL)
_SYNCS = ("fsync", "fdatasync")
_SENDS = ("sendto", "sendmsg")


def acknowledged_too_early(calls: Iterable[Call], folder: str) -> list[str]:
    """Return the ACKs that a store sent before the records were durable below a folder."""
    durable = _Durable(folder)
    found = []
    for call in _by_begin(calls):
        if call.name in _SENDS:
            end = max(durable.ends(call.begin), default=0)
            found += [f"ACK {sequence} with {end} durable" for sequence in _acknowledged(call.data) if sequence >= end]
        durable.add(call)
    return found


def published_too_early(calls: Iterable[Call], folder: str) -> list[str]:
    """Return the records that a producer sent before they were durable in a spool below a folder."""
    durable = _Durable(folder)
    found = []
    for call in _by_begin(calls):
        if call.name in _SENDS:
            end = max(durable.ends(call.begin), default=0)
            sent = {int(number) for number in _CONTENT.findall(call.data)}
            found += [f"record {number} with {end} durable" for number in sorted(sent) if number >= end]
        durable.add(call)
    return found


def saved_too_early(calls: Iterable[Call], folder: str) -> list[str]:
    """Return the positions that a consumer saved below a folder before it wrote the records to standard output."""
    outputs: list[tuple[int, int]] = []
    found = []
    for call in _by_begin(calls):
        if call.fd == 1:
            outputs += [(call.end, int(number) + 1) for number in _CONTENT.findall(call.data)]
        elif call.target.startswith(folder) and b'"positions"' in call.data:
            end = max((end for returned, end in outputs if returned < call.begin), default=0)
            saved = [position for _, _, position in json.loads(call.data)["positions"]]
            found += [f"position {position} with {end} written" for position in saved if position > end]
    return found


def count_calls(calls: Iterable[Call], folder: str) -> dict[str, int]:
    """Return how many ACKs, records and positions were found, so that a trace without any does not pass."""
    counts = {"acks": 0, "records": 0, "positions": 0, "syncs": 0}
    for call in calls:
        if call.name in _SENDS:
            counts["acks"] += len(_acknowledged(call.data))
            counts["records"] += len(_CONTENT.findall(call.data))
        elif call.target.startswith(folder):
            counts["syncs"] += call.name in _SYNCS
            counts["positions"] += b'"positions"' in call.data
    return counts


def _by_begin(calls: Iterable[Call]) -> list[Call]:
    return sorted(calls, key=lambda call: call.begin)


def _acknowledged(data: bytes) -> list[int]:
    """Return the sequences of the ACKs among sent bytes: two short strings and a number follow the header."""
    sequences = []
    for header in _ACK.finditer(data):
        address_bytes = header[1][0]
        topic_at = header.end() + address_bytes
        if topic_at < len(data):
            number_at = topic_at + 1 + data[topic_at]
            sequences.append(int.from_bytes(data[number_at : number_at + 8], "big"))
    return sequences


class _Durable:
    """The records that were written to the files below a folder, and since when they are durable."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._written: list[tuple[str, int, int]] = []
        self._synced: list[tuple[int, int]] = []

    def add(self, call: Call) -> None:
        """Take the next call, in the order in which they began."""
        if not call.target.startswith(self._folder):
            return
        if call.name in _SYNCS:
            done = [each for each in self._written if each[0] == call.target and each[1] < call.begin]
            self._synced += [(call.end, end) for _, _, end in done]
            self._written = [each for each in self._written if each not in done]
        elif numbers := _CONTENT.findall(call.data):
            self._written += [(call.target, call.end, int(number) + 1) for number in numbers]

    def ends(self, before: int) -> list[int]:
        """Return the ends of records whose sync returned before a line of the trace."""
        return [end for returned, end in self._synced if returned < before]
