"""WebSockets of the API server, for runtimes whose streaming servers speak SPDY (KEP-4006).

With the gate ExtendWebSocketsToKubelet the node says that it takes the WebSockets of `kubectl`, and
the API server passes them on as they are. Two of their subprotocols no runtime knows: version 5 of
the streams of a command, whose stdin has an end of its own, becomes SPDY frame by frame; the tunnel
of a port-forward has SPDY inside, which is taken out. Either looks like a client that speaks SPDY.
"""

from collections.abc import Mapping, Sequence

import trio

from trio_kubelet.server.messages import Headers
from trio_kubelet.streaming.spdy import SpdyFrames, data_frame, opened_streams, stream_id
from trio_kubelet.streaming.websocket import Piece, WebSocket, offered_protocols

COMMAND_PROTOCOL = "v5.channel.k8s.io"
TUNNEL_PROTOCOL = "SPDY/3.1+portforward.k8s.io"

_SPDY, _VERSION = ("Upgrade", "SPDY/3.1"), "X-Stream-Protocol-Version"
SPDY_COMMAND = Headers((_SPDY, (_VERSION, "v4.channel.k8s.io")))
SPDY_PORT_FORWARD = Headers((_SPDY, (_VERSION, "portforward.k8s.io")))
"""The headers with which a runtime is asked to switch to SPDY."""

STDIN, STDOUT, STDERR, ERROR, RESIZE = range(5)
CLOSE = 255
"""The channels of version 5; a message of CLOSE names one that ends."""

_STREAM_TYPES: Mapping[int, str] = {
    ERROR: "error",
    STDIN: "stdin",
    STDOUT: "stdout",
    STDERR: "stderr",
    RESIZE: "resize",
}
"""In the order in which clients open the streams: the runtime waits for that of errors first."""


def wants_command(headers: Headers) -> bool:
    """True if the client wants the streams of a command in version 5."""
    return COMMAND_PROTOCOL in offered_protocols(headers)


def wants_tunnel(headers: Headers) -> bool:
    """True if the client wants to send SPDY through a WebSocket."""
    return TUNNEL_PROTOCOL in offered_protocols(headers)


class _SpdyClient(trio.abc.Stream):
    """A client whose WebSocket reads and writes as SPDY; its end is for the caller to send."""

    def __init__(self, websocket: WebSocket) -> None:
        self.websocket = websocket

    async def wait_send_all_might_not_block(self) -> None:
        """Not asked for."""
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """Tell the client that this is the end."""
        await self.websocket.close()


class TunnelClient(_SpdyClient):
    """A WebSocket that is a tunnel: SPDY is in its messages, wherever they begin and end."""

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """The next bytes; none when the client has ended."""
        while (pieces := await self.websocket.receive(max_bytes)) is not None:
            if data := b"".join(piece.data for piece in pieces):
                return data
        return b""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send everything, as a message."""
        await self.websocket.send(bytes(data))


class CommandClient(_SpdyClient):
    """A WebSocket with the streams of a command, of which these channels are there."""

    def __init__(self, websocket: WebSocket, channels: Sequence[int]) -> None:
        super().__init__(websocket)
        self._channels = [channel for channel in _STREAM_TYPES if channel in channels]
        self._streams = {
            channel: stream_id(number) for number, channel in enumerate(self._channels)
        }
        self._channel_of = {stream: channel for channel, stream in self._streams.items()}
        self._are_opened = False
        self._channel: int | None = None
        """Of the message that is being read."""
        self._from_runtime = SpdyFrames()

    async def greet(self) -> None:
        """Send an empty message, by which clients know that the command's streams are there."""
        first = next(each for each in (STDOUT, STDERR, ERROR) if each in self._streams)
        await self.websocket.send(bytes((first,)))

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """The next frames for the runtime; none when the client has ended."""
        if not self._are_opened:
            self._are_opened = True
            return opened_streams([("streamtype", _STREAM_TYPES[each]) for each in self._channels])
        while (pieces := await self.websocket.receive(max_bytes)) is not None:
            if frames := b"".join(map(self._frames, pieces)):
                return frames
        return b""

    def _frames(self, piece: Piece) -> bytes:
        """The frames for a piece of a message; none for a channel that is not the client's."""
        data = piece.data
        if piece.begins:
            self._channel = data[0] if data else None
            data = data[1:]
        if not data:
            return b""
        if self._channel == CLOSE:
            ended = self._streams.get(data[0], 0) if data[0] in (STDIN, RESIZE) else 0
            return data_frame(ended, b"", is_last=True) if ended else b""
        if self._channel in (STDIN, RESIZE) and self._channel in self._streams:
            return data_frame(self._streams[self._channel], data)
        return b""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send the data of the runtime's frames, each as a message of its channel."""
        reader = self._from_runtime
        reader.feed(bytes(data))
        while True:
            messages = [
                bytes((self._channel_of[each.stream],)) + each.data
                for each in reader.data()
                if each.stream in self._channel_of
            ]
            await self.websocket.send(*messages)
            if not reader.has_more:
                return
