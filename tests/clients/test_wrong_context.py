"""The API for Trio says what to use instead where Trio does not run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

import dafka
from dafka.errors import LocalError, WrongContextError

OPENERS: dict[str, Callable[[], AbstractAsyncContextManager[Any]]] = {
    "open_producer": lambda: dafka.open_producer("hello"),
    "open_consumer": lambda: dafka.open_consumer(["hello"]),
    "open_reader": lambda: dafka.open_reader(["hello"]),
    "open_observer": dafka.open_observer,
}


@pytest.mark.parametrize("name", OPENERS)
def test_a_block_names_the_module_for_asyncio_or_for_threads(name: str) -> None:
    async def program() -> None:
        async with OPENERS[name]():
            pass

    with pytest.raises(WrongContextError) as caught:
        asyncio.run(program())
    assert str(caught.value) == f"asyncio needs dafka.asyncio.{name}; dafka.{name} is for programs on Trio"
    assert isinstance(caught.value, LocalError | RuntimeError)
    with pytest.raises(WrongContextError) as caught, OPENERS[name]():  # type: ignore[attr-defined]
        pass
    assert str(caught.value) == f"`with` needs dafka.blocking.{name}; dafka.{name} is for `async with` in Trio"


@pytest.mark.parametrize("serve", [dafka.serve_store, dafka.serve_tower])
def test_a_server_names_the_module_for_asyncio(serve: Callable[[], Any]) -> None:
    with pytest.raises(WrongContextError, match=f"asyncio needs dafka.asyncio.{serve.__name__}; "):
        asyncio.run(serve())


def test_without_any_loop_all_styles_are_named() -> None:
    with pytest.raises(WrongContextError, match=r"trio.run, or use dafka.asyncio.open_reader or dafka.blocking.open_"):
        dafka.open_reader().__aenter__().send(None)
