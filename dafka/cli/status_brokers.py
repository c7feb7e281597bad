"""What `dafka status` says of brokers: which are alive, and whether enough of them keep the logs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack, suppress

import attrs
import trio

from dafka.broker.core.metadata.brokers import BROKERS_TOPIC, BrokerRegistration, decode_broker
from dafka.cli.terminal import counted
from dafka.config import Config
from dafka.errors import DiscoveryError, StorageFormatError
from dafka.protocol import ClusterSurvey
from dafka.protocol.observer.cluster_survey import NodeState
from dafka.roles import Reader, open_reader


@attrs.frozen(kw_only=True)
class BrokerView:
    """A broker, as `dafka status` shows it.

    `under_replicated_logs` counts the logs that it leads and that fewer brokers have whole than should.
    """

    number: int
    address: str
    is_alive: bool
    is_draining: bool
    under_replicated_logs: int


class ClusterBrokers:
    """Reads how brokers describe themselves, if a cluster has any. What it opens for that is closed with the stack."""

    def __init__(self, config: Config, stack: AsyncExitStack) -> None:
        # A port that was chosen is that of the observer.
        self._config = config.with_node(bind=re.sub(r":\d+$", ":*", config.node.bind))
        self._timeout_s = config.node.tower_timeout_ms / 1000
        self._stack = stack
        self._reader: Reader | None = None

    async def view(self, survey: ClusterSurvey) -> list[BrokerView]:
        """Return the brokers of a cluster by number; none if it has none, or no store answers in time."""
        if all(topic.name != BROKERS_TOPIC for topic in survey.topics):
            return []
        present = {node.address for node in survey.nodes if node.state is NodeState.UP}
        if self._reader is None:
            self._reader = await self._stack.enter_async_context(open_reader([BROKERS_TOPIC], self._config))
        found: list[BrokerRegistration] = []
        with trio.move_on_after(self._timeout_s), suppress(DiscoveryError):
            await self._reader.wait_ready()
            found = await read_brokers(self._reader)
        return [
            BrokerView(
                number=each.number,
                address=each.address,
                is_alive=each.address in present,
                is_draining=each.is_draining,
                under_replicated_logs=each.under_replicated_logs,
            )
            for each in found
        ]


def broker_faults(brokers: Iterable[BrokerView]) -> Iterator[str]:
    """Yield a sentence for each broker that is dead, or that leads logs that too few others keep."""
    for each in brokers:
        if not each.is_alive:
            yield f"broker {each.number} is dead"
        elif each.under_replicated_logs:
            logs = counted(each.under_replicated_logs, "log")
            yield f"broker {each.number} leads {logs} of which fewer brokers have all records than should"


async def read_brokers(reader: Reader) -> list[BrokerRegistration]:
    """Return the brokers of a cluster by number, living or not, as they have described themselves last.

    Brokers that have left are not among them, nor descriptions that this version of dafka cannot read. The reader waits
    without limit for records of `$brokers` that no store sends.
    """
    found = []
    for partition, end in reader.ends().items():
        if partition.topic != BROKERS_TOPIC or not end:
            continue
        records = reader.read(partition, end - 1, end)
        async for batch in records:
            with suppress(StorageFormatError):
                found += [decode_broker(partition.address, value) for value in batch.values if value]
        records.close()
    members = [each for each in found if not each.has_left]
    return sorted(members, key=lambda broker: (broker.number, broker.address))
