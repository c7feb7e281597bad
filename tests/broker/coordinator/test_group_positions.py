"""Positions of groups in logs with branches: they count in the branch that the group has read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio

from dafka.broker.coordinator.groups import GroupCoordinators, follow_divergences, name_epoch
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.results import FetchedOffset, OffsetToCommit
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.replication.epoch_tree import EpochTree
from dafka.broker.core.replication.records import NO_EPOCH_END, EpochStart, LeaderAndEpoch
from dafka.broker.core.topic_partition import TopicPartition
from tests.broker.core.entries import epoch_end

PLACE = TopicPartition("orders", 0)

FIRST, LOST, WON, LAST = (
    LeaderAndEpoch(0, "a"),
    LeaderAndEpoch(1024, "a"),
    LeaderAndEpoch(1025, "b"),
    LeaderAndEpoch(2049, "b"),
)


def make_tables(*rows: EpochStart, availability: str = "branch") -> Any:
    """Return what is needed of the tables of a broker that knows some rows."""
    table = EpochTree()
    for row in rows:
        table.add(row)
    topic = Topic("orders", "T", 1, {"availability": availability})
    log = SimpleNamespace(replica=SimpleNamespace(epoch_tree=table)) if rows else None
    logs = SimpleNamespace(find={"T/0": log}.get)
    return SimpleNamespace(log_table=SimpleNamespace(topics={"orders": topic}), logs=logs)


ROWS = (
    EpochStart("T/0", FIRST, NO_EPOCH_END, ()),
    EpochStart("T/0", LOST, epoch_end(FIRST, 100), ()),
    EpochStart("T/0", WON, epoch_end(FIRST, 100), ()),
    EpochStart("T/0", LAST, epoch_end(WON, 150), ()),
)


def fetched(offset: int, epoch: int) -> FetchedOffset:
    return FetchedOffset(offset, epoch, "", ErrorCode.NONE)


@pytest.mark.parametrize(
    ("position", "found"),
    [
        (fetched(120, 1024), fetched(100, 0)),
        (fetched(100, 1024), fetched(100, 1024)),
        (fetched(90, 0), fetched(90, 0)),
        (fetched(110, 0), fetched(100, 0)),
        (fetched(140, 1025), fetched(140, 1025)),
        (fetched(160, 1025), fetched(150, 1025)),
        (fetched(170, 2049), fetched(170, 2049)),
        (fetched(120, -1), fetched(120, -1)),
        (fetched(120, 7), fetched(120, 7)),
        (fetched(-1, -1), fetched(-1, -1)),
    ],
)
def test_groups_go_on_where_branches_part(position: FetchedOffset, found: FetchedOffset) -> None:
    assert follow_divergences(make_tables(*ROWS), PLACE, position) == found
    for tables in (make_tables(), make_tables(*ROWS, availability="majority")):
        assert follow_divergences(tables, PLACE, position) == position


def test_positions_get_the_epoch_of_the_branch_that_clients_read() -> None:
    tables = make_tables(*ROWS)
    told = [name_epoch(tables, PLACE, OffsetToCommit(offset)).leader_epoch for offset in (0, 100, 101, 150, 151)]
    assert told == [0, 0, 1025, 1025, 2049]
    during_the_split = make_tables(*ROWS[:2])
    assert name_epoch(during_the_split, PLACE, OffsetToCommit(120)).leader_epoch == 1024
    for epoch in (0, 1024):
        assert name_epoch(tables, PLACE, OffsetToCommit(120, epoch)).leader_epoch == epoch
    assert name_epoch(make_tables(*ROWS, availability="majority"), PLACE, OffsetToCommit(120)).leader_epoch == -1


@pytest.mark.parametrize(
    ("current", "deleted", "is_told"),
    [("T", "", True), ("U", "", False), ("U", "T", False), ("", "T", False), ("", "", True)],
)
async def test_a_position_counts_only_in_the_topic_for_which_it_was_committed(
    current: str, deleted: str, *, is_told: bool
) -> None:
    tables = make_tables(availability="majority")
    tables.log_table.find_client_topic = lambda name: Topic(name, current, 1) if current else None
    tables.state = SimpleNamespace(deleted_ids={deleted})
    position = fetched(7, -1)._replace(topic_id="T")
    groups = SimpleNamespace(fetch_offsets=lambda *_, **_options: {PLACE: position})
    shard = SimpleNamespace(groups=groups, confirm_read=trio.lowlevel.checkpoint)
    coordinators: Any = SimpleNamespace(find=lambda _group: shard)
    unused: Any = None
    found = GroupCoordinators(tables, coordinators, unused, unused)
    assert (await found.fetch_offsets("g", [PLACE]))[PLACE].offset == (7 if is_told else -1)
    assert (PLACE in await found.fetch_offsets("g")) == is_told
