"""Any bytes may come: the server logs no error, does not hang, and answers the next request."""

from collections.abc import AsyncGenerator

import structlog
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.server.serving import connect, everything, last, serving
from trio_kubelet.server import (
    ANY,
    Handler,
    Limits,
    Request,
    RequestError,
    Response,
    Route,
    route_requests,
)
from trio_kubelet.server.router import ADMIN

WHOLE = (
    b"GET /pods?a=b HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /read HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
    b"POST /read HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"POST /read HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nhi",
    b"GET /stream HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    b"GET /stream HTTP/1.0\r\n\r\n",
    b"HEAD /stream HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /upgrade HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nraw",
    b"GET /logs/%2e%2e/a HTTP/1.1\r\nHost: x\r\n\r\n",
)
PIECES = (
    *(
        b"\r\n",
        b"\n",
        b"\r",
        b" ",
        b"\t",
        b":",
        b"\0",
        b"\xff",
        b"%",
        b"?",
        b"/",
        b"//",
        b"..",
        b"*",
    ),
    *(b"HTTP/1.1", b"HTTP/1.0", b"HTTP/9.9", b"GET", b"CONNECT", b"OPTIONS", b"PRI * HTTP/2.0"),
    *(b"Content-Length: 3\r\n", b"Content-Length: 99999999999\r\n", b"Content-Length: -1\r\n"),
    *(b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip\r\n", b"ffffffff\r\n", b"0\r\n"),
    *(b"Connection: close\r\n", b"Upgrade: h2c\r\n", b"Expect: 100-continue\r\n", b"Host: y\r\n"),
    *(b" folded\r\n", b"x" * 40_000, b"X: y\r\n" * 150),
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Requests one after another, in which pieces were put, taken out or changed."""
    text = bytearray(b"".join(draw(st.lists(st.sampled_from(WHOLE), min_size=1, max_size=3))))
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 8)))
        text[start:end] = draw(st.one_of(st.sampled_from(PIECES), st.binary(max_size=4)))
    return bytes(text)


def handler() -> Handler:
    """Reads bodies, streams, switches protocols, and refuses."""

    async def read(request: Request) -> Response:
        return Response(body=await request.body.read())

    async def stream(_request: Request) -> Response:
        async def pieces() -> AsyncGenerator[bytes, None]:
            for _ in range(3):
                yield b"x" * 1000

        return Response(body=pieces())

    async def upgrade(request: Request) -> None:
        raw = await request.switch_protocols([("Connection", "Upgrade"), ("Upgrade", "x")])
        while data := await raw.receive_some():
            await raw.send_all(data)

    async def refuse(request: Request) -> Response:
        raise RequestError(400, f"{request.path} {request.query.pairs} {request.headers.pairs}")

    return route_requests(
        [
            Route("POST", "/read", read, ADMIN, max_body_bytes=100),
            Route("GET", "/stream", stream, ADMIN),
            Route("GET", "/upgrade", upgrade, ADMIN),
            Route(ANY, "/{path...}", refuse, ADMIN),
        ]
    )


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(
    texts=st.lists(
        st.tuples(st.one_of(mutated(), st.binary(max_size=200)), st.booleans()),
        min_size=1,
        max_size=4,
    )
)
async def test_whatever_comes_is_answered_or_hung_up_on(texts: list[tuple[bytes, bool]]) -> None:
    limits = Limits(head_seconds=2, idle_seconds=2, progress_seconds=2, take_seconds=2)
    with structlog.testing.capture_logs() as logs:
        async with serving(handler(), limits) as port:
            for text, hangs_up in texts:
                stream = await connect(port)
                try:
                    await stream.send_all(text)
                    if hangs_up:
                        await stream.aclose()
                        continue
                    await stream.send_eof()
                    with trio.fail_after(20):
                        said = await everything(stream)
                except trio.BrokenResourceError:
                    continue
                assert not said or said.startswith(b"HTTP/1.")
            said = await everything(await connect(port, last("/stream")))
            assert said.endswith(b"0\r\n\r\n")
    assert not logs
