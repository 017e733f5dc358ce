"""One GET over HTTP/2, where TLS has chosen that: some servers have nothing else.

Bytes in, bytes out; whoever has the connection passes them on. h2 reads all the bytes that it is
given before it tells of the first frame, and refuses what follows a GOAWAY. But what follows a
response is no part of it, and a server may take its leave before it responds: API servers do, and
the response still comes. So h2 gets one frame at a time, as long as more is wanted, and does not
hear of GOAWAY.
"""

import json
import re
import struct
from collections.abc import Iterator, Sequence

from attrs import frozen
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    InformationalResponseReceived,
    PushedStreamReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import FrameTooLargeError, ProtocolError
from h2.settings import SettingCodes, Settings

from trio_kubelet.pod_clients.http_messages import Heads, HttpError, HttpRequest, ProbeResponse
from trio_kubelet.pod_clients.result import OUTPUT_LIMIT_BYTES

MOST_FRAMES = 256
"""Of all kinds, until a response has ended: each costs as much as hundreds of bytes."""
PIECE_BYTES = 1024
"""The most that is taken in one turn: a frame has nine bytes, a header field may have one."""
BYTES_OF_SETTINGS = 32
"""So many of settings count as a frame."""
STREAM = 1
"""The stream of a request that is the only one of its connection."""
# RFC 9113, 4.1 and 6.8: a frame begins with its length, its type, flags and stream.
_HEAD = struct.Struct(">BHBxL")
_SETTINGS_TYPE, _GO_AWAY_TYPE, _GO_AWAY = 4, 7, struct.Struct(">LL")
_STREAM_MASK = 2**31 - 1
_NAMES = {each.value: each.name for each in ErrorCodes}

