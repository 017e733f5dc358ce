"""Clients take turns: those that have proven nothing yet, and those that have a stream."""

import gc
import ssl
from collections.abc import AsyncGenerator, Hashable
from functools import partial

import pytest
import trio
import trio.testing
import trustme
from trio.testing import MockClock

from tests.turns import making_test_data
from tests.unit.server.serving import (
    DEADLINE_SECONDS,
    at_most_open_files,
    connect,
    echo,
    everything,
    head,
    last,
    open_files,
    serving,
    until,
)
from tests.unit.server.test_upgrade import SWITCHING
from trio_kubelet.server import Handler, Limits, Request, Response, listen_tcp, serve_http
from trio_kubelet.server.client import Client
from trio_kubelet.server.connections import Place
from trio_kubelet.server.messages import UnixPeer
from trio_kubelet.server.router import ADMIN, Route, Router
from trio_kubelet.server.serve import Connection
from trio_kubelet.server.tls import ServerContext, ServerTls, over_tls, server_context
from trio_kubelet.tasks.turns import Turns
from trio_kubelet.tls_stream import TlsStream

SLOW = 60
OF_CONNECTIONS = (trio.SSLStream, TlsStream, Client, Connection, Place)


def contexts() -> tuple[ServerContext, ssl.SSLContext]:
    """Those of a server and of its clients."""
    with making_test_data():
        authority = trustme.CA()
        issued = authority.issue_cert("127.0.0.1")
        client_side = ssl.create_default_context()
        authority.configure_trust(client_side)
        certificate = b"".join(pem.bytes() for pem in issued.cert_chain_pems)
        return server_context(ServerTls(certificate, issued.private_key_pem.bytes())), client_side


async def connect_over_tls(
    port: int, context: ssl.SSLContext, text: bytes
) -> trio.SSLStream[trio.SocketStream]:
    transport = await trio.open_tcp_stream("127.0.0.1", port)
    stream = trio.SSLStream(transport, context, server_hostname="127.0.0.1", https_compatible=True)
    await stream.send_all(text)
    return stream


