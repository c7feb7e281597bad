"""Connection quotas: any history of connections against a list."""

from __future__ import annotations

from random import Random

import attrs
import pytest
import trio

from dafka.broker.connections.connection_quotas import ConnectionQuotas


@attrs.define(eq=False)
class Connection:
    """A connection of the model."""

    host: str
    scope: trio.CancelScope
    is_served: bool = False
    is_replaced: bool = False


@pytest.mark.parametrize(("connections_max", "per_address_max"), [(1, 0), (3, 0), (3, 3), (4, 2), (5, 1)])
async def test_any_history_of_connections_keeps_the_limits(connections_max: int, per_address_max: int) -> None:
    """At a limit, the oldest connection that has not sent a request gives way; of the address, if that is its limit."""
    random = Random(connections_max * 10 + per_address_max)
    for _ in range(50):
        quotas = ConnectionQuotas(connections_max, per_address_max)
        current: list[Connection] = []
        gone: list[Connection] = []
        admitted = refused = 0

        def find_place(candidates: list[Connection]) -> bool:
            silent = next((each for each in candidates if not each.is_served), None)
            if silent is None:
                return False
            silent.is_replaced = True
            current.remove(silent)  # noqa: B023
            gone.append(silent)  # noqa: B023
            return True

        for _ in range(40):
            action, host = random.random(), random.choice("abc")
            of_host = [each for each in current if each.host == host]
            if action < 0.5:
                is_admitted = len(of_host) < (per_address_max or connections_max) or find_place(of_host)
                is_admitted = is_admitted and (len(current) < connections_max or find_place(current))
                scope = quotas.admit(host)
                assert (scope is not None) is is_admitted
                admitted, refused = admitted + is_admitted, refused + (not is_admitted)
                if scope is not None:
                    current.append(Connection(host, scope))
            elif action < 0.75 and current:
                served = random.choice(current)
                served.is_served = True
                quotas.mark_served(served.scope)
            elif current or gone:
                left = random.choice(current + gone)
                quotas.leave(left.scope, left.host)
                (current if left in current else gone).remove(left)
            assert (len(quotas), quotas.admitted, quotas.refused) == (len(current), admitted, refused)
            assert all(each.scope.cancel_called is each.is_replaced for each in current + gone)
