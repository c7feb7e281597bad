"""What holds for every machine after any history of messages, peers and time."""

from __future__ import annotations

import pytest

from tests.protocol.histories import DRIVERS, PAUSES_S, Draw, Driver

SEEDS = range(15)
STEPS = 60
QUIET_S = 60.0
TICKS_PER_S = 20
"""More than any machine needs when nothing happens."""


def pass_time(driver: Driver, begin: float, seconds: float) -> None:
    """Run the machine's timer. It never spins: after a tick, the next one is due later."""
    ticks, end = 0, begin + seconds
    now = begin
    while (due := driver.deadline()) <= end:
        now = max(due, now)
        driver.tick(now)
        assert driver.deadline() > now, f"due again at once, at {now}"
        ticks += 1
        assert ticks <= 100 + TICKS_PER_S * seconds, "too many ticks"


@pytest.mark.parametrize("kind", DRIVERS, ids=lambda each: each.__name__)
def test_a_machine_never_spins_and_keeps_its_promises(kind: type[Driver]) -> None:
    for seed in SEEDS:
        draw = Draw(seed)
        driver = kind(draw)
        now = 0.0
        try:
            for _ in range(STEPS):
                pause_s = draw.choice(PAUSES_S)
                if draw.random() < 0.7:
                    pass_time(driver, now, pause_s)
                now += pause_s
                if driver.deadline() <= now:  # the node was too busy to tick in time
                    driver.tick(now)
                    assert driver.deadline() > now, f"due again at once, at {now}"
                draw.choice(driver.inputs)(now)
                if draw.random() < 0.1:
                    driver.tick(now)
                driver.check()
            pass_time(driver, now, QUIET_S)
            driver.check()
        except Exception as error:
            error.add_note(f"{kind.__name__}, seed {seed}, at {now} s")
            raise
