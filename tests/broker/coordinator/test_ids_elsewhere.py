"""Producer ids for the clients of brokers that coordinate nothing: from another broker, durably, or by chance."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from dafka.broker.coordinator.coordinator_shard import CoordinatorError
from dafka.broker.coordinator.transactions import DRAWN_IDS, ID_ASK_S, ID_WAIT_S, TransactionCoordinators
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.transactions.coordinator import InitProducerResult
from dafka.broker.interbroker.messenger import BrokerMessenger, Message
from tests.broker.coordinator.shards import Records, Shard, serve


class Broker:
    """A broker that coordinates one shard, or none."""

    def __init__(self, address: str, shard: Shard | None = None) -> None:
        self.address = address
        self.others: list[Broker] = []
        self.sent = 0
        self.messenger = BrokerMessenger(address, self._send_bytes)
        send = self.messenger.send

        def count(to: str, message: Message) -> None:
            self.sent += 1
            send(to, message)

        self.messenger.send = count  # type: ignore[method-assign, assignment]

        def find(_name: str | None = None) -> Any:
            if shard is None:
                raise CoordinatorError(ErrorCode.NOT_COORDINATOR)
            return shard.shard

        served = [] if shard is None else [shard.shard]
        coordinators: Any = SimpleNamespace(
            served=lambda: served, find=find, any=find, any_leader=lambda: self.others[0].address if self.others else ""
        )
        unused: Any = None
        self.transactions = TransactionCoordinators(coordinators, unused, self.messenger, unused)

    def _send_bytes(self, address: str, data: bytes) -> None:
        for each in self.others:
            if each.address == address:
                each.messenger.receive(self.address, data)

    async def ask(self, found: list[InitProducerResult]) -> None:
        found.append(await self.transactions.init_producer_id(None))


async def test_another_broker_gives_ids_once_they_are_reserved_durably() -> None:
    async with serve(Shard(Records())) as shard, trio.open_nursery() as nursery:
        here, there = Broker("here"), Broker("there", shard)
        here.others, there.others = [there], [here]
        found: list[InitProducerResult] = []
        for _ in range(2):
            nursery.start_soon(here.ask, found)
        await trio.testing.wait_all_tasks_blocked()
        assert found == []
        await shard.commit()
        nursery.start_soon(there.ask, found)
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(each.producer for each in found) == [(0, 0), (1, 0), (2, 0)]


@pytest.mark.parametrize("is_silent", [True, False])
async def test_ids_are_drawn_if_no_broker_answers_in_time(
    autojump_clock: trio.testing.MockClock, is_silent: bool
) -> None:
    here = Broker("here")
    here.others = [Broker("silent")] if is_silent else []
    began = trio.current_time()
    found: list[InitProducerResult] = []
    for _ in range(20):
        await here.ask(found)
    assert trio.current_time() - began == pytest.approx(20 * ID_WAIT_S if is_silent else 0)
    assert here.sent == (20 * ID_WAIT_S / ID_ASK_S if is_silent else 0), "messages can be lost"
    ids = {each.producer.producer_id for each in found}
    assert len(ids) == 20
    assert all(2**52 == DRAWN_IDS <= each < 2**53 for each in ids)
    refused = await here.transactions.init_producer_id("t", 60_000)
    assert refused == InitProducerResult(ErrorCode.NOT_COORDINATOR)
