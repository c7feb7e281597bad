"""Tools for operators of groups of consumers: list, describe and reset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs
import trio

from dafka.config import Config
from dafka.errors import ConfigError, UnansweredError
from dafka.protocol import Event
from dafka.protocol.groups import GROUP_PREFIX, SIGNS_PER_LEASE, SILENCE_FACTOR, topic_of_group
from dafka.records import Partition
from dafka.roles.arguments import check_topic, ephemeral
from dafka.roles.group import Group, GroupReader, open_group_reader
from dafka.roles.observer import open_observer
from dafka.roles.reader import open_reader

RESURVEY_S = 0.5
"""Seconds between two checks of the members' records."""

PATIENCE_S = 10.0
"""Seconds that resetting a group can take in addition to the leases of silent members."""


@attrs.frozen
class MemberDescription:
    """One member of a group.

    Attributes:
        address: The address of the node that publishes its records: another one after each restart.
        topics: The topics that it consumes.
        partitions: The partitions that it handles, or will handle soon.
        is_silent: Whether its heartbeat is overdue. Others replace it when its lease is over.
    """

    address: str
    topics: tuple[str, ...]
    partitions: tuple[Partition, ...]
    is_silent: bool


@attrs.frozen
class GroupDescription:
    """The state of a group.

    Attributes:
        name: Its name.
        members: Its members.
        positions: By partition, the sequence of the next record to handle.
        ends: By partition of its topics, the sequence after the last record that a store holds.
    """

    name: str
    members: tuple[MemberDescription, ...]
    positions: dict[Partition, int]
    ends: dict[Partition, int]

    def lag(self, partition: Partition) -> int:
        """Return the number of records of a partition that the group has not handled."""
        position = self.positions.get(partition, 0)
        return max(self.ends.get(partition, position) - position, 0)


async def list_groups(config: Config) -> list[str]:
    """Return the names of the groups with stored positions.

    Args:
        config: The configuration.

    Returns:
        The names, in alphabetical order.
    """
    async with open_observer((), ephemeral(config)) as observer:
        with trio.move_on_after(config.node.tower_timeout_ms / 1000):
            await observer.wait_settled()
        topics = await observer.list_topics(config.node.tower_timeout_ms / 1000)
    return [topic.removeprefix(GROUP_PREFIX) for topic in topics if topic.startswith(GROUP_PREFIX)]


async def describe_group(name: str, config: Config) -> GroupDescription:
    """Return the members and the positions of a group.

    It takes some seconds if a member is silent.

    Args:
        name: The name of the group.
        config: The configuration.

    Returns:
        The state of the group in the stores; no members and no positions if there is no such group.

    Raises:
        ConfigError: The name is too long.
        DiscoveryError: No tower or no store was found within `[node] tower_timeout_ms`.
        UnansweredError: The stores did not answer in time.
    """
    check_topic(topic_of_group(name), config)
    async with open_reader((), ephemeral(config)) as probe:
        await probe._wait_settled()
    async with open_group_reader(name, config, lambda: None) as reader:
        await _survey(reader, config)
        silent = await _wait_signs(reader, config)
        view = reader.view
        members = tuple(
            MemberDescription(
                each.address,
                tuple(sorted(each.topics)),
                tuple(sorted(each.claimed, key=str)),
                each.address in silent,
            )
            for each in sorted(view.living(), key=lambda member: member.address)
        )
        positions = {partition: position.sequence for partition, position in view.positions().items()}
    topics = {topic for member in members for topic in member.topics} | {each.topic for each in positions}
    return GroupDescription(name, members, positions, await find_ends(topics, config))


async def find_ends(topics: Iterable[str], config: Config) -> dict[Partition, int]:
    """Return, by partition of the topics, the sequence after the last record that a store holds.

    Raise `DiscoveryError` if no tower or no store was found within `[node] tower_timeout_ms`.
    """
    if not (names := tuple(topics)):
        return {}
    async with open_reader(names, ephemeral(config)) as reader:
        await reader.wait_ready()
        return reader.ends()


async def reset_group(description: GroupDescription, positions: Mapping[Partition, int], config: Config) -> None:
    """Set the positions of a group, which must have no living members.

    This program is a member of the group for a moment, so that no other member continues meanwhile.

    Args:
        description: The current state of the group.
        positions: By partition, the sequence of the next record to handle.
        config: The configuration.

    Raises:
        ConfigError: The group has living members.
        UnansweredError: The stores did not confirm in time, or a member has joined meanwhile.
    """
    if not all(each.is_silent for each in description.members):
        raise ConfigError(f"group {description.name!r}: it has members that are alive: stop them first")
    topics = sorted({partition.topic for partition in positions})
    group = Group(description.name, topics, config, _Claimant(positions))
    is_saved = False
    leases_s = SILENCE_FACTOR * config.consumer.group_lease_ms / 1000 if description.members else 0.0
    async with trio.open_nursery() as nursery:
        await nursery.start(group.run)
        with trio.move_on_after(leases_s + PATIENCE_S):
            while not group.held().keys() >= positions.keys():  # noqa: ASYNC110 (nothing announces it)
                await trio.sleep(0.05)
            await group.save(positions)
            is_saved = all(group.held().get(each) == sequence for each, sequence in positions.items())
        await group.leave()
        nursery.cancel_scope.cancel()
    if not is_saved:
        raise UnansweredError(
            f"group {description.name!r} was not reset: a member handles its partitions, or the stores did not confirm",
            "members",
            0,
        )


class _Claimant:
    """Takes the partitions to reset, without handing out records."""

    def __init__(self, partitions: Iterable[Partition]) -> None:
        self._partitions = list(partitions)

    def known_partitions(self) -> Iterable[Partition]:
        return self._partitions

    def begin_of(self, partition: Partition) -> int:
        return 0

    def assign(self, partition: Partition, sequence: int) -> None:
        pass

    def unassign(self, partition: Partition) -> int:
        return 0

    def report(self, event: Event) -> None:
        pass


async def _survey(reader: GroupReader, config: Config) -> None:
    """Read all records of a group from the stores."""
    seconds = config.node.tower_timeout_ms / 1000
    with trio.move_on_after(seconds):
        await reader.wait_settled()
        reader.begin_survey()
        while not 0 < reader.machine.stores <= reader.machine.surveyed():  # noqa: ASYNC110 (nothing announces it)
            await trio.sleep(0.02)
        return
    raise UnansweredError(f"the stores did not answer within {seconds:g} s", "answers", reader.machine.stores)


async def _wait_signs(reader: GroupReader, config: Config) -> set[str]:
    """Wait until each member has sent a heartbeat, or should have. Return the members that have not."""
    living = reader.view.living
    read = {each.address: each.next_sequence for each in living()}
    due = trio.current_time() + 2 * max((each.lease_s for each in living()), default=0.0) / SIGNS_PER_LEASE
    while silent := {each.address for each in living() if read.get(each.address) == each.next_sequence}:
        if trio.current_time() >= due:
            break
        await trio.sleep(RESURVEY_S)
        await _survey(reader, config)
    return silent
