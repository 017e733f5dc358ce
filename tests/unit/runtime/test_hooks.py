"""Hooks over HTTP: what the server in a container answers, and how much of it is read."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest
import trio

from trio_kubelet.k8s import (
    Container,
    HTTPGetAction,
    HTTPHeader,
    IntOrString,
    LifecycleHandler,
    ObjectMeta,
    Pod,
)
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.lifecycle.hooks import HookError, run_hook

POD = Pod(metadata=ObjectMeta(name="web", namespace="shop", uid="u"))
NO_CLIENT = cast("RuntimeClient", None)


@asynccontextmanager
async def endless_server(status: str) -> AsyncIterator[int]:
    """A server whose answers never end; its port."""

    async def answer(stream: trio.SocketStream) -> None:
        async with stream:
            try:
                await stream.receive_some(4096)
                await stream.send_all(f"HTTP/1.1 {status}\r\n\r\n".encode())
                while True:
                    await stream.send_all(b"x" * 4096)
            except trio.BrokenResourceError:
                return

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, answer, 0)
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


async def call(port: int) -> None:
    handler = LifecycleHandler(http_get=HTTPGetAction(port=IntOrString(port)))
    with trio.fail_after(60):
        await run_hook(NO_CLIENT, POD, Container(name="c"), "id", handler, "127.0.0.1")


async def test_an_answer_that_never_ends_is_not_read_to_its_end() -> None:
    async with endless_server("200 OK") as port:
        await call(port)


async def test_a_refusal_that_never_ends_is_a_failure_without_its_words() -> None:
    async with endless_server("500 Oops") as port:
        with pytest.raises(HookError, match='status 500, message: ""'):
            await call(port)


async def test_the_words_of_a_short_refusal_are_told() -> None:
    async with endless_server("500 Oops\r\nContent-Length: 3") as port:
        with pytest.raises(HookError, match='status 500, message: "xxx"'):
            await call(port)


@pytest.mark.parametrize(
    "action",
    [
        HTTPGetAction(port=IntOrString(80), host="["),
        HTTPGetAction(port=IntOrString(80), host="a\0b"),
        HTTPGetAction(port=IntOrString(80), host="x" * 300),
        HTTPGetAction(port=IntOrString(99999999)),
        HTTPGetAction(port=IntOrString("9" * 5000)),
        HTTPGetAction(port=IntOrString("\u0663")),
        HTTPGetAction(port=IntOrString(1), http_headers=(HTTPHeader(name="A", value="\u0663"),)),
        HTTPGetAction(port=IntOrString(1), http_headers=(HTTPHeader(name="A\r\n", value="b"),)),
    ],
)
async def test_a_request_that_cannot_be_made_is_a_failure_of_the_hook(
    action: HTTPGetAction,
) -> None:
    handler = LifecycleHandler(http_get=action)
    with pytest.raises(HookError), trio.fail_after(60):
        await run_hook(NO_CLIENT, POD, Container(name="c"), "id", handler, "127.0.0.1")
