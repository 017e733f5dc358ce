"""The httpGet probe: one GET over a connection of its own, on trio and h11.

Over TLS it may be HTTP/2 (`http2.py`), if the server prefers that or has nothing else.
What a client for applications brings along (pools, proxies, cookies, encodings) a probe must not
have, and hundreds of probes a second could not afford. The certificate of a workload is never
verified, nor does the environment name a proxy. A failure that came over the wire is an answer; a
body that breaks off is an error, which says nothing about the container.
"""

import json
import re
import ssl
from collections.abc import Mapping
from functools import lru_cache

import h11
import trio
from attrs import define, field

from trio_kubelet.k8s import Container, ContainerPort, HTTPGetAction
from trio_kubelet.pod_clients.dial import Dialer, DialError, host_port
from trio_kubelet.pod_clients.http2 import PIECE_BYTES, PROTOCOL, Http2Get
from trio_kubelet.pod_clients.http_messages import (
    HEAD_LIMIT_BYTES,
    MOST_HEADER_LINES,
    MOST_REDIRECTS,
    REDIRECTS,
    Heads,
    HttpError,
    HttpRequest,
    ProbeResponse,
    RedirectError,
    header_problem,
    http_request,
    location_of,
    redirected,
)
from trio_kubelet.pod_clients.result import (
    OUTPUT_LIMIT_BYTES,
    ProbeError,
    ProbeOutcome,
    ProbeResult,
    failure,
)
from trio_kubelet.pod_clients.share import LINE_SECONDS, PIECE_SECONDS, REDIRECT_SECONDS, ProbeShare
from trio_kubelet.pod_clients.stream import (
    RECEIVE_BYTES,
    ProbeStream,
    ProbeStreamError,
    over_probe_tls,
    probe_tls,
)
from trio_kubelet.tls_stream import TlsStream

OK, NO_CONTENT, MULTIPLE_CHOICES, NOT_MODIFIED, BAD_REQUEST = 200, 204, 300, 304, 400
KNOWN_REQUESTS = 1024
KNOWN_REQUEST_BYTES = 2048
"""Larger requests are made anew with each run: what is kept outlives its pod."""
MOST_PIECES = 256
"""Chunks, or frames, of a body: what is read of it is for people, and need not be all."""
MOST_BODY_BYTES = 64 * 1024
"""The bytes that are read until there is as much of a body as is shown, with all that frames it."""
_PLAIN_HEAD = re.compile(
    rb"HTTP/1\.[01] ([2-5]\d\d)(?: [\t\x20-\x7e\x80-\xff]*)?\r\n"
    rb"(?:[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t\x20-\x7e\x80-\xff]*\r\n){0,100}\r\n"
)
_LENGTH = re.compile(rb"\r\n(?i:content-length):[ \t]*(\d{1,7})[ \t]*(?=\r\n)")
_ALERT = re.compile(r"(?:SSLV3|TLSV1|TLSV13)_(?:ALERT_)?(.+)")
_ALERTS: Mapping[str, str] = {
    "certificate expired": "expired certificate",
    "certificate revoked": "revoked certificate",
    "certificate unknown": "unknown certificate",
    "decode error": "error decoding message",
    "decrypt error": "error decrypting message",
    "insufficient security": "insufficient security level",
    "protocol version": "protocol version not supported",
    "unknown ca": "unknown certificate authority",
}
"""Alerts that Go calls otherwise than OpenSSL."""
SWITCHING_PROTOCOLS = 101
HEAD_TIMEOUT = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
BODY_TIMEOUT = (
    "context deadline exceeded (Client.Timeout or context cancellation while reading body)"
)
PLAIN_ANSWER = "http: server gave HTTP response to HTTPS client"
BROKEN = "net/http: HTTP/1.x transport connection broken"


class HttpProber:
    """Runs the httpGet probes of all containers."""

    def __init__(self, dialer: Dialer) -> None:
        self._dialer = dialer
        self._tls = probe_tls()

    async def probe(
        self,
        action: HTTPGetAction,
        container: Container,
        pod_ip: str,
        timeout_seconds: float,
        share: ProbeShare,
    ) -> ProbeResult:
        """Ask, and judge the answer.

        Raises ProbeError where the probe itself went wrong.
        """
        make = _known_request if may_be_kept(action, container.ports) else _first_request
        run = _Run(self._dialer, self._tls, make(action, container.ports, pod_ip), share)
        with trio.move_on_after(timeout_seconds):
            try:
                return _judged(await run.get())
            except (HttpError, RedirectError) as error:
                words = f'Get "{run.request.url}": {error}'
                if not isinstance(error, HttpError):
                    return failure(words)
                if error.is_local:
                    raise ProbeError(words) from error
                return failure(words, cut_off=error.cut_off)
        if run.has_head:
            raise ProbeError(BODY_TIMEOUT, ProbeOutcome.FAILURE)
        return failure(f'Get "{run.request.url}": {HEAD_TIMEOUT}', by_container=True)

    async def ask(self, request: HttpRequest, share: ProbeShare) -> ProbeResponse:
        """Return the last response, however long it takes, and whatever it says.

        Raises HttpError, RedirectError, and ProbeError for a body that breaks off.
        """
        return await _Run(self._dialer, self._tls, request, share).get()


