"""Bodies that come and go piece by piece."""

import re
import struct
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress

import httpx
import pytest
import structlog
import trio
import trio.testing

from tests.unit.server.serving import (
    client,
    connect,
    everything,
    head,
    last,
    open_files,
    serving,
    until,
)
from trio_kubelet.server import Handler, Limits, Request, Response, Route, route_requests
from trio_kubelet.server.router import ADMIN

RESET = struct.pack("ii", 1, 0)
Pieces = Callable[[], AsyncGenerator[bytes, None]]


def streaming(pieces: Pieces, *headers: tuple[str, str]) -> Handler:
    async def answer(_request: Request) -> Response:
        return Response(body=pieces(), headers=headers)

    return answer


async def three() -> AsyncGenerator[bytes, None]:
    for piece in (b"one ", b"", b"two ", b"three"):
        yield piece


async def broken() -> AsyncGenerator[bytes, None]:
    yield b"one "
    raise ValueError("the disk is gone")


async def test_pieces_are_one_body_and_the_connection_goes_on() -> None:
    async with client(streaming(three)) as http_client:
        for _ in range(2):
            response = await http_client.get("/")
            assert response.text == "one two three"
            assert response.headers["transfer-encoding"] == "chunked"


async def test_each_piece_is_sent_at_once() -> None:
    go_on = trio.Event()

    async def pieces() -> AsyncGenerator[bytes, None]:
        yield b"first"
        await go_on.wait()
        yield b"second"

    async with serving(streaming(pieces)) as port:
        stream = await connect(port, last())
        said = await until(stream, b"first")
        assert b"second" not in said
        go_on.set()
        assert b"second" in await everything(stream)


async def test_the_head_of_a_stream_is_sent_before_its_first_piece() -> None:
    async def nothing_yet() -> AsyncGenerator[bytes, None]:
        await trio.Event().wait()
        yield b""

    async with serving(streaming(nothing_yet)) as port:
        stream = await connect(port, head() + b"\r\n")
        await until(stream, b"\r\n\r\n")
        await stream.aclose()


async def test_an_http_1_0_client_gets_the_pieces_as_they_are() -> None:
    async with serving(streaming(three)) as port:
        said = await everything(await connect(port, b"GET / HTTP/1.0\r\n\r\n"))
    assert said.endswith(b"\r\n\r\none two three")
    assert b"chunked" not in said


async def test_a_stream_of_a_length_that_is_known_says_so() -> None:
    async with client(streaming(three, ("Content-Length", "13"))) as http_client:
        response = await http_client.get("/")
    assert response.text == "one two three"
    assert "transfer-encoding" not in response.headers


@pytest.mark.parametrize("length", ["5", "50"])
async def test_a_stream_of_another_length_than_it_said_is_cut(length: str) -> None:
    with structlog.testing.capture_logs() as logs:
        async with client(streaming(three, ("Content-Length", length))) as http_client:
            with pytest.raises(httpx.RemoteProtocolError):
                await http_client.get("/")
    assert [entry["event"] for entry in logs] == ["HTTP response body failed"]


async def test_head_asks_a_stream_for_nothing_and_closes_it() -> None:
    begun = trio.Event()

    async def pieces() -> AsyncGenerator[bytes, None]:
        begun.set()
        yield b"x"

    async with client(streaming(pieces)) as http_client:
        for _ in range(2):
            assert (await http_client.head("/")).content == b""
    assert not begun.is_set()


async def test_a_client_sees_that_a_stream_broke_off() -> None:
    with structlog.testing.capture_logs() as logs:
        async with client(streaming(broken)) as http_client:
            with pytest.raises(httpx.RemoteProtocolError):
                await http_client.get("/")
    assert [entry["event"] for entry in logs] == ["HTTP response body failed"]


async def test_an_http_1_0_client_sees_it_by_a_reset() -> None:
    with structlog.testing.capture_logs():
        async with serving(streaming(broken)) as port:
            with pytest.raises(trio.BrokenResourceError):
                await everything(await connect(port, b"GET / HTTP/1.0\r\n\r\n"))


