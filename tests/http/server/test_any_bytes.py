"""Whatever bytes a client sends, the broker answers or ends the connection, and goes on."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.http.running import SharedWeb

BYTES = st.one_of(
    st.binary(max_size=200),
    st.lists(
        st.sampled_from(
            [
                b"GET ",
                b"POST ",
                b"/topics ",
                b"/topics/any/records ",
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


async def test_the_broker_lives_whatever_is_sent(web: SharedWeb) -> None:
    tried: list[bytes] = []

    @settings(max_examples=100, database=None, suppress_health_check=list(HealthCheck))
    @given(BYTES)
    def collect(sent: bytes) -> None:
        tried.append(sent)

    collect()
    assert web.broker.web is not None
    counters = web.broker.web.counters
    before = counters.disconnected["unexpected error"], counters.responses[500]
    for sent in tried:
        answer = await web.exchange(sent, eof=True)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 "), (sent, answer)
    assert (counters.disconnected["unexpected error"], counters.responses[500]) == before
