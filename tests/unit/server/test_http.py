"""Requests and whole responses, over real sockets, with a real client and with bytes."""

import socket
import ssl

import httpx
import pytest
import structlog
import trio
import trustme

from tests.unit.server.serving import (
    client,
    connect,
    echo,
    everything,
    head,
    last,
    serving,
)
from trio_kubelet.server import Request, RequestError, Response, listen_tcp, serve_http
from trio_kubelet.server.messages import TcpPeer
from trio_kubelet.server.tls import over_tls


async def test_a_handler_gets_the_request_and_the_client_its_response() -> None:
    async with client() as http_client:
        response = await http_client.get("/some%20path?pod=default%2Fweb&verbose")
    assert response.status_code == 200
    assert response.text == "GET /some path (('pod', 'default/web'), ('verbose', ''))"
    assert response.headers["content-type"] == "text/plain; charset=utf-8"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert "date" in response.headers


async def test_a_handler_sees_headers_in_any_case_repeated_names_and_the_peer() -> None:
    seen: list[Request] = []

    async def remember(request: Request) -> Response:
        seen.append(request)
        return Response(headers=(("X-Answer", "a"), ("X-Answer", "b")))

    async with client(remember) as http_client:
        response = await http_client.get(
            "/?command=ls&command=-l", headers=[("X-One", "1"), ("x-one", "2")]
        )
    (request,) = seen
    assert request.headers.all("X-ONE") == ("1", "2")
    assert request.headers.first("x-none", "nothing") == "nothing"
    assert request.query.all("command") == ("ls", "-l")
    assert request.query.first("command") == "ls"
    assert "Command" not in request.query
    assert isinstance(request.peer, TcpPeer)
    assert request.peer.host == "127.0.0.1"
    assert response.headers.get_list("x-answer") == ["a", "b"]


async def test_head_is_answered_without_the_body_and_with_its_length() -> None:
    async with client() as http_client:
        response = await http_client.head("/pods")
        assert response.text == ""
        assert int(response.headers["content-length"]) == len("HEAD /pods ()")
        assert (await http_client.get("/pods")).text == "GET /pods ()"


@pytest.mark.parametrize("status", [204, 304])
async def test_a_status_that_has_no_body_is_sent_without_one(status: int) -> None:
    async def answer(_request: Request) -> Response:
        return Response(status=status, body=b"nobody reads this")

    async with client(answer) as http_client:
        for _ in range(2):
            response = await http_client.get("/")
            assert (response.status_code, response.content) == (status, b"")
            assert "content-length" not in response.headers


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "BREW"])
async def test_every_method_reaches_the_handler_and_a_body_may_be_left_unread(
    method: str,
) -> None:
    async with client() as http_client:
        response = await http_client.request(method, "/pods", content=b"body")
        assert response.text == f"{method} /pods ()"
        assert (await http_client.get("/pods")).status_code == 200


async def test_an_error_in_a_handler_is_a_500_in_the_log_and_nothing_else() -> None:
    async def fail(request: Request) -> Response:
        if request.path == "/bad":
            raise ValueError("oops")
        return Response()

    with structlog.testing.capture_logs() as logs:
        async with client(fail) as http_client:
            assert (await http_client.get("/bad")).status_code == 500
            assert (await http_client.get("/good")).status_code == 200
    assert [(entry["event"], entry["path"]) for entry in logs] == [
        ("HTTP request handler failed", "/bad")
    ]


async def test_a_handler_may_refuse_a_request_with_a_status_and_words() -> None:
    async def refuse(_request: Request) -> Response:
        raise RequestError(422, "tailLines is no number")

    with structlog.testing.capture_logs() as logs:
        async with client(refuse) as http_client:
            response = await http_client.get("/")
    assert (response.status_code, response.text) == (422, "tailLines is no number\n")
    assert not logs


