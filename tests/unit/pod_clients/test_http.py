"""The httpGet probe against real servers: what succeeds, what fails, and in which words."""

import gc
import sys
from contextlib import suppress
from typing import Any

import h11
import pytest
import trio
from trio.testing import MockClock

from tests.unit.pod_clients.servers import (
    LOOPBACK,
    Serve,
    answer,
    closed_port,
    flooding,
    hang,
    http,
    lets_others_run,
    port_of,
    reset,
    serving,
)
from trio_kubelet.k8s import Container, ContainerPort, HTTPGetAction, HTTPHeader, IntOrString
from trio_kubelet.pod_clients.dial import Dialer
from trio_kubelet.pod_clients.http import HEAD_TIMEOUT, HttpProber, may_be_kept, plain_response
from trio_kubelet.pod_clients.http_messages import HttpRequest
from trio_kubelet.pod_clients.result import (
    OUTPUT_LIMIT_BYTES,
    ProbeError,
    ProbeOutcome,
    ProbeResult,
)
from trio_kubelet.pod_clients.share import ProbeShare

CONTAINER = Container(name="c")
PATIENCE_SECONDS = 30
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


async def ask(port: int, seconds: float = PATIENCE_SECONDS, **fields: object) -> ProbeResult:
    action = HTTPGetAction(port=IntOrString(port), **{"path": "/healthz", **fields})  # type: ignore[arg-type]
    return await HttpProber(Dialer()).probe(action, CONTAINER, LOOPBACK, seconds, ProbeShare())


@pytest.mark.parametrize(
    ("status", "outcome", "output"),
    [
        (200, ProbeOutcome.SUCCESS, "body"),
        (399, ProbeOutcome.WARNING, "Probe terminated redirects, Response body: body"),
        (400, ProbeOutcome.FAILURE, "HTTP probe failed with statuscode: 400"),
        (404, ProbeOutcome.FAILURE, "HTTP probe failed with statuscode: 404"),
        (500, ProbeOutcome.FAILURE, "HTTP probe failed with statuscode: 500"),
    ],
)
async def test_the_status_decides(status: int, outcome: ProbeOutcome, output: str) -> None:
    async with serving(answer(http(status, body="body"))) as port:
        came = await ask(port)
    assert (came.outcome, came.output, came.by_container) == (outcome, output, True)


async def test_a_probe_says_who_asks_and_takes_anything() -> None:
    seen: list[str] = []
    async with serving(answer(http(200), seen)) as port:
        await ask(port, path="/x?y=1")
    assert seen[0].split("\r\n")[:-2] == [
        "GET /x?y=1 HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        "User-Agent: kube-probe/1.36",
        "Accept: */*",
        "Connection: close",
    ]


async def test_headers_of_the_spec_are_sent_and_a_host_header_replaces_the_address() -> None:
    seen: list[str] = []
    headers = (
        HTTPHeader(name="host", value="web.example"),
        HTTPHeader(name="X-Token", value="a"),
        HTTPHeader(name="x-token", value="b"),
        HTTPHeader(name="user-agent", value="mine"),
        HTTPHeader(name="Accept", value=""),
    )
    async with serving(answer(http(200), seen)) as port:
        await ask(port, http_headers=headers)
    assert seen[0].split("\r\n")[1:-2] == [
        "Host: web.example",
        "User-Agent: mine",
        "X-Token: a",
        "X-Token: b",
        "Connection: close",
    ]


async def test_a_header_may_hold_what_is_not_ascii() -> None:
    seen: list[str] = []
    async with serving(answer(http(200), seen)) as port:
        came = await ask(port, http_headers=(HTTPHeader(name="X-Name", value="Größe"),))
    assert came.outcome is ProbeOutcome.SUCCESS
    assert "X-Name: Größe\r\n" in seen[0]


