"""ACLs, users and quotas that clients change at one broker count on all of them, within a second."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import trio
from trio.testing import MockClock

from dafka.broker.access.users import Users
from dafka.broker.access.users_file import write_users
from dafka.broker.core.acls import Acl, AclEffect, Operation, PatternType, ResourceType
from dafka.broker.core.client_quotas import EntityType, QuotaKey, make_entity
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.metadata.commands import (
    AlterClientQuota,
    AlterGroupSettings,
    Command,
    CreateAcls,
    DeleteAcls,
    DeleteScramCredential,
    SetFeatureLevel,
    SetScramCredential,
)
from dafka.broker.core.metadata.features import CLIENT_ACCESS, SUPPORTED, FeatureLevels, FeatureSupport
from dafka.broker.core.scram_credentials import ScramCredential, ScramMechanism
from dafka.errors import RefusedChangeError
from tests.broker.access.test_acls import draw_acl, evaluate
from tests.broker.metadata.test_agreement import controller
from tests.broker.replication.virtual_cluster import VirtualCluster, open_virtual_cluster, wait_for

CREDENTIAL = ScramCredential("dora", ScramMechanism.SHA_256, 4096, "YQ==", "YQ==", "YQ==")
OLD = FeatureSupport(FeatureLevels(1, CLIENT_ACCESS - 1), SUPPORTED.command_levels)
HOST = "10.0.0.1"


class Doors:
    """The users of each broker, as its servers look them up."""

    def __init__(self, cluster: VirtualCluster, path: Path) -> None:
        write_users(path, {})
        self._cluster = cluster
        self._users = {name: Users(path) for name in "ABC"}
        self.join("ABC")

    def join(self, names: str) -> None:
        for name in names:
            self._users[name].join(self._cluster.brokers[name].tables.state.access)

    def permit(self, operation: Operation, kind: ResourceType, name: str) -> set[bool | None]:
        """Return whether dora may do something, at each broker; None if it does not exist there."""
        found: set[bool | None] = set()
        for users in self._users.values():
            dora = users.find("dora")
            found.add(None if dora is None else users.permissions_of(dora, HOST).allow(operation, kind, name))
        return found

    async def wait(self, question: tuple[Operation, ResourceType, str], expected: set[bool | None]) -> None:
        """Wait until all brokers give the same answer, which takes a second at most."""
        with trio.fail_after(1):
            await wait_for(lambda: self.permit(*question) == expected)


async def change(cluster: VirtualCluster, draw: Random, command: Command) -> None:
    await cluster.brokers[draw.choice("ABC")].admin.change(command)


async def test_a_change_at_one_broker_counts_on_all_within_a_second(autojump_clock: MockClock, tmp_path: Path) -> None:
    draw, model = Random(7), set[Acl]()
    async with open_virtual_cluster("ABC", "ABC") as cluster:
        doors, question = Doors(cluster, tmp_path / "users"), (Operation.READ, ResourceType.TOPIC, "orders")
        assert doors.permit(*question) == {None}
        await change(cluster, draw, SetScramCredential(CREDENTIAL))
        for number in range(30):
            acls = {draw_acl(draw), Acl(ResourceType.TOPIC, "ord", "User:dora", Operation.READ, PatternType.PREFIXED)}
            acls |= {Acl(ResourceType.TOPIC, "orders", "User:*", Operation.READ, host=HOST, effect=AclEffect.DENY)}
            chosen = tuple(draw.sample(sorted(acls, key=str), draw.randint(1, 3)))
            is_created = draw.random() < 0.5
            await change(cluster, draw, CreateAcls(chosen) if is_created else DeleteAcls(chosen))
            model = model | {*chosen} if is_created else model - {*chosen}
            expected = set[bool | None]((evaluate(model, "dora", HOST, *question),))
            await doors.wait(question, expected)
            if number % 10 == 9:
                name = draw.choice("ABC")
                await cluster.stop(name)
                await wait_for(lambda: controller(cluster) != "")
                await cluster.start(name)
                doors.join(name)
                assert doors.permit(*question) == expected, "a broker that starts has what it knew"
        await change(cluster, draw, DeleteScramCredential("dora", ScramMechanism.SHA_256))
        await doors.wait(question, {None})
        states = [each.tables.state for each in cluster.brokers.values()]
        assert states[0].records == states[1].records == states[2].records
        assert {*states[0].access.list_acls()} == model


async def test_nothing_is_changed_while_an_older_broker_belongs_to_the_cluster(autojump_clock: MockClock) -> None:
    commands: list[Command] = [
        CreateAcls((Acl(ResourceType.TOPIC, "orders", "User:dora", Operation.READ),)),
        SetScramCredential(CREDENTIAL),
        AlterClientQuota(make_entity({EntityType.USER: "dora"}), {QuotaKey.PRODUCER_BYTE_RATE.value: "1"}),
        AlterGroupSettings("workers", {"share.auto.offset.reset": "earliest"}),
    ]
    async with open_virtual_cluster("ABC", "ABC", support=OLD) as cluster:
        for name in "AB":
            await cluster.stop(name)
            await wait_for(lambda: controller(cluster) != "")
            await cluster.start(name, support=SUPPORTED)
        for name in "AB":
            for command in commands:
                with pytest.raises(RefusedChangeError, match="raise it with `dafka cluster upgrade`") as refused:
                    await cluster.brokers[name].admin.change(command)
                assert refused.value.error_code == ErrorCode.UNSUPPORTED_VERSION
        await cluster.stop("C")
        await wait_for(lambda: controller(cluster) != "")
        await cluster.start("C", support=SUPPORTED)
        await cluster.brokers["A"].admin.change(SetFeatureLevel(CLIENT_ACCESS))
        for command in commands:
            await cluster.brokers["B"].admin.change(command)
        states = [each.tables.state for each in cluster.brokers.values()]
        await wait_for(lambda: all(each.records == states[0].records for each in states))
        assert all(each.quotas.find_limit(QuotaKey.PRODUCER_BYTE_RATE, "dora", "") for each in states)
        assert all(each.group_settings.find("workers") for each in states)
        assert all("dora" in each.access.list_credentials() for each in states)