async def test_a_client_that_sends_nothing_more_has_the_whole_of_an_answer_that_ends() -> None:
    async def slow() -> AsyncGenerator[bytes, None]:
        async for piece in three():
            await trio.testing.wait_all_tasks_blocked()
            yield piece

    async with serving(streaming(slow)) as port:
        stream = await connect(port, b"GET / HTTP/1.0\r\n\r\n")
        await stream.send_eof()
        assert (await everything(stream)).endswith(b"one two three")


async def test_a_client_that_sends_nothing_more_has_gone_from_an_answer_that_lasts() -> None:
    begun, closed = trio.Event(), trio.Event()

    async def pieces() -> AsyncGenerator[bytes, None]:
        try:
            begun.set()
            yield b"first"
            await trio.sleep_forever()
        finally:
            closed.set()

    async def answer(request: Request) -> Response:
        request.will_last()
        return Response(body=pieces())

    async with serving(answer) as port, await connect(port, b"GET / HTTP/1.0\r\n\r\n") as stream:
        await begun.wait()
        await stream.send_eof()
        with trio.fail_after(60):
            await closed.wait()


@pytest.mark.parametrize(
    "behind",
    [b"", b"x", head("/next") + b"\r\n", b"x" * 40_000],
    ids=["nothing", "a byte", "a request", "more than a head"],
)
@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(
    "headers",
    [(), ("Connection: Upgrade", "Upgrade: x"), ("Content-Length: 50000",)],
    ids=["plain", "upgrade", "a body that does not come"],
)
async def test_a_stream_ends_when_its_client_has_gone_though_it_has_nothing_to_send(
    behind: bytes, at_once: bool, headers: tuple[str, ...]
) -> None:
    begun, closed = trio.Event(), trio.Event()

    async def pieces() -> AsyncGenerator[bytes, None]:
        try:
            yield b"first"
            begun.set()
            await trio.sleep_forever()
        finally:
            closed.set()

    with structlog.testing.capture_logs() as logs:
        async with serving(streaming(pieces)) as port:
            request = head("/", *headers) + b"\r\n"
            stream = await connect(port, request + (behind if at_once else b""))
            await begun.wait()
            with suppress(trio.BrokenResourceError):
                await stream.send_all(b"" if at_once else behind)
            await stream.aclose()
            await closed.wait()
    assert not logs


async def test_a_handler_that_waits_is_cancelled_when_its_client_resets_the_connection() -> None:
    begun, cancelled = trio.Event(), trio.Event()

    async def wait(_request: Request) -> Response:
        begun.set()
        try:
            await trio.Event().wait()
        finally:
            cancelled.set()
        return Response()

    with structlog.testing.capture_logs() as logs:
        async with serving(wait) as port:
            stream = await connect(port, head() + b"\r\n")
            await begun.wait()
            stream.socket.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, RESET)
            await stream.aclose()
            await cancelled.wait()
    assert not logs


async def test_a_next_request_that_comes_during_a_response_is_answered_after_it() -> None:
    go_on = trio.Event()

    async def answer(request: Request) -> Response:
        if request.path == "/first":
            await go_on.wait()
        return Response(body=request.path.encode())

    async with serving(answer) as port:
        stream = await connect(port, head("/first") + b"\r\n")
        await trio.testing.wait_all_tasks_blocked(0.02)
        await stream.send_all(head("/second") + b"\r\n")
        await trio.testing.wait_all_tasks_blocked(0.02)
        go_on.set()
        said = await until(stream, b"/second")
        await stream.send_all(last("/third"))
        said += await everything(stream)
    assert re.findall(rb"/(first|second|third)", said) == [b"first", b"second", b"third"]


