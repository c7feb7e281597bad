from __future__ import annotations

from dafka.protocol.token_bucket import TokenBucket


def test_starts_full_and_refills() -> None:
    bucket = TokenBucket(per_second=2.0, burst=3, now=10.0)
    assert [bucket.try_take(10.0) for _ in range(4)] == [True, True, True, False]
    assert not bucket.try_take(10.4)
    assert bucket.try_take(10.5)
    assert not bucket.try_take(10.5)


def test_holds_no_more_than_the_burst() -> None:
    bucket = TokenBucket(per_second=2.0, burst=3, now=0.0)
    assert [bucket.try_take(1000.0) for _ in range(4)] == [True, True, True, False]


def test_failed_attempts_cost_nothing_and_add_no_rounding_errors() -> None:
    bucket = TokenBucket(per_second=1 / 60, burst=1, now=0.0)
    assert bucket.try_take(0.0)
    assert not any(bucket.try_take(float(second)) for second in range(1, 60))
    assert bucket.try_take(60.0)


def test_an_action_may_cost_more_or_less_than_one_token() -> None:
    bucket = TokenBucket(per_second=1.0, burst=1, now=0.0)
    assert bucket.try_take(0.0, 0.75)
    assert not bucket.try_take(0.0, 0.5)
    assert bucket.try_take(0.0, 0.25)


def test_spending_may_overdraw() -> None:
    bucket = TokenBucket(per_second=1.0, burst=2, now=0.0)
    assert bucket.spend(0.0, 5) == -3
    assert bucket.spend(4.0, 0) == 1
