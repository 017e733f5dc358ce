"""A connection over TLS: a read gives all that has come, not one record, as far as a turn has room.

What the API server passes on to a command comes in many small records, and each that is read by
itself is passed on by itself, which costs several times what its bytes do.

A record need not have data: it may change keys, or offer a session, and cost as much as twenty
records of data. So TLS gets a few records in a turn of the event loop, and a peer that sends one
after another without data loses the connection.
"""

import ssl
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

import trio
from attrs import define

from trio_kubelet.tasks.turns import Turn

RECEIVE_BYTES = 64 * 1024
RECORD_BYTES = 16 * 1024
"""As much is read at once in any case: a record of TLS, of which no part can be decrypted."""
SEND_BYTES = 1 << 20
"""The bytes that are encrypted in one turn of the event loop: two milliseconds."""
RECORDS_IN_A_TURN = 64
MOST_RECORDS_WITHOUT_DATA = 16
"""In a row, after the handshake; as many as Go's TLS takes."""
MOST_BYTES_WITHOUT_DATA = 32 * 1024
"""Of such records: one has a hundred sessions and more."""
_HEAD_BYTES = 5
"""A record begins with its type, its version and its length of two bytes."""
_CUT_OFF = "UNEXPECTED_EOF_WHILE_READING"


class TooManyRecordsError(ssl.SSLError):
    """The peer sends one record after another without data."""

    reason = "too many non-advancing records"
    """In Go's words."""


@define
class Records:
    """Bytes that have come and are to be decrypted, cut into records; TLS lacks `_lacks` of one.

    Bytes that are no TLS are cut anywhere, and mean nothing.
    """

    _data: bytes = b""
    _lacks: int = 0

    def put(self, data: bytes) -> None:
        """Take what has come."""
        self._data += data

    def take(self) -> tuple[bytes, int]:
        """Give what may be decrypted in a turn, and tell how many records end in it.

        The head of a record is left until all of it has come.
        """
        data, end, ended = self._data, 0, 0
        while ended < RECORDS_IN_A_TURN:
            if not self._lacks:
                if len(data) - end < _HEAD_BYTES:
                    break
                self._lacks = _HEAD_BYTES + int.from_bytes(data[end + 3 : end + _HEAD_BYTES])
            size = min(self._lacks, len(data) - end)
            end += size
            self._lacks -= size
            if self._lacks:
                break
            ended += 1
        self._data = data[end:]
        return data[:end], ended


class TlsStream(trio.abc.Stream):
    """One end of a connection; the handshake is to be made before anything else.

    It is the server's, or that of a client of `host`. Work on records is done in `working`.

    As HTTP has it, the end of a connection without a word of TLS is an end like others, and no
    such word is said where this end closes. An operation that was cancelled while it sent leaves
    a broken stream.
    """

    def __init__(
        self,
        connection: trio.abc.Stream,
        context: ssl.SSLContext,
        *,
        host: str | None = None,
        working: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.connection = connection
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=host is None, server_hostname=host
        )
        self._working = working
        self._turn: Turn = trio.lowlevel.checkpoint
        self._records = Records()
        self._records_without_data = self._bytes_without_data = 0
        self._flushing = trio.Lock()
        self._at_work: set[str] = set()
        self._has_ended = self._is_broken = self._is_closed = False
        self._failure: ssl.SSLError | None = None

    @property
    def context(self) -> ssl.SSLContext:
        """The settings that the connection was accepted with."""
        return self._tls.context

    @property
    def certificate(self) -> bytes | None:
        """The certificates that the client has shown, as DER, once the handshake is over."""
        return self._tls.getpeercert(binary_form=True)

    @property
    def protocol(self) -> str | None:
        """The protocol that both ends have agreed on, once the handshake is over."""
        return self._tls.selected_alpn_protocol()

    async def do_handshake(self, turn: Turn) -> None:
        """Make the handshake, each step of which waits for its turn, as later reads do.

        Raises trio.BrokenResourceError; the peer is told what failed.
        """
        self._turn = turn
        try:
            while not self._shook_hands():
                await self._flush()
                await self._go_on()
                await turn()
        except ssl.SSLError as error:
            with suppress(trio.BrokenResourceError):
                await self._flush()
            raise self._broken(error) from error
        self._records_without_data = self._bytes_without_data = 0
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
            while (data := self._decrypted(max_bytes)) is None:
                self._fail_if_idle()
                await self._flush()  # What came may be something for TLS itself to answer.
                if self._records_without_data:
                    await self._turn()
                await self._go_on(max(max_bytes, RECORD_BYTES))
            self._records_without_data = self._bytes_without_data = 0
            await trio.lowlevel.cancel_shielded_checkpoint()
            return data

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
                    with self._working():
                        self._tls.write(rest[:SEND_BYTES])
                except ssl.SSLError as error:
                    raise self._broken(error) from error
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
            with self._working():
                self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def _decrypted(self, limit: int) -> bytes | None:
        """The bytes that are there; None: nothing yet. Raises trio.BrokenResourceError."""
        self._fail_if_over()
        pieces = list[bytes]()
        try:
            with self._working():
                while limit and not self._has_ended:
                    pieces.append(self._tls.read(limit))
                    limit -= len(pieces[-1])
                    self._has_ended = not pieces[-1]
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self._has_ended = _is_end(error)
            if not self._has_ended:
                broken = self._broken(error)
                if not pieces:
                    raise broken from error
        return b"".join(pieces) if pieces or self._has_ended else None

    async def _go_on(self, max_bytes: int = RECEIVE_BYTES) -> None:
        """Give TLS what may be decrypted in this turn, once something is there, or the end."""
        data, ended = self._records.take()
        while not data:
            received = await self.connection.receive_some(max_bytes)
            if not received:
                self._incoming.write_eof()
                return
            self._records.put(bytes(received))
            data, ended = self._records.take()
        self._incoming.write(data)
        self._records_without_data += ended
        self._bytes_without_data += len(data)

    def _fail_if_idle(self) -> None:
        """Raises trio.BrokenResourceError if too much has come without data."""
        if (
            self._records_without_data > MOST_RECORDS_WITHOUT_DATA
            or self._bytes_without_data > MOST_BYTES_WITHOUT_DATA
        ):
            error = TooManyRecordsError()
            raise self._broken(error) from error

    def _broken(self, error: ssl.SSLError) -> trio.BrokenResourceError:
        """The failure of this connection, from now on."""
        self._is_broken = True
        self._failure = error.with_traceback(None)  # Whose frames have this stream.
        return trio.BrokenResourceError("TLS has failed on this connection")

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
            raise trio.BrokenResourceError("TLS has failed on this connection") from self._failure

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
