"""A connection of a probe as a stream of trio, with as little around the socket as can be.

`trio.SocketStream` sets options and guards against uses that a probe never makes: at hundreds of
probes a second that is a fifth of what they cost. It waits for a turn of its pod whenever it
receives, or a peer that never stops sending would hold the event loop, and so would hundreds that
send in the same moment.

Over TLS its certificate is not verified, and its key may be odd. What a handshake costs is up to
the other end: with an RSA key of 16,384 bits, or one with a large exponent, some ten times what it
costs with others. So is what records cost that have no data. So the time that TLS takes is counted
as work for the pod's probes.
"""

import os
import socket
import ssl

import trio

from trio_kubelet.pod_clients.dial import hang_up, host_port
from trio_kubelet.pod_clients.http2 import PROTOCOL
from trio_kubelet.pod_clients.share import BYTE_SECONDS, READ_SECONDS, ProbeShare
from trio_kubelet.tls_stream import TlsStream

RECEIVE_BYTES = 16 * 1024
BEGINNING_BYTES = 64
MOST_BYTES = 512 * 1024
"""The most that is read of one connection, TLS with all that it sends of itself included."""


class ProbeStreamError(trio.BrokenResourceError):
    """The connection broke. The text is Go's."""


class ProbeStream(trio.abc.Stream):
    """Reads and writes a connected socket that does not block. Raises ProbeStreamError.

    `peer` is whom it is connected to, as `host:port`.
    `beginning` is what came first, for words about what is not understood.
    """

    def __init__(self, connection: socket.socket, peer: str, share: ProbeShare) -> None:
        self._socket = connection
        self._peer = peer
        self._share = share
        self.beginning = b""
        self._read_bytes = 0

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send all of it; cancelled, it may have sent a part."""
        with memoryview(data) as view:
            sent = 0
            while sent < len(view):
                try:
                    sent += self._socket.send(view[sent:])
                except BlockingIOError:
                    await trio.lowlevel.wait_writable(self._socket)
                except OSError as error:
                    raise self._broken("write", error) from error

    async def wait_send_all_might_not_block(self) -> None:
        """Wait for room in the socket's buffer."""
        await trio.lowlevel.wait_writable(self._socket)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return what has come, nothing at the end."""
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            await self._share.wait_for_piece()
            try:
                received = self._socket.recv(max_bytes or RECEIVE_BYTES)
            except BlockingIOError:
                continue
            except OSError as error:
                raise self._broken("read", error) from error
            else:
                self.beginning = self.beginning or received[:BEGINNING_BYTES]
                self._read_bytes += len(received)
                self._share.use(READ_SECONDS + len(received) * BYTE_SECONDS)
                if self._read_bytes > MOST_BYTES:
                    raise ProbeStreamError(f"server sent more than {MOST_BYTES} bytes; aborted")
                return received

    async def aclose(self) -> None:
        """Close. Never waits."""
        self.close()
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """Close at once."""
        hang_up(self._socket)

    def _broken(self, what: str, error: OSError) -> ProbeStreamError:
        own = host_port(*self._socket.getsockname()[:2])
        why = os.strerror(error.errno or 0).lower()
        return ProbeStreamError(f"{what} tcp {own}->{self._peer}: {what}: {why}")


def probe_tls() -> ssl.SSLContext:
    """Make the settings of all connections to containers."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols([PROTOCOL, "http/1.1"])
    # Python's own leave out ciphers that old servers have alone. Without finite-field
    # Diffie-Hellman, which Go does not have either: the server chooses how large its prime is.
    context.set_ciphers("DEFAULT:!kDHE")
    context.options |= ssl.OP_NO_RENEGOTIATION
    return context


async def over_probe_tls(
    raw: ProbeStream, context: ssl.SSLContext, host: str, share: ProbeShare
) -> TlsStream:
    """Make the handshake. Raises what the stream raises, and trio.BrokenResourceError."""
    stream = TlsStream(raw, context, host=host, working=share.working)
    await stream.do_handshake(share.wait_for_piece)
    return stream
