"""A server for a test, and clients of bytes."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import trio

from trio_kubelet.server import Handler, Limits, Request, Response, listen_tcp, serve_http

DEADLINE_SECONDS = 60


async def echo(request: Request) -> Response:
    return Response(body=f"{request.method} {request.path} {request.query.pairs}".encode())


@asynccontextmanager
async def serving(handler: Handler = echo, limits: Limits | None = None) -> AsyncIterator[int]:
    """The port of a server with that handler."""
    listeners = await listen_tcp("127.0.0.1", 0)
    port = listeners[0].socket.getsockname()[1]
    with trio.fail_after(DEADLINE_SECONDS):
        async with trio.open_nursery() as nursery:

            async def serve(*, task_status: trio.TaskStatus[None]) -> None:
                await serve_http(listeners, handler, limits=limits, task_status=task_status)

            await nursery.start(serve)
            yield port
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def client(
    handler: Handler = echo, limits: Limits | None = None
) -> AsyncIterator[httpx.AsyncClient]:
    """A real client of a server with that handler."""
    async with (
        serving(handler, limits) as port,
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


async def until(stream: trio.abc.ReceiveStream, end: bytes) -> bytes:
    """What the server says up to some bytes; fails if it hangs up before."""
    said = b""
    while end not in said:
        data = await stream.receive_some()
        assert data, said
        said += data
    return said


def open_files() -> int:
    """How many descriptors this process has, both ends of each connection among them."""
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


async def at_most_open_files(number: int) -> None:
    """Wait until so few descriptors are left; raises trio.TooSlowError."""
    with trio.fail_after(DEADLINE_SECONDS):
        while open_files() > number:  # noqa: ASYNC110 - nobody tells of the server's side
            await trio.sleep(0.01)


def head(path: str = "/healthz", *lines: str, method: str = "GET") -> bytes:
    """A request of HTTP/1.1 without the empty line."""
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", *lines, ""]).encode()


def last(path: str = "/healthz", *lines: str, method: str = "GET") -> bytes:
    """A whole request, after which the server hangs up."""
    return head(path, *lines, "Connection: close", method=method) + b"\r\n"