PROTOCOL = "h2"
ANSWER_LIMIT_BYTES = 64 * 1024
"""The most that is read of all frames, which is more than a body is read of."""
TOO_LONG = "net/http: server response headers exceeded {} bytes; aborted"
_CONFIGURATION = H2Configuration(client_side=True)
_SETTINGS = {
    SettingCodes.ENABLE_PUSH: 0,
    SettingCodes.MAX_HEADER_LIST_SIZE: H2Connection.DEFAULT_MAX_HEADER_LIST_SIZE,
}
_OF_HTTP_1 = frozenset(
    {"connection", "host", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"}
)
_HEADS = (
    InformationalResponseReceived,
    PushedStreamReceived,
    ResponseReceived,
    TrailersReceived,
)
_STATUS = re.compile(rb"\d{3}")


class TooManyFramesError(ProtocolError):
    """The server sends frame after frame."""

    error_code = ErrorCodes.ENHANCE_YOUR_CALM


@frozen
class GoAway:
    """The server takes its leave: it responds to what came on streams up to the last."""

    last_stream: int
    error_code: int
    debug: bytes


class ServerFrames:
    """Reads what a server sends on a connection; `h2` is the client's side of it.

    What responses have of headers is counted in `heads`.
    """

    def __init__(self, h2: H2Connection, heads: Heads) -> None:
        self._h2 = h2
        self._heads = heads
        self._unread = bytearray()
        self._frames = 0

    def take(self, received: bytes) -> Iterator[Event | GoAway]:
        """Go on with what has come, as far as the caller does. Raises ProtocolError and HttpError.

        Raises UnicodeError, too, where `h2` decodes headers.
        """
        self._unread += received
        while len(self._unread) >= _HEAD.size:
            high, low, kind, stream = _HEAD.unpack_from(self._unread)
            size = high << 16 | low
            if size > self._h2.max_inbound_frame_size:
                raise FrameTooLargeError(f"a frame of {size} bytes")
            end = _HEAD.size + size
            if len(self._unread) < end:
                return
            self._frames += 1 + (size // BYTES_OF_SETTINGS if kind == _SETTINGS_TYPE else 0)
            if self._frames > MOST_FRAMES:
                raise TooManyFramesError(f"more than {MOST_FRAMES} frames")
            frame = bytes(self._unread[:end])
            del self._unread[:end]
            if kind == _GO_AWAY_TYPE and size >= _GO_AWAY.size and not stream & _STREAM_MASK:
                yield _go_away(frame[_HEAD.size :])
            else:
                for event in self._h2.receive_data(frame):
                    self._count(event)
                    yield event

    def _count(self, event: Event) -> None:
        """Count the headers of all responses. Raises HttpError."""
        if isinstance(event, _HEADS):
            fields = event.headers or ()
            self._heads.take(sum(len(name) + len(value) for name, value in fields), len(fields))
        if isinstance(event, InformationalResponseReceived):
            self._heads.take_informational()


def _go_away(content: bytes) -> GoAway:
    last_stream, error_code = _GO_AWAY.unpack_from(content)
    return GoAway(last_stream & _STREAM_MASK, error_code, content[_GO_AWAY.size :])


def error_name(code: int | None) -> str:
    """Return what Go calls an error code of HTTP/2."""
    return _NAMES.get(int(code or 0), f"unknown error code 0x{int(code or 0):x}")


class Http2Get:
    """A request and what has come of it. Raises HttpError where it cannot be sent.

    The server is asked to push nothing; what it pushes is an error, not part of the response.

    `status` is 0 until the head of the response has come, `is_over` when no more is wanted.
    """

    def __init__(self, request: HttpRequest, heads: Heads) -> None:
        self.status = 0
        self.is_over = False
        self._headers: Sequence[tuple[bytes, bytes]] = ()
        self._body = b""
        self._read_bytes = 0
        self._at_end = "unexpected EOF"
        self._h2 = H2Connection(_CONFIGURATION)
        self._h2.local_settings = Settings(client=True, initial_values=_SETTINGS)
        self._h2.initiate_connection()
        self._frames = ServerFrames(self._h2, heads)
        lines = [(name.lower(), value) for name, value in request.lines]
        head = (
            (":authority", next(value for name, value in lines if name == "host")),
            (":method", "GET"),
            (":path", request.target),
            (":scheme", request.scheme),
            *(line for line in lines if line[0] not in _OF_HTTP_1),
        )
        try:
            self._h2.send_headers(STREAM, head, end_stream=True)
        except ProtocolError as error:
            raise HttpError("net/http: the headers cannot be sent") from error

    def to_send(self) -> bytes:
        """The bytes that the server is to get."""
        return self._h2.data_to_send()

    def take(self, received: bytes) -> None:
        """Go on with what has come, nothing at the end of the connection. Raises HttpError.

        What comes behind the response does not matter.
        """
        if not received:
            raise HttpError(self._at_end, cut_off=True)
        self._read_bytes += len(received)
        if self._read_bytes > ANSWER_LIMIT_BYTES:
            raise HttpError(TOO_LONG.format(ANSWER_LIMIT_BYTES))
        try:
            for event in self._frames.take(received):
                self._take(event)
                if self.is_over:
                    return
        except ProtocolError as error:
            raise HttpError(f"connection error: {error_name(error.error_code)}") from error

    def response(self) -> ProbeResponse:
        """The server's answer, once it is complete."""
        return ProbeResponse(
            status=self.status, headers=self._headers, body=self._body[:OUTPUT_LIMIT_BYTES]
        )

    def _take(self, event: Event | GoAway) -> None:
        if isinstance(event, GoAway):
            self._take_leave(event)
        elif isinstance(event, ResponseReceived):
            self._headers = [(bytes(name), bytes(value)) for name, value in event.headers]
            status = dict(self._headers)[b":status"]
            if _STATUS.fullmatch(status) is None:
                raise HttpError(
                    "malformed response from server: malformed non-numeric status pseudo header"
                )
            self.status = int(status)
        elif isinstance(event, DataReceived):
            self._body += event.data
            self.is_over = len(self._body) >= OUTPUT_LIMIT_BYTES
        elif isinstance(event, StreamEnded):
            self.is_over = True
        elif isinstance(event, StreamReset):
            why = f"{error_name(event.error_code)}; received from peer"
            raise HttpError(f"stream error: stream ID {STREAM}; {why}")

    def _take_leave(self, leave: GoAway) -> None:
        name, debug = error_name(leave.error_code), leave.debug.decode("latin-1")
        if leave.last_stream >= STREAM:
            self._at_end = (
                "http2: server sent GOAWAY and closed the connection; "
                f"LastStreamID={leave.last_stream}, ErrCode={name}, debug={json.dumps(debug)}"
            )
        elif leave.error_code == ErrorCodes.NO_ERROR:
            raise HttpError("http2: Transport received Server's graceful shutdown GOAWAY")
        else:
            raise HttpError(f"http2: Transport received GOAWAY from server ErrCode:{name}")
