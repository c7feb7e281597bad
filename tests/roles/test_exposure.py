from __future__ import annotations

import logging
from pathlib import Path

import pytest
import trio

from dafka import Config, serve_tower
from dafka.endpoints import is_local
from dafka.protocol import EndpointsExposed, LoopbackOnly
from dafka.roles.sockets import node_warnings
from dafka.testing import open_cluster
from tests.roles.closed_cluster import Keys
from tests.roles.helpers import open_store

EVERYWHERE = "tcp://*:*"


def test_the_default_endpoints_are_local() -> None:
    config = Config()
    for endpoint in (config.node.bind, config.tower.sub, config.tower.pub):
        assert is_local(endpoint)


def warnings(caplog: pytest.LogCaptureFixture) -> list[object]:
    records = [record for record in caplog.records if record.levelno == logging.WARNING]
    found = [record.args[0] for record in records if isinstance(record.args, tuple)]
    return [event for event in found if isinstance(event, (EndpointsExposed, LoopbackOnly))]


async def test_each_role_without_keys_warns_once_if_it_listens_beyond_loopback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with open_cluster(storage=None) as cluster, trio.open_nursery() as nursery:
        open_config = cluster.config.with_node(bind=EVERYWHERE)
        async with (
            open_store(open_config) as store,
            cluster.producer("t", open_config) as producer,
            cluster.consumer(["t"], open_config) as consumer,
        ):
            far = Config().with_tower(sub=EVERYWHERE, pub=EVERYWHERE)
            tower = await nursery.start(serve_tower, far)
            nodes = [(node.endpoint,) for node in (store, producer, consumer)]
            expected = [EndpointsExposed(endpoints) for endpoints in [*nodes, (tower.sub_endpoint, tower.pub_endpoint)]]
            assert warnings(caplog) == expected
            assert "can read and write everything" in caplog.text
        nursery.cancel_scope.cancel()


async def test_there_is_no_warning_on_loopback_or_with_keys(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    keys = Keys(tmp_path, "node")
    async with open_cluster(), trio.open_nursery() as nursery:
        far = keys.config("tower").with_tower(sub=EVERYWHERE, pub=EVERYWHERE)
        tower = await nursery.start(serve_tower, far)
        ports = [endpoint.rpartition(":")[2] for endpoint in (tower.sub_endpoint, tower.pub_endpoint)]
        config = keys.config("node").with_node(bind=EVERYWHERE)
        sub, pub = (f"tcp://127.0.0.1:{port}" for port in ports)
        async with open_store(config.with_beacon(tower_sub=(sub,), tower_pub=(pub,))):
            assert warnings(caplog) == []
        nursery.cancel_scope.cancel()


def test_a_loopback_node_warns_if_its_tower_is_on_another_machine() -> None:
    config = Config().with_beacon(tower_sub=("tcp://127.0.0.1:5556", "tcp://10.0.0.7:5556"))
    here = "tcp://127.0.0.1:4000"
    assert node_warnings(config, here) == [LoopbackOnly(here, "tcp://10.0.0.7:5556")]
    assert node_warnings(config.with_node(discovery="static:tcp://10.0.0.7:1"), here) == []
    assert node_warnings(Config(), here) == []
