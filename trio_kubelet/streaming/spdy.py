"""The client's end of SPDY/3.1, as far as the streaming servers of container runtimes need it.

A command has one stream for each of stdin, stdout, stderr, its terminal's size and its end. The
client opens them all, then there are but frames of data, in both directions. These servers neither
grant nor heed windows of flow control: TCP holds up who sends too fast.
"""

import struct
import zlib
from collections.abc import Mapping, Sequence
from enum import Enum, auto

from attrs import define, frozen

FRAMES_IN_A_TURN = 256
"""They take two milliseconds, whatever is in them."""
MOST_FRAME_BYTES = (1 << 24) - 1

_HEAD = struct.Struct(">II")
_CONTROL = 1 << 31
_VERSION = 3 << 16
_SYN_STREAM, _RST_STREAM = 1, 3
_TYPE = 0xFFFF
_ID = struct.Struct(">I")
_FIN = 1 << 24
_SIZE = MOST_FRAME_BYTES


def opened_streams(headers: Sequence[tuple[str, str]]) -> bytes:
    """Open a stream for each header: the streams 1, 3, 5 and so on.

    Headers are compressed. The protocol has a dictionary for that, which a compressor need not
    use: what it writes says so.
    """
    compressor = zlib.compressobj()
    frames = []
    for number, (name, value) in enumerate(headers):
        block = struct.pack(">I", 1) + _text(name) + _text(value)
        packed = compressor.compress(block) + compressor.flush(zlib.Z_SYNC_FLUSH)
        content = struct.pack(">IIH", stream_id(number), 0, 0) + packed
        frames.append(_HEAD.pack(_CONTROL | _VERSION | _SYN_STREAM, len(content)) + content)
    return b"".join(frames)


def stream_id(number: int) -> int:
    """The id of the stream that was opened as this number, from 0."""
    return 2 * number + 1


def data_frame(stream: int, data: bytes, *, is_last: bool = False) -> bytes:
    """A frame of data of a stream; the last one ends what the client sends in it."""
    return _HEAD.pack(stream, len(data) | (_FIN if is_last else 0)) + data


def _text(text: str) -> bytes:
    return struct.pack(">I", len(text)) + text.encode()


@frozen
class StreamData:
    """Data that came in a stream."""

    stream: int
    data: bytes


@define
class SpdyFrames:
    """Reads the frames of a server as their bytes come; only data is of interest."""

    _buffer: bytes = b""
    _stream: int = 0
    """Of the frame that is being read, 0 for one that is dropped."""
    _left: int = 0

    def feed(self, data: bytes) -> None:
        """Take bytes of the server."""
        self._buffer += data

    def data(self) -> list[StreamData]:
        """The data of some frames; unless it `has_more`, more has to come first."""
        found: list[StreamData] = []
        position, size = 0, len(self._buffer)
        for _ in range(FRAMES_IN_A_TURN):
            if self._left == 0:
                if size - position < _HEAD.size:
                    break
                position = self._begin_frame(position)
            piece = self._buffer[position : position + self._left]
            position += len(piece)
            self._left -= len(piece)
            if piece and self._stream:
                found.append(StreamData(self._stream, piece))
            if self._left:
                break
        self._buffer = self._buffer[position:]
        return found

    @property
    def has_more(self) -> bool:
        """True if what has come already is not all read."""
        return len(self._buffer) >= (_HEAD.size if self._left == 0 else 1)

    def _begin_frame(self, position: int) -> int:
        first, second = _HEAD.unpack_from(self._buffer, position)
        self._left = second & _SIZE
        self._stream = 0 if first & _CONTROL else first
        return position + _HEAD.size


class StreamChange(Enum):
    """A message of one end of a connection about a stream."""

    OPENED = auto()
    SENT = auto()
    """Data came in it, and more may come."""
    ENDED = auto()
    RESET = auto()


_CHANGES: Mapping[int, StreamChange] = {
    _SYN_STREAM: StreamChange.OPENED,
    _RST_STREAM: StreamChange.RESET,
}


@define
class StreamChanges:
    """Reads which streams one end opens, uses, ends and resets; their data is passed over."""

    has_more: bool = False
    """True if what has come already may not all be read."""
    _buffer: bytes = b""
    _left: int = 0
    """Of the content of a frame, to be passed over."""

    def feed(self, data: bytes) -> None:
        """Take bytes of that end."""
        self._buffer += data
        self.has_more = True

    def changes(self) -> list[tuple[StreamChange, int]]:
        """The changes in some frames, each with the id of its stream."""
        found = []
        position, size = 0, len(self._buffer)
        for _ in range(FRAMES_IN_A_TURN):
            passed = min(self._left, size - position)
            position += passed
            self._left -= passed
            head = self._head(position)
            if head is None:
                self.has_more = False
                break
            stream, change, self._left = head
            position += _HEAD.size
            if change is not None:
                found.append((change, stream))
        self._buffer = self._buffer[position:]
        return found

    def _head(self, position: int) -> tuple[int, StreamChange | None, int] | None:
        """Stream, change and size of the frame that begins here; None if more has to come first."""
        left = len(self._buffer) - position
        if left < _HEAD.size:
            return None
        first, second = _HEAD.unpack_from(self._buffer, position)
        size = second & _SIZE
        if not first & _CONTROL:
            return first, StreamChange.ENDED if second & _FIN else StreamChange.SENT, size
        change = _CHANGES.get(first & _TYPE)
        if change is None or size < _ID.size:
            return 0, None, size
        if left < _HEAD.size + _ID.size:
            return None
        (stream,) = _ID.unpack_from(self._buffer, position + _HEAD.size)
        return stream & ~_CONTROL, change, size
