"""Requests that are none, and those that another server could understand otherwise."""

import pytest
import structlog

from tests.unit.server.serving import connect, echo, everything, head, last, serving
from trio_kubelet.server import ANY, Limits, Request, RequestError, Response, Route, route_requests
from trio_kubelet.server.exchange import PIECES_IN_A_TURN
from trio_kubelet.server.request_head import check_head, check_lines, path_and_query
from trio_kubelet.server.router import ADMIN

CHUNKED = head(method="POST") + b"Transfer-Encoding: chunked\r\n\r\n"


async def read_body(request: Request) -> Response:
    return Response(body=await request.body.read())


def with_body(*lines: str, body: bytes = b"") -> bytes:
    return head("/", *lines, method="POST") + b"\r\n" + body


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (b"hello\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"GET /healthz HTTP/1.1\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
        (b"GET /healthz HTTP/2.0\r\nHost: x\r\n\r\n", 505),
        (b"GET  /healthz HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1 \r\nHost: x\r\n\r\n", 400),
        (last("/", "X: a\r\n b"), 400),
        (last("/", "X: a\r\n\tb"), 400),
        (last("/", "X : a"), 400),
        (last("/", "X: a\rb"), 400),
        (last("/", "X: a\nY: b"), 400),
        (b"GET / HTTP/1.1\nHost: x\n\n", 400),
        (last("/", "X: a\0b"), 400),
        (last("/", "X: " + "y" * 100_000), 431),
        (head("/", "X: " + "y" * 100_000), 431),
        (last("/", *(f"X{number}: y" for number in range(200))), 431),
        (last("/" + "y" * 100_000), 431),
        (last("/%zz"), 400),
        (last("*"), 400),
        (last("x:80"), 400),
        (last("http://["), 400),
        (last("ftp://x/"), 400),
        (last("x:80", method="CONNECT"), 405),
        (last("/", "Content-Length: many"), 400),
        (last("/", "Content-Length: -1"), 400),
        (last("/", "Content-Length: +1"), 400),
        (last("/", "Content-Length: 0x1"), 400),
        (last("/", "Content-Length: " + "1" * 30), 400),
        (with_body("Content-Length: 4", "Content-Length: 4", body=b"body"), 400),
        (with_body("Content-Length: 4", "Content-Length: 5", body=b"body"), 400),
        (with_body("Content-Length: 4, 4", body=b"body"), 400),
        (with_body("Content-Length: 4", "Transfer-Encoding: chunked", body=b"0\r\n\r\n"), 400),
        (with_body("Transfer-Encoding: chunked", "content-length: 4", body=b"0\r\n\r\n"), 400),
        (with_body("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"), 501),
        (with_body("Transfer-Encoding: gzip, chunked"), 501),
        (with_body("Transfer-Encoding: identity"), 501),
        (with_body("Transfer-Encoding: \x0bchunked"), 400),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (CHUNKED + b"x\r\n", 400),
        (CHUNKED + b"-1\r\n", 400),
        (CHUNKED + b"0x1\r\na\r\n", 400),
        (CHUNKED + b" 1\r\na\r\n", 400),
        (CHUNKED + b"\r\n", 400),
        (CHUNKED + b"1\na\r\n0\r\n\r\n", 400),
        (CHUNKED + b"1;\na\r\n0\r\n\r\n", 400),
        (CHUNKED + b"1\r\nab\r\n0\r\n\r\n", 400),
        (CHUNKED + b"f" * 21 + b"\r\n", 400),
        (CHUNKED + b"1;" + b"x" * 200_000, 431),
        (CHUNKED + b"f" * 20 + b"\r\n" + b"y" * 200_000, 413),
        (CHUNKED + b"10\r\n" + b"y" * 16 + b"\r\n", 400),
        (with_body("Content-Length: 100", body=b"y"), 400),
        (with_body("Content-Length: 1000000", body=b"y" * 1_000_000), 413),
    ],
    ids=lambda value: repr(value[:60]) if isinstance(value, bytes) else str(value),
)
async def test_what_is_no_request_is_refused_in_words_and_hung_up_on(
    text: bytes, status: int
) -> None:
    with structlog.testing.capture_logs() as logs:
        async with serving(route_requests([Route(ANY, "/{path...}", read_body, ADMIN)])) as port:
            stream = await connect(port, text)
            await stream.send_eof()
            said = await everything(stream)
            assert said.startswith(f"HTTP/1.1 {status} ".encode())
            assert said.count(b"\r\nContent-Length: ") == 1
            assert said.rpartition(b"\r\n\r\n")[2]
            assert b"200 OK" in await everything(await connect(port, last()))
    assert not logs


