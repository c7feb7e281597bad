"""The common part of open roles for asyncio and for threads. Their functions have the signatures of `dafka`'s."""

from __future__ import annotations

import inspect
import warnings
import weakref
from collections.abc import Callable
from functools import update_wrapper
from typing import Any, ClassVar, Generic, TypeVar

from dafka.clients.hosted_node import HostedNode

_RoleT = TypeVar("_RoleT")
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


def show_as(original: Callable[..., Any], function: _FunctionT, returned: object = None) -> _FunctionT:
    """Give a function the name, the documentation and the parameters of one of `dafka`.

    Args:
        original: The function or method of `dafka`.
        function: The function for another style.
        returned: The annotation of what it returns; that of the original if None.

    Returns:
        The function.
    """
    update_wrapper(function, original)
    if returned is not None:
        signature = inspect.signature(original).replace(return_annotation=returned)
        function.__signature__ = signature  # type: ignore[attr-defined]
        function.__annotations__ = {**original.__annotations__, "return": returned}
    return function
