"""HTTP/2 frames as they come: a few in a turn, and from a peer that sends too many only so fast.

A read of 256 KiB holds 29,000 frames without content, each of which costs a dozen microseconds or
more, whether it means anything or not: empty data, settings, pings. So the frames of a read are
taken in turns of the event loop. Of a peer that is not trusted, as a plugin is not, a burst is
taken at once and then so many in a second, which all such peers share: those that send too many
in equal parts, others as they come. Bursts are shared, too, or a peer would have another one with
each connection.
"""

import asyncio
from asyncio import BaseTransport, Transport
from typing import cast

from attrs import define, field
from grpclib.config import Configuration
from grpclib.protocol import AbstractHandler, H2Protocol
from h2.config import H2Configuration

WORK_IN_A_TURN = 64
"""A frame is one unit of work, some twenty microseconds; long ones of some types are more."""
WORK_IN_A_SECOND = 2000.0
"""Of all peers together that wait, and as much again of all others that use up their bursts."""
BURST = 4000.0
BURSTS_OF_ALL = 16 * BURST
MAX_UNSENT_BYTES = 1 << 20
"""The most bytes that a peer leaves unread, such as answers to its pings; requests and answers to
calls wait before."""
LARGEST_SENT_FRAME = 64 << 10
"""Bytes. A peer may ask for frames of 16 MiB, each of which is kept whole until it has read it."""

PREFACE_BYTES = 24
"""The length of the text that a client sends before its first frame."""
_HEAD_BYTES = 9
_DATA, _HEADERS, _CONTINUATION = 0, 1, 9
_WORK_OF_CALL = 4
_BYTES_OF_HEADERS, _BYTES_OF_OTHERS = 8, 256
"""Units of work in fields of headers, which may have a byte each, and in such content as that of
settings."""


@define
class FrameCut:
    """Finds the frames in what comes; the first `_left` bytes belong to none that is counted."""

    _left: int = 0

    def take(self, data: bytearray) -> tuple[int, int]:
        """Return how many of the bytes are a turn's work, and how much of it that is.

        The head of a frame is left until all of it has come.
        """
        end, work = min(self._left, len(data)), 0
        self._left -= end
        while work < WORK_IN_A_TURN and len(data) - end >= _HEAD_BYTES:
            size = int.from_bytes(data[end : end + 3])
            work += _work(data[end + 3], size)
            frame_end = end + _HEAD_BYTES + size
            end = min(frame_end, len(data))
            self._left = frame_end - end
        return end, work


def _work(kind: int, size: int) -> int:
    if kind == _DATA:
        return 1
    if kind in (_HEADERS, _CONTINUATION):
        return _WORK_OF_CALL + size // _BYTES_OF_HEADERS
    return 1 + size // _BYTES_OF_OTHERS


@define
class FrameBudget:
    """The work that peers without trust may cause; `waiting` are those that sent too much."""

    waiting: int = 0
    _left: float = BURSTS_OF_ALL
    _at: float | None = None

    def take(self, wanted: float, now: float) -> float:
        """Take as much work for one of them as is left, up to what is wanted."""
        elapsed = 0.0 if self._at is None else now - self._at
        self._left = min(BURSTS_OF_ALL, self._left + elapsed * WORK_IN_A_SECOND)
        self._at = now
        given = min(wanted, self._left)
        self._left -= given
        return given

    def give_back(self, work: float) -> None:
        """Take back what a peer has not used."""
        self._left = min(BURSTS_OF_ALL, self._left + work)


@define
class Pace:
    """The work that one peer may still cause at once; `now` is in seconds of any clock."""

    _budget: FrameBudget
    _left: float = 0.0
    _at: float | None = None

    def delay_seconds(self, work: float, now: float) -> float:
        """Note work that was done. Returns the time to wait before more of it, mostly none.

        The next work is expected after that time, and none of what follows counts for it twice.
        """
        rate = WORK_IN_A_SECOND / max(1, self._budget.waiting)
        refill = BURST if self._at is None else max(0.0, now - self._at) * rate
        self._left += self._budget.take(min(BURST - self._left, refill), now)
        self._left -= work
        delay = max(0.0, -self._left / rate)
        self._left, self._at = max(0.0, self._left), now + delay
        return delay

    def end(self) -> None:
        """Give back what is left of the burst."""
        self._budget.give_back(self._left)
        self._left = 0.0

    def wait(self) -> None:
        """Count this peer among those that sent too much."""
        self._budget.waiting += 1

    def go_on(self) -> None:
        """Count it no more."""
        self._budget.waiting -= 1


@define
class _Unread:
    """The bytes of a connection whose turn has not come."""

    data: bytearray = field(factory=bytearray)
    next_turn: asyncio.Handle | None = None
    is_slowed: bool = False


class PacedProtocol(H2Protocol):
    """An end of a connection that takes frames in turns, and with a pace only so fast."""

    def __init__(
        self,
        handler: AbstractHandler,
        config: Configuration,
        h2_config: H2Configuration,
        *,
        preface_bytes: int = 0,
        pace: Pace | None = None,
    ) -> None:
        super().__init__(handler, config, h2_config)
        self._cut = FrameCut(preface_bytes)
        self._pace = pace
        self._unread = _Unread()
        self._transport: Transport | None = None

    def connection_made(self, transport: BaseTransport) -> None:
        """Begin the connection."""
        self._transport = cast("Transport", transport)
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Take what has come, or the first of it."""
        self._unread.data += data
        if self._unread.next_turn is None:
            self._take()

    def abort(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def drop_unsent(self) -> None:
        """Of a connection that is being closed, do not wait until the peer has read everything."""
        if self._transport is not None and self._transport.get_write_buffer_size():
            self._transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget what was not taken."""
        self._stop()
        super().connection_lost(exc)

    def _take(self) -> None:
        transport, unread = self._transport, self._unread
        self._go_on()
        if transport is None or transport.is_closing():
            unread.data.clear()
            return
        end, work = self._cut.take(unread.data)
        piece = bytes(unread.data[:end])
        del unread.data[:end]
        super().data_received(piece)
        h2 = self.connection._connection  # Which may have read that the peer takes larger ones.
        h2.max_outbound_frame_size = min(h2.max_outbound_frame_size, LARGEST_SENT_FRAME)
        if transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            transport.abort()  # To close it would be to wait until the peer reads.
            self._stop()
            return
        self._plan(transport, work)

    def _plan(self, transport: Transport, work: int) -> None:
        """Go on with the rest in another turn, or read more."""
        loop, unread = asyncio.get_running_loop(), self._unread
        delay = 0.0 if self._pace is None else self._pace.delay_seconds(work, loop.time())
        if delay > 0 and self._pace is not None:
            transport.pause_reading()
            self._pace.wait()
            unread.is_slowed = True
            unread.next_turn = loop.call_later(delay, self._take)
        elif work >= WORK_IN_A_TURN:
            transport.pause_reading()
            unread.next_turn = loop.call_soon(self._take)
        else:
            transport.resume_reading()

    def _go_on(self) -> None:
        if self._unread.is_slowed and self._pace is not None:
            self._pace.go_on()
        self._unread.next_turn, self._unread.is_slowed = None, False

    def _stop(self) -> None:
        if self._unread.next_turn is not None:
            self._unread.next_turn.cancel()
        self._go_on()
        if self._pace is not None:
            self._pace.end()
        self._unread.data.clear()
        self._transport = None
