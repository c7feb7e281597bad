"""What open roles for asyncio and for threads have in common. Their functions have the signatures of `dafka`'s."""

from __future__ import annotations

import inspect
import warnings
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial, update_wrapper
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, TypeVar

import trio

from dafka import roles
from dafka.clients.hosted_node import Call, HostedNode
from dafka.config import Config
from dafka.exceptions import unwrap_group
from dafka.protocol import Event
from dafka.records import Partition, RecordBatch
from dafka.roles.role import NodeRole

_T = TypeVar("_T")
_P = ParamSpec("_P")
_RoleT = TypeVar("_RoleT")
_NodeRoleT = TypeVar("_NodeRoleT", bound=NodeRole)
_FunctionT = TypeVar("_FunctionT", bound=Callable[..., Any])


class HostedRole(Generic[_RoleT]):
    """An open role, which runs in the Trio thread. It is closed, with a warning, if the program drops it open."""

    _HOW_TO_CLOSE: ClassVar[str]

    def __init__(self, hosted: HostedNode[_RoleT]) -> None:
        """Show an open role. Programs call `open_consumer` and its like instead."""
        self._hosted = hosted
        self._role = hosted.opened.result()
        self._is_closed = False
        hosted.warning = weakref.WeakMethod(self._warn_unclosed)

    def _bind(self, method: Callable[Concatenate[Any, _P], _T]) -> Callable[_P, _T]:
        """Return a method of the role, which may override this one."""
        bound: Callable[_P, _T] = getattr(self._role, method.__name__)
        return bound

    def _begin_closing(self) -> bool:
        """Return whether the caller has to close the role: not if it was closed before, or by a forked process."""
        if self._is_closed or self._hosted.thread.is_foreign():
            return False
        self._is_closed = True
        return True

    def __del__(self) -> None:
        hosted = getattr(self, "_hosted", None)
        if hosted is None or self._is_closed or hosted.is_closed or hosted.thread.is_foreign():
            return
        try:
            self._warn_unclosed()
        finally:
            hosted.leave()

    def _warn_unclosed(self) -> None:
        if not self._is_closed:
            message = f"unclosed {type(self).__name__.lower()}: {self._HOW_TO_CLOSE}"
            warnings.warn(message, ResourceWarning, source=self, stacklevel=2)


class HostedNodeRole(HostedRole[_NodeRoleT]):
    """A role that is a node of the mesh."""

    @property
    def address(self) -> str:
        """The node's address."""
        return self._role.address

    @property
    def endpoint(self) -> str:
        """The endpoint that other nodes connect to."""
        return self._role.endpoint

    def _left_event(self, seen: int, error: Exception) -> tuple[Event, int] | None:
        """Return an event that is left after waiting has failed because the node is closed; None after the last one.

        The events of a node that ends by itself end before the reason is known. Raise that reason after the last one.
        """
        kept = self._role.events.kept_event(seen)
        if kept is not None:
            return kept
        if not isinstance(error, trio.ClosedResourceError):
            raise error
        ended = self._hosted.ended_error()
        if not isinstance(ended, trio.ClosedResourceError):
            raise ended from None
        return None


class HostedProducer(HostedRole[roles.Producer]):
    """A producer, which may publish its last batch just after the program has passed it."""

    def __init__(self, hosted: HostedNode[roles.Producer]) -> None:
        """Show an open producer. Programs call `open_producer` instead."""
        super().__init__(hosted)
        self._handed_over: Call[range] | None = None

    @property
    def partition(self) -> Partition:
        """The topic and the producer's address: the name of its partition."""
        return self._role.partition

    def _hand_over(self, batch: RecordBatch) -> range | None:
        """Have the Trio thread publish a batch soon. Return its sequences; None if that can fail or has to wait."""
        if not self._role._cannot_refuse(batch):
            return None
        first = self._role._machine.next_sequence
        send, attempt = partial(self._role._send_batch, batch), partial(self._role._send_nowait, batch)
        self._handed_over = self._hosted.start(send, attempt, must_finish=True)
        return range(first, first + len(batch))


class HostedConsumer(HostedRole[roles.Consumer]):
    """A consumer of topics."""

    @property
    def group(self) -> str:
        """The name of the consumer's group; empty if it is in none."""
        return self._role.group

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that the consumer is subscribed to."""
        return self._role.topics

    @property
    def paused(self) -> frozenset[Partition | str]:
        """The partitions and topics that are paused."""
        return self._role.paused


class HostedTower(HostedRole[roles.Tower]):
    """A tower."""

    @property
    def sub_endpoint(self) -> str:
        """The endpoint that nodes send their beacons to."""
        return self._role.sub_endpoint

    @property
    def pub_endpoint(self) -> str:
        """The endpoint that publishes the beacons of all nodes."""
        return self._role.pub_endpoint


def host(
    kind: Callable[[HostedNode[_RoleT]], object], block: Callable[[], AbstractAsyncContextManager[_RoleT]]
) -> HostedNode[_RoleT]:
    """Begin to open a role of this class in the Trio thread."""
    return HostedNode(block, getattr(kind, "__name__", "node").lower())


def show_as(original: Callable[..., Any], function: _FunctionT, returned: object = None) -> _FunctionT:
    """Give a function of another style the name, the documentation and the parameters of the original in `dafka`.

    `returned` is the annotation of what it returns; by default that of the original.
    """
    update_wrapper(function, original)
    if returned is not None:
        signature = inspect.signature(original).replace(return_annotation=returned)
        function.__signature__ = signature  # type: ignore[attr-defined]
        function.__annotations__ = {**original.__annotations__, "return": returned}
    return function


@asynccontextmanager
async def _running(serve: Callable[..., Awaitable[None]], config: Config | None) -> AsyncIterator[Any]:
    """Run a role, whose function is for `nursery.start`, during the block."""
    with unwrap_group():
        async with trio.open_nursery() as nursery:
            yield await nursery.start(serve, config)
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def serve_store(config: Config | None = None) -> AsyncIterator[roles.Store]:
    """Run a store in the background; see `dafka.serve_store`, whose exceptions it has.

    Args:
        config: The configuration; the defaults if None.

    Yields:
        The store. Leaving the block, or closing it, ends it when it has written what it has received.
    """
    async with _running(roles.serve_store, config) as store:
        yield store


@asynccontextmanager
async def serve_tower(config: Config | None = None) -> AsyncIterator[roles.Tower]:
    """Run a tower in the background; see `dafka.serve_tower`, whose exceptions it has.

    Args:
        config: The configuration; the defaults if None.

    Yields:
        The tower. Leaving the block, or closing it, ends it.
    """
    async with _running(roles.serve_tower, config) as tower:
        yield tower
