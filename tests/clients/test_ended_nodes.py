"""Nodes that are closed, and nodes of a parent process: every public method says so, and hands nothing over."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import trio

import dafka
import dafka.asyncio
from dafka import Config, Partition, blocking
from dafka.errors import WrongContextError  # noqa: F401 (used by the programs)
from tests.clients.styles import ASYNCIO, BLOCKING, TRIO, Style
from tests.clients.test_processes import run
from tests.roles.helpers import contents

PARTITION = Partition("hello", "A" * 32)
ARGUMENTS = {
    "value": b"1",
    "records": [b"1"],
    "topic": "hello",
    "positions": {},
    "count": 1,
    "time": 0,
    "timeout_s": 0.1,
    "partition": PARTITION,
    "partitions": [PARTITION],
    "first_sequence": 0,
    "end_sequence": 1,
}
CLOSES = {"close", "aclose"}
KNOWN = {"statistics", "positions", "lag", "health", "discarded", "unheard_towers", "ends", "check_settled", "run"}
"""What nodes on Trio remember, or what other parts of dafka call."""


def methods(kind: type[Any]) -> Iterator[str]:
    """Return the public methods of a class, and those that iterate over its objects."""
    for name, value in inspect.getmembers(kind):
        if callable(value) and (not name.startswith("_") or name in {"__iter__", "__aiter__"}):
            yield name


async def use(node: Any, kind: type[Any], name: str) -> None:
    """Call a method, and take the first element if it returns an iterator."""
    required = [
        ARGUMENTS.get(each.name)
        for each in inspect.signature(getattr(kind, name)).parameters.values()
        if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD and each.name != "self"
    ]
    result = getattr(kind, name)(node, *required) if name.startswith("__") else getattr(node, name)(*required)
    if inspect.isawaitable(result):
        result = await result
    if isinstance(result, Iterator):
        next(result)
    elif isinstance(result, (AsyncIterator, dafka.asyncio.Range)):
        await anext(result)


FORK = """
import os, sys
from contextlib import AsyncExitStack
from functools import partial
from tests.clients.styles import *
from tests.clients.test_ended_nodes import *

style = None

def check_child(nodes):
    child = os.fork()
    if not child:
        try:
            for node, kind in nodes:
                for name in methods(kind):
                    try:
                        BLOCKING.run(partial(use, node, kind, name))
                    except WrongContextError as error:
                        assert "has forked: open another one in process" in str(error)
                    else:
                        assert name in CLOSES and "Range" not in str(kind), (kind, name)
            os._exit(7)
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7

config = config.with_store(storage="memory:")
with blocking.open_producer("hello", config) as producer:
    producer.send_many(contents(0, 100))
    producer.wait_stored()
    PARTITION = producer.partition

async def main():
    async with AsyncExitStack() as stack:
        producer, consumer, reader, observer = await open_nodes(style, stack, config)
        found = reader.read(PARTITION, 0, 50)
        assert await style.call(found.first_sequence) == 0
        nodes = [producer, consumer, reader, observer, found]
        if style is not ASYNCIO:
            nodes.append(consumer.events)
        if style is BLOCKING:
            own = config.with_tower(sub="tcp://127.0.0.1:*", pub="tcp://127.0.0.1:*")
            nodes.append(await stack.enter_async_context(style.opened("serve_store", config)))
            nodes.append(await stack.enter_async_context(style.opened("serve_tower", own)))
        check_child([(node, type(node)) for node in nodes])
        assert (await style.call(consumer.next_record)).value == b"1"

style.run(main)
check_nothing_left()
"""


async def open_nodes(style: Style, stack: AsyncExitStack, config: Config) -> tuple[Any, Any, Any, Any]:
    """Open a producer, a consumer that has received a record, a reader that is ready, and an observer."""
    openings: tuple[tuple[Any, ...], ...] = (
        ("open_producer", "hello", config),
        ("open_consumer", ["hello"], config),
        ("open_reader", ["hello"], config),
        ("open_observer", [], config),
    )
    producer, consumer, reader, observer = [
        await stack.enter_async_context(style.opened(*arguments)) for arguments in openings
    ]
    assert (await style.call(consumer.next_record)).value == b"0"
    await style.call(reader.wait_ready)
    return producer, consumer, reader, observer


@pytest.mark.parametrize("style", ["BLOCKING", "ASYNCIO", "TRIO"])
def test_nothing_of_a_parents_node_is_used_in_a_forked_process(config: Config, style: str) -> None:
    done = run(config, FORK.replace("style = None", f"style = {style}"))
    assert done.returncode == 0, done.stderr


async def check_closed(node: object, kept: set[str]) -> None:
    for name in methods(type(node)):
        if name in CLOSES | kept:
            continue
        with pytest.raises(trio.ClosedResourceError, match="is closed"):
            await use(node, type(node), name)


@pytest.fixture
def stored(config: Config) -> tuple[Config, Partition]:
    with blocking.open_producer("hello", config) as producer:
        producer.send_many(contents(0, 100))
        producer.wait_stored()
        return config, producer.partition


@pytest.mark.parametrize("style", [TRIO, ASYNCIO, BLOCKING], ids=lambda style: str(style.module.__name__))
def test_calls_of_closed_nodes_say_so(style: Style, stored: tuple[Config, Partition]) -> None:
    config, partition = stored

    async def program() -> None:
        async with AsyncExitStack() as stack:
            producer, consumer, reader, observer = await open_nodes(style, stack, config)
            member = await stack.enter_async_context(style.opened("open_consumer", ["hello"], config, group="billing"))
            assert (await style.call(member.next_record)).value == b"0"
            found = reader.read(partition, 0, 50)
            assert await style.call(found.first_sequence) == 0
        for node in (producer, consumer, member, reader, observer, found):
            kept = KNOWN - ({"ends"} if isinstance(node, dafka.Consumer) else set()) if style is TRIO else set[str]()
            await check_closed(node, kept)
        if style is TRIO:
            assert consumer.positions() == {partition: 1}

    style.run(program)
