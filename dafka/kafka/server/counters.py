"""Counts the requests and responses of the Kafka server, and how long they take."""

from __future__ import annotations

import functools
import struct
from collections import Counter
from typing import NamedTuple

from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.tables import Kind, Response, Struct, fields_of
from dafka.roles.statistics import Timer

_BATCH_HEAD = struct.Struct(">qi")
_MAGIC_POSITION = 16
_COUNT_POSITION = 57
_COUNT = struct.Struct(">i")


class Counters:
    """The counters of a server since it started.

    Requests, errors and timers are by API, records by topic, logins by mechanism, which is empty if the client chose
    none, and disconnected clients by reason. Timers measure the time from receiving a request to completing its
    response. A client can skip some of the consumed records. Duplicates are batches that idempotent producers sent
    again, and that were not stored again. Throttled requests are counted by quota. Late commits are commits of offsets
    that arrived after the client had closed the connection, and were discarded.
    """

    def __init__(self) -> None:
        self.disconnected: Counter[str] = Counter()
        self.received_bytes = 0
        self.sent_bytes = 0
        self.requests: Counter[ApiKey] = Counter()
        self.errors: Counter[tuple[ApiKey, int]] = Counter()
        self.timers: dict[ApiKey, Timer] = {}
        self.produced: Counter[str] = Counter()
        self.consumed: Counter[str] = Counter()
        self.duplicates = 0
        self.late_requests = 0
        self.logins: Counter[str] = Counter()
        self.failed_logins: Counter[str] = Counter()
        self.throttled: Counter[str] = Counter()

    def add_response(self, api: ApiKey, response: Response | None, duration_s: float) -> None:
        """Count a request that was handled."""
        self.requests[api] += 1
        timer = self.timers.get(api)
        if timer is None:
            timer = self.timers[api] = Timer()
        timer.add(duration_s)
        if response is not None:
            for code in find_errors(response):
                self.errors[api, code] += 1


class _Plan(NamedTuple):
    """The positions of the error codes in a struct."""

    codes: tuple[str, ...]
    lists: tuple[tuple[str, _Plan], ...]


def find_errors(response: Response) -> list[int]:
    """Return all error codes in a response that are not `NONE`."""
    found: list[int] = []
    _collect(response, _plan_of(type(response)), found)
    return found


def _collect(value: Struct, plan: _Plan, found: list[int]) -> None:
    for name in plan.codes:
        code = getattr(value, name)
        if code != ErrorCode.NONE:
            found.append(int(code))
    for name, inner in plan.lists:
        for each in getattr(value, name) or ():
            _collect(each, inner, found)


@functools.cache
def _plan_of(struct_type: type[Struct]) -> _Plan:
    codes, lists = [], []
    for each in fields_of(struct_type):
        if each.kind is Kind.INT16 and each.name.endswith("error_code") and not each.is_array:
            codes.append(each.name)
        elif each.is_array and each.struct is not None:
            inner = _plan_of(each.struct)
            if inner.codes or inner.lists:
                lists.append((each.name, inner))
    return _Plan(tuple(codes), tuple(lists))


def count_records(data: bytes | memoryview | None) -> int:
    """Return the number of records in consecutive batches. Messages of versions 0 and 1 count as one each."""
    if not data:
        return 0
    count = position = 0
    end = len(data)
    while position + _MAGIC_POSITION < end:
        _, size = _BATCH_HEAD.unpack_from(data, position)
        if size < 0 or position + _BATCH_HEAD.size + size > end:
            break
        if data[position + _MAGIC_POSITION] < 2:
            count += 1
        elif size >= _COUNT_POSITION + _COUNT.size - _BATCH_HEAD.size:
            count += max(_COUNT.unpack_from(data, position + _COUNT_POSITION)[0], 0)
        position += _BATCH_HEAD.size + size
    return count
