"""The server's end of a WebSocket (RFC 6455): binary messages over a connection that was upgraded.

Messages are read and written piece by piece, so that none is held in memory as a whole. Pings are
answered, a close is answered and is the end. What breaks the protocol ends the connection with the
code for it.
"""

import hashlib
import struct
from base64 import b64encode
from binascii import Error as Base64Error
from binascii import a2b_base64
from collections.abc import Iterable, Sequence
from contextlib import suppress

import trio
from attrs import define, field, frozen

from trio_kubelet.server.messages import HeaderPairs, Headers, RequestError
from trio_kubelet.tasks.turns import Turn

PROTOCOLS = "sec-websocket-protocol"
VERSION = "13"
KEY_BYTES = 16
_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

NORMAL, PROTOCOL_ERROR = 1000, 1002
"""The codes of a close."""
CLOSE_SECONDS = 10.0
"""The time that the client may take to read the close."""
FRAMES_IN_A_TURN = 256
"""They take two milliseconds, whatever is in them."""
MOST_CONTROL_BYTES = 125

_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
_FIN, _RESERVED, _OPCODE, _MASKED, _LENGTH = 0x80, 0x70, 0x0F, 0x80, 0x7F
_SHORT, _LONG = 126, 127
_MASK_BYTES = 4


def offered_protocols(headers: Headers) -> tuple[str, ...]:
    """The subprotocols that a client of a WebSocket offers, best first; none without WebSocket."""
    if headers.first("upgrade").lower() != "websocket":
        return ()
    every = [value for name, value in headers.pairs if name == PROTOCOLS]
    return tuple(each.strip() for value in every for each in value.split(",") if each.strip())


def accepted(headers: Headers, protocol: str) -> HeaderPairs:
    """The headers that accept a WebSocket with this subprotocol. RequestError (400) if it is none.

    A key is 16 bytes, as base64.
    """
    key = headers.first("sec-websocket-key")
    try:
        is_key = len(a2b_base64(key, strict_mode=True)) == KEY_BYTES
    except (Base64Error, ValueError):
        is_key = False
    if not is_key or headers.first("sec-websocket-version") != VERSION:
        raise RequestError(400, f"a WebSocket needs a key and version {VERSION}")
    digest = hashlib.sha1(f"{key}{_GUID}".encode(), usedforsecurity=False).digest()
    return (
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Accept", b64encode(digest).decode()),
        ("Sec-WebSocket-Protocol", protocol),
    )


class WebSocketError(Exception):
    """The client has broken the protocol."""


@frozen
class Piece:
    """A piece of a message of data; `begins` it, if it is the first one."""

    data: bytes
    begins: bool


@frozen
class Control:
    """A control frame: a ping, a pong or a close."""

    opcode: int
    data: bytes


@define
class _Frame:
    """The frame that is being read."""

    opcode: int
    left: int
    mask: bytes
    begins: bool
    control: bytearray = field(factory=bytearray)


@define
class WebSocketFrames:
    """Reads the frames of a client, which are masked, as their bytes come."""

    _buffer: bytes = b""
    _frame: _Frame | None = None
    _in_message: bool = False
    """The last frame of data was not the last one of its message."""

    def feed(self, data: bytes) -> None:
        """Take bytes of the client."""
        self._buffer += data

    @property
    def has_more(self) -> bool:
        """True if what has come already is not all read, or ends within a frame's head."""
        return bool(self._buffer)

    def events(self) -> list[Piece | Control]:
        """What has come since, of some frames; empty if more has to come first.

        Raises WebSocketError where a frame breaks the protocol; all before it was returned then.
        """
        found: list[Piece | Control] = []
        position = 0
        try:
            for _ in range(FRAMES_IN_A_TURN):
                if self._frame is None:
                    begun = self._begin_frame(position)
                    if begun == position:
                        break
                    position = begun
                event, position = self._read_frame(position)
                if event is not None:
                    found.append(event)
                if self._frame is not None:
                    break
        except WebSocketError:
            if not found:
                raise
        finally:
            self._buffer = self._buffer[position:]
        return found

    def _begin_frame(self, position: int) -> int:
        """Read the head of a frame; returns the same position if more has to come."""
        data, left = self._buffer, len(self._buffer) - position
        if left < 2:
            return position
        first, second = data[position], data[position + 1]
        opcode, size = first & _OPCODE, second & _LENGTH
        self._check(first, second, opcode, size)
        end = position + 2
        if size in (_SHORT, _LONG):
            form = ">H" if size == _SHORT else ">Q"
            if left < 2 + struct.calcsize(form) + _MASK_BYTES:
                return position
            (size,) = struct.unpack_from(form, data, end)
            end += struct.calcsize(form)
            if size >> 63:
                raise WebSocketError("a frame has a length that none can have")
        if len(data) < end + _MASK_BYTES:
            return position
        mask = data[end : end + _MASK_BYTES]
        is_data = opcode < _CLOSE
        self._frame = _Frame(opcode, size, mask, begins=is_data and opcode != _CONTINUATION)
        if is_data:
            self._in_message = not first & _FIN
        return end + _MASK_BYTES

    def _check(self, first: int, second: int, opcode: int, size: int) -> None:
        if first & _RESERVED or not second & _MASKED:
            raise WebSocketError("a frame is not masked, or has reserved bits")
        if opcode in (_CLOSE, _PING, _PONG):
            if size > MOST_CONTROL_BYTES or not first & _FIN:
                raise WebSocketError("a control frame is in parts")
        elif opcode not in (_CONTINUATION, _TEXT, _BINARY):
            raise WebSocketError(f"no frame has opcode {opcode}")
        elif (opcode == _CONTINUATION) != self._in_message:
            raise WebSocketError("messages are mixed")

    def _read_frame(self, position: int) -> tuple[Piece | Control | None, int]:
        """Read what has come of the frame's content, and forget the frame at its end."""
        frame = self._frame
        assert frame is not None
        masked = self._buffer[position : position + frame.left]
        data = _unmasked(masked, frame.mask)
        shift = len(masked) % _MASK_BYTES
        frame.mask = frame.mask[shift:] + frame.mask[:shift]
        frame.left -= len(masked)
        is_whole = frame.left == 0
        if is_whole:
            self._frame = None
        position += len(masked)
        if frame.opcode >= _CLOSE:
            frame.control += data
            return (Control(frame.opcode, bytes(frame.control)) if is_whole else None), position
        if not data and not is_whole:
            return None, position
        piece = Piece(data, frame.begins)
        frame.begins = False
        return piece, position