async def test_clients_that_do_not_read_cost_no_memory_and_are_hung_up_on() -> None:
    produced, open_streams = 0, 0
    piece = b"x" * 100_000

    async def endless() -> AsyncGenerator[bytes, None]:
        nonlocal produced, open_streams
        open_streams += 1
        try:
            while True:
                yield piece
                produced += len(piece)
        finally:
            open_streams -= 1

    clients = 10
    limits = Limits(take_seconds=0.5)
    with structlog.testing.capture_logs() as logs:
        async with serving(streaming(endless), limits) as port:
            before = open_files()
            streams = [await connect(port, head() + b"\r\n") for _ in range(clients)]
            while open_files() > before + clients or open_streams:  # noqa: ASYNC110 - only /proc tells
                await trio.sleep(0.02)
            for stream in streams:
                await stream.aclose()
    # What the kernel takes for a connection is all that there ever was.
    assert produced < clients * 20_000_000
    assert not logs


async def test_a_slow_reader_is_served_as_long_as_it_gets_on() -> None:
    size = 20_000_000
    limits = Limits(take_seconds=0.5)

    async def much(_request: Request) -> Response:
        return Response(body=b"x" * size)

    async with serving(much, limits) as port:
        stream = await connect(port, last())
        received, started = 0, trio.current_time()
        async with stream:
            while data := await stream.receive_some(1_000_000):
                received += len(data)
                await trio.sleep(0.05)
        assert trio.current_time() - started > limits.take_seconds
    assert received > size


async def test_a_body_is_read_in_pieces_or_whole() -> None:
    async def count(request: Request) -> Response:
        if request.path == "/whole":
            return Response(body=str(len(await request.body.read())).encode())
        sizes = [len(piece) async for piece in request.body]
        assert len(sizes) > 1
        assert await request.body.read() == b""
        return Response(body=str(sum(sizes)).encode())

    async def chunks() -> AsyncGenerator[bytes, None]:
        for _ in range(100):
            yield b"x" * 10_000

    routes = [
        Route("POST", "/whole", count, ADMIN, max_body_bytes=1_000_000),
        Route("POST", "/pieces", count, ADMIN, max_body_bytes=1_000_000),
    ]
    async with client(route_requests(routes)) as http_client:
        for path in ("/whole", "/pieces"):
            for _ in range(2):
                response = await http_client.post(path, content=chunks())
                assert response.text == "1000000"
                response = await http_client.post(path, content=b"y" * 900_000)
                assert response.text == "900000"


@pytest.mark.parametrize("size", [11, 100_000])
@pytest.mark.parametrize("announced", [True, False])
async def test_a_route_says_how_large_a_body_may_be(size: int, announced: bool) -> None:
    async def read(request: Request) -> Response:
        return Response(body=await request.body.read())

    async def chunks() -> AsyncGenerator[bytes, None]:
        yield b"x" * size

    async with client(
        route_requests([Route("POST", "/", read, ADMIN, max_body_bytes=10)])
    ) as http_client:
        response = await http_client.post("/", content=b"x" * size if announced else chunks())
        assert response.status_code == 413
        assert response.text == "the body is larger than 10 bytes\n"
        assert (await http_client.post("/", content=b"y" * 10)).text == "y" * 10


async def test_a_client_that_asks_is_told_to_send_its_body_once_it_is_wanted() -> None:
    async def read(request: Request) -> Response:
        return Response(body=await request.body.read())

    async with serving(read) as port:
        text = last("/", "Expect: 100-continue", "Content-Length: 4", method="POST")
        stream = await connect(port, text)
        await until(stream, b"HTTP/1.1 100 Continue\r\n\r\n")
        await stream.send_all(b"body")
        assert (await everything(stream)).endswith(b"\r\n\r\nbody")


async def test_a_body_that_breaks_off_is_no_body() -> None:
    bodies = []

    async def read(request: Request) -> Response:
        bodies.append(await request.body.read())
        return Response()

    with structlog.testing.capture_logs() as logs:
        async with serving(read) as port:
            stream = await connect(port, last("/", "Content-Length: 9", method="POST") + b"half")
            await stream.send_eof()
            assert b" 400 " in await everything(stream)
            assert b" 200 " in await everything(await connect(port, last()))
    assert bodies == [b""]
    assert not logs
