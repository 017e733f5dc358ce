"""Clients that have proven nothing yet take turns."""

import gc
import ssl
from functools import partial

import pytest
import trio
import trustme

from tests.turns import making_test_data
from tests.unit.server.serving import (
    DEADLINE_SECONDS,
    at_most_open_files,
    echo,
    head,
    last,
    open_files,
    until,
)
from trio_kubelet.server import Limits, Request, Response, listen_tcp, serve_http
from trio_kubelet.server.client import Client
from trio_kubelet.server.connection import Connection
from trio_kubelet.server.connections import Place
from trio_kubelet.server.tls import ServerContext, ServerTls, over_tls, server_context
from trio_kubelet.server.tls_stream import TlsStream
from trio_kubelet.server.turns import TURNS_IN_A_ROUND, Turns

SLOW = 60
OF_CONNECTIONS = (trio.SSLStream, TlsStream, Client, Connection, Place)


async def test_peers_take_turns_however_many_one_of_them_opens() -> None:
    turns, order = Turns(), list[str]()

    async def wait(peer: str) -> None:
        await turns.wait(peer)
        order.append(peer)

    async with trio.open_nursery() as nursery:
        for _ in range(200):
            nursery.start_soon(wait, "many")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(wait, "one")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(turns.give)
        while len(order) < 201:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert order.index("one") < TURNS_IN_A_ROUND


async def test_only_a_few_go_on_in_a_round_of_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trio_kubelet.server.turns.TURNS_IN_A_ROUND", 1)
    turns, in_rounds, rounds = Turns(), list[int](), 0

    async def wait() -> None:
        await turns.wait("peer")
        in_rounds.append(rounds)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.give)
        for _ in range(20):
            nursery.start_soon(wait)
        while len(in_rounds) < 20:
            rounds += 1
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    # Tasks run in any order within a round, so neighbours may see the same number.
    assert max(map(in_rounds.count, in_rounds)) <= 2


@pytest.mark.parametrize("rounds", range(12))
async def test_who_goes_away_takes_nobody_s_turn(rounds: int) -> None:
    turns, had = Turns(), list[int]()

    async def wait(number: int, scope: trio.CancelScope) -> None:
        with scope:
            await turns.wait("peer")
            had.append(number)

    scopes = [trio.CancelScope() for _ in range(9)]
    async with trio.open_nursery() as nursery:
        with trio.fail_after(60):
            for number, scope in enumerate(scopes):
                nursery.start_soon(wait, number, scope)
            nursery.start_soon(turns.give)
            for _ in range(rounds):
                await trio.lowlevel.checkpoint()
            for scope in scopes[::3]:
                scope.cancel()
            while not {1, 2, 4, 5, 7, 8} <= set(had):
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()


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


async def test_requests_wait_for_their_turns_until_one_was_let_in() -> None:
    async def let_in(request: Request) -> Response:
        request.place.let_in(known=request.path == "/known")
        return Response(body=request.path.encode())

    context, client_side = contexts()
    (listener,) = await listen_tcp("127.0.0.1", 0)
    ask = partial(connect_over_tls, listener.socket.getsockname()[1], client_side)
    turns, giving = Turns(), trio.CancelScope()

    async def give() -> None:
        with giving:
            await turns.give()

    with trio.fail_after(DEADLINE_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(give)
            await nursery.start(serve_http, over_tls([listener], lambda: context, turns), let_in)
            unknown, known = [await ask(head(path) + b"\r\n") for path in ("/unknown", "/known")]
            await until(unknown, b"/unknown")
            await until(known, b"/known")
            giving.cancel()
            for stream in (unknown, known):
                await stream.send_all(head("/again") + b"\r\n")
            await until(known, b"/again")
            with trio.move_on_after(0.05) as patience:
                await unknown.receive_some()
            assert patience.cancelled_caught, "it is not answered before its turn"
            for stream in (unknown, known):
                await trio.aclose_forcefully(stream)
            nursery.cancel_scope.cancel()


async def test_slow_clients_over_tls_leave_nothing_and_keep_nobody_from_asking() -> None:
    context, client_side = contexts()
    (listener,) = await listen_tcp("127.0.0.1", 0)
    ask = partial(connect_over_tls, listener.socket.getsockname()[1], client_side)
    turns = Turns()

    async def attack() -> None:
        slow = [await ask(head("/")) for _ in range(SLOW)]
        honest = await ask(last())
        assert (await until(honest, b"GET /healthz ()")).startswith(b"HTTP/1.1 200")
        for stream in (*slow, honest):
            await trio.aclose_forcefully(stream)

    with trio.fail_after(DEADLINE_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turns.give)
            listeners = over_tls([listener], lambda: context, turns)
            limits = Limits(connections=SLOW // 2)
            await nursery.start(partial(serve_http, listeners, echo, limits=limits))
            idle = open_files()
            await attack()
            await at_most_open_files(idle)
            with making_test_data():
                gc.collect()
                left = [each for each in gc.get_objects() if isinstance(each, OF_CONNECTIONS)]
            # Who accepts connections, and this test, hold the last one by a name.
            assert len(left) < 10
            nursery.cancel_scope.cancel()
