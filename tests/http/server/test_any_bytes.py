"""Whatever bytes a client sends, the broker answers or ends the connection, and goes on."""

from __future__ import annotations

from random import Random

from tests.http.running import SharedWeb

PARTS = [
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


async def test_the_broker_lives_whatever_is_sent(web: SharedWeb) -> None:
    random = Random(5)
    tried = [b"".join(random.choices(PARTS, k=random.randrange(25))) for _ in range(80)]
    tried += [random.randbytes(random.randrange(200)) for _ in range(20)]
    assert web.broker.web is not None
    counters = web.broker.web.counters
    before = counters.disconnected["unexpected error"], counters.responses[500]
    for sent in tried:
        answer = await web.exchange(sent, eof=True)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 "), (sent, answer)
    assert (counters.disconnected["unexpected error"], counters.responses[500]) == before
