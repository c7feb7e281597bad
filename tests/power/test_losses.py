"""Everything that a storage has promised is there after a power failure, at any moment of its use."""

from __future__ import annotations

import pytest

from tests.power.losses import BrokenPromiseError, lose_power
from tests.power.planted import BUGS, FILELOG, SQLITE, url_of
from tests.power.recording import obstacle

pytestmark = [pytest.mark.skipif(bool(obstacle()), reason=obstacle()), pytest.mark.timeout(600)]

URLS = [SQLITE, FILELOG, f"{SQLITE}?synchronous=NORMAL", f"{FILELOG}&fsync=5", f"{FILELOG}&fsync=never"]
SEEDS = range(100, 108)
BUG_SEEDS = 40
"""Runs in which a planted bug may be noticed."""

DECISIVE = ("sqlite-acknowledges-unsynced-log",)
"""The planted bugs that show only after a process was killed between a commit and its sync, and then a power failure
before anything else is synced. Random moments hardly ever hit that; see `lose_power`."""

IN_SHORT = (
    "sqlite-commits-without-sync",
    "new-folder-entries-not-synced",
    "found-records-not-synced",
    "flush-forgets-unsynced",
    "positions-not-synced",
    "slots-trusted-after-power-failure",
)
"""The planted bugs that `make test` tries; `make test-long` tries the others."""


@pytest.mark.parametrize("url", URLS)
def test_nothing_promised_is_lost(url: str) -> None:
    lose_power(url, seed=1, steps=120, losses=60)


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("url", URLS)
def test_nothing_promised_is_lost_in_long_runs(url: str, seed: int) -> None:
    lose_power(url, seed=seed, steps=400, losses=200)


@pytest.mark.parametrize(
    "bug", [each if each in IN_SHORT else pytest.param(each, marks=pytest.mark.long) for each in BUGS]
)
def test_planted_bug_is_noticed(bug: str) -> None:
    assert any(is_noticed(bug, seed) for seed in range(1, BUG_SEEDS + 1))


def is_noticed(bug: str, seed: int) -> bool:
    try:
        lose_power(url_of(bug), seed=seed, steps=80, losses=80, bug=bug, is_decisive=bug in DECISIVE)
    except BrokenPromiseError:
        return True
    return False
