"""The server with real sockets: a real client, and clients that behave badly."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx
import pytest
import structlog
import trio

from trio_kubelet.server import Answer, Question, http, listen_tcp, serve_http

Ask = Callable[[Question], Awaitable[Answer]]


async def echo(question: Question) -> Answer:
    return Answer(body=f"{question.method} {question.path} {dict(question.query)}".encode())


@asynccontextmanager
async def serving(handler: Ask = echo) -> AsyncIterator[int]:
    """The port of a server with that handler."""
    listeners = await listen_tcp("127.0.0.1", 0)
    port = listeners[0].socket.getsockname()[1]
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_http, listeners, handler)
            yield port
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def client(handler: Ask = echo) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        serving(handler) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client,
    ):
        yield client


async def connect(port: int, text: bytes = b"") -> trio.SocketStream:
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    if text:
        await stream.send_all(text)
    return stream


async def everything(stream: trio.SocketStream) -> bytes:
    """All that the server says until it hangs up."""
    async with stream:
        return b"".join([data async for data in stream])


def open_files() -> int:
    """How many descriptors this process has, both ends of each connection among them."""
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def head(host: str = "x") -> bytes:
    return f"GET /healthz HTTP/1.1\r\nHost: {host}\r\n".encode()


async def test_a_request_is_a_question_and_its_answer_a_response() -> None:
    async with client() as http_client:
        response = await http_client.get("/some%20path?pod=default%2Fweb&verbose")
    assert response.status_code == 200
    assert response.text == "GET /some path {'pod': 'default/web', 'verbose': ''}"
    assert response.headers["content-type"] == "text/plain; charset=utf-8"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert "date" in response.headers


async def test_head_is_answered_without_the_body_and_with_its_length() -> None:
    async with client() as http_client:
        response = await http_client.head("/pods")
        assert response.text == ""
        assert int(response.headers["content-length"]) == len("HEAD /pods {}")
        assert (await http_client.get("/pods")).text == "GET /pods {}"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_other_methods_are_refused_and_the_connection_goes_on(method: str) -> None:
    async with client() as http_client:
        response = await http_client.request(method, "/pods", content=b"body")
        assert response.status_code == 405
        assert response.headers["allow"] == "GET, HEAD"
        assert (await http_client.get("/pods")).status_code == 200


async def test_an_error_in_a_handler_is_a_500_in_the_log_and_nothing_else() -> None:
    async def fail(question: Question) -> Answer:
        if question.path == "/bad":
            raise ValueError("oops")
        return Answer()

    with structlog.testing.capture_logs() as logs:
        async with client(fail) as http_client:
            assert (await http_client.get("/bad")).status_code == 500
            assert (await http_client.get("/good")).status_code == 200
    assert [(entry["event"], entry["path"]) for entry in logs] == [("request failed", "/bad")]


async def test_requests_that_arrive_together_are_answered_in_their_order() -> None:
    async with serving() as port:
        text = b"GET /1 HTTP/1.1\r\nHost: x\r\n\r\n"
        last = b"GET /2 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        stream = await connect(port, text + last)
        said = await everything(stream)
    assert said.index(b"GET /1") < said.index(b"GET /2")


async def test_an_http_1_0_client_is_answered_and_hung_up_on() -> None:
    async with serving() as port:
        said = await everything(await connect(port, b"GET /healthz HTTP/1.0\r\n\r\n"))
    assert said.endswith(b"GET /healthz {}")


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (b"hello\r\n\r\n", b" 400 "),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b" 400 "),
        (b"GET /healthz HTTP/1.1\r\n\r\n", b" 400 "),
        (head() + b"Content-Length: many\r\n\r\n", b" 400 "),
        (head() + b"X: " + b"y" * 100_000, b" 431 "),
        (head() + b"Content-Length: 1000000\r\n\r\n" + b"y" * 1_000_000, b" 413 "),
        (b"GET http://[ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b" 400 "),
    ],
    ids=["no http", "tls", "no host", "bad length", "long header", "long body", "bad target"],
)
async def test_what_is_no_request_is_refused_in_words_and_hung_up_on(
    text: bytes, status: bytes
) -> None:
    with structlog.testing.capture_logs() as logs:
        async with serving() as port:
            said = await everything(await connect(port, text))
    assert status in said.partition(b"\r\n")[0]
    assert not logs


async def test_who_asks_whether_to_send_a_body_need_not_send_it() -> None:
    async with serving() as port:
        text = head().replace(b"GET", b"POST")
        text += b"Expect: 100-continue\r\nContent-Length: 100\r\n\r\n"
        said = await everything(await connect(port, text))
    assert b" 405 " in said.partition(b"\r\n")[0]


async def test_a_client_that_hangs_up_is_no_matter_for_the_log() -> None:
    with structlog.testing.capture_logs() as logs:
        async with serving() as port:
            for text in (b"", head(), head() + b"\r\n"):
                stream = await connect(port, text)
                await stream.aclose()
            assert b"200 OK" in await everything(
                await connect(port, head() + b"Connection: close\r\n\r\n")
            )
    assert not logs


@pytest.mark.parametrize("text", [b"", b"GET /he", head()])
async def test_a_client_that_takes_too_long_is_hung_up_on(
    text: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "CLIENT_TIMEOUT_SECONDS", 0.05)
    async with serving() as port:
        assert await everything(await connect(port, text)) == b""


async def test_a_client_that_does_not_read_its_answer_is_hung_up_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "CLIENT_TIMEOUT_SECONDS", 0.05)
    sent = 50_000_000
    asked = trio.Event()

    async def much(_question: Question) -> Answer:
        asked.set()
        return Answer(body=b"x" * sent)

    async with serving(much) as port:
        before = open_files()
        stream = await connect(port, head() + b"\r\n")
        await asked.wait()
        while open_files() > before + 1:  # noqa: ASYNC110 - a client cannot see it before it reads
            await trio.sleep(0.01)
        with pytest.raises((trio.BrokenResourceError, AssertionError)):
            assert len(await everything(stream)) > sent


async def test_idle_clients_keep_nobody_from_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 4)
    async with serving() as port:
        idle = [await connect(port, b"GET /") for _ in range(8)]
        said = await everything(await connect(port, head() + b"Connection: close\r\n\r\n"))
        assert said.endswith(b"GET /healthz {}")
        # Those that waited longest had to go, the youngest are still there.
        assert await everything(idle[0]) == b""
        await idle[-1].send_all(b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await everything(idle[-1])).endswith(b"GET / {}")
        for stream in idle:
            await stream.aclose()


async def test_when_all_connections_are_being_answered_a_new_one_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 2)
    at_work = trio.Event()
    go_on = trio.Event()
    asked = 0

    async def slow(question: Question) -> Answer:
        nonlocal asked
        asked += 1
        if asked == 2:
            at_work.set()
        await go_on.wait()
        return Answer(body=b"done")

    async with serving(slow) as port:
        text = head() + b"Connection: close\r\n\r\n"
        first, second = await connect(port, text), await connect(port, text)
        await at_work.wait()
        try:
            assert await everything(await connect(port)) == b""
        finally:
            go_on.set()
        assert (await everything(first)).endswith(b"done")
        assert (await everything(second)).endswith(b"done")


async def test_cancelling_closes_connections_and_the_port() -> None:
    async with serving() as port:
        stream = await connect(port, b"GET /")
    with trio.fail_after(60):
        assert await everything(stream) == b""
    with pytest.raises(OSError, match="connect"):
        await connect(port)
