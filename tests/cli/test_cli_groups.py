"""`dafka consume --group`, and `dafka group` without a broker."""

from __future__ import annotations

import json

from tests.cli.harness import Dafka


def test_a_group_goes_on_and_is_described_and_reset(cluster: Dafka) -> None:
    assert cluster.node("produce", "orders", "tea", "milk").status == 0
    group = ("consume", "orders", "--group", "billing", "--offset-reset", "earliest")
    assert cluster.node(*group, "--count", "2").output == b"tea\nmilk\n"
    found = json.loads(cluster.node("group", "describe", "billing", "--json").output)
    [position] = found["positions"]
    assert (found["members"], position["position"], position["lag"]) == ([], 2, 0)
    assert cluster.node("group", "list").output.split() == [b"group", b"billing"]
    assert cluster.node("group", "reset", "billing", "--to", "1").status == 0
    assert cluster.node(*group, "--count", "1").output == b"milk\n"


def test_mistakes_with_groups(cluster: Dafka) -> None:
    missing = cluster.node("group", "describe", "missing")
    assert missing.status == 2
    assert "group 'missing': there is no such group in the cluster" in missing.errors
