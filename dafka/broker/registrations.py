"""How the brokers of a cluster describe themselves, read by a node that is no broker."""

from __future__ import annotations

from contextlib import suppress

from dafka.broker.core.metadata.brokers import BROKERS_TOPIC, BrokerRegistration, decode_broker
from dafka.errors import StorageFormatError
from dafka.roles.reader import Reader


async def read_brokers(reader: Reader) -> list[BrokerRegistration]:
    """Return the brokers of a cluster by number, as they have described themselves last.

    Args:
        reader: A reader of the topic `$brokers`. It waits without limit for records that no store sends.

    Returns:
        The brokers, living or not. Those that have left are not among them, nor descriptions that this version of dafka
        cannot read.
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