async def test_a_refusal_of_who_asks_for_a_head_has_no_body() -> None:
    with structlog.testing.capture_logs() as logs:
        async with serving() as port:
            said = await everything(await connect(port, last("/", "X: a\r\n b", method="HEAD")))
    assert said.startswith(b"HTTP/1.1 400 ")
    assert said.endswith(b"\r\n\r\n")
    assert not logs


async def test_what_follows_a_request_that_was_refused_is_no_request() -> None:
    smuggled = with_body("Content-Length: 4", "Transfer-Encoding: chunked", body=b"0\r\n\r\n")
    paths = []

    async def remember(request: Request) -> Response:
        paths.append(request.path)
        return Response()

    async with serving(remember) as port:
        await everything(await connect(port, smuggled + last("/smuggled")))
    assert paths == []


async def test_a_body_that_nobody_read_is_no_request() -> None:
    """Where it has not arrived yet when the response is sent, the connection ends with it."""
    async with serving() as port:
        stream = await connect(port, with_body("Content-Length: 100", body=b""))
        await stream.send_all(last("/smuggled"))
        said = await everything(stream)
    assert b"connection: close" in said.lower()
    assert said.count(b"\r\nContent-Length: ") == 1


async def test_who_asks_whether_to_send_a_body_need_not_send_it() -> None:
    async with serving() as port:
        text = with_body("Expect: 100-continue", "Content-Length: 100")
        said = await everything(await connect(port, text))
    assert said.startswith(b"HTTP/1.1 200 ")


async def test_a_path_that_begins_with_two_slashes_names_no_host() -> None:
    async with serving(echo) as port:
        said = await everything(await connect(port, last("//evil/pods")))
    assert said.endswith(b"GET //evil/pods ()")


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("/", "/", ()),
        ("/a%20b?x=1&x=2&y", "/a b", (("x", "1"), ("x", "2"), ("y", ""))),
        ("/a%2Fb", "/a/b", ()),
        ("/a?b?c=d", "/a", (("b?c", "d"),)),
        ("/%ff", "/\N{REPLACEMENT CHARACTER}", ()),
        ("http://host:1/a?b=c", "/a", (("b", "c"),)),
        ("https://host", "/", ()),
    ],
)
def test_a_target_is_a_path_and_a_query(
    target: str, path: str, query: tuple[tuple[str, str], ...]
) -> None:
    found, values = path_and_query(target)
    assert (found, values.pairs) == (path, query)


def test_a_head_of_exactly_the_size_that_is_allowed_is_taken() -> None:
    head_bytes = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    check_head(head_bytes, Limits(head_bytes=len(head_bytes)))
    with pytest.raises(RequestError) as caught:
        check_head(head_bytes, Limits(head_bytes=len(head_bytes) - 1))
    assert caught.value.status == 431


@pytest.mark.parametrize("rest", [b"", b"\r\n", b"\r\nbody\nof\nlines\n"])
def test_the_lines_of_a_head_are_counted_as_they_come(rest: bytes) -> None:
    received = b"POST / HTTP/1.1\r\nHost: x\r\n" + rest
    check_lines(received, Limits(headers=2 if not rest else 1))
    with pytest.raises(RequestError) as caught:
        check_lines(received, Limits(headers=1 if not rest else 0))
    assert caught.value.status == 431


async def test_a_body_in_more_pieces_than_are_dropped_in_a_turn_is_the_last_of_its_connection() -> (
    None
):
    chunks = b"1\r\nx\r\n"
    async with serving() as port:
        few = CHUNKED + chunks * (PIECES_IN_A_TURN - 2) + b"0\r\n\r\n"
        many = CHUNKED + chunks * PIECES_IN_A_TURN + b"0\r\n\r\n"
        said = await everything(await connect(port, few + many + few))
    assert said.count(b"HTTP/1.1 200") == 2
    assert said.count(b"Connection: close") == 1
