"""The grpc probe: one call of `grpc.health.v1.Health/Check` on h2, without encryption.

The project's rpc layer is made for long-lived connections to unix sockets; a probe makes one call
over a TCP connection of its own. The two messages have one field each, so they are written and read
here. What h2 makes of a request, and of the bytes of an answer, is kept: they are the same with
each run, and h2 would cost four times as much as all the rest of a probe. A server that refuses
the connection is tried again until the time is over, as by gRPC's own clients.
"""

import json
import re
from collections.abc import Mapping
from enum import IntEnum
from functools import lru_cache
from http import HTTPStatus
from urllib.parse import unquote

import trio
from attrs import define, frozen
from betterproto import encode_varint
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    DataReceived,
    RemoteSettingsChanged,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import ProtocolError

from trio_kubelet.k8s import Duration, GRPCAction
from trio_kubelet.pod_clients.dial import Dialer, DialError, host_port
from trio_kubelet.pod_clients.http2 import (
    PIECE_BYTES,
    STREAM,
    GoAway,
    ServerFrames,
    TooManyFramesError,
    error_name,
)
from trio_kubelet.pod_clients.http_messages import Heads, HttpError
from trio_kubelet.pod_clients.result import (
    OUTPUT_LIMIT_BYTES,
    USER_AGENT,
    ProbeError,
    ProbeOutcome,
    ProbeResult,
    failure,
)
from trio_kubelet.pod_clients.share import ProbeShare
from trio_kubelet.pod_clients.stream import ProbeStream, ProbeStreamError
from trio_kubelet.rpc import Code, code_of_reset, rpc_words

METHOD = "/grpc.health.v1.Health/Check"
CONNECT_AGAIN_SECONDS = 1.0
"""The first delay of gRPC's clients. Nothing tells when a port opens."""
CALL_LIMIT_BYTES = 64 * 1024
"""The most that is read in one call, in all frames: the answer itself has some hundred bytes."""
KNOWN_CALLS = 512
KNOWN_READS = 4
"""In so many pieces an answer may come and be taken as known: a server that sends bytes one by one
would have all of them read again with each."""
KNOWN_BYTES = 1024
LARGEST_NUMBER = 99_999_999
TOO_LONG = "the answer is too long"
DRAINING = "the stream is rejected because server is draining the connection"
_CONFIGURATION = H2Configuration(client_side=True, header_encoding="utf-8")
_CONTENT_TYPE = re.compile(r"application/grpc([+;].*)?")
_CODES_OF_STATUSES: Mapping[str, Code] = {
    "400": Code.INTERNAL,
    "401": Code.UNAUTHENTICATED,
    "403": Code.PERMISSION_DENIED,
    "404": Code.UNIMPLEMENTED,
    "429": Code.UNAVAILABLE,
    "502": Code.UNAVAILABLE,
    "503": Code.UNAVAILABLE,
    "504": Code.UNAVAILABLE,
}
"""gRPC's reading of the status of a response that is none of its own; the others are UNKNOWN."""
_PREFIX_BYTES = 5
_SERVICE_FIELD = b"\x0a"
_STATUS_FIELD = 0x08


class ServingStatus(IntEnum):
    """The health service's answer for a service."""

    UNKNOWN = 0
    SERVING = 1
    NOT_SERVING = 2
    SERVICE_UNKNOWN = 3


