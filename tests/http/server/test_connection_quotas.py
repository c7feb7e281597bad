"""Many topics, many connections, and whatever bytes there are."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dafka.http1.head import HEAD_BYTES_MAX, RequestError, check_head, parse_target, take_head
from tests.http.running import DEADLINE_S, open_web, read_all

TOPICS = 10_000
IDLE = 2000


async def test_many_topics_are_listed_page_by_page() -> None:
    async with open_web() as web:
        for number in range(TOPICS):
            created = web.broker.node.create_topic(f"topic-{number:05}")
        await created.wait()
        found: list[str] = []
        after = ""
        while after is not None:
            page = (await web.get(f"/topics?limit=1000&after={after}")).document
            found += [each["name"] for each in page["topics"]]
            after = page["next"]
        assert found == [f"topic-{number:05}" for number in range(TOPICS)]
        some = (await web.get("/topics?prefix=topic-099&limit=3")).document
        assert ([each["name"] for each in some["topics"]], some["topic_count"]) == (
            ["topic-09900", "topic-09901", "topic-09902"],
            100,
        )


async def test_many_idle_connections_hold_up_nobody() -> None:
    async with open_web() as web, trio.open_nursery() as nursery:
        assert web.broker.web is not None
        idle = [await trio.open_tcp_stream("127.0.0.1", web.port) for _ in range(IDLE)]
        with trio.fail_after(DEADLINE_S):
            while len(web.broker.web.quotas) < IDLE:
                assert await web.is_alive()
            for stream in idle:
                await stream.send_all(b"GET /topics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            for stream in idle:
                assert (await stream.receive_some()).startswith(b"HTTP/1.1 200 ")
        for stream in idle:
            nursery.start_soon(stream.aclose)


TARGETS = st.text(st.characters(codec="ascii"), max_size=60).map(lambda text: f"/{text}")


@given(TARGETS)
def test_any_target_is_understood_or_refused(target: str) -> None:
    with suppress(RequestError):
        head = parse_target("GET", target, {})
        assert "\0" not in "".join(head.segments)
        assert len(head.segments) == target.partition("?")[0].count("/")


@given(st.lists(st.binary(max_size=40), max_size=6), st.lists(st.integers(1, 20), min_size=1, max_size=6))
def test_a_head_is_the_same_however_it_is_cut(parts: list[bytes], sizes: list[int]) -> None:
    whole = b"GET / HTTP/1.1\r\n" + b"\r\n".join(parts) + b"\r\n\r\nrest"
    expected = bytearray(whole)
    try:
        head = take_head(expected)
    except RequestError:
        return
    received, position, number = bytearray(), 0, 0
    while position < len(whole):
        size = sizes[number % len(sizes)]
        received += whole[position : position + size]
        position, number = position + size, number + 1
        try:
            found = take_head(received)
        except RequestError:
            check_bare(whole)
            return
        if found is not None:
            assert found == head
            assert bytes(received) + whole[position:] == bytes(expected)
            return
    assert head is None


def check_bare(whole: bytes) -> None:
    """Check that a head which was refused in parts is refused as a whole, too."""
    try:
        check_head(whole.partition(b"rest")[0])
    except RequestError:
        return
    raise AssertionError(f"{whole!r} was refused in parts only")


def test_a_head_without_end_is_refused() -> None:
    received = bytearray(b"GET /" + b"a" * HEAD_BYTES_MAX)
    with pytest.raises(RequestError) as refused:
        take_head(received)
    assert refused.value.status == 431


BYTES = st.one_of(
    st.binary(max_size=200),
    st.lists(
        st.sampled_from(
            [
                b"GET ",
                b"POST ",
                b"/topics ",
                b"/topics/a/records ",
                b"HTTP/1.1",
                b"\r\n",
                b"\n",
                b"Host: localhost",
                b"Content-Length: 3",
                b"Content-Length: ",
                b"Transfer-Encoding: chunked",
                b"Expect: 100-continue",
                b"Connection: close",
                b"Upgrade: websocket",
                b"3\r\nabc\r\n",
                b"0\r\n\r\n",
                b"abc",
                b" ",
                b":",
            ]
        ),
        max_size=25,
    ).map(b"".join),
)


async def test_the_broker_lives_whatever_is_sent() -> None:
    tried: list[bytes] = []

    @settings(max_examples=300, database=None, suppress_health_check=list(HealthCheck))
    @given(BYTES)
    def collect(sent: bytes) -> None:
        tried.append(sent)

    collect()
    async with open_web() as web:
        assert web.broker.web is not None
        for sent in tried:
            stream = await trio.open_tcp_stream("127.0.0.1", web.port)
            async with stream:
                await stream.send_all(sent)
                await stream.send_eof()
                with trio.fail_after(DEADLINE_S):
                    answer = await read_all(stream)
            assert answer == b"" or answer.startswith(b"HTTP/1.1 "), (sent, answer)
        assert await web.is_alive()
        assert web.broker.web.counters.disconnected["unexpected error"] == 0
        assert web.broker.web.counters.responses[500] == 0
        topics = json.loads((await web.get("/topics")).body)["topics"]
        assert {each["name"] for each in topics} <= {"a"}