def _first_request(
    action: HTTPGetAction, ports: tuple[ContainerPort, ...], pod_ip: str
) -> HttpRequest:
    """The beginning of a probe: the same with each run. Raises ProbeError."""
    return http_request(action, Container(ports=ports), pod_ip)


_known_request = lru_cache(maxsize=KNOWN_REQUESTS)(_first_request)


def may_be_kept(action: HTTPGetAction, ports: tuple[ContainerPort, ...]) -> bool:
    """True if the request of a probe may be kept."""
    texts = (action.path, action.host, *(t for h in action.http_headers for t in (h.name, h.value)))
    return 64 * len(ports) + sum(64 + len(text) for text in texts) <= KNOWN_REQUEST_BYTES


def _judged(response: ProbeResponse) -> ProbeResult:
    status = response.status
    if not OK <= status < BAD_REQUEST:
        return failure(f"HTTP probe failed with statuscode: {status}", by_container=True)
    body = response.body.decode(errors="replace")
    if status >= MULTIPLE_CHOICES:
        output = f"Probe terminated redirects, Response body: {body}"
        return ProbeResult(outcome=ProbeOutcome.WARNING, output=output, by_container=True)
    return ProbeResult(outcome=ProbeOutcome.SUCCESS, output=body, by_container=True)


@define
class _Run:
    """One run of a probe: how far it is, should its time be over."""

    dialer: Dialer
    tls: ssl.SSLContext
    request: HttpRequest
    share: ProbeShare
    has_head: bool = field(default=False, init=False)
    _heads: Heads = field(factory=Heads, init=False)

    async def get(self) -> ProbeResponse:
        """Ask, and follow redirects on the same host.

        Raises HttpError and RedirectError, and ProbeError for a body that breaks off.
        """
        first = self.request
        for _ in range(MOST_REDIRECTS):
            response = await self._exchange()
            location = location_of(response.headers)
            if response.status not in REDIRECTS or not location:
                return response
            following = redirected(self.request, first, location)
            if following is None:
                return response
            self.request, self.has_head = following, False
            self.share.use(REDIRECT_SECONDS)
        raise RedirectError(f"stopped after {MOST_REDIRECTS} redirects")

    async def _exchange(self) -> ProbeResponse:
        request = self.request
        # The URL, too: it may come of a redirect, or have a host that is not in the Host header.
        size = len(request.url) + sum(len(name) + len(value) for name, value in request.lines)
        data = (_known_bytes if size < KNOWN_REQUEST_BYTES else _request_bytes)(request)
        try:
            connection = await self.dialer.dial(self.request.host, self.request.port, self.share)
        except DialError as error:
            raise HttpError(str(error), is_local=error.is_local) from error
        where = host_port(self.request.host, self.request.port)
        raw = ProbeStream(connection, where, self.share)
        try:
            stream = await self._secured(raw)
            if isinstance(stream, TlsStream) and stream.protocol == PROTOCOL:
                return await self._get_over_http2(stream)
            await stream.send_all(data)
            received = bytes(await stream.receive_some(RECEIVE_BYTES))
            return plain_response(received) or await self._read(received, stream)
        except HttpError as error:
            if self.has_head:
                raise ProbeError(str(error), ProbeOutcome.FAILURE) from error
            raise
        except (ProbeStreamError, trio.BrokenResourceError, h11.RemoteProtocolError) as error:
            if self.has_head:
                raise ProbeError(_words(error, raw), ProbeOutcome.FAILURE) from error
            raise HttpError(_words(error, raw), cut_off=_is_break(error)) from error
        finally:
            raw.close()

    async def _secured(self, raw: ProbeStream) -> trio.abc.Stream:
        if self.request.scheme == "http":
            return raw
        return await over_probe_tls(raw, self.tls, self.request.host, self.share)

    async def _get_over_http2(self, stream: trio.abc.Stream) -> ProbeResponse:
        with self.share.working():
            get = Http2Get(self.request, self._heads)
        while not get.is_over:
            await stream.send_all(get.to_send())
            received = bytes(await stream.receive_some(PIECE_BYTES))
            await self.share.wait_for_piece()  # TLS has several, of one read.
            try:
                with self.share.working():
                    get.take(received)
            finally:
                self.has_head = get.status != 0
        return get.response()

    async def _read(self, received: bytes, stream: trio.abc.Stream) -> ProbeResponse:
        """The head of the response, and its body up to the limit; some of it has come already."""
        conversation = _conversation()
        _encoded(conversation, self.request)
        head: h11.Response | h11.InformationalResponse | None = None
        body, body_bytes, pieces, has_come = b"", 0, 0, True
        while len(body) < OUTPUT_LIMIT_BYTES and pieces < MOST_PIECES:
            event = conversation.next_event()
            if event is h11.NEED_DATA:
                if body_bytes > MOST_BODY_BYTES:
                    break
                if not has_come:
                    received = bytes(await stream.receive_some(RECEIVE_BYTES))
                has_come = False
                if not received and not self.has_head:
                    beginning = conversation.trailing_data[0]
                    raise HttpError("unexpected EOF" if beginning else "EOF", cut_off=True)
                if self.has_head:
                    body_bytes += len(received)
                else:
                    self._count_head(received)
                conversation.receive_data(received)
            elif isinstance(event, h11.Data):
                body += event.data
                pieces += 1
                self.share.use(PIECE_SECONDS)
            elif not isinstance(event, (h11.Response, h11.InformationalResponse)):
                break
            elif event.status_code >= OK or event.status_code == SWITCHING_PROTOCOLS:
                head, self.has_head = event, True
            else:
                self._heads.take_informational()
        assert head is not None, "a body follows a head"
        return ProbeResponse(
            status=head.status_code, headers=head.headers, body=body[:OUTPUT_LIMIT_BYTES]
        )

    def _count_head(self, received: bytes) -> None:
        """Heads of all responses in a run are read so far. Raises HttpError."""
        lines = received.count(b"\n")
        self.share.use(lines * LINE_SECONDS)
        try:
            self._heads.take(len(received), lines)
        except HttpError as error:
            raise HttpError(f"{BROKEN}: {error}") from error


