import pytest

from tests.broker.core.coordination.model.groups import GroupWorld


@pytest.mark.parametrize("first", range(0, 20, 5))
def test_members_agree_and_every_request_is_answered(first: int) -> None:
    for seed in range(first, first + 5):
        GroupWorld(seed).run()
