"""A log as a stream: read in threads, a piece at a time, however long it is."""

import math
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack
from functools import partial

import structlog
import trio
from attrs import define, field, frozen

from trio_kubelet.k8s import ObjectMeta
from trio_kubelet.logs.changes import Follower, LogChanges
from trio_kubelet.logs.files import (
    LogPlace,
    OpenLog,
    TailSearch,
    is_newest,
    open_folder,
    open_newest,
    open_next,
)
from trio_kubelet.logs.lines import LogLines
from trio_kubelet.logs.options import LogOptions
from trio_kubelet.logs.partial_lines import PartialLines
from trio_kubelet.tasks.fair_limiter import FairLimiter, Share
from trio_kubelet.tasks.pieces import StreamPieces

log = structlog.get_logger("logs")

MOST_PIECE_BYTES = 128 * 1024
LEAST_PIECE_BYTES = 8 * 1024
ALL_PIECES_BYTES = 1 << 20
"""Of the pieces that all readers have in hand."""
LAST_LINES_SECONDS = 10.0
"""The time that lines may take from the runtime into a file that nobody was seen closing."""

THREADS = 8
THREADS_OF_NAMESPACE = 4
THREADS_OF_POD = 2


@frozen
class LogReader:
    """Reads logs; followed ones as `changes` tells."""

    changes: LogChanges
    pieces: StreamPieces = field(
        factory=lambda: StreamPieces(MOST_PIECE_BYTES, LEAST_PIECE_BYTES, ALL_PIECES_BYTES)
    )
    partial_lines: PartialLines = field(factory=PartialLines)
    threads: FairLimiter = field(
        factory=lambda: FairLimiter(THREADS, THREADS_OF_NAMESPACE, THREADS_OF_POD)
    )

    async def read(
        self, place: LogPlace, options: LogOptions, pod: ObjectMeta, has_ended: Callable[[], bool]
    ) -> AsyncGenerator[bytes, None]:
        """The pieces to send of a log; the first piece is empty, as soon as it is open.

        A followed one goes on until `has_ended` says that its container has, and all is read. A
        reader that is so slow that files go unread loses whole lines; the agent's log says so.
        Raises OSError.
        """
        share = self.threads.share_of(pod)
        with ExitStack() as stack:
            stack.enter_context(self.pieces.one_more_stream())
            folder = await share.run_sync(lambda: open_folder(place))
            stack.callback(os.close, folder)
            follower = None
            if options.follow:
                # Before the log is opened: no file that is read is closed unseen.
                watching = self.changes.following(folder, place.name, pod.uid)
                follower = stack.enter_context(watching)
            opened = await share.run_sync(lambda: open_newest(folder, place.name))
            files = _LogFiles(share, folder, place, follower, opened)
            stack.callback(files.close)
            lines = LogLines(options)
            stack.callback(self.partial_lines.forget, lines)
            if options.tail_lines is not None:
                await _seek_tail(share, opened, options.tail_lines)
            yield b""
            while not lines.full:
                # Looked at before the read: what was printed until then is read now.
                ended, is_over = has_ended(), await files.is_over()
                read = partial(self._read_piece, files.current, lines, pod.namespace)
                piece = await share.run_sync(read)
                if piece is not None:
                    yield piece
                elif follower is None:
                    yield lines.end()
                    return
                elif await files.find_next():
                    continue
                elif files.following is not None and (ended or is_over):
                    lost = files.go_on(files.following)
                    yield lines.next_file(lost=lost)
                elif ended:
                    yield lines.flush()
                    return
                else:
                    if files.is_newest and (held := lines.flush()):
                        yield held
                    with trio.move_on_at(files.over_at):
                        await follower.wait()

    def _read_piece(self, opened: OpenLog, lines: LogLines, namespace: str) -> bytes | None:
        """Return the bytes to send of the next piece of a file, None at its end. Blocks."""
        with self.partial_lines.reading(lines, namespace):
            data = opened.read(self.pieces.size_bytes)
            return lines.feed(data) if data else None


async def _seek_tail(share: Share, opened: OpenLog, count: int) -> None:
    search = TailSearch(opened.file, count)
    offset = None
    while offset is None:
        offset = await share.run_sync(search.step)
    opened.file.seek(offset)


@define(eq=False)
class _LogFiles:
    """Owner of the file that a reader is in, and of the next one once that was rotated.

    The runtime goes on writing to a rotated file for a moment: its two streams go over one after
    the other, and each line is on its way for a moment. Then it closes the file, which is read to
    its end once more. If nobody is seen closing it, it is over some time after the first line of
    the next one.
    """

    share: Share
    folder: int
    place: LogPlace
    follower: Follower | None
    current: OpenLog
    following: OpenLog | None = None
    is_newest: bool = True
    """False if the current file was rotated, as far as is known."""
    over_at: float = math.inf
    has_lost_lines: bool = False

    async def is_over(self) -> bool:
        """True if the current file gets nothing more. Raises OSError."""
        following = self.following
        if following is None:
            return False
        closed = self.follower.closed if self.follower is not None else ()
        if following.is_rotated or self.current.rotated_name in closed:
            return True
        if not await self._is_newest(following):
            return True  # A file is rotated when the runtime has closed the one before it.
        if os.fstat(following.file.fileno()).st_size:
            self.over_at = min(self.over_at, trio.current_time() + LAST_LINES_SECONDS)
        return trio.current_time() >= self.over_at

    async def _is_newest(self, opened: OpenLog) -> bool:
        try:
            return await self.share.run_sync(
                partial(is_newest, self.folder, self.place.name, opened)
            )
        except FileNotFoundError:
            return False  # It has been renamed, and the runtime has not made the new one yet.

    async def find_next(self) -> bool:
        """Open what follows the current file, if that was rotated; true if it is new.

        The current one may have got lines between its last read and the rotation, and has to be
        read to its end again. Raises OSError.
        """
        if self.following is not None:
            return False
        find = partial(open_next, self.folder, self.place.name, self.current)
        try:
            self.following = await self.share.run_sync(find)
        except FileNotFoundError:
            self.is_newest = False
            return False
        self.is_newest = self.following is None
        return not self.is_newest

    def go_on(self, following: OpenLog) -> bool:
        """Go over to the next file; true if something between the two is lost."""
        lost = self.current.is_damaged or following.is_after_loss
        if lost and not self.has_lost_lines:
            self.has_lost_lines = True  # Said once: who is slow is slow all the time.
            log.warning("log follower lost lines", path=str(self.place.path))
        if self.follower is not None:
            self.follower.closed -= self.current.older | {self.current.rotated_name}
        self.current.file.close()
        self.current, self.following = following, None
        self.is_newest = not following.is_rotated
        self.over_at = math.inf
        return lost

    def close(self) -> None:
        """Close what is open."""
        self.current.file.close()
        if self.following is not None:
            self.following.file.close()