class CallError(Exception):
    """The call has ended without an answer."""

    def __init__(self, code: Code, message: str, *, by_server: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.by_server = by_server


async def probe_grpc(
    dialer: Dialer, action: GRPCAction, pod_ip: str, timeout_seconds: float, share: ProbeShare
) -> ProbeResult:
    """Ask the health service for one service, or for the server as a whole.

    Raises ProbeError where this node cannot make a connection.
    """
    call: _Call | None = None
    where = host_port(pod_ip, action.port)
    with trio.move_on_after(timeout_seconds):
        while True:
            call = _Call(where, timeout_seconds, share)
            try:
                return _judged(await call.check(dialer, pod_ip, action))
            except DialError as error:
                if error.is_local:
                    words = f'error: failed to connect service at "{where}": {error}'
                    raise ProbeError(words) from error
                await trio.sleep(CONNECT_AGAIN_SECONDS)
            except CallError as error:
                if error.code is Code.DEADLINE_EXCEEDED:
                    break
                if call.is_connected:
                    return _failed(error)
                await trio.sleep(CONNECT_AGAIN_SECONDS)
    limit = Duration.from_seconds(timeout_seconds)
    if call is not None and call.is_connected:
        return failure(f"timeout: health rpc did not complete within {limit}")
    late = f"within {limit}: context deadline exceeded"
    return failure(f'timeout: failed to connect service "{where}" {late}')


def _judged(status: int) -> ProbeResult:
    if status == ServingStatus.SERVING:
        return ProbeResult(
            outcome=ProbeOutcome.SUCCESS, output="service healthy", by_container=True
        )
    known = {each.value: each.name for each in ServingStatus}
    name = known.get(status, str(status))
    return failure(f'service unhealthy (responded with "{name}")', by_container=True)


def _failed(error: CallError) -> ProbeResult:
    if error.code is Code.UNIMPLEMENTED:
        missing = "error: this server does not implement the grpc health protocol"
        message = f"{missing} (grpc.health.v1.Health): {error.message}"
    else:
        message = f"error: health rpc probe failed: {rpc_words(error.code, error.message)}"
    return failure(message, by_container=error.by_server, cut_off=not error.by_server)


@define
class _Call:
    """One call over a connection that is made for it.

    `is_connected`: the peer has shown that it is a server of HTTP/2.
    """

    authority: str
    timeout_seconds: float
    share: ProbeShare
    is_connected: bool = False

    async def check(self, dialer: Dialer, host: str, action: GRPCAction) -> int:
        """Return the status that the server tells. Raises DialError and CallError."""
        connection = await dialer.dial(host, action.port, self.share)
        stream = ProbeStream(connection, self.authority, self.share)
        try:
            service = action.service or ""
            make = _known_request if len(service) <= KNOWN_BYTES else _request
            request = make(self.authority, self.timeout_seconds, service)
            await stream.send_all(request)
            return await self._read(stream)
        except (TooManyFramesError, HttpError) as error:
            raise CallError(Code.RESOURCE_EXHAUSTED, TOO_LONG, by_server=True) from error
        except (ProtocolError, UnicodeError) as error:
            raise CallError(Code.UNAVAILABLE, f"connection error: {error}") from error
        except ProbeStreamError as error:
            raise CallError(Code.UNAVAILABLE, f"error reading from server: {error}") from error
        finally:
            stream.close()

    async def _read(self, stream: ProbeStream) -> int:
        """The status, from what is known of the bytes that come.

        Where they are too many, or wrong, h2 reads them from the first on. Raises CallError,
        HttpError, ProtocolError, UnicodeError and ProbeStreamError.
        """
        received, replied = b"", 0
        for _ in range(KNOWN_READS):
            received += await _some(stream)
            with self.share.working():
                known = _known(received) if len(received) <= KNOWN_BYTES else None
            if known is None:
                break
            self.is_connected = known.is_connected
            if known.status is not None:
                return known.status
            await stream.send_all(known.reply[replied:])
            replied = len(known.reply)
        with self.share.working():
            conversation, read_bytes = _Conversation(), 0
        while True:
            try:
                with self.share.working():
                    conversation.take(received)
            finally:
                self.is_connected = conversation.is_connected
            read_bytes += len(received)
            if read_bytes > CALL_LIMIT_BYTES:
                raise CallError(Code.RESOURCE_EXHAUSTED, TOO_LONG, by_server=True)
            if conversation.has_ended:
                return conversation.status()
            await stream.send_all(conversation.h2.data_to_send()[replied:])
            replied, received = 0, await _some(stream)


async def _some(stream: ProbeStream) -> bytes:
    """The next bytes, never none. Raises CallError and ProbeStreamError."""
    if received := await stream.receive_some(PIECE_BYTES):
        return received
    raise CallError(Code.UNAVAILABLE, "error reading from server: EOF")


def _asking(authority: str, timeout_seconds: float, service: str) -> H2Connection:
    """A connection whose request is ready to be sent."""
    name = service.encode()
    request = _SERVICE_FIELD + encode_varint(len(name)) + name if name else b""
    h2 = H2Connection(_CONFIGURATION)
    h2.initiate_connection()
    h2.send_headers(
        STREAM,
        [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", METHOD),
            (":authority", authority),
            ("content-type", "application/grpc"),
            ("user-agent", USER_AGENT),
            ("te", "trailers"),
            ("grpc-timeout", _timeout(timeout_seconds)),
        ],
    )
    message = b"\x00" + len(request).to_bytes(4, "big") + request
    h2.send_data(STREAM, message, end_stream=True)
    return h2


def _timeout(seconds: float) -> str:
    """A time as the header says it, which has room for eight digits."""
    milliseconds = round(seconds * 1000)
    if milliseconds <= LARGEST_NUMBER:
        return f"{milliseconds}m"
    return f"{min(round(seconds), LARGEST_NUMBER)}S"


def _request(authority: str, timeout_seconds: float, service: str) -> bytes:
    """The bytes of a request: the same with each run of a probe."""
    return _asking(authority, timeout_seconds, service).data_to_send()


_known_request = lru_cache(maxsize=KNOWN_CALLS)(_request)


@frozen(kw_only=True)
class _Known:
    """Give h2 the bytes that have come; returns the reply, and the status if that is all."""

    is_connected: bool
    reply: bytes
    status: int | None


@lru_cache(maxsize=KNOWN_CALLS)
def _known(received: bytes) -> _Known | None:
    """The events in all that has come on a connection; None where something is wrong with it."""
    conversation = _Conversation()
    try:
        conversation.take(received)
        status = conversation.status() if conversation.has_ended else None
    except (CallError, HttpError, ProtocolError, UnicodeError):
        return None
    reply = conversation.h2.data_to_send()
    return _Known(is_connected=conversation.is_connected, reply=reply, status=status)


class _Conversation:
    """The steps after a request that was sent, whatever it was.

    `is_connected`: the peer has shown that it is a server of HTTP/2.
    """

    def __init__(self) -> None:
        self.h2 = _asking("localhost", 1, "")
        self.h2.data_to_send()
        self._frames = ServerFrames(self.h2, Heads())
        self.is_connected = self.has_ended = False
        self._data = b""
        self._headers: dict[str, str] = {}

    def take(self, received: bytes) -> None:
        """Go on with what has come. Raises CallError, HttpError, ProtocolError and UnicodeError.

        What comes behind the answer does not matter.
        """
        for event in self._frames.take(received):
            if isinstance(event, RemoteSettingsChanged):
                self.is_connected = True
            elif isinstance(event, DataReceived):
                self._data += event.data
            elif isinstance(event, (ResponseReceived, TrailersReceived)):
                self._headers.update((str(name), str(value)) for name, value in event.headers)
                _refuse_what_is_not_grpc(self._headers)
            elif isinstance(event, StreamReset):
                raise _reset(event)
            elif isinstance(event, GoAway) and event.last_stream < STREAM:
                raise CallError(Code.UNAVAILABLE, DRAINING, by_server=True)
            elif isinstance(event, StreamEnded):
                self.has_ended = True
                break
        if len(self._data) > OUTPUT_LIMIT_BYTES:
            raise CallError(Code.RESOURCE_EXHAUSTED, TOO_LONG, by_server=True)

    def status(self) -> int:
        """The server's answer, once it is complete. Raises CallError."""
        code = _code(self._headers.get("grpc-status", ""))
        if code is not Code.OK:
            message = unquote(self._headers.get("grpc-message", ""))
            raise CallError(code, message, by_server=True)
        return _serving_status(self._data)


def _refuse_what_is_not_grpc(headers: Mapping[str, str]) -> None:
    """Raises CallError for the response of another service on HTTP/2."""
    kind, status = headers.get("content-type", ""), headers.get(":status", "")
    if _CONTENT_TYPE.fullmatch(kind):
        return
    phrase = {str(each.value): each.phrase for each in HTTPStatus}.get(status, "")
    text = f"unexpected HTTP status code received from server: {status} ({phrase}); "
    if kind:
        text += f"transport: received unexpected content-type {json.dumps(kind)}"
    else:
        text += "malformed header: missing HTTP content-type"
    raise CallError(_CODES_OF_STATUSES.get(status, Code.UNKNOWN), text, by_server=True)


def _reset(event: StreamReset) -> CallError:
    number = int(event.error_code or 0)
    text = f"stream terminated by RST_STREAM with error code: {error_name(number)}"
    return CallError(code_of_reset(number), text, by_server=True)


def _code(text: str) -> Code:
    try:
        return Code(int(text))
    except ValueError:
        return Code.UNKNOWN


def _serving_status(data: bytes) -> int:
    """The one field of a HealthCheckResponse, 0 if it is absent. Raises CallError."""
    message = data[_PREFIX_BYTES:]
    if len(data) < _PREFIX_BYTES or data[0] != 0:
        raise CallError(Code.INTERNAL, "the answer is no message", by_server=True)
    if len(message) == 2 and message[0] == _STATUS_FIELD:
        return message[1]
    return ServingStatus.UNKNOWN
