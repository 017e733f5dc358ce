"""Streams of a node's port as raw as an attacker has them: SPDY and WebSocket, frame by frame."""

import ssl
import struct
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress

from tests.hostile.node_port import NodePort, ask
from tests.unit.streaming.test_websocket import masked

SWITCHED = 101
COMMAND = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Protocol: v5.channel.k8s.io",
)
"""A command whose streams are in a WebSocket."""
SPDY_COMMAND = (
    "Connection: Upgrade",
    "Upgrade: SPDY/3.1",
    "X-Stream-Protocol-Version: v4.channel.k8s.io",
)
SPDY_PORTS = (*SPDY_COMMAND[:2], "X-Stream-Protocol-Version: portforward.k8s.io")

STDIN, RESIZE = b"\0", b"\4"
"""The channels of a WebSocket; a message begins with its own."""
PING = 9

_CONTROL, _VERSION = 1 << 31, 3 << 16
_SYN_STREAM, _RST_STREAM = 1, 3
_CANCEL = 5


def opened(
    port: NodePort, context: ssl.SSLContext, path: str, protocol: Sequence[str]
) -> ssl.SSLSocket:
    """A connection of a client that has asked for a stream, and has been given it."""
    connection = port.connect(context)
    try:
        assert ask(connection, path, "POST", *protocol) == SWITCHED
    except BaseException:
        connection.close()
        raise
    return connection


def output(connection: ssl.SSLSocket) -> bytes:
    """All that comes until the other end has ended, frames and all."""
    said = b""
    with suppress(ConnectionError, ssl.SSLError):
        while data := connection.recv(4096):
            said += data
    return said


def message(channel: bytes, data: bytes) -> bytes:
    """A message of a channel of a WebSocket."""
    return masked(channel + data)


def ping() -> bytes:
    """A ping of a WebSocket, which is to be answered."""
    return masked(b"", PING)


class SpdyStreams:
    """Opens streams, as many as are asked for, in the bytes for one connection."""

    def __init__(self) -> None:
        self._compressor = zlib.compressobj()
        self._last = -1

    def opened(self, **headers: str) -> bytes:
        """Open a stream with these headers."""
        self._last += 2
        block = struct.pack(">I", len(headers)) + b"".join(map(_pair, headers.items()))
        packed = self._compressor.compress(block) + self._compressor.flush(zlib.Z_SYNC_FLUSH)
        return _control(_SYN_STREAM, struct.pack(">IIH", self._last, 0, 0) + packed)

    def reset(self) -> bytes:
        """Reset the stream that was opened last."""
        return _control(_RST_STREAM, struct.pack(">II", self._last, _CANCEL))

    def port(self, number: int, request: int) -> bytes:
        """Open the two streams of a connection to a port."""
        common: Mapping[str, str] = {"port": f"{number}", "requestid": f"{request}"}
        errors = self.opened(streamtype="error", **common)
        return errors + self.opened(streamtype="data", **common)


def _control(kind: int, content: bytes) -> bytes:
    return struct.pack(">II", _CONTROL | _VERSION | kind, len(content)) + content


def _pair(pair: tuple[str, str]) -> bytes:
    return b"".join(struct.pack(">I", len(text)) + text.encode() for text in pair)
