"""Hooks over HTTP: what the server in a container answers, and how much of it is read."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import trio

from tests.trio_clock import TrioClock
from tests.unit.pod_clients.servers import no_descriptors, server_tls, serving
from trio_kubelet.k8s import (
    Container,
    ExecAction,
    HTTPGetAction,
    HTTPHeader,
    IntOrString,
    LifecycleHandler,
    ObjectMeta,
    Pod,
    TCPSocketAction,
)
from trio_kubelet.pod_clients.share import ProbeShares
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.lifecycle.hooks import HookError, Hooks
from trio_kubelet.telemetry import EventRecorder, Journal

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


EVENTS: list[tuple[str, str, str]] = []
FALLBACKS: list[str] = []


def hooks(client: RuntimeClient) -> Hooks:
    EVENTS.clear()
    FALLBACKS.clear()
    recorder = EventRecorder(Journal(TrioClock()), "node")
    recorder.on_event.add(lambda event: EVENTS.append((event.type, event.reason, event.message)))
    made = Hooks(client=client, recorder=recorder, shares=ProbeShares())
    made.on_http_fallback.add(lambda: FALLBACKS.append("told"))
    return made


async def run(handler: LifecycleHandler, client: RuntimeClient = NO_CLIENT) -> None:
    with trio.fail_after(60):
        await hooks(client).run(POD, Container(name="c"), "id", handler, "127.0.0.1")


async def call(port: int, **fields: Any) -> None:
    await run(LifecycleHandler(http_get=HTTPGetAction(port=IntOrString(port), **fields)))


@pytest.mark.parametrize("status", ["200 OK", "500 Oops", "404 Not Found"])
async def test_whatever_is_answered_is_fine_and_not_read_to_its_end(status: str) -> None:
    async with endless_server(status) as port:
        await call(port)
    assert EVENTS == []


@asynccontextmanager
async def server(heads: list[bytes], tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A server that answers at once, and keeps what it was asked; its port."""

    async def answer(stream: trio.abc.Stream) -> None:
        heads.append(bytes(await stream.receive_some(4096)))
        await stream.send_all(b"HTTP/1.1 204 Gone\r\n\r\n")

    async with serving(answer, tls) as port:
        yield port


HEADERS = (
    HTTPHeader(name="Host", value="inside"),
    HTTPHeader(name="X-Mine", value="a"),
    HTTPHeader(name="Authorization", value="Bearer secret"),
)


async def test_a_request_has_the_headers_of_its_hook() -> None:
    heads: list[bytes] = []
    async with server(heads) as port:
        await call(port, path="/ready?a=b", http_headers=HEADERS)
    assert heads[0].startswith(b"GET /ready?a=b HTTP/1.1\r\n")
    lines = set(heads[0].split(b"\r\n"))
    assert {b"Host: inside", b"X-Mine: a", b"User-Agent: kube-lifecycle/1.36"} <= lines
    assert b"Authorization: Bearer secret" in lines


async def test_a_hook_over_https_trusts_any_certificate() -> None:
    heads: list[bytes] = []
    async with server(heads, server_tls("somebody.else")) as port:
        await call(port, scheme="HTTPS", http_headers=HEADERS)
    assert b"Authorization: Bearer secret\r\n" in heads[0]
    assert EVENTS == []


async def test_a_hook_over_https_that_is_answered_plainly_asks_again_without_secrets() -> None:
    heads: list[bytes] = []
    async with server(heads) as port:
        await call(port, scheme="HTTPS", http_headers=HEADERS)
    handshake, request = heads
    assert not handshake.startswith(b"GET")
    assert b"X-Mine: a\r\n" in request
    assert b"Authorization" not in request
    words = f"request to HTTPS lifecycle hook 127.0.0.1:{port} got HTTP response, retry with HTTP"
    assert [("Warning", "LifecycleHTTPFallback", f"{words} succeeded")] == EVENTS
    assert len(FALLBACKS) == 1


async def test_a_hook_that_finds_nobody_fails_and_says_so() -> None:
    with pytest.raises(HookError) as failed:
        await call(1, path="/x")
    assert str(failed.value) == (
        'HTTP lifecycle hook (/x) for Container "c" in Pod "web_shop(u)" failed - error: '
        'Get "http://127.0.0.1:1/x": dial tcp 127.0.0.1:1: connect: connection refused'
    )


async def test_a_hook_that_this_node_has_no_descriptor_for_fails_and_says_so() -> None:
    with no_descriptors(), pytest.raises(HookError, match="socket: too many open files"):
        await call(1)


class Shell:
    """Stands in for a runtime that can run no command."""

    async def exec_sync(self, *_: object, **__: object) -> None:
        await trio.lowlevel.checkpoint()
        raise RpcError(Code.UNKNOWN, "no such program")


async def test_a_command_that_the_runtime_cannot_run_fails_the_hook_and_says_so() -> None:
    handler = LifecycleHandler(exec=ExecAction(command=("/missing", "now")))
    with pytest.raises(HookError) as failed:
        await run(handler, cast("RuntimeClient", Shell()))
    assert str(failed.value) == (
        'Exec lifecycle hook ([/missing now]) for Container "c" in Pod "web_shop(u)" failed - '
        'error: rpc error: code = Unknown desc = no such program, message: ""'
    )


async def test_a_hook_over_tcp_was_never_supported() -> None:
    with pytest.raises(HookError, match="Cannot run handler: invalid handler"):
        await run(LifecycleHandler(tcp_socket=TCPSocketAction(port=IntOrString(80))))


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
    with pytest.raises(HookError):
        await run(LifecycleHandler(http_get=action))


async def test_what_comes_for_a_hook_is_taken_in_the_share_of_its_pod() -> None:
    made, turns = hooks(NO_CLIENT), list[str]()
    share = made.shares.of(POD.metadata.uid, POD.metadata.namespace)

    async def have_turn() -> None:
        turns.append("of the pod")
        await trio.lowlevel.checkpoint()

    share.turn = have_turn
    async with endless_server("200 OK") as port:
        handler = LifecycleHandler(http_get=HTTPGetAction(port=IntOrString(port)))
        with trio.fail_after(60):
            await made.run(POD, Container(name="c"), "id", handler, "127.0.0.1")
    assert turns