async def test_space_around_the_value_of_a_header_is_not_sent() -> None:
    seen: list[str] = []
    headers = (
        HTTPHeader(name="Host", value="web.example "),
        HTTPHeader(name="User-Agent", value=" mine"),
        HTTPHeader(name="Authorization", value="\tBearer a  b "),
    )
    async with serving(answer(http(200), seen)) as port:
        assert (await ask(port, http_headers=headers)).outcome is ProbeOutcome.SUCCESS
    assert seen[0].split("\r\n")[1:5] == [
        "Host: web.example",
        "User-Agent: mine",
        "Accept: */*",
        "Authorization: Bearer a  b",
    ]


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("Authorization", "secret\r\nX: y", 'invalid header field value for "Authorization"'),
        ("Authorization", "secret\n", 'invalid header field value for "Authorization"'),
        ("Host", "secret\x7f", 'invalid header field value for "Host"'),
        ("User-Agent", "secret\0", 'invalid header field value for "User-Agent"'),
        ("a b", "secret", 'invalid header field name "a b"'),
        ("", "secret", 'invalid header field name ""'),
    ],
)
async def test_a_header_that_cannot_be_sent_is_named_and_its_value_is_not_told(
    name: str, value: str, why: str
) -> None:
    came = await ask(80, http_headers=(HTTPHeader(name=name, value=value),))
    assert came.outcome is ProbeOutcome.FAILURE
    assert came.output == f'Get "http://127.0.0.1:80/healthz": net/http: {why}'


async def test_proxies_of_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    async with serving(answer(http(200))) as port:
        assert (await ask(port)).outcome is ProbeOutcome.SUCCESS


async def test_a_redirect_on_the_same_host_is_followed() -> None:
    seen: list[str] = []
    async with serving(answer(http(200, body="there"), seen)) as there:
        moved = http(302, f"Location: http://127.0.0.1:{there}/new?x=1")
        async with serving(answer(moved)) as port:
            came = await ask(port)
    assert (came.outcome, came.output) == (ProbeOutcome.SUCCESS, "there")
    assert seen[0].startswith("GET /new?x=1 HTTP/1.1\r\n")
    assert f"Referer: http://127.0.0.1:{port}/healthz\r\n" in seen[0]


async def test_a_redirect_to_another_host_is_a_success_with_a_warning() -> None:
    moved = http(302, "Location: http://other.example/", body="moved")
    async with serving(answer(moved)) as port:
        came = await ask(port)
    assert came.outcome is ProbeOutcome.WARNING
    assert came.output == "Probe terminated redirects, Response body: moved"


async def test_redirects_in_a_circle_fail() -> None:
    async with serving(answer(http(302, "Location: /healthz"))) as port:
        came = await ask(port)
    assert came.outcome is ProbeOutcome.FAILURE
    assert came.output == f'Get "http://127.0.0.1:{port}/healthz": stopped after 10 redirects'


