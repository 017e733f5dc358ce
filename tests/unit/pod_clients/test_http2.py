"""The httpGet probe over HTTP/2, which servers over TLS may prefer, or have alone."""

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes

from tests.turns import is_too_long
from tests.unit.pod_clients.servers import (
    LOOPBACK,
    answer,
    goodbye,
    http,
    http2,
    server_tls,
    serving,
)
from tests.unit.pod_clients.test_http import ask
from trio_kubelet.k8s import HTTPHeader
from trio_kubelet.pod_clients.http2 import ANSWER_LIMIT_BYTES, Http2Get
from trio_kubelet.pod_clients.http_messages import Heads, HttpError, HttpRequest
from trio_kubelet.pod_clients.result import (
    OUTPUT_LIMIT_BYTES,
    ProbeError,
    ProbeOutcome,
    ProbeResult,
)

Answer = Callable[[H2Connection, int], None]
NO_PUSH, PUSH = b"\0\2\0\0\0\0", b"\0\2\0\0\0\1"
"""A setting, as it is sent."""
REQUEST = HttpRequest(scheme="https", host="web", port=443, target="/", headers=())


def says(status: str, body: bytes = b"", *headers: tuple[str, str], ends: bool = True) -> Answer:
    def answer(h2: H2Connection, stream: int) -> None:
        h2.send_headers(stream, [(":status", status), *headers])
        for at in range(0, len(body), 16_000):
            h2.send_data(stream, body[at : at + 16_000])
        if ends:
            h2.end_stream(stream)

    return answer


async def probe(
    what: Answer, seen: list[dict[str, str]] | None = None, **fields: Any
) -> ProbeResult:
    async with serving(http2(what, seen), server_tls("web", protocols=["h2"])) as port:
        return await ask(port, scheme="HTTPS", **fields)


async def test_a_server_that_has_only_http_2_is_asked_over_it() -> None:
    seen: list[dict[str, str]] = []
    headers = (
        HTTPHeader(name="Host", value="web.example"),
        HTTPHeader(name="X-Token", value="a"),
        HTTPHeader(name="Connection", value="keep-alive"),
    )
    came = await probe(says("200", b"fine"), seen, path="/x?y=1", http_headers=headers)
    assert (came.outcome, came.output) == (ProbeOutcome.SUCCESS, "fine")
    assert seen == [
        {
            ":authority": "web.example",
            ":method": "GET",
            ":path": "/x?y=1",
            ":scheme": "https",
            "user-agent": "kube-probe/1.36",
            "accept": "*/*",
            "x-token": "a",
        }
    ]


@pytest.mark.parametrize("protocols", [(), ("http/1.1",), ("http/1.1", "h2")])
async def test_a_server_that_prefers_http_1_is_asked_over_that(protocols: Sequence[str]) -> None:
    tls = server_tls("web", protocols=protocols)
    async with serving(answer(http(200, body="plain")), tls) as port:
        assert (await ask(port, scheme="HTTPS")).output == "plain"


@pytest.mark.parametrize(
    ("what", "outcome", "output"),
    [
        (says("500", b"ill"), ProbeOutcome.FAILURE, "HTTP probe failed with statuscode: 500"),
        (says("204"), ProbeOutcome.SUCCESS, ""),
        (
            says("302", b"moved", ("location", "https://other.example/")),
            ProbeOutcome.WARNING,
            "Probe terminated redirects, Response body: moved",
        ),
        (
            says("200", b"x" * 2 * OUTPUT_LIMIT_BYTES, ends=False),
            ProbeOutcome.SUCCESS,
            "x" * OUTPUT_LIMIT_BYTES,
        ),
    ],
)
async def test_the_status_decides(what: Answer, outcome: ProbeOutcome, output: str) -> None:
    came = await probe(what)
    assert (came.outcome, came.output, came.by_container) == (outcome, output, True)


def reset(h2: H2Connection, stream: int) -> None:
    h2.reset_stream(stream, ErrorCodes.ENHANCE_YOUR_CALM)


def go_away(code: ErrorCodes) -> Answer:
    return lambda h2, _stream: h2.close_connection(code, last_stream_id=0)


