"""The grpc probe: one call of `grpc.health.v1.Health/Check` on h2, without encryption.

The project's rpc layer is made for long-lived connections to unix sockets; a probe makes one call
over a TCP connection of its own. The two messages have one field each, so they are written and read
here. A server that refuses the connection is tried again until the time is over, as by gRPC's own
clients.
"""

from collections.abc import Iterable
from enum import IntEnum
from urllib.parse import unquote

import trio
from attrs import define, field
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RemoteSettingsChanged,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import ProtocolError

from trio_kubelet.k8s import Duration, GRPCAction
from trio_kubelet.probes.dial import Dialer, DialError, host_port
from trio_kubelet.probes.result import (
    OUTPUT_LIMIT_BYTES,
    USER_AGENT,
    ProbeOutcome,
    ProbeResult,
    failure,
    rpc_words,
)
from trio_kubelet.probes.stream import RECEIVE_BYTES, ProbeStream, ProbeStreamError
from trio_kubelet.rpc import Code

METHOD = "/grpc.health.v1.Health/Check"
CONNECT_AGAIN_SECONDS = 1.0
CALL_LIMIT_BYTES = 64 * 1024
"""How much is read in one call, frames of all kinds: the answer itself has a few hundred bytes."""
STREAM = 1
TOO_LONG = "the answer is too long"
_CONFIGURATION = H2Configuration(client_side=True, header_encoding="utf-8")
_PREFIX_BYTES = 5
_SERVICE_FIELD = b"\x0a"
_STATUS_FIELD = 0x08


class ServingStatus(IntEnum):
    """What the health service says of a service."""

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
    dialer: Dialer, action: GRPCAction, pod_ip: str, timeout_seconds: float
) -> ProbeResult:
    """Ask the health service for one service, or for the server as a whole."""
    call: _Call | None = None
    with trio.move_on_after(timeout_seconds):
        while True:
            call = _Call(host_port(pod_ip, action.port), timeout_seconds)
            try:
                return _judged(await call.check(dialer, pod_ip, action))
            except DialError:
                await trio.sleep(CONNECT_AGAIN_SECONDS)
            except CallError as error:
                if call.is_connected:
                    return _failed(error)
                await trio.sleep(CONNECT_AGAIN_SECONDS)
    limit = Duration.from_seconds(timeout_seconds)
    if call is not None and call.is_connected:
        return failure(f"timeout: health rpc did not complete within {limit}")
    where, late = host_port(pod_ip, action.port), "context deadline exceeded"
    return failure(f'timeout: failed to connect service "{where}" within {limit}: {late}')


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
    return failure(message, by_container=error.by_server)


@define
class _Call:
    """One call over a connection that is made for it.

    `is_connected`: the peer has shown that it is a server of HTTP/2.
    """

    authority: str
    timeout_seconds: float
    h2: H2Connection = field(factory=lambda: H2Connection(_CONFIGURATION))
    data: bytes = b""
    headers: dict[str, str] = field(factory=dict)
    is_connected: bool = False
    has_ended: bool = False

    async def check(self, dialer: Dialer, host: str, action: GRPCAction) -> int:
        """Return the status that the server tells. Raises DialError and CallError."""
        stream, read_bytes = ProbeStream(await dialer.dial(host, action.port), self.authority), 0
        try:
            self._ask(action.service or "")
            await stream.send_all(self.h2.data_to_send())
            while not self.has_ended:
                received = await stream.receive_some(RECEIVE_BYTES)
                if not received:
                    raise CallError(Code.UNAVAILABLE, "error reading from server: EOF")
                self._take(self.h2.receive_data(received))
                read_bytes += len(received)
                if read_bytes > CALL_LIMIT_BYTES:
                    raise CallError(Code.RESOURCE_EXHAUSTED, TOO_LONG, by_server=True)
                if not self.has_ended:
                    await stream.send_all(self.h2.data_to_send())
        except (ProtocolError, UnicodeError) as error:
            raise CallError(Code.UNAVAILABLE, f"connection error: {error}") from error
        except ProbeStreamError as error:
            raise CallError(Code.UNAVAILABLE, f"error reading from server: {error}") from error
        finally:
            stream.close()
        return self._answer()

    def _ask(self, service: str) -> None:
        name = service.encode()
        request = _SERVICE_FIELD + _varint(len(name)) + name if name else b""
        self.h2.initiate_connection()
        self.h2.send_headers(
            STREAM,
            [
                (":method", "POST"),
                (":scheme", "http"),
                (":path", METHOD),
                (":authority", self.authority),
                ("content-type", "application/grpc"),
                ("user-agent", USER_AGENT),
                ("te", "trailers"),
                ("grpc-timeout", f"{round(self.timeout_seconds * 1000)}m"),
            ],
        )
        message = b"\x00" + len(request).to_bytes(4, "big") + request
        self.h2.send_data(STREAM, message, end_stream=True)

    def _take(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, RemoteSettingsChanged):
                self.is_connected = True
            elif isinstance(event, DataReceived):
                self.data += event.data
            elif isinstance(event, (ResponseReceived, TrailersReceived)):
                self.headers.update((str(name), str(value)) for name, value in event.headers)
            elif isinstance(event, StreamReset):
                raise _reset(event)
            elif isinstance(event, ConnectionTerminated) and event.error_code:
                raise CallError(Code.UNAVAILABLE, "the server has gone away", by_server=True)
            elif isinstance(event, StreamEnded):
                self.has_ended = True
        if len(self.data) > OUTPUT_LIMIT_BYTES:
            raise CallError(Code.RESOURCE_EXHAUSTED, TOO_LONG, by_server=True)

    def _answer(self) -> int:
        """What the server has said, once it has said all."""
        status = self.headers.get(":status", "")
        if status != "200":
            text = f"unexpected HTTP status code received from server: {status}"
            raise CallError(Code.UNKNOWN, text, by_server=True)
        code = _code(self.headers.get("grpc-status", ""))
        if code is not Code.OK:
            message = unquote(self.headers.get("grpc-message", ""))
            raise CallError(code, message, by_server=True)
        return _serving_status(self.data)


def _reset(event: StreamReset) -> CallError:
    known = {each.value: each.name for each in ErrorCodes}
    name = known.get(int(event.error_code or 0), str(event.error_code))
    text = f"stream terminated by RST_STREAM with error code: {name}"
    return CallError(Code.UNAVAILABLE, text, by_server=True)


def _code(text: str) -> Code:
    try:
        return Code(int(text))
    except ValueError:
        return Code.UNKNOWN


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _serving_status(data: bytes) -> int:
    """The one field of a HealthCheckResponse, 0 if it is absent. Raises CallError."""
    message = data[_PREFIX_BYTES:]
    if len(data) < _PREFIX_BYTES or data[0] != 0:
        raise CallError(Code.INTERNAL, "the answer is no message", by_server=True)
    if len(message) == 2 and message[0] == _STATUS_FIELD:
        return message[1]
    return ServingStatus.UNKNOWN