class Gate:
    """Keeps the turns of one owner from it while it is closed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, of: Hashable) -> None:
        self.opened = trio.Event()
        self.opened.set()
        wait = Turns.wait

        async def wait_longer(turns: Turns, owner: Hashable) -> None:
            if owner == of:
                await self.opened.wait()
            await wait(turns, owner)

        monkeypatch.setattr(Turns, "wait", wait_longer)

    def close(self) -> None:
        self.opened = trio.Event()


class Streams:
    """Handlers that begin something with their client, and go on once there is more."""

    def __init__(self) -> None:
        self.more = trio.Event()
        self.heard = list[str]()
        """The namespaces whose handlers have read what their clients sent."""
        self.router = Router(
            Route("POST", f"/{name}/{{namespace}}", handler, ADMIN)
            for name, handler in (
                ("respond", self._respond),
                ("talk", self._talk),
                ("listen", self._listen),
                ("read", self._read),
            )
        )

    async def handle(self, request: Request) -> Response | None:
        request.place.let_in(known=True)
        return await self.router.handle(request)

    async def _respond(self, _request: Request) -> Response:
        async def body() -> AsyncGenerator[bytes, None]:
            yield b"begun"
            await self.more.wait()
            yield b"more"

        return Response(body=body())

    async def _talk(self, request: Request) -> None:
        stream = await request.switch_protocols(SWITCHING)
        await stream.send_all(b"begun")
        await self.more.wait()
        await stream.send_all(b"more")

    async def _listen(self, request: Request) -> None:
        stream = await request.switch_protocols(SWITCHING)
        await stream.send_all(b"begun")
        assert await stream.receive_some() == b"more"
        self.heard.append(request.parameters["namespace"])

    async def _read(self, request: Request) -> Response:
        assert await request.body.read() == b"more"
        self.heard.append(request.parameters["namespace"])
        return Response()


UPGRADE = ("Connection: Upgrade", "Upgrade: SPDY/3.1")
LENGTH = ("Expect: 100-continue", "Content-Length: 4", "Connection: close")


@pytest.mark.parametrize(
    ("name", "headers", "begun"),
    [
        ("respond", (), b"begun"),
        ("talk", UPGRADE, b"begun"),
        ("listen", UPGRADE, b"begun"),
        ("read", LENGTH, b"100 Continue"),
    ],
)
async def test_each_piece_of_a_stream_waits_for_a_turn_of_its_namespace(
    name: str, headers: tuple[str, ...], begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams, runtime_health, got = Streams(), Gate(monkeypatch, "held"), list[str]()

    async def go_on(stream: trio.SocketStream, namespace: str) -> None:
        async with stream:
            if name in ("listen", "read"):
                await stream.send_all(b"more")
                await everything(stream)
            else:
                await until(stream, b"more")
                got.append(namespace)

    with trio.fail_after(DEADLINE_SECONDS):
        async with serving(streams.handle) as port, trio.open_nursery() as nursery:
            clients = dict[str, trio.SocketStream]()
            for namespace in ("held", "free"):
                text = head(f"/{name}/{namespace}", *headers, method="POST") + b"\r\n"
                clients[namespace] = await connect(port, text)
                await until(clients[namespace], begun)
            runtime_health.close()
            streams.more.set()
            for namespace, stream in clients.items():
                nursery.start_soon(go_on, stream, namespace)
            while "free" not in [*got, *streams.heard]:
                await trio.lowlevel.checkpoint()
            await trio.testing.wait_all_tasks_blocked(0.02)
            assert "held" not in [*got, *streams.heard]
            runtime_health.opened.set()
            while "held" not in [*got, *streams.heard]:
                await trio.lowlevel.checkpoint()


async def test_handshakes_and_first_requests_wait_for_turns_of_their_peer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    context, client_side = contexts()
    (listener,) = await listen_tcp("127.0.0.1", 0)
    ask = partial(connect_over_tls, listener.socket.getsockname()[1], client_side)
    runtime_health, asked = Gate(monkeypatch, "127.0.0.1"), trio.Event()

    async def connect_later() -> None:
        stream = await ask(b"")
        asked.set()
        await trio.aclose_forcefully(stream)

    with trio.fail_after(DEADLINE_SECONDS):
        async with trio.open_nursery() as nursery:
            listeners = over_tls([listener], lambda: context)
            await nursery.start(serve_http, listeners, Streams().handle)
            known, unknown = await ask(head("/none") + b"\r\n"), await ask(b"")
            await until(known, b"not found")
            runtime_health.close()
            nursery.start_soon(connect_later)
            for stream in (known, unknown):
                await stream.send_all(head("/none") + b"\r\n")
            await until(known, b"not found")
            with trio.move_on_after(0.05) as patience:
                await unknown.receive_some()
            assert patience.cancelled_caught, "it is not answered before its turn"
            assert not asked.is_set()
            runtime_health.opened.set()
            await asked.wait()
            await until(unknown, b"not found")
            for stream in (known, unknown):
                await trio.aclose_forcefully(stream)
            nursery.cancel_scope.cancel()


async def test_a_piece_that_was_read_is_not_lost_with_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runtime_health, read = Gate(monkeypatch, ""), trio.Event()

    async def wait_twice(request: Request) -> None:
        stream = await request.switch_protocols(SWITCHING)
        runtime_health.close()
        read.set()
        with trio.move_on_after(0.05) as patience:
            await stream.receive_some()
        assert patience.cancelled_caught
        runtime_health.opened.set()
        await stream.send_all(await stream.receive_some())

    async with serving(let_in_all(wait_twice)) as port:
        stream = await connect(port, head("/", *UPGRADE, method="POST") + b"\r\n")
        await read.wait()
        await stream.send_all(b"kept")
        await until(stream, b"kept")
        await stream.aclose()


@pytest.mark.parametrize("drop", [False, True], ids=["ahead", "to drop it"])
async def test_what_nobody_waits_for_is_read_in_turns_too(
    drop: bool, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    runtime_health, (near, far) = Gate(monkeypatch, ""), trio.testing.memory_stream_pair()
    client = Client(far, UnixPeer(0, 0, 0), Place.alone(), Limits())
    runtime_health.close()
    with trio.fail_after(DEADLINE_SECONDS), trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.linger if drop else client.read_ahead)
            for piece in (b"a", b"b"):
                await near.send_all(piece)
                await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    with trio.fail_after(DEADLINE_SECONDS):
        assert await far.receive_some() == b"b", "its turn has not come"


def let_in_all(handler: Handler) -> Handler:
    async def let_in(request: Request) -> Response | None:
        request.place.let_in(known=True)
        return await handler(request)

    return let_in


async def test_slow_clients_over_tls_leave_nothing_and_keep_nobody_from_asking() -> None:
    context, client_side = contexts()
    (listener,) = await listen_tcp("127.0.0.1", 0)
    ask = partial(connect_over_tls, listener.socket.getsockname()[1], client_side)

    async def attack() -> None:
        slow = [await ask(head("/")) for _ in range(SLOW)]
        honest = await ask(last())
        assert (await until(honest, b"GET /healthz ()")).startswith(b"HTTP/1.1 200")
        for stream in (*slow, honest):
            await trio.aclose_forcefully(stream)

    with trio.fail_after(DEADLINE_SECONDS):
        async with trio.open_nursery() as nursery:
            listeners = over_tls([listener], lambda: context)
            limits = Limits(connections=SLOW // 2)
            await nursery.start(partial(serve_http, listeners, echo, limits=limits))
            idle = open_files()
            await attack()
            await at_most_open_files(idle)
            await trio.testing.wait_all_tasks_blocked()  # Which closed the last of them.
            with making_test_data():
                gc.collect()
                left = [each for each in gc.get_objects() if isinstance(each, OF_CONNECTIONS)]
            # Who accepts connections, and this test, hold the last one by a name.
            assert len(left) < 10
            nursery.cancel_scope.cancel()