async def test_an_endless_body_is_read_up_to_its_limit() -> None:
    async def pour(stream: trio.abc.Stream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            await stream.send_all(b"x" * 1000)

    async with serving(pour) as port:
        came = await ask(port)
    assert (came.outcome, len(came.output)) == (ProbeOutcome.SUCCESS, OUTPUT_LIMIT_BYTES)


async def test_informational_responses_go_before_the_answer() -> None:
    async with serving(answer(CONTINUE * 5 + http(200, body="body"))) as port:
        assert (await ask(port)).output == "body"


@pytest.mark.parametrize(
    ("begin", "flood", "words"),
    [
        (CONTINUE[:-2], b"a:b\r\n" * 5000, "server response headers exceeded 1000 lines; aborted"),
        (
            CONTINUE[:-2] + b"a:",
            b"b" * 30_000,
            "server response headers exceeded 65536 bytes; aborted",
        ),
    ],
)
async def test_a_head_without_an_end_is_not_read_for_ever(
    begin: bytes, flood: bytes, words: str
) -> None:
    with flooding(begin, flood) as (port, _):
        came = await ask(port)
    assert (came.outcome, came.by_container) == (ProbeOutcome.FAILURE, False)
    assert came.output.endswith(f"net/http: {words}")


async def test_a_server_that_floods_the_probe_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for limit in ("HEAD_LIMIT_BYTES", "MOST_INFORMATIONAL", "MOST_HEADER_LINES"):
        monkeypatch.setattr(f"trio_kubelet.pod_clients.http_messages.{limit}", sys.maxsize // 2)
    monkeypatch.setattr("trio_kubelet.pod_clients.stream.MOST_BYTES", sys.maxsize)
    with flooding(b"", CONTINUE * 1000) as (port, begun):
        assert await lets_others_run(lambda: ask(port), begun)


@pytest.mark.parametrize(
    ("serve", "words", "is_break"),
    [
        (answer(b""), "EOF", True),
        (answer(b"HTTP/1.1 200 O"), "unexpected EOF", True),
        (
            answer(b"hello\r\n\r\n"),
            'net/http: HTTP/1.x transport connection broken: malformed HTTP response "hello"',
            False,
        ),
    ],
)
async def test_a_server_that_gives_no_response_fails(
    serve: Serve, words: str, is_break: bool
) -> None:
    async with serving(serve) as port:
        came = await ask(port)
    assert (came.outcome, came.by_container) == (ProbeOutcome.FAILURE, False)
    assert came.cut_off is is_break, "its container may have ended"
    assert came.output == f'Get "http://127.0.0.1:{port}/healthz": {words}'


async def test_a_connection_that_is_reset_fails() -> None:
    async with serving(reset) as port:
        came = await ask(port)
    assert (came.outcome, came.cut_off) == (ProbeOutcome.FAILURE, True)
    assert came.output.endswith(f"->127.0.0.1:{port}: read: connection reset by peer")


async def test_a_connection_that_is_refused_fails() -> None:
    with closed_port() as bound:
        port = port_of(bound)
        came = await ask(port)
    assert (came.outcome, came.cut_off) == (ProbeOutcome.FAILURE, False)
    dialed = f"dial tcp 127.0.0.1:{port}: connect: connection refused"
    assert came.output == f'Get "http://127.0.0.1:{port}/healthz": {dialed}'


async def test_a_server_that_says_nothing_is_late(autojump_clock: MockClock) -> None:
    async with serving(hang) as port:
        came = await ask(port, seconds=1)
    assert came.outcome is ProbeOutcome.FAILURE
    assert came.output == f'Get "http://127.0.0.1:{port}/healthz": {HEAD_TIMEOUT}'


async def test_a_body_that_breaks_off_is_an_error() -> None:
    async with serving(answer(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nx")) as port:
        with pytest.raises(ProbeError, match="unexpected EOF") as caught:
            await ask(port)
    assert caught.value.outcome is ProbeOutcome.FAILURE


async def test_a_name_that_does_not_exist_fails_without_a_wait_in_the_loop() -> None:
    came = await ask(80, host="no-such-host.invalid")
    assert came.outcome is ProbeOutcome.FAILURE
    dialed = "dial tcp: lookup no-such-host.invalid: no such host"
    assert came.output == f'Get "http://no-such-host.invalid:80/healthz": {dialed}'


@pytest.mark.parametrize("scheme", ["HTTP", "HTTPS"])
async def test_a_name_with_a_zero_byte_is_no_other_host(scheme: str) -> None:
    async with serving(answer(http(200))) as port:
        came = await ask(
            port,
            scheme=scheme,
            host=f"{LOOPBACK}\0.example",
            http_headers=(HTTPHeader(name="Host", value="web.example"),),
        )
    assert came.outcome is ProbeOutcome.FAILURE
    assert came.output.endswith(": no such host")


@pytest.mark.parametrize(
    ("head", "body", "plain"),
    [
        ("HTTP/1.1 200 OK\r\nContent-Length: 4", "well", (200, b"well")),
        ("HTTP/1.0 200\r\ncontent-length:4 \r\nX-Y:", "well", (200, b"well")),
        ("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0", "", (503, b"")),
        ("HTTP/1.1 200 OK\r\nContent-Length: 4", "well, and more", (200, b"well")),
        ("HTTP/1.1 200 OK\r\nContent-Length: 5", "well", None),
        ("HTTP/1.1 200 OK", "until the end", None),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 0", "", None),
        ("HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 4", "well", None),
        ("HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: x", "well", None),
        ("HTTP/1.1 200 OK\r\nContent-Length: -4", "well", None),
        ("HTTP/1.1 200 OK\r\nContent-Length : 4", "well", None),
        ("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n folded", "well", None),
        ("HTTP/1.1 200 OK\r\nX: \0\r\nContent-Length: 4", "well", None),
        ("HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: /", "", None),
        ("HTTP/1.1 204 No Content\r\nContent-Length: 0", "", None),
        ("HTTP/1.1 100 Continue", "", None),
        ("HTTP/2 200 OK\r\nContent-Length: 0", "", None),
        ("SSH-2.0-x", "", None),
    ],
)
def test_only_a_response_that_is_whole_and_like_most_is_taken_as_it_is(
    head: str, body: str, plain: tuple[int, bytes] | None
) -> None:
    response = plain_response(f"{head}\r\n\r\n{body}".encode())
    assert (response and (response.status, response.body)) == plain


def test_a_plain_response_says_what_h11_says() -> None:
    data = http(200, "X-Y: z", body="well")
    conversation = h11.Connection(h11.CLIENT)
    conversation.send(h11.Request(method="GET", target="/", headers=[("Host", "h")]))
    conversation.send(h11.EndOfMessage())
    conversation.receive_data(data)
    head, content = conversation.next_event(), conversation.next_event()
    assert isinstance(head, h11.Response)
    assert isinstance(content, h11.Data)
    response = plain_response(data)
    assert response is not None
    assert (response.status, response.body) == (head.status_code, content.data)


def test_no_response_takes_long_to_be_found_not_plain() -> None:
    for part in (b"a", b" ", b"a:b\r\n", b"\t"):
        assert plain_response(b"HTTP/1.1 200 OK\r\n" + part * 16384) is None


async def test_more_informational_responses_than_five_are_refused() -> None:
    early = b"HTTP/1.1 100 Continue\r\n\r\n"
    async with serving(answer(early * 5 + http(200, body="well"))) as port:
        assert (await ask(port)).outcome is ProbeOutcome.SUCCESS
    async with serving(answer(early * 6 + http(200, body="well"))) as port:
        came = await ask(port)
    assert came.outcome is ProbeOutcome.FAILURE
    assert came.output.endswith("net/http: too many 1xx informational responses")


async def test_heads_of_many_lines_are_refused() -> None:
    lines = b"a:\r\n" * 1001
    async with serving(answer(b"HTTP/1.1 200 OK\r\n" + lines + b"\r\n")) as port:
        came = await ask(port)
    assert "server response headers exceeded 1000 lines" in came.output


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "piece", [b"1\r\nx\r\n", b"1;" + b"e" * 8000 + b"\r\nx\r\n"], ids=["many", "with extensions"]
)
async def test_of_a_body_in_costly_pieces_only_the_beginning_is_read(piece: bytes) -> None:
    sent = 0

    async def send(stream: trio.abc.Stream) -> None:
        nonlocal sent
        await stream.receive_some()
        await stream.send_all(CHUNKED)
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while sent < 20_000_000:
                await stream.send_all(piece * 100)
                sent += 100 * len(piece)

    async with serving(send) as port:
        came = await ask(port, seconds=30)
    assert came.outcome is ProbeOutcome.SUCCESS
    assert 0 < len(came.output) <= 256 + 1
    assert sent < 20_000_000


def test_large_requests_are_not_kept() -> None:
    small, large = (
        HTTPGetAction(
            port=IntOrString(80),
            http_headers=tuple(HTTPHeader(name="X", value="v" * size) for _ in range(3)),
        )
        for size in (10, 1000)
    )
    assert may_be_kept(small, ())
    assert not may_be_kept(large, ())
    assert not may_be_kept(small, (ContainerPort(container_port=1),) * 100)


LONG = "large-" + "x" * 10_000


@pytest.mark.parametrize(
    "fields",
    [
        {"path": f"/{LONG}"},
        {"path": "/redirected"},
        {"http_headers": (HTTPHeader(name="X-Long", value=LONG),)},
        {"host": LONG, "http_headers": (HTTPHeader(name="Host", value="web.example"),)},
    ],
    ids=["path", "redirect", "header", "host"],
)
async def test_nothing_is_left_of_a_large_request_when_its_pod_has_gone(
    fields: dict[str, Any],
) -> None:
    async def serve(stream: trio.abc.Stream) -> None:
        head = bytes(await stream.receive_some())
        redirects = head.startswith(b"GET /redirected")
        await stream.send_all(http(302, f"Location: /{LONG}") if redirects else http(200))

    async with serving(serve) as port:
        await ask(port, **fields)
    gc.collect()
    kept = [each for each in gc.get_objects() if isinstance(each, HttpRequest)]
    assert not any(LONG in f"{each.url} {each.headers}" for each in kept)
