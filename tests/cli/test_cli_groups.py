"""`dafka group` with a cluster: what it prints, and the mistakes that it tells."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any
from unittest.mock import AsyncMock

import pytest
import trio

from dafka.cli import groups
from dafka.cli.terminal import UsageMistake
from dafka.config import Config
from dafka.records import Partition
from dafka.roles import GroupDescription, MemberDescription
from dafka.testing import Cluster, open_cluster
from tests.cli.programs import take_program, tower_options

Run = Callable[..., Awaitable[tuple[list[str], str]]]


def make_run(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> Run:
    async def run(*arguments: str) -> tuple[list[str], str]:
        """Return the lines of the output, and what is printed on standard error."""
        taken = take_program("groups", "group", *arguments, *tower_options(cluster.config))
        assert await taken.program() == 0
        printed = capsys.readouterr()
        return [" ".join(line.split()) for line in printed.out.splitlines()], printed.err

    return run


async def test_groups_are_listed_described_and_reset(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DAFKA_CONSUMER_GROUP_LEASE_MS", "2000")  # describing waits for a sign of each member
    async with open_cluster(Config().with_consumer(group_lease_ms=2000)) as cluster:
        run = make_run(cluster, capsys)

        async def run_json(*arguments: str) -> list[Any]:
            lines, _ = await run(*arguments, "--json")
            return [json.loads(line) for line in lines]

        async with cluster.producer("orders") as producer:
            await producer.send_many([b"tea", b"milk", b"bread"])
            await producer.wait_acknowledged()
            log = producer.partition.address
        async with cluster.consumer(["orders"], group="billing") as consumer:
            batch = await anext(consumer.batches())
            assert len(batch) == 3
            consumer.seek({producer.partition: 1})
            await consumer.save_positions()
            lines, _ = await run("describe", "billing")
            assert lines[0] == "group billing: 1 member, lag 2 records"
            address = lines[2].split()[0]
            assert lines[2] == f"{address} alive orders 1"
            assert lines[4] == f"orders {log} {address[:8]} 1 3 2"
            with pytest.raises(UsageMistake, match="group 'billing': it has members that are alive: stop them first"):
                await run("reset", "billing", "--to", "latest")
        assert await run("list") == (["group", "billing"], "")
        assert await run_json("list") == [{"group": "billing"}]
        described = {"topic": "orders", "partition": log, "position": 1, "end": 3, "lag": 2}
        assert await run_json("describe", "billing") == [{"group": "billing", "members": [], "positions": [described]}]
        with trio.fail_after(60):
            for target, position in (("earliest", 0), ("2", 2), ("1970-01-01", 0)):
                lines, errors = await run("reset", "billing", "--to", target, "--dry-run")
                assert lines == ["topic partition former position position", f"orders {log} 1 {position}"]
                assert errors == "nothing was saved: this was a dry run\n"
            former = {"group": "billing", "topic": "orders", "partition": log, "former_position": 1}
            assert await run_json("reset", "billing", "--to", "latest") == [{**former, "position": 3}]
            assert (await run_json("describe", "billing"))[0]["positions"][0]["position"] == 3
            lines, errors = await run("reset", "new", "--to", "latest", "--topic", "orders")
            assert (lines[1:], errors) == ([f"orders {log} 3"], "")


@pytest.mark.parametrize(
    ("arguments", "mistake"),
    [
        (["describe", "missing"], "group 'missing': there is no such group in the cluster; --kafka HOST:PORT asks a"),
        (["reset", "missing", "--to", "latest"], "group 'missing': there is no such group in the cluster"),
        (["reset", "new", "--to", "latest", "--topic", "nothing"], "no store holds records of nothing"),
    ],
)
async def test_groups_that_cannot_be_described_or_reset(
    arguments: list[str], mistake: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_cluster() as cluster:
        with pytest.raises(UsageMistake, match=mistake):
            await make_run(cluster, capsys)(*arguments)
    assert capsys.readouterr() == ("", "")


ORDERS, BILLS = Partition("orders", "A" * 32), Partition("bills", "B" * 32)
ALIVE = MemberDescription("C" * 32, ("bills", "orders"), (ORDERS,), is_silent=False)
SILENT = MemberDescription("D" * 32, ("orders",), (), is_silent=True)
GROUP_OF = partial(GroupDescription, "g")
MEMBERS = [
    "member state topics partitions",
    f"{ALIVE.address} alive bills, orders 1",
    f"{SILENT.address} silent orders 0",
]
POSITIONS = [
    "topic partition member position end lag",
    f"bills {BILLS.address} 7 0",
    f"orders {ORDERS.address} CCCCCCCC 2 1002 1000",
]


@pytest.mark.parametrize(
    ("found", "lines"),
    [
        (GROUP_OF((ALIVE, SILENT), {}, {ORDERS: 1}), ["group g: 2 members, lag 0 records", *MEMBERS]),
        (
            GROUP_OF((ALIVE,), {ORDERS: 2, BILLS: 7}, {ORDERS: 1002}),
            ["group g: 1 member, lag 1,000 records", *MEMBERS[:2], *POSITIONS],
        ),
        (
            GROUP_OF((), {ORDERS: 2}, {ORDERS: 3}),
            ["group g: 0 members, lag 1 record", POSITIONS[0], f"orders {ORDERS.address} 2 3 1"],
        ),
    ],
)
async def test_members_and_positions_are_described_if_there_are_any(
    found: GroupDescription, lines: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(groups, "describe_group", AsyncMock(return_value=found))
    assert await take_program("groups", "group", "describe", "g").program() == 0
    printed = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert printed == lines
    assert await take_program("groups", "group", "describe", "g", "--json").program() == 0
    shown = json.loads(capsys.readouterr().out)
    assert [(each["state"], each["partitions"]) for each in shown["members"]] == [("alive", 1), ("silent", 0)][
        : len(found.members)
    ]
    assert [(each["position"], each["end"], each["lag"]) for each in shown["positions"]] == [
        (found.positions[each], found.ends.get(each), found.lag(each))
        for each in (BILLS, ORDERS)
        if each in found.positions
    ]


async def test_a_group_without_positions_is_reset_in_the_topics_that_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "describe_group", AsyncMock(return_value=GROUP_OF((SILENT,), {}, {})))
    with pytest.raises(UsageMistake, match=r"^group 'g': it has no positions: name topics with --topic$"):
        await take_program("groups", "group", "reset", "g", "--to", "latest").program()


@pytest.mark.parametrize(
    ("target", "earliest", "position"),
    [
        ("earliest", 5, 5),
        ("earliest", None, 0),
        ("7", 5, 7),
        ("2", 5, 5),
        ("2", None, 2),
        ("99", 5, 10),
        ("1970", 5, 8),
    ],
)
async def test_a_group_is_reset_to_records_that_stores_hold(
    target: str, earliest: int | None, position: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition without records is not asked for its earliest one."""
    asked: list[Partition] = []

    class Reader:
        async def wait_ready(self) -> None:
            await trio.lowlevel.checkpoint()

        def ends(self) -> dict[Partition, int]:
            return {ORDERS: 10, BILLS: 0}

        async def positions_at(self, time_ms: int) -> dict[Partition, int]:
            await trio.lowlevel.checkpoint()
            assert time_ms == 0
            return {ORDERS: 8}

        async def earliest(self, partitions: Iterable[Partition], _timeout_s: float) -> dict[Partition, int]:
            await trio.lowlevel.checkpoint()
            asked.extend(partitions)
            return {} if earliest is None else {ORDERS: earliest}

    monkeypatch.setattr(groups, "open_reader", lambda *_: nullcontext(Reader()))
    to = groups.Target(time_ms=0) if target == "1970" else groups.parse_target(target)
    assert await groups._target_positions(["orders", "bills"], to, Config()) == {ORDERS: position, BILLS: 0}
    assert asked == ([] if target == "1970" else [ORDERS])
