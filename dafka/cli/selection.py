"""Which records `dafka consume` prints: from where, up to where, of which partitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import click

from dafka.cli.options import TIME, add_options
from dafka.cli.terminal import UsageMistake
from dafka.config import Config
from dafka.records import Partition, RecordBatch
from dafka.roles import Consumer

_BEGINNINGS = ("--from-beginning", "--tail", "--offset", "--since")


@attrs.frozen
class Selection:
    """What the options of `selection_options` say.

    `tail`, `offset` and `since` are None for another beginning; `since` is in milliseconds since 1970. `partitions` are
    the beginnings of the addresses of the partitions to print; all if empty.
    """

    from_beginning: bool = False
    tail: int | None = None
    offset: int | None = None
    since: int | None = None
    partitions: tuple[str, ...] = ()
    exit_at_end: bool = False

    def __attrs_post_init__(self) -> None:
        given = [option for option in self._given_options() if option in _BEGINNINGS]
        if len(given) > 1:
            raise UsageMistake(f"{given[1]}: expected this or {given[0]}, not both")

    def _given_options(self) -> list[str]:
        options = {
            "--from-beginning": self.from_beginning,
            "--tail": self.tail is not None,
            "--offset": self.offset is not None,
            "--since": self.since is not None,
            "--partition": bool(self.partitions),
            "--exit-at-end": self.exit_at_end,
        }
        return [option for option, is_given in options.items() if is_given]

    def apply_to(self, config: Config) -> Config:
        """Return the configuration, with the beginning of partitions that have no position.

        Raise `UsageMistake` if the consumer is in a group, which has positions of its own.
        """
        others = [option for option in self._given_options() if option != "--from-beginning"]
        if others and config.consumer.group:
            raise UsageMistake(
                f"{others[0]}: expected no --group with it, whose members go on where others stood; "
                "`dafka group reset` changes where"
            )
        has_beginning = self.tail is not None or self.since is not None
        is_earliest = self.from_beginning or self.offset is not None or (self.exit_at_end and not has_beginning)
        return config.with_consumer(offset_reset="earliest") if is_earliest else config

    async def begin(self, consumer: Consumer) -> SelectedRecords:
        """Move a consumer, which has settled, to the first record, and return the records to print.

        Raise `DiscoveryError` if the ends or times of partitions are needed and no store was found, `UnansweredError`
        if no store can say the times, and `UsageMistake` if no stored partition is one of those to print.
        """
        ends: dict[Partition, int] | None = None
        if self.exit_at_end or self.tail is not None or self.offset is not None:
            stored = await consumer.ends()
            ends = {partition: end for partition, end in stored.items() if self.includes(partition)}
            if stored and not ends:
                raise UsageMistake(
                    f"--partition {self.partitions[0]}: no stored partition of {', '.join(consumer.topics)} begins so; "
                    "`dafka status TOPIC --partitions` lists them"
                )
        if self.since is not None:
            await consumer.seek_time(self.since)
        if ends is not None and self.tail is not None:
            consumer.seek({partition: max(end - self.tail, 0) for partition, end in ends.items()})
        if ends is not None and self.offset is not None:
            consumer.seek(dict.fromkeys(ends, self.offset))
        return SelectedRecords(consumer, self.includes, ends if self.exit_at_end else None)

    def includes(self, partition: Partition) -> bool:
        """Return whether the records of a partition are printed."""
        return not self.partitions or partition.address.startswith(self.partitions)


class SelectedRecords:
    """The records of a consumer that are printed, up to the ends of partitions; without an end if these are None."""

    def __init__(
        self, consumer: Consumer, includes: Callable[[Partition], bool], ends: dict[Partition, int] | None
    ) -> None:
        self._consumer = consumer
        self._includes = includes
        self._batches = consumer.batches(until=ends)

    async def next_batch(self, records_max: int | None = None) -> RecordBatch | None:
        """Wait for the next batch, and return at most `records_max` records of it; None after the last batch.

        Records that are not returned do not count as received.
        """
        async for batch in self._batches:
            if not self._includes(batch.partition):
                self._consumer.pause(batch.partition)
                self._consumer.seek({batch.partition: batch.first_sequence})
                continue
            given = batch if records_max is None else batch.between(0, batch.first_sequence + records_max)
            if len(given) < len(batch):
                self._consumer.seek({batch.partition: given.end_sequence})
            return given
        return None


def _upper(_context: click.Context, _parameter: click.Parameter, values: Sequence[str]) -> tuple[str, ...]:
    return tuple(value.upper() for value in values)


selection_options = add_options(
    click.option("--from-beginning", is_flag=True, help="Begin at the earliest record: --offset-reset earliest."),
    click.option(
        "--tail",
        type=click.IntRange(min=0),
        metavar="N",
        help="Begin with the last N records of each partition that stores hold. Each producer has a partition.",
    ),
    click.option(
        "--offset",
        type=click.IntRange(min=0),
        metavar="SEQUENCE",
        help="Begin at this sequence in each partition that stores hold.",
    ),
    click.option(
        "--since",
        type=TIME,
        metavar="TIME",
        help="Begin with the first record made at this time or later: how long ago, such as 2h, or an ISO 8601 "
        "time such as 2026-11-23T08:00Z (UTC if it names no offset).",
    ),
    click.option(
        "--partition",
        "partitions",
        metavar="ADDRESS",
        multiple=True,
        callback=_upper,
        help="Print this partition only; the first digits of its address suffice. May be repeated.",
    ),
    click.option(
        "--exit-at-end",
        is_flag=True,
        help="Stop at the end of what stores hold now. Without --tail, --offset or --since, begin at the earliest "
        "record.",
    ),
)
"""Adds the options of a `Selection` to a command."""
