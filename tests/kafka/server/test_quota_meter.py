"""The meter of quotas: clients that wait when they are asked to get what they are allowed, neither more nor less."""

from __future__ import annotations

import tracemalloc
from random import Random

import pytest

from dafka.broker.core.client_quotas import EntityType, QuotaKey, make_entity
from dafka.broker.core.metadata.commands import AlterClientQuota
from dafka.broker.core.metadata.quota_table import QuotaTable
from dafka.kafka.server import quota_meter
from dafka.kafka.server.quota_meter import CLIENT_ID_CHARACTERS_MAX, WINDOW_S, QuotaMeter
from tests.seeds import each_seed

KEY = QuotaKey.PRODUCER_BYTE_RATE


def limit(table: QuotaTable, parts: dict[EntityType, str | None], rate: str, key: QuotaKey = KEY) -> None:
    table.alter(AlterClientQuota(make_entity(parts), {key.value: rate} if rate else {}, () if rate else (key.value,)))


@each_seed(30)
def test_connections_that_wait_use_their_common_rate_and_no_more(seed: int) -> None:
    draw, table = Random(seed), QuotaTable()
    rate = draw.choice([10.0, 1000.0])
    limit(table, {EntityType.USER: "anne"}, str(rate))
    meter, ready = QuotaMeter(table), [0.0] * draw.randint(1, 4)
    used, latest, size = 0.0, 0.0, 0.0
    for _ in range(300):
        number = min(range(len(ready)), key=ready.__getitem__)
        now = ready[number]
        amount = draw.choice([0.1, 1.0, 3.0]) * rate
        assert used <= rate * (now + WINDOW_S) + len(ready) * size + 0.001, "what is used before"
        wait = meter.spend(KEY, "anne", draw.choice(["x", "y"]), amount, now)
        used, size, latest = used + amount, max(size, amount), max(latest, now)
        ready[number] = now + wait + 0.001
    assert used >= rate * latest, "they wait no longer than they must"


def test_who_uses_less_than_the_rate_never_waits() -> None:
    table = QuotaTable()
    limit(table, {EntityType.USER: None}, "100")
    meter = QuotaMeter(table)
    assert not any(meter.spend(KEY, "anne", "x", 50, second) for second in range(1000))
    assert not meter.spend(KEY, "anne", "x", 100 * WINDOW_S, 1000 + WINDOW_S), "a burst after a pause"
    assert meter.spend(KEY, "anne", "x", 50, 1000 + WINDOW_S) == pytest.approx(0.5)
    assert not meter.spend(KEY, "bob", "x", 50, 1000 + WINDOW_S), "another user"
    assert not meter.spend(QuotaKey.CONSUMER_BYTE_RATE, "anne", "x", 10**9, 1000 + WINDOW_S), "without a quota"


def test_changes_count_at_once_and_others_keep_what_they_owe() -> None:
    table = QuotaTable()
    meter = QuotaMeter(table)
    assert not meter.spend(KEY, "", None, 10**9, 0)
    limit(table, {EntityType.USER: "ANONYMOUS"}, "1")
    assert meter.spend(KEY, "", None, 20, 0) == 10
    limit(table, {EntityType.USER: "bob"}, "1")
    assert meter.spend(KEY, "", None, 0, 5) == 5
    limit(table, {EntityType.USER: "ANONYMOUS"}, "")
    assert not meter.spend(KEY, "", None, 10**9, 5)


def test_what_is_exhausted_is_charged_no_more() -> None:
    table = QuotaTable()
    key = QuotaKey.CONTROLLER_MUTATION_RATE
    limit(table, {EntityType.CLIENT_ID: "x"}, "2", key)
    meter = QuotaMeter(table)
    found = [meter.spend_unless_exhausted(key, "anne", "x", 30, now) for now in (0, 0, 4, 5, 5.5)]
    assert found == [(True, 5), (False, 5), (False, 1), (True, 15), (False, 14.5)]
    assert meter.spend_unless_exhausted(key, "anne", "y", 30, 0) == (True, 0)


def test_an_address_that_opens_connections_too_fast_is_refused() -> None:
    table, key = QuotaTable(), QuotaKey.CONNECTION_CREATION_RATE
    meter = QuotaMeter(table)
    assert [meter.find_refusal("10.0.0.1", 0) for _ in range(3)] == [None] * 3
    limit(table, {EntityType.IP: "10.0.0.1"}, "2", key)
    limit(table, {EntityType.IP: None}, "1", key)
    found = [meter.find_refusal("10.0.0.1", 0) for _ in range(22)]
    assert found == [None] * 20 + [0.5] * 2
    assert [meter.find_refusal("10.0.0.1", 1) for _ in range(3)] == [None, None, 0.5]
    assert [meter.find_refusal("::1", 0) for _ in range(11)] == [None] * 10 + [1]
    found = [meter.find_refusal("::1", tenth / 10) for tenth in range(40)]
    assert found.count(None) == 3, "refused connections do not count"


def test_a_limited_number_of_clients_is_metered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_meter, "BUCKETS_MAX", 3)
    table = QuotaTable()
    limit(table, {EntityType.USER: None, EntityType.CLIENT_ID: None}, "1")
    meter = QuotaMeter(table)
    for name in "abcd":
        assert meter.spend(KEY, name, "x", 20, 0) == 10
    assert [meter.spend(KEY, name, "x", 0, 0) for name in "bcd"] == [10, 10, 10]
    assert meter.spend(KEY, "a", "x", 0, 0) == 0, "it was forgotten"


def test_long_client_ids_take_little_memory() -> None:
    table = QuotaTable()
    limit(table, {EntityType.CLIENT_ID: None}, "1")
    meter = QuotaMeter(table)
    tracemalloc.start()
    try:
        for number in range(500):
            meter.spend(KEY, "", f"{number}-" + "x" * 30_000, 1, 0)
        assert tracemalloc.get_traced_memory()[0] < 2**21
    finally:
        tracemalloc.stop()
    shared = "x" * CLIENT_ID_CHARACTERS_MAX
    assert not meter.spend(KEY, "", shared + "y", WINDOW_S, 0)
    assert meter.spend(KEY, "", shared + "z", 1, 0) == 1, "what follows in an id does not count"