@pytest.mark.parametrize(
    "header",
    [
        *(("X-Name", value) for value in ("a\r\nSet-Cookie: b", "a\nb", "\u00e4")),
        *((name, "a") for name in ("X Name", "X-Name:", "X-N\u00e4me")),
    ],
)
async def test_a_header_that_would_become_two_or_is_no_ascii_is_a_500_and_is_not_sent(
    header: tuple[str, str],
) -> None:
    async def answer(request: Request) -> Response:
        return Response(headers=(header,) if request.path == "/bad" else ())

    with structlog.testing.capture_logs() as logs:
        async with client(answer) as http_client:
            response = await http_client.get("/bad")
            assert response.status_code == 500
            assert not {"set-cookie", "x-name"} & response.headers.keys()
            assert (await http_client.get("/")).status_code == 200
    assert [entry["event"] for entry in logs] == ["HTTP response headers are invalid"]


async def test_a_handler_that_gives_nothing_is_a_500() -> None:
    async def forget(_request: Request) -> None:
        return None

    with structlog.testing.capture_logs() as logs:
        async with client(forget) as http_client:
            assert (await http_client.get("/")).status_code == 500
    assert [entry["event"] for entry in logs] == ["HTTP request handler failed"]


async def test_requests_that_arrive_together_are_answered_in_their_order() -> None:
    async with serving() as port:
        said = await everything(await connect(port, head("/1") + b"\r\n" + last("/2")))
    assert said.index(b"GET /1") < said.index(b"GET /2")


async def test_an_http_1_0_client_is_answered_and_hung_up_on() -> None:
    async with serving() as port:
        said = await everything(await connect(port, b"GET /healthz HTTP/1.0\r\n\r\n"))
    assert said.endswith(b"GET /healthz ()")


async def test_a_client_that_ends_its_side_is_answered() -> None:
    async with serving() as port:
        stream = await connect(port, head() + b"\r\n")
        await stream.send_eof()
        assert (await everything(stream)).endswith(b"GET /healthz ()")


async def test_a_client_that_hangs_up_is_no_matter_for_the_log() -> None:
    with structlog.testing.capture_logs() as logs:
        async with serving() as port:
            for text in (b"", head(), head() + b"\r\n"):
                stream = await connect(port, text)
                await stream.aclose()
            assert b"200 OK" in await everything(await connect(port, last()))
    assert not logs


async def test_cancelling_closes_connections_and_the_port() -> None:
    async with serving() as port:
        stream = await connect(port, b"GET /")
    with trio.fail_after(60):
        assert await everything(stream) == b""
    with pytest.raises(OSError, match="connect"):
        await connect(port)


async def test_a_client_that_is_gone_without_a_word_is_looked_for() -> None:
    (listener,) = await listen_tcp("127.0.0.1", 0)
    port = listener.socket.getsockname()[1]
    async with listener, await connect(port), await listener.accept() as accepted:
        assert accepted.socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert accepted.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 60


async def test_the_same_is_served_over_tls() -> None:
    authority = trustme.CA()
    server_side = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(server_side)
    client_side = ssl.create_default_context()
    authority.configure_trust(client_side)
    (listener,) = await listen_tcp("127.0.0.1", 0)
    port = listener.socket.getsockname()[1]
    listeners = over_tls([listener], lambda: server_side)

    async def answer(request: Request) -> Response:
        if request.path == "/read":
            request.body.limit(1_000_000)
            return Response(body=b"".join([piece async for piece in request.body]))
        return await echo(request)

    with structlog.testing.capture_logs() as logs, trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_http, listeners, answer)
            async with httpx.AsyncClient(
                base_url=f"https://127.0.0.1:{port}", verify=client_side, trust_env=False
            ) as http_client:
                for path in ("/a", "/b"):
                    assert (await http_client.get(path)).text == f"GET {path} ()"
                response = await http_client.post("/read", content=b"x" * 1_000_000)
                assert response.content == b"x" * 1_000_000
            plain = await connect(port, head() + b"\r\n")
            assert b"HTTP" not in await everything(plain)
            nursery.cancel_scope.cancel()
    assert not logs
