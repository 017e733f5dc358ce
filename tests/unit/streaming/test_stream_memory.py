"""Streams of which one end sends all the time and the other reads nothing: they keep little."""

import os
from contextlib import AsyncExitStack, suppress
from functools import partial

import trio
from trio.testing import wait_all_tasks_blocked

from benchmarks.idle import resident_mib
from tests.unit.server.serving import until
from tests.unit.server.test_turns import contexts
from tests.unit.streaming.test_streams import ACCEPTED, EXEC, Runtime, asking, streaming
from trio_kubelet.ports.secure_port import LIMITS
from trio_kubelet.server import listen_tcp, serve_http
from trio_kubelet.server.tls import over_tls

STREAMS = 150
MOST_MEBIBYTES = 40
"""Both ends of their TLS included; in pieces of 128 KiB they would have more than 50."""
FLOOD = b"x" * (256 << 10)


async def send_without_end(stream: trio.SocketStream) -> None:
    with suppress(trio.BrokenResourceError):
        async with stream:
            await until(stream, b"\r\n\r\n")
            await stream.send_all(ACCEPTED)
            while True:
                await stream.send_all(FLOOD)


async def test_commands_whose_output_nobody_reads_keep_little() -> None:
    context, client_side = contexts()
    [backend] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    url = f"http://127.0.0.1:{backend.socket.getsockname()[1]}/x"
    listeners = await listen_tcp("127.0.0.1", 0)
    port = listeners[0].socket.getsockname()[1]
    async with trio.open_nursery() as nursery, AsyncExitStack() as clients:
        nursery.start_soon(trio.serve_listeners, send_without_end, [backend])
        handler = streaming(Runtime(url=url))
        serve = partial(serve_http, over_tls(listeners, lambda: context), handler, limits=LIMITS)
        await nursery.start(serve)
        before = resident_mib(os.getpid())
        for _ in range(STREAMS):
            transport = await trio.open_tcp_stream("127.0.0.1", port)
            client = trio.SSLStream(transport, client_side, server_hostname="127.0.0.1")
            await client.send_all(asking(EXEC))
            clients.push_async_callback(trio.aclose_forcefully, client)
        await wait_all_tasks_blocked(0.2)
        grown = resident_mib(os.getpid()) - before
        nursery.cancel_scope.cancel()
    assert grown < MOST_MEBIBYTES
