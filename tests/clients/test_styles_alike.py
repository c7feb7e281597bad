"""The three styles have the same names, with the same arguments, and that for Trio names the others elsewhere."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import ModuleType
from typing import Any

import pytest

import dafka
import dafka.asyncio
from dafka import blocking
from dafka.errors import LocalError, WrongContextError
from tests.clients.each_style import EachStyle
from tests.clients.styles import TRIO

STYLES = [blocking, dafka.asyncio]
CLASSES = ["Consumer", "EventFeed", "Observer", "Producer", "Range", "Reader", "Store", "Tower"]
FUNCTIONS = ["open_consumer", "open_observer", "open_producer", "open_reader", "serve_store", "serve_tower"]

INTERNAL = {
    "EventFeed": {"log", "rename", "put", "end", "log_unanswered", "wait_event", "kept_event"},
    "Range": {"next_sequences"},
    "Store": {"act", "peers", "report_opened", "run"},
    "Tower": {"run"},
} | {name: {"peers"} for name in ("Consumer", "Observer", "Producer", "Reader")}
"""What the classes for Trio have for other parts of dafka."""

OWN = {blocking: {"close"}, dafka.asyncio: {"aclose"}}
"""How a node is closed without a block."""


def members(kind: type[Any]) -> dict[str, Any]:
    return {name: value for name, value in inspect.getmembers(kind) if not name.startswith("_")}


def parameters(function: Any) -> dict[str, object]:
    found = inspect.signature(function).parameters.values()
    return {each.name: (each.kind, each.default) for each in found if each.name not in {"timeout_s", "task_status"}}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", CLASSES)
def test_classes_have_the_same_methods(style: ModuleType, name: str) -> None:
    of_trio, of_style = members(getattr(dafka, name)), members(getattr(style, name))
    instance_attributes = {"address", "endpoint", "events", "partition", "sub_endpoint", "pub_endpoint"}
    own = OWN[style] if name not in {"Range", "EventFeed"} else set()
    assert of_style.keys() - own - instance_attributes == of_trio.keys() - INTERNAL.get(name, set())
    for method in of_trio.keys() & of_style.keys():
        if callable(of_trio[method]):
            assert parameters(of_trio[method]) == parameters(of_style[method]), method
            is_waiting = inspect.iscoroutinefunction(of_trio[method])
            has_limit = {"timeout_s"} & inspect.signature(of_style[method]).parameters.keys()
            limits_itself = {"timeout_s"} & inspect.signature(of_trio[method]).parameters.keys()
            assert is_waiting or not has_limit, method
            if style is blocking and is_waiting and not limits_itself:
                assert has_limit or method in {"wait_acknowledged", "wait_ready"}, method


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_have_the_same_parameters(style: ModuleType, name: str) -> None:
    assert parameters(getattr(style, name)) == parameters(getattr(dafka, name))


@pytest.mark.parametrize("style", STYLES)
def test_every_name_is_compared(style: ModuleType) -> None:
    assert {*style.__all__} == {*CLASSES, *FUNCTIONS, *({"Opening"} if style is dafka.asyncio else ())}


class TestAsInEachStyle(EachStyle):
    style = TRIO


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