@pytest.mark.parametrize(
    ("what", "words", "is_break"),
    [
        (lambda _h2, _stream: None, "unexpected EOF", True),
        (reset, "stream error: stream ID 1; ENHANCE_YOUR_CALM; received from peer", False),
        (
            go_away(ErrorCodes.INADEQUATE_SECURITY),
            "http2: Transport received GOAWAY from server ErrCode:INADEQUATE_SECURITY",
            False,
        ),
        (
            go_away(ErrorCodes.NO_ERROR),
            "http2: Transport received Server's graceful shutdown GOAWAY",
            False,
        ),
        (
            says("20x"),
            "malformed response from server: malformed non-numeric status pseudo header",
            False,
        ),
    ],
)
async def test_a_server_that_gives_no_response_fails(
    what: Answer, words: str, is_break: bool
) -> None:
    came = await probe(what)
    assert (came.outcome, came.by_container) == (ProbeOutcome.FAILURE, False)
    assert came.output.startswith(f'Get "https://{LOOPBACK}:')
    assert came.output.endswith(f": {words}")
    assert came.cut_off is is_break


async def test_a_server_is_asked_to_push_nothing() -> None:
    allowed: list[int] = []

    def serve(h2: H2Connection, stream: int) -> None:
        allowed.append(h2.remote_settings.enable_push)
        says("500")(h2, stream)

    assert (await probe(serve)).outcome is ProbeOutcome.FAILURE
    assert allowed == [0]


def test_what_a_server_pushes_is_not_its_response() -> None:
    get, server = Http2Get(REQUEST, Heads()), H2Connection(H2Configuration(client_side=False))
    server.initiate_connection()
    server.receive_data(get.to_send().replace(NO_PUSH, PUSH))
    asked = (":method", "GET"), (":path", "/x"), (":scheme", "https"), (":authority", "web")
    server.push_stream(1, 2, asked)
    says("200", b"pushed")(server, 2)
    with pytest.raises(HttpError, match="connection error: PROTOCOL_ERROR"):
        get.take(server.data_to_send())
    assert not get.is_over


@pytest.mark.parametrize("last_stream", [1, 2**31 - 1])
@pytest.mark.parametrize("size", [1, 4096])
def test_a_server_may_take_its_leave_before_it_responds(last_stream: int, size: int) -> None:
    get, server = Http2Get(REQUEST, Heads()), H2Connection(H2Configuration(client_side=False))
    server.initiate_connection()
    server.receive_data(get.to_send())
    begun = server.data_to_send() + goodbye(last_stream)
    says("200", b"fine")(server, 1)
    came = begun + server.data_to_send()
    for at in range(0, len(came), size):
        get.take(came[at : at + size])
    assert get.is_over
    assert (get.response().status, get.response().body) == (200, b"fine")


def test_a_server_that_takes_its_leave_and_does_not_respond_fails() -> None:
    get = Http2Get(REQUEST, Heads())
    get.take(b"\0\0\0\4\0\0\0\0\0" + goodbye(1, debug=b"restart"))
    words = 'GOAWAY .*LastStreamID=1, ErrCode=NO_ERROR, debug="restart"'
    with pytest.raises(HttpError, match=words) as caught:
        get.take(b"")
    assert caught.value.cut_off


def half(h2: H2Connection, stream: int) -> None:
    says("200", b"half", ends=False)(h2, stream)


def half_and_reset(h2: H2Connection, stream: int) -> None:
    half(h2, stream)
    reset(h2, stream)


@pytest.mark.parametrize(("what", "words"), [(half, "unexpected EOF"), (half_and_reset, "stream")])
async def test_a_body_that_breaks_off_is_an_error(what: Answer, words: str) -> None:
    async with serving(http2(what), server_tls("web", protocols=["h2"])) as port:
        with pytest.raises(ProbeError, match=words) as caught:
            await ask(port, scheme="HTTPS")
    assert caught.value.outcome is ProbeOutcome.FAILURE


@pytest.mark.parametrize(
    ("received", "words"),
    [
        (b"\0\0\1\0\0\0\0\0\0x", "connection error: PROTOCOL_ERROR"),
        (b"HTTP/1.1 ", "connection error: FRAME_SIZE_ERROR"),
        (b"\0\0\7\7\0\0\0\0\0" + bytes(7), "connection error: FRAME_SIZE_ERROR"),
        (b"\0\0\x08\7\0\0\0\0\1" + bytes(8), "connection error: PROTOCOL_ERROR"),
        (b"\0\0\5\2\0\0\0\0\1\0\0\0\0\x10" * ANSWER_LIMIT_BYTES, "exceeded 65536 bytes"),
    ],
)
def test_what_is_no_answer_ends_the_request(received: bytes, words: str) -> None:
    with pytest.raises(HttpError, match=words):
        Http2Get(REQUEST, Heads()).take(received)