def _unmasked(data: bytes, mask: bytes) -> bytes:
    size = len(data)
    repeated = (mask * (size // _MASK_BYTES + 1))[:size]
    whole = int.from_bytes(data, "big") ^ int.from_bytes(repeated, "big")
    return whole.to_bytes(size, "big")


def frame(data: bytes, opcode: int = _BINARY) -> bytes:
    """A whole message in one frame, as a server sends it; binary unless it is another one."""
    size = len(data)
    if size < _SHORT:
        return struct.pack(">BB", _FIN | opcode, size) + data
    if size < 1 << 16:
        return struct.pack(">BBH", _FIN | opcode, _SHORT, size) + data
    return struct.pack(">BBQ", _FIN | opcode, _LONG, size) + data


class WebSocket:
    """The messages of a client, over its connection. One task may read, others may send.

    What has come is read some frames at a time: each time but the first waits for a `turn`.
    """

    def __init__(self, client: trio.abc.Stream, turn: Turn) -> None:
        self._client = client
        self._turn = turn
        self._reader = WebSocketFrames()
        self._sending = trio.Lock()
        self._closed = False
        self._client_closed = False

    async def receive(self, max_bytes: int | None) -> Sequence[Piece] | None:
        """The next pieces of messages; None when the client has closed, or broken the protocol.

        At most `max_bytes` are received at a time. Raises trio.BrokenResourceError where the
        connection breaks.
        """
        while not self._client_closed:
            try:
                events = self._reader.events()
            except WebSocketError:
                await self.close(PROTOCOL_ERROR)
                return None
            if not events:
                data = bytes(await self._client.receive_some(max_bytes))
                if not data:
                    return None
                self._reader.feed(data)
                continue
            pieces = await self._answered(events)
            if self._reader.has_more:  # It may be thousands of frames without content.
                await self._turn()
            if pieces:
                return pieces
        await self.close(NORMAL)
        return None

    async def _answered(self, events: Iterable[Piece | Control]) -> Sequence[Piece]:
        """The pieces up to the close; pings are answered."""
        pieces = []
        for event in events:
            if isinstance(event, Piece):
                pieces.append(event)
            elif event.opcode == _PING:
                await self._send(frame(event.data, _PONG))
            elif event.opcode == _CLOSE:
                self._client_closed = True
                break
        return pieces

    async def send(self, *messages: bytes) -> None:
        """Send messages, each of its own. Raises trio.BrokenResourceError."""
        await self._send(b"".join(frame(each) for each in messages))

    async def close(self, code: int = NORMAL) -> None:
        """Tell the client that no more comes, if he reads within some seconds. Idempotent."""
        if self._closed:
            return
        with (
            trio.move_on_after(CLOSE_SECONDS),
            suppress(trio.BrokenResourceError, trio.ClosedResourceError),
        ):
            await self._send(frame(struct.pack(">H", code), _CLOSE))
        self._closed = True

    async def _send(self, data: bytes) -> None:
        async with self._sending:
            if self._closed:
                return
            try:
                await self._client.send_all(data)
            except BaseException:
                self._closed = True  # Whatever came next would be read as the rest of this.
                raise
