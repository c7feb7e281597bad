from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio

import dafka
from dafka_conformance.model import Dialect, Role
from dafka_conformance.targets import Delivery, Node, Request, Reset, Target, TargetError, open_target
from tests.ports import free_endpoints
from tests.waiting import DEADLINE_S

Requests = Callable[..., Request]


@pytest.fixture
def make_request(tmp_path: Path) -> Requests:
    """Return a function that makes requests for nodes of one cluster."""
    sub, pub = free_endpoints(2)

    def make(
        role: Role, dialect: Dialect = Dialect.RFC46, topic: bytes = b"orders", reset: Reset = Reset.EARLIEST
    ) -> Request:
        folder = tmp_path / role.title
        folder.mkdir(exist_ok=True)
        return Request(role, dialect, sub, pub, topic, folder, reset)

    return make


async def collect(node: Node, count: int) -> list[Delivery]:
    found: list[Delivery] = []
    with trio.fail_after(DEADLINE_S):
        while len(found) < count:
            found += await node.deliveries.receive()
    return found


async def publish_and_consume(target: Target, make_request: Requests, dialect: Dialect, topic: bytes) -> None:
    """Send records from a producer to a store, kill and restart it, and read them with a consumer."""
    contents = [b"%d" % number for number in range(1000)]
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(target.start(make_request(Role.TOWER)))
        async with target.start(make_request(Role.STORE, dialect)) as store:
            async with target.start(make_request(Role.PRODUCER, dialect, topic)) as producer:
                await producer.feed(contents[:1])
                await producer.feed(contents[1:])
                await producer.end_input()
                with trio.fail_after(DEADLINE_S):
                    await producer.ended.wait()
                assert producer.exit_reason == ""
            await store.kill()
        await stack.enter_async_context(target.start(make_request(Role.STORE, dialect)))
        consumer = await stack.enter_async_context(target.start(make_request(Role.CONSUMER, dialect, topic)))
        found = await collect(consumer, 1000)
        assert not store.ended.is_set()
        assert not consumer.ended.is_set()
    assert [delivery.content for delivery in found] == contents
    assert [delivery.sequence for delivery in found] == list(range(1000))
    assert {delivery.topic for delivery in found} == {topic}
    assert len({delivery.address for delivery in found}) == 1


@pytest.mark.parametrize(
    ("name", "dialect", "topic"),
    [
        ("embedded", Dialect.RFC46, b"a\xffb \n"),
        ("embedded", Dialect.LIBDAFKA, b"a\xffb \n"),
        ("dafka", Dialect.LIBDAFKA, b"--a\xffb c"),
    ],
)
async def test_nodes_exchange_records(make_request: Requests, name: str, dialect: Dialect, topic: bytes) -> None:
    target = open_target(name, {})
    async with target.prepared():
        await publish_and_consume(target, make_request, dialect, topic)


async def test_embedded_block_ends_at_once_despite_missing_acks(make_request: Requests) -> None:
    target = open_target("embedded", {})
    with trio.fail_after(DEADLINE_S):
        async with target.start(make_request(Role.TOWER)):
            for request in (make_request(Role.PRODUCER), make_request(Role.CONSUMER, reset=Reset.LATEST)):
                async with target.start(request) as node:
                    if request.role is Role.PRODUCER:
                        await node.feed([b"nobody stores this"])
                assert not node.ended.is_set()


async def test_embedded_errors_are_not_groups(make_request: Requests) -> None:
    async def run_two_towers() -> None:
        async with target.start(make_request(Role.TOWER)), target.start(make_request(Role.TOWER)):
            pass  # the endpoint is in use

    async def fail_within() -> None:
        async with target.start(make_request(Role.TOWER)):
            raise RuntimeError("within")

    target = open_target("embedded", {})
    with pytest.raises(TargetError, match="the tower of embedded: "):
        await run_two_towers()
    with pytest.raises(RuntimeError, match="within"):
        await fail_within()


async def test_embedded_variant_that_fails_has_an_exit_reason(make_request: Requests) -> None:
    from dafka_conformance.targets.embedded import EmbeddedTarget

    breaking = trio.Event()

    class Broken(EmbeddedTarget):
        name = "broken"

        @staticmethod
        async def serve_store(config: dafka.Config, *, task_status: trio.TaskStatus[None]) -> None:
            task_status.started()
            await breaking.wait()
            raise RuntimeError("out of order")

    async with Broken().start(make_request(Role.STORE)) as store:
        assert not store.ended.is_set()
        breaking.set()
        with trio.fail_after(DEADLINE_S):
            await store.ended.wait()
        assert "out of order" in store.exit_reason

    async with Broken().start(make_request(Role.PRODUCER, topic=b"")) as producer:
        with trio.fail_after(DEADLINE_S):
            await producer.ended.wait()
        with pytest.raises(TargetError, match="the producer has ended: topic: expected at least one character"):
            await producer.feed([b"x"])
