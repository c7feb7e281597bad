"""The token bucket against exact numbers."""

from __future__ import annotations

from fractions import Fraction
from random import Random

from dafka.protocol.token_bucket import TokenBucket
from tests.seeds import each_seed


class Model:
    """A bucket with exact numbers."""

    def __init__(self, per_second: float, burst: float) -> None:
        self.per_second, self.burst = Fraction(per_second), Fraction(burst)
        self.level, self.at = Fraction(burst), Fraction(0)

    def at_time(self, now: float) -> Fraction:
        return min(self.level + self.per_second * (Fraction(now) - self.at), self.burst)

    def take(self, now: float, tokens: float) -> None:
        self.level, self.at = self.at_time(now) - Fraction(tokens), Fraction(now)


@each_seed(30)
def test_a_bucket_gives_what_it_gained_and_no_more(seed: int) -> None:
    draw = Random(seed)
    per_second, burst = draw.choice((0.25, 2.0, 64.0)), draw.choice((0.5, 1.0, 3.0, 100.0))
    bucket, model, now = TokenBucket(per_second, burst, 0.0), Model(per_second, burst), 0.0
    for _ in range(200):
        now += draw.choice((0.0, 0.0, 0.125, 0.5, 4.0))
        tokens = draw.choice((0.0, 0.25, 1.0, 1.0, 3.0, burst))
        if draw.random() < 0.1:
            model.take(now, tokens)
            assert bucket.spend(now, tokens) == model.level, "spending may overdraw"
        elif model.at_time(now) >= tokens:
            model.take(now, tokens)
            assert bucket.try_take(now, tokens)
        else:
            assert not bucket.try_take(now, tokens)
    assert bucket.spend(now + 1e6, 0.0) == burst, "it never holds more than the burst"


def test_failed_attempts_cost_nothing_and_add_no_rounding_errors() -> None:
    bucket = TokenBucket(per_second=1 / 60, burst=1, now=0.0)
    assert bucket.try_take(0.0)
    assert not any(bucket.try_take(float(second)) for second in range(1, 60))
    assert bucket.try_take(60.0)
