"""Targets that are already running: the suite joins their cluster, which may have other nodes."""

from __future__ import annotations

from pathlib import Path

from dafka.testing import Cluster, open_cluster
from dafka_conformance.catalog import Catalog
from dafka_conformance.model import Outcome, Role, Run
from dafka_conformance.runner import run
from dafka_conformance.targets import open_target

PATTERNS = ["store.acknowledges*", "store.subscriptions", "store.prefix-topic", "store.grammar.publish.*"]


async def run_attached(cluster: Cluster, folder: Path, roles: list[Role], patterns: list[str], more: str = "") -> Run:
    beacon = cluster.config.beacon
    where = f'sub = "{beacon.tower_sub[0]}"\npub = "{beacon.tower_pub[0]}"\n'
    path = folder / "running.toml"
    tables = "".join(f"[{role.title}.attach]\n{where}{more}" for role in roles)
    path.write_text(f'name = "running"\ndialects = ["rfc46"]\n{tables}')
    return await run(Catalog.load(), open_target(str(path), {}), roles=roles, patterns=patterns)


async def test_running_store_and_tower_conform(tmp_path: Path) -> None:
    async with open_cluster() as cluster:
        finished = await run_attached(cluster, tmp_path, [Role.STORE, Role.TOWER], [*PATTERNS, "tower.*"])
    assert [result.scenario for result in finished.results if result.outcome is not Outcome.PASSED] == []
    assert {result.role for result in finished.results} == {Role.STORE, Role.TOWER}


async def test_scenarios_that_start_or_kill_the_target_are_skipped(tmp_path: Path) -> None:
    async with open_cluster() as cluster:
        finished = await run_attached(cluster, tmp_path, [Role.STORE], ["store.durable", "store.beacons"])
    assert [result.outcome for result in finished.results] == [Outcome.SKIPPED] * 2
    assert all("running has no way to" in result.reason for result in finished.results)


async def test_one_of_several_nodes_must_be_named(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.producer("other") as producer:
        assert cluster.store is not None
        ambiguous = await run_attached(cluster, tmp_path, [Role.STORE], ["store.subscriptions"])
        (result,) = ambiguous.results
        assert result.outcome is Outcome.BROKEN
        assert "name the store with the key address in its attach table" in result.reason
        named = f'address = "{cluster.store.address}"\n'
        finished = await run_attached(cluster, tmp_path, [Role.STORE], PATTERNS, named)
        assert producer.statistics().records == 0
    assert [result.scenario for result in finished.results if result.outcome is not Outcome.PASSED] == []
