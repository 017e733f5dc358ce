"""Connections that are handed over to a handler."""

import pytest
import structlog
import trio
from trio.testing import MockClock

from tests.unit.server.serving import (
    connect,
    everything,
    head,
    serving,
    until,
)
from trio_kubelet.server import Limits, Request, Response

SWITCHING = (("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1"))
UPGRADE = head("/exec", "Connection: keep-alive, Upgrade", "Upgrade: SPDY/3.1", method="POST")
UPGRADE += b"\r\n"


async def shout(request: Request) -> None:
    """Give back what comes in capitals, until the client ends."""
    stream = await request.switch_protocols(SWITCHING)
    while data := await stream.receive_some():
        await stream.send_all(data.upper())


async def test_a_connection_that_is_taken_over_is_raw_in_both_directions() -> None:
    async with serving(shout) as port:
        stream = await connect(port, UPGRADE)
        said = await until(stream, b"\r\n\r\n")
        assert said.startswith(b"HTTP/1.1 101 Switching Protocols\r\n")
        assert b"\r\nUpgrade: SPDY/3.1\r\n" in said
        for word in (b"GET / HTTP/1.1\r\n\r\n", b"\0\1\2\xff", b"hello"):
            await stream.send_all(word)
            assert await until(stream, word.upper()) == word.upper()
        await stream.send_eof()
        assert await everything(stream) == b""


async def test_what_was_sent_with_the_request_comes_first() -> None:
    async def read_little(request: Request) -> None:
        stream = await request.switch_protocols(SWITCHING)
        while data := await stream.receive_some(3):
            assert len(data) <= 3
            await stream.send_all(data.upper())

    async with serving(read_little) as port:
        stream = await connect(port, UPGRADE + b"early ")
        await until(stream, b"EARLY ")
        await stream.send_all(b"late")
        await stream.send_eof()
        assert await everything(stream) == b"LATE"


async def test_much_may_pass_and_neither_idle_nor_slow_clients_are_limited(
    mock_clock: MockClock,
) -> None:
    size = 5_000_000
    limits = Limits(idle_seconds=0.5, head_seconds=0.5, progress_seconds=0.5, take_seconds=0.5)
    async with serving(shout, limits) as port:
        stream = await connect(port, UPGRADE)
        await until(stream, b"\r\n\r\n")
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(1)
        await trio.testing.wait_all_tasks_blocked()
        received = 0
        async with stream, trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, b"x" * size)
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(1)
            await trio.testing.wait_all_tasks_blocked()
            while received < size:
                received += len(await stream.receive_some())


@pytest.mark.parametrize(
    "text",
    [
        head() + b"\r\n",
        head("/", "Upgrade: SPDY/3.1") + b"\r\n",
        head("/", "Connection: Upgrade") + b"\r\n",
        b"GET / HTTP/1.0\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n",
        head("/", "Connection: Upgrade", "Upgrade: SPDY/3.1", "Content-Length: 9") + b"\r\n",
    ],
)
async def test_a_client_that_asks_for_no_upgrade_gets_none(text: bytes) -> None:
    with structlog.testing.capture_logs() as logs:
        async with serving(shout) as port:
            stream = await connect(port, text)
            await stream.send_eof()
            said = await everything(stream)
    assert said.startswith(b"HTTP/1.1 400 ")
    assert not logs


async def test_a_request_for_an_upgrade_may_be_answered_as_any_other() -> None:
    async def refuse(_request: Request) -> Response:
        return Response(status=403, body=b"no")

    async with serving(refuse) as port:
        stream = await connect(port, UPGRADE + UPGRADE)
        await until(stream, b"no")
        await stream.send_eof()
        assert b" 403 " in await everything(stream)


async def test_a_client_that_vanishes_from_an_upgraded_connection_is_no_matter_for_the_log() -> (
    None
):
    ended = trio.Event()

    async def pour(request: Request) -> None:
        stream = await request.switch_protocols(SWITCHING)
        try:
            while True:
                await stream.send_all(b"x" * 1000)
        finally:
            ended.set()

    with structlog.testing.capture_logs() as logs:
        async with serving(pour) as port:
            stream = await connect(port, UPGRADE)
            await until(stream, b"\r\n\r\n")
            await stream.aclose()
            await ended.wait()
    assert not logs


async def test_a_handler_that_fails_after_the_upgrade_ends_the_connection_and_is_logged() -> None:
    async def fail(request: Request) -> None:
        await request.switch_protocols(SWITCHING)
        raise ValueError("oops")

    with structlog.testing.capture_logs() as logs:
        async with serving(fail) as port:
            said = await everything(await connect(port, UPGRADE))
    assert said.endswith(b"\r\n\r\n")
    assert said.count(b"HTTP/1.1 ") == 1
    assert [entry["event"] for entry in logs] == ["HTTP request handler failed"]


async def test_an_upgraded_connection_keeps_its_place_and_is_cut_when_the_server_ends() -> None:
    limits = Limits(connections=1, close_seconds=0.05)
    async with serving(shout, limits) as port:
        stream = await connect(port, UPGRADE)
        await until(stream, b"\r\n\r\n")
        assert await everything(await connect(port)) == b""
        await stream.send_all(b"still here")
        await until(stream, b"STILL HERE")
    with trio.fail_after(60):
        assert await everything(stream) == b""