def whole_answer() -> bytes:
    server = H2Connection(H2Configuration(client_side=False))
    server.initiate_connection()
    server.receive_data(Http2Get(REQUEST, Heads()).to_send())
    says("200", b"fine")(server, 1)
    return server.data_to_send()


@pytest.mark.parametrize("behind", [goodbye(0, 1), b"\0\0\1\0\0\0\0\0\0x"])
def test_what_comes_behind_a_response_does_not_matter(behind: bytes) -> None:
    get = Http2Get(REQUEST, Heads())
    get.take(whole_answer() + behind)
    assert get.is_over
    assert (get.response().status, get.response().body) == (200, b"fine")


def test_an_answer_means_the_same_in_however_many_pieces_it_comes() -> None:
    get = Http2Get(REQUEST, Heads())
    for byte in whole_answer():
        get.take(bytes([byte]))
    assert get.is_over
    assert (get.response().status, get.response().body) == (200, b"fine")


@pytest.mark.parametrize("frame", ["SETTINGS", "PING"])
def test_a_server_that_sends_frame_after_frame_is_refused(frame: str) -> None:
    get, server = Http2Get(REQUEST, Heads()), H2Connection(H2Configuration(client_side=False))
    server.initiate_connection()
    server.receive_data(get.to_send())
    get.take(server.data_to_send())
    empty = b"\0\0\0\4\0\0\0\0\0" if frame == "SETTINGS" else b"\0\0\x08\6" + bytes(13)
    began = time.thread_time()
    with pytest.raises(HttpError, match="ENHANCE_YOUR_CALM"):
        get.take(empty * 1600)
    assert not is_too_long(time.thread_time() - began)


def frame(kind: int, content: bytes, flags: int = 0, stream: int = 0) -> bytes:
    return len(content).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + content


def informational(fields: int, number: int = 1) -> bytes:
    """Responses whose heads have so many fields each, a byte a field, as HPACK has them."""
    head = b"\x08\x03103" + b"\x40\1a\0" + b"\xbe" * (fields - 2)
    return frame(1, head, 4, 1) * number


def settings(number: int) -> bytes:
    return frame(4, b"".join(each.to_bytes(2) + bytes(4) for each in range(100, 100 + number)))


LARGE = frame(1, b"\x08\x03103\x40\1a\x7f\xbd\x1d" + b"x" * 3900 + b"\xbe" * 8, 4, 1)
"""A response whose head has 35 kB: nine times the same field."""
EARLY, LONG = "too many 1xx informational responses", "headers exceeded 1000 lines; aborted"


@pytest.mark.parametrize(
    ("received", "words"),
    [
        (informational(2, 6), EARLY),
        (informational(1001), LONG),
        (informational(600, 2), LONG),
        (informational(1900, 34), LONG),
        (LARGE * 2, "headers exceeded 65536 bytes; aborted"),
        (settings(2700), "ENHANCE_YOUR_CALM"),
        (settings(100) * 16, "ENHANCE_YOUR_CALM"),
    ],
)
def test_a_server_whose_heads_or_settings_are_too_many_is_refused(
    received: bytes, words: str
) -> None:
    get = Http2Get(REQUEST, Heads())
    get.take(frame(4, b""))
    with pytest.raises(HttpError, match=words):
        get.take(received)
    assert not get.is_over


def test_heads_are_counted_over_all_responses_of_a_run() -> None:
    heads = Heads()
    for number, words in ((5, ""), (1, EARLY)):
        get = Http2Get(REQUEST, heads)
        get.take(frame(4, b""))
        with pytest.raises(HttpError, match=words) if words else nullcontext():
            get.take(informational(2, number))
    heads = Heads()
    for words in ("", LONG):
        get = Http2Get(REQUEST, heads)
        get.take(frame(4, b""))
        with pytest.raises(HttpError, match=words) if words else nullcontext():
            get.take(informational(501))


def test_a_few_heads_and_settings_are_as_usual() -> None:
    get = Http2Get(REQUEST, Heads())
    get.take(settings(30) + informational(150, 5))
    get.take(frame(1, b"\x88", 5, 1))
    assert get.is_over
    assert get.response().status == 200
