"""A connection over TLS, as a server has it: a read gives all that has come, not one record.

What the API server passes on to a command comes in many small records, and each that is read by
itself is passed on by itself, which costs several times what its bytes do.
"""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from trio_kubelet.tasks.turns import Turn

RECEIVE_BYTES = 64 * 1024
RECORD_BYTES = 16 * 1024
"""As much is read at once in any case: a record of TLS, of which no part can be decrypted."""
SEND_BYTES = 1 << 20
"""The bytes that are encrypted in one turn of the event loop: two milliseconds."""
_CUT_OFF = "UNEXPECTED_EOF_WHILE_READING"


class TlsStream(trio.abc.Stream):
    """A connection of a client; the handshake is to be made before anything else.

    As HTTP has it, the end of a connection without a word of TLS is an end like others, and no
    such word is said where this end closes. An operation that was cancelled while it sent leaves
    a broken stream.
    """

    def __init__(self, connection: trio.SocketStream, context: ssl.SSLContext) -> None:
        self.connection = connection
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._flushing = trio.Lock()
        self._at_work: set[str] = set()
        self._has_ended = self._is_broken = self._is_closed = False

    @property
    def context(self) -> ssl.SSLContext:
        """The settings that the connection was accepted with."""
        return self._tls.context

    @property
    def certificate(self) -> bytes | None:
        """The certificates that the client has shown, as DER, once the handshake is over."""
        return self._tls.getpeercert(binary_form=True)

    async def do_handshake(self, turn: Turn) -> None:
        """Make the handshake, each step of which waits for its turn.

        Raises trio.BrokenResourceError; the client is told what failed.
        """
        try:
            while not self._shook_hands():
                await self._flush()
                await self._fill()
                await turn()
        except ssl.SSLError as error:
            await self._flush()
            self._is_broken = True
            raise trio.BrokenResourceError from error
        await self._flush()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """All that has come, of `max_bytes` at most; empty at the end.

        Raises trio.BrokenResourceError. Cancelled, it loses nothing.
        """
        if max_bytes is not None and max_bytes < 1:
            raise ValueError("max_bytes must be >= 1")
        max_bytes = min(max_bytes or RECEIVE_BYTES, RECEIVE_BYTES)
        with self._alone("receive"):
            await trio.lowlevel.checkpoint_if_cancelled()
            while True:
                data = self._decrypted(max_bytes)
                if data is not None:
                    await trio.lowlevel.cancel_shielded_checkpoint()
                    return data
                await self._flush()  # What came may be something for TLS itself to answer.
                await self._fill(max(max_bytes, RECORD_BYTES))

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send everything. Raises trio.BrokenResourceError."""
        with self._alone("send"):
            self._fail_if_over()
            if not data:  # For TLS that is an error.
                await self.connection.send_all(data)
                return
            rest = memoryview(data)
            while rest:
                try:
                    self._tls.write(rest[:SEND_BYTES])
                except ssl.SSLError as error:
                    self._is_broken = True
                    raise trio.BrokenResourceError from error
                rest = rest[SEND_BYTES:]
                await self._flush()

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until the connection takes more."""
        with self._alone("send"):
            await self.connection.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """Close the connection."""
        self._is_closed = True
        await self.connection.aclose()

    def _shook_hands(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def _decrypted(self, limit: int) -> bytes | None:
        """The bytes that are there; None: nothing yet. Raises trio.BrokenResourceError."""
        self._fail_if_over()
        pieces = list[bytes]()
        try:
            while limit and not self._has_ended:
                pieces.append(self._tls.read(limit))
                limit -= len(pieces[-1])
                self._has_ended = not pieces[-1]
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self._has_ended = _is_end(error)
            self._is_broken = not self._has_ended
            if self._is_broken and not pieces:
                raise trio.BrokenResourceError from error
        return b"".join(pieces) if pieces or self._has_ended else None

    async def _fill(self, max_bytes: int = RECEIVE_BYTES) -> None:
        data = await self.connection.receive_some(max_bytes)
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    async def _flush(self) -> None:
        """Send what TLS wants to be sent, in the order in which it was made."""
        while self._outgoing.pending:
            try:
                self._flushing.acquire_nowait()
            except trio.WouldBlock:
                await self._flushing.acquire()
            try:
                await self.connection.send_all(self._outgoing.read())
            except BaseException:
                self._is_broken = True
                raise
            finally:
                self._flushing.release()

    def _fail_if_over(self) -> None:
        if self._is_closed:
            raise trio.ClosedResourceError("this stream was closed")
        if self._is_broken:
            raise trio.BrokenResourceError("TLS has failed on this connection")

    @contextmanager
    def _alone(self, direction: str) -> Iterator[None]:
        if direction in self._at_work:
            raise trio.BusyResourceError(f"another task uses this stream to {direction}")
        self._at_work.add(direction)
        try:
            yield
        finally:
            self._at_work.discard(direction)


def _is_end(error: ssl.SSLError) -> bool:
    return isinstance(error, ssl.SSLEOFError) or _CUT_OFF in (error.strerror or "")
