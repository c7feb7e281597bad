"""What a request says of its client, and how long it is waited for."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from dafka.http.server.messages import Request
from dafka.http.server.principal import Principal
from dafka.http1.head import Head


def make_request(*, web: Any = None, principal: Principal | None = None, **headers: str) -> Request:
    head = Head("GET", "/", ("",), (), {name.replace("_", "-"): value for name, value in headers.items()})
    return Request(web, head, principal or Principal(None), "1.2.3.4")


def test_types_are_compared_without_their_parameters() -> None:
    for given, expected in {"": "", "Text/Plain; charset=x": "text/plain", " a/b ;q=1": "a/b"}.items():
        assert make_request(content_type=given).content_type == expected
    assert make_request().content_type == ""
    for given, preferred in {
        "": False,
        "a/b": True,
        "x/y, A/B;q=0.5": True,
        "a/b;v=1 , x/y": True,
        "a/bc": False,
        "x/a/b": False,
        "*/*": False,
    }.items():
        assert make_request(accept=given).prefers("a/b") == preferred, given


def test_limits_count_for_the_user_or_else_for_the_address() -> None:
    assert make_request().source == "1.2.3.4"
    assert make_request(principal=Principal(None, "ada")).source == "ada"


@pytest.mark.parametrize("is_broker", [True, False])
def test_requests_of_other_brokers_are_answered_with_what_is_here(is_broker: bool) -> None:
    names = [*("logs", "queues", "groups", "publisher"), *("own_logs", "own_queues", "own_groups", "own_publisher")]
    web: Any = SimpleNamespace(**{name: name for name in names}, broker="broker")
    request = make_request(web=web, principal=Principal(None, is_broker=is_broker))
    found: list[object] = [request.logs, request.queues, request.groups, request.publisher]
    assert (found, request.is_forwarded) == (names[4:] if is_broker else names[:4], is_broker)


async def test_an_event_is_waited_for_until_the_client_has_gone_or_the_time_is_over(autojump_clock: MockClock) -> None:
    async def fail() -> None:
        await trio.sleep(1)
        raise OSError("no")

    for event_s, end_s, timeout_s in ((1, 2, 3), (2, 1, 3), (3, 2, 1), (1, float("inf"), 3), (3, 1, 2)):
        request, begun = make_request(), trio.current_time()
        request.wait_end = partial(trio.sleep, end_s)
        is_connected = await request.wait_while_connected(partial(trio.sleep, event_s), timeout_s)
        assert is_connected == (end_s > min(event_s, timeout_s))
        assert trio.current_time() - begun == pytest.approx(min(event_s, end_s, timeout_s))
    with pytest.raises(OSError, match="no"):
        await make_request().wait_while_connected(fail, 3)
