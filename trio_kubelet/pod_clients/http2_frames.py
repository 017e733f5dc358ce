"""The answer of a server of HTTP/2 to a probe, frame by frame.

h2 reads all the bytes that it is given before it tells of the first frame, and refuses what
follows a GOAWAY. But what follows a response is no part of it, and a server may take its leave
before it responds: API servers do, and the response still comes. So h2 gets one frame at a time,
as long as more is wanted, and does not hear of GOAWAY.
"""

import struct
from collections.abc import Iterator

from attrs import frozen
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import Event
from h2.exceptions import FrameTooLargeError, ProtocolError

from trio_kubelet.pod_clients.share import FRAME_SECONDS, ProbeShare

MOST_FRAMES = 256
"""Of all kinds, until a response has ended: each costs as much as hundreds of bytes."""
STREAM = 1
"""The stream of a request that is the only one of its connection."""
# RFC 9113, 4.1 and 6.8: a frame begins with its length, its type, flags and stream.
_HEAD = struct.Struct(">BHBxL")
_GO_AWAY_TYPE, _GO_AWAY = 7, struct.Struct(">LL")
_STREAM_MASK = 2**31 - 1
_NAMES = {each.value: each.name for each in ErrorCodes}


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

    The work counts as that of the pod that has the share.
    """

    def __init__(self, h2: H2Connection, share: ProbeShare) -> None:
        self._h2 = h2
        self._share = share
        self._unread = bytearray()
        self._frames = 0

    def take(self, received: bytes) -> Iterator[Event | GoAway]:
        """Go on with what has come, as far as the caller does. Raises ProtocolError.

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
            self._frames += 1
            self._share.use(FRAME_SECONDS)
            if self._frames > MOST_FRAMES:
                raise TooManyFramesError(f"more than {MOST_FRAMES} frames")
            frame = bytes(self._unread[:end])
            del self._unread[:end]
            if kind == _GO_AWAY_TYPE and size >= _GO_AWAY.size and not stream & _STREAM_MASK:
                yield _go_away(frame[_HEAD.size :])
            else:
                yield from self._h2.receive_data(frame)


def _go_away(content: bytes) -> GoAway:
    last_stream, error_code = _GO_AWAY.unpack_from(content)
    return GoAway(last_stream & _STREAM_MASK, error_code, content[_GO_AWAY.size :])


def error_name(code: int | None) -> str:
    """Return what Go calls an error code of HTTP/2."""
    return _NAMES.get(int(code or 0), f"unknown error code 0x{int(code or 0):x}")