def _conversation() -> h11.Connection:
    limit = HEAD_LIMIT_BYTES + RECEIVE_BYTES
    return h11.Connection(h11.CLIENT, max_incomplete_event_size=limit)


def _request_bytes(request: HttpRequest) -> bytes:
    """The bytes of a request: the same with each run of a probe. Raises HttpError."""
    return _encoded(_conversation(), request)


_known_bytes = lru_cache(maxsize=KNOWN_REQUESTS)(_request_bytes)


def plain_response(received: bytes) -> ProbeResponse | None:
    """The response, if it has come whole and is none that needs a second look.

    That is how nearly all of them are, and what h11 does for the others costs as much as all the
    rest of a probe. A response that h11 would refuse is never plain.
    """
    head = _PLAIN_HEAD.match(received)
    if head is None:
        return None
    names, lengths = head[0].lower(), _LENGTH.findall(head[0])
    if b"transfer-encoding" in names or not names.count(b"content-length") == len(lengths) == 1:
        return None
    status, body = int(head[1]), received[head.end() :]
    if status in (NO_CONTENT, NOT_MODIFIED) or MULTIPLE_CHOICES <= status < BAD_REQUEST:
        return None
    if len(lengths) != 1 or len(body) < int(lengths[0]):
        return None
    return ProbeResponse(
        status=status, headers=(), body=body[: int(lengths[0])][:OUTPUT_LIMIT_BYTES]
    )


def _encoded(conversation: h11.Connection, request: HttpRequest) -> bytes:
    """The bytes of a request. Raises HttpError where a header cannot be sent."""
    if len(request.headers) > MOST_HEADER_LINES:
        raise HttpError(f"net/http: more than {MOST_HEADER_LINES} headers cannot be sent")
    problem = header_problem(request.lines)
    if problem:
        raise HttpError(problem)
    try:
        lines = [(name.encode(), value.encode()) for name, value in request.lines]
        head = h11.Request(method="GET", target=request.target, headers=lines)
    except (h11.LocalProtocolError, UnicodeError) as error:
        raise HttpError("net/http: the headers cannot be sent") from error
    return (conversation.send(head) or b"") + (conversation.send(h11.EndOfMessage()) or b"")


def _is_break(error: Exception) -> bool:
    """True if the connection broke, and nobody sent what cannot be understood."""
    cause = error.__cause__
    is_refusal = isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError)
    return not (is_refusal or isinstance(error, h11.RemoteProtocolError))


def _words(error: Exception, raw: ProbeStream) -> str:
    """The failure of the connection, in Go's words as far as they are known."""
    cause = error.__cause__
    for each in (error, cause):
        if isinstance(each, ProbeStreamError):
            return str(each)
    if isinstance(error, h11.RemoteProtocolError):
        if "without sending complete" in str(error):
            return "unexpected EOF"
        line = raw.beginning.partition(b"\r\n")[0].decode("latin-1")
        return f"{BROKEN}: malformed HTTP response {json.dumps(line)}"
    if raw.beginning.startswith(b"HTTP/"):
        return PLAIN_ANSWER
    if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError):
        return _tls_words(cause)
    return "EOF"


def _tls_words(error: ssl.SSLError) -> str:
    """The failure of TLS; an alert of the server in Go's words."""
    reason = error.reason or str(error)
    alert = _ALERT.fullmatch(reason)
    name = (alert[1] if alert is not None else reason).lower().replace("_", " ")
    return f"remote error: tls: {_ALERTS.get(name, name)}" if alert is not None else f"tls: {name}"
