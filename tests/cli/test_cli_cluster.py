"""`dafka cluster`, and the commands of `dafka topic` and `dafka group` with several brokers."""

from __future__ import annotations

import json
from typing import Any

import trio
from click.testing import CliRunner, Result

from dafka.cli import main
from tests.http.api.test_brokers import FAST, create
from tests.http.running import DEADLINE_S, RunningWeb, open_webs


async def run(*arguments: str) -> Result:
    return await trio.to_thread.run_sync(lambda: CliRunner().invoke(main, arguments))


async def lines(*arguments: str) -> list[Any]:
    result = await run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


async def described_lines(topic: str, web: RunningWeb) -> list[Any]:
    """Describe a topic as one broker does, again while a log has no leader: the machine may be busy."""
    with trio.fail_after(DEADLINE_S):
        while (result := await run("topic", "describe", topic, *kafka(web), "--json")).exit_code:
            assert "no leader at present" in result.output
            await trio.sleep(0.1)
    return [json.loads(line) for line in result.stdout.splitlines()]


def kafka(web: RunningWeb) -> tuple[str, str]:
    return "--kafka", web.broker.bootstrap_servers


def http(web: RunningWeb) -> tuple[str, str]:
    return "--http", web.broker.url


async def test_brokers_are_listed_and_drained() -> None:
    async with open_webs(3, FAST) as webs:
        found = await lines("cluster", "brokers", *http(webs[0]))
        assert [(each["number"], each["is_alive"]) for each in found] == [(0, True), (1, True), (2, True)]
        assert all(each["under_replicated_logs"] is not None for each in found)
        result = await run("cluster", "brokers", *http(webs[1]))
        assert result.stdout.split()[:5] == ["broker", "state", "rack", "kafka", "http"]
        result = await run("cluster", "drain", "1", *http(webs[0]))
        assert (result.exit_code, result.stderr) == (0, "broker 1 is being drained\n")
        (drained,) = [web for web in webs if web.broker.node.brokers.own.is_draining]
        assert drained.broker.node.brokers.own.number == 1
        assert (await run("cluster", "undrain", "1", *http(webs[2]))).exit_code == 0
        assert not drained.broker.node.brokers.own.is_draining
        result = await run("cluster", "drain", "9", *http(webs[0]))
        assert (result.exit_code, result.stderr) == (2, "Error: there is no broker '9': the cluster has 0, 1, 2\n")


async def test_status_says_what_is_wrong() -> None:
    async with open_webs(3, FAST.with_broker(leader_timeout_ms=500)) as webs:
        webs[2].kill()
        dead = webs[2].broker.node.brokers.own.number
        with trio.fail_after(DEADLINE_S):
            for web in webs[:2]:
                while web.broker.node.brokers.is_alive(webs[2].broker.node.address):  # noqa: ASYNC110
                    await trio.sleep(0.02)
        result = await run("cluster", "status", "--json", *http(webs[0]))
        found = json.loads(result.stdout)
        assert (result.exit_code, found["brokers"], found["dead"]) == (1, 3, [dead])
        result = await run("cluster", "status", *http(webs[1]))
        assert result.stdout.startswith(f"3 brokers, 1 dead ({dead}); ")


async def test_topics_are_described_whichever_broker_is_asked() -> None:
    async with open_webs(3, FAST) as webs:
        result = await run("topic", "create", "orders", "--logs", "4", "--replicas", "2", *kafka(webs[0]))
        assert result.exit_code == 0, result.output
        await create(webs, "other", 1)
        for number in range(4):
            answer = await webs[0].request("POST", f"/topics/orders/records?log={number}", b"v")
            assert answer.status == 200, answer.body
        described = [(await described_lines("orders", web))[0] for web in webs]
        for found in described:
            assert [each["end_offset"] for each in found["logs"]] == [1, 1, 1, 1]
            assert all(len(each["replicas"]) == 2 and each["leader"] in each["replicas"] for each in found["logs"])
        found = await lines("topic", "epochs", "orders", *http(webs[2]))
        assert [(each["log"], len(each["epochs"])) for each in found] == [(n, 1) for n in range(4)]
        result = await run("topic", "epochs", "orders", *http(webs[2]))
        assert result.stdout.splitlines()[0].split()[:3] == ["flags", "log", "epoch"]
        assert result.stdout.splitlines()[1].split()[:2] == ["first", "latest"]
