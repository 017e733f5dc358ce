"""TLS as the server has it, against what others make of TLS."""

import hashlib
import random
import socket
import ssl
from collections.abc import Awaitable, Callable
from functools import cache, partial

import pytest
import trio
import trustme

from trio_kubelet.server.tls import ServerTls, server_context
from trio_kubelet.server.tls_stream import TlsStream

DEADLINE_SECONDS = 60
RECORDS = 50


@cache
def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """What the client and what the server of a pair have."""
    authority = trustme.CA()
    client_side = ssl.create_default_context()
    authority.configure_trust(client_side)
    issued = authority.issue_cert("here")
    certificate = b"".join(pem.bytes() for pem in issued.cert_chain_pems)
    return client_side, server_context(ServerTls(certificate, issued.private_key_pem.bytes()))


def transports() -> tuple[trio.SocketStream, trio.SocketStream]:
    """Two ends of a connection."""
    one, other = socket.socketpair()
    return tuple(  # type: ignore[return-value]
        trio.SocketStream(trio.socket.from_stdlib_socket(each)) for each in (one, other)
    )


async def pair() -> tuple[trio.SSLStream[trio.SocketStream], TlsStream]:
    """A client and the server's stream; their handshake is over."""
    near, far = transports()
    client = trio.SSLStream(near, contexts()[0], server_hostname="here", https_compatible=True)
    server = TlsStream(far, contexts()[1])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.do_handshake)
        nursery.start_soon(server.do_handshake, trio.lowlevel.checkpoint)
    return client, server


async def test_it_is_a_stream_as_trio_has_them() -> None:
    with trio.fail_after(DEADLINE_SECONDS):
        await trio.testing.check_two_way_stream(pair, None)


async def test_records_that_have_come_are_read_at_once() -> None:
    client, server = await pair()
    async with client, server:
        for number in range(RECORDS):
            await client.send_all(b"%04d" % number)
        received, reads = b"", 0
        with trio.fail_after(DEADLINE_SECONDS):
            while len(received) < 4 * RECORDS:
                received += await server.receive_some()
                reads += 1
        assert received == b"".join(b"%04d" % number for number in range(RECORDS))
        assert reads <= 2


async def test_no_more_is_read_than_is_asked_for() -> None:
    client, server = await pair()
    async with client, server:
        await client.send_all(b"abc")
        await client.send_all(b"def")
        assert [await server.receive_some(each) for each in (1, 3, 9)] == [b"a", b"bcd", b"ef"]
        with pytest.raises(ValueError, match="max_bytes"):
            await server.receive_some(0)


@pytest.mark.parametrize("https", [True, False], ids=["without a word", "in the way of TLS"])
async def test_the_end_of_the_client_is_an_end_after_what_it_has_sent(*, https: bool) -> None:
    near, far = transports()
    client = trio.SSLStream(near, contexts()[0], server_hostname="here", https_compatible=https)
    server = TlsStream(far, contexts()[1])
    with trio.fail_after(DEADLINE_SECONDS):
        async with server, trio.open_nursery() as nursery:
            nursery.start_soon(server.do_handshake, trio.lowlevel.checkpoint)
            await client.send_all(b"last words")
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(client.aclose)
            assert await server.receive_some() == b"last words"
            assert [await server.receive_some() for _ in range(3)] == [b"", b"", b""]
            nursery.cancel_scope.cancel()


async def test_bytes_that_are_no_tls_break_it_for_good_after_what_came_before() -> None:
    client, server = await pair()
    async with client, server:
        await client.send_all(b"before")
        await client.transport_stream.send_all(b"\x17\x03\x03\x00\x20" + b"x" * 32)
        with trio.fail_after(DEADLINE_SECONDS):
            assert await server.receive_some() == b"before"
            for _ in range(2):
                with pytest.raises(trio.BrokenResourceError):
                    await server.receive_some()
            with pytest.raises(trio.BrokenResourceError):
                await server.send_all(b"after")


async def test_a_client_is_told_why_its_handshake_fails() -> None:
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    new = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    new.minimum_version = ssl.TLSVersion.TLSv1_3
    failures = []

    async def attempt(handshake: Callable[[], Awaitable[None]]) -> None:
        with pytest.raises(trio.BrokenResourceError) as failed:
            await handshake()
        failures.append(str(failed.value.__cause__))

    near, far = transports()
    with trio.fail_after(DEADLINE_SECONDS):
        async with near, far, trio.open_nursery() as nursery:
            client = trio.SSLStream(near, old, server_hostname="here")
            nursery.start_soon(attempt, client.do_handshake)
            server = TlsStream(far, new)
            nursery.start_soon(attempt, partial(server.do_handshake, trio.lowlevel.checkpoint))
    assert sum("alert protocol version" in each.lower() for each in failures) == 1


async def test_who_goes_away_amid_a_handshake_has_made_none() -> None:
    near, far = transports()
    await near.aclose()
    server = TlsStream(far, contexts()[1])
    async with server:
        with pytest.raises(trio.BrokenResourceError):
            await server.do_handshake(trio.lowlevel.checkpoint)


async def test_each_read_of_a_handshake_waits_for_its_turn() -> None:
    turns = 0

    async def turn() -> None:
        nonlocal turns
        turns += 1

    near, far = transports()
    client = trio.SSLStream(near, contexts()[0], server_hostname="here", https_compatible=True)
    server = TlsStream(far, contexts()[1])
    with trio.fail_after(DEADLINE_SECONDS):
        async with client, server, trio.open_nursery() as nursery:
            nursery.start_soon(client.do_handshake)
            await server.do_handshake(turn)
    assert turns


async def test_a_send_that_was_cut_off_leaves_a_broken_stream() -> None:
    client, server = await pair()
    async with client, server:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(server.send_all, bytes(50_000_000))
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        with pytest.raises(trio.BrokenResourceError):
            await server.send_all(b"and on")


async def test_much_goes_both_ways_at_once_and_arrives_as_it_was() -> None:
    client, server = await pair()
    data = random.Random(1).randbytes(3_000_000)
    came: dict[str, bytes] = {}

    async def send(stream: trio.abc.Stream) -> None:
        sizes, at = random.Random(2), 0
        while at < len(data):
            size = sizes.choice((1, 4, 100, 16_384, 100_000))
            await stream.send_all(data[at : at + size])
            at += size

    async def receive(name: str, stream: trio.abc.Stream) -> None:
        pieces = b""
        while len(pieces) < len(data):
            pieces += await stream.receive_some()
        came[name] = hashlib.sha256(pieces).digest()

    with trio.fail_after(DEADLINE_SECONDS):
        async with client, server, trio.open_nursery() as nursery:
            for name, stream in (("client", client), ("server", server)):
                nursery.start_soon(send, stream)
                nursery.start_soon(partial(receive, name, stream))
    assert came == dict.fromkeys(("client", "server"), hashlib.sha256(data).digest())
