import pytest

from tests.broker.core.coordination.model.transactions import TransactionWorld


@pytest.mark.parametrize("first", range(0, 12, 3))
def test_nothing_is_lost_repeated_or_visible_in_part(first: int) -> None:
    for seed in range(first, first + 3):
        TransactionWorld(seed).run()
