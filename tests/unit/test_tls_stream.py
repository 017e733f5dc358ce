"""TLS as the server has it, against what others make of TLS."""

import hashlib
import random
import socket
import ssl
from collections.abc import Awaitable, Callable
from functools import cache, partial
from pathlib import Path

import pytest
import trio
import trio.testing
import trustme

from tests.turns import making_test_data
from tests.unit import tls_peer
from trio_kubelet.server.tls import ServerTls, server_context
from trio_kubelet.tls_stream import (
    MOST_RECORDS_WITHOUT_DATA,
    RECORDS_IN_A_TURN,
    Records,
    TlsStream,
    TooManyRecordsError,
)

DEADLINE_SECONDS = 60
MANY = 500
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


def cuts_of(data: bytes, piece_bytes: int) -> list[tuple[bytes, int]]:
    """What is given to TLS of bytes that come in pieces of one size."""
    records, cuts = Records(), []
    for at in range(0, len(data), piece_bytes):
        records.put(data[at : at + piece_bytes])
        while (cut := records.take())[0]:
            cuts.append(cut)
    return cuts


@pytest.mark.parametrize("size", [1, 4, 5, 6, 100, 1 << 20])
def test_records_are_found_in_whatever_pieces_they_come(size: int) -> None:
    data = (b"\x17\3\3\0\x18" + bytes(24) + b"\x17\3\3\0\0" + b"\x16\3\1\1\0" + bytes(256)) * 100
    cuts = cuts_of(data, size)
    assert b"".join(given for given, _ in cuts) == data
    assert sum(ended for _, ended in cuts) == 300
    assert max(ended for _, ended in cuts) <= RECORDS_IN_A_TURN


def test_what_is_no_tls_is_given_to_it_all_the_same() -> None:
    request = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
    assert cuts_of(request, 1 << 20) == [(request, 0)]


class Turns:
    """Counts the turns that are waited for."""

    def __init__(self) -> None:
        self.number = 0

    async def __call__(self) -> None:
        self.number += 1
        await trio.lowlevel.checkpoint()


async def pair_of_records(
    key_log: Path, turns: Turns
) -> tuple[trio.SocketStream, tls_peer.Records, TlsStream]:
    """The transport of a client whose records the test makes, and the server's stream."""
    client_side = ssl.create_default_context()
    client_side.check_hostname, client_side.verify_mode = False, ssl.CERT_NONE
    tls_peer.log_keys(client_side, key_log)
    near, far = transports()
    client = trio.SSLStream(near, client_side, server_hostname="here", https_compatible=True)
    server = TlsStream(far, contexts()[1])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.do_handshake)
        nursery.start_soon(server.do_handshake, turns)
    turns.number = 0
    return near, tls_peer.Records(key_log, "CLIENT"), server


async def test_a_client_that_changes_keys_again_and_again_is_cut_off(tmp_path: Path) -> None:
    near, records, server = await pair_of_records(tmp_path / "keys", Turns())
    with making_test_data():
        flood = b"".join(records.key_update() for _ in range(MANY))
    async with near, server:
        await near.send_all(flood)
        with trio.fail_after(DEADLINE_SECONDS):
            with pytest.raises(trio.BrokenResourceError) as failed:
                await server.receive_some()
            assert isinstance(failed.value.__cause__, TooManyRecordsError)
            with pytest.raises(trio.BrokenResourceError):
                await server.send_all(b"after")


async def test_each_record_without_data_is_waited_for_in_a_turn_of_its_own(tmp_path: Path) -> None:
    turns = Turns()
    near, records, server = await pair_of_records(tmp_path / "keys", turns)
    async with near, server, trio.open_nursery() as nursery:
        received: list[bytes | bytearray] = []

        async def receive() -> None:
            received.append(await server.receive_some())

        with trio.fail_after(DEADLINE_SECONDS):
            nursery.start_soon(receive)
            for number in range(1, MOST_RECORDS_WITHOUT_DATA + 1):
                await near.send_all(records.key_update())
                await trio.testing.wait_all_tasks_blocked()
                assert turns.number == number
            await near.send_all(records.data(b"at last"))
            await trio.testing.wait_all_tasks_blocked()
    assert received == [b"at last"]


async def test_no_more_records_than_a_turn_has_room_for_are_read_at_once(tmp_path: Path) -> None:
    near, records, server = await pair_of_records(tmp_path / "keys", Turns())
    with making_test_data():
        sent = b"".join(records.key_update() + records.data(b"x") for _ in range(MANY))
    reads, answered = list[int](), 0

    async def listen() -> None:
        nonlocal answered
        while received := await near.receive_some():
            answered += len(received)

    async with near, server, trio.open_nursery() as nursery:
        nursery.start_soon(listen)
        nursery.start_soon(near.send_all, sent)
        with trio.fail_after(DEADLINE_SECONDS):
            while sum(reads) < MANY:
                reads.append(len(await server.receive_some()))
        nursery.cancel_scope.cancel()
    assert answered
    assert max(reads) <= RECORDS_IN_A_TURN / 2 + 1


async def test_a_large_record_may_come_in_many_small_pieces(tmp_path: Path) -> None:
    turns = Turns()
    near, records, server = await pair_of_records(tmp_path / "keys", turns)
    sent = records.data(b"x" * 16_384)
    received = b""

    async def send() -> None:
        for at in range(0, len(sent), 100):
            await near.send_all(sent[at : at + 100])
            await trio.testing.wait_all_tasks_blocked()

    async with near, server, trio.open_nursery() as nursery:
        nursery.start_soon(send)
        with trio.fail_after(DEADLINE_SECONDS):
            while len(received) < 16_384:
                received += await server.receive_some()
    assert received == b"x" * 16_384
    assert turns.number == 0, "nothing was decrypted meanwhile"
