"""What stores hold of a task's partition: how much, and reading it back. What goes wrong is told in a user's words."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from dafka.config import Config
from dafka.errors import LocalError, UnacknowledgedError, UnansweredError
from dafka.records import Partition
from dafka.roles import Reader


class PublishingError(LocalError):
    """Stores did not tell what they hold, or did not acknowledge what a task has published.

    The message names the options to change.
    """


async def held_end(reader: Reader, partition: Partition, config: Config) -> int:
    """The sequence after the last record of a task's partition that any store holds.

    Raises `DiscoveryError` where no tower answers, `PublishingError` where there are fewer stores than must
    acknowledge, or where somebody else goes on adding to the partition.
    """
    seconds = config.producer.close_timeout_ms / 1000
    try:
        return await reader.held_end(partition, seconds, min_stores=config.producer.min_stores)
    except UnansweredError as error:
        raise PublishingError(f"topic {partition.topic}: {_unanswered(partition, error)}") from None


async def read_held(
    reader: Reader, partition: Partition, first_sequence: int, end_sequence: int, config: Config
) -> Sequence[bytes | None]:
    """The contents of these records; None for one that retention has dropped.

    Raises `PublishingError` where no store sends them.
    """
    seconds = config.producer.close_timeout_ms / 1000
    contents: list[bytes | None] = []
    records = reader.read(partition, first_sequence, end_sequence)
    try:
        while len(contents) < end_sequence - first_sequence:
            position = first_sequence + len(contents)
            with trio.move_on_after(seconds) as scope:
                batch = await records.next_batch()
            if scope.cancelled_caught:
                raise PublishingError(
                    f"topic {partition.topic}: stores hold records of {partition.address}, and for {seconds:g} s "
                    f"none sent the one at {position}; see to the stores, or raise ackTimeout"
                )
            next_sequence = end_sequence if batch is None else batch.first_sequence
            contents += [None] * (next_sequence - position)
            contents += () if batch is None else batch.contents
    finally:
        records.close()
    return contents


def unacknowledged(partition: Partition, error: UnacknowledgedError) -> PublishingError:
    """What a user can do about it."""
    return PublishingError(
        f"topic {partition.topic}: {error}; see to the stores, change the option minStores or ackTimeout, or end "
        "another attempt of the task that still lives"
    )


def _unanswered(partition: Partition, error: UnansweredError) -> str:
    if error.lacking == "stores":
        return (
            f"{error}; start one more, see that the option towers names their tower, or change minStores or ackTimeout"
        )
    if error.lacking == "answers":
        return f"{error}; see to the stores, or raise ackTimeout"
    return (
        f"somebody else goes on publishing this task's partition ({partition.address}): another attempt of it. "
        "Set spark.speculation to false"
    )
