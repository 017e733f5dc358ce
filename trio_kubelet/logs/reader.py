"""A log as a stream: read in threads, a piece at a time, however long it is."""

import math
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack
from typing import TypeVar

import trio
from attrs import field, frozen

from trio_kubelet.k8s import ObjectMeta
from trio_kubelet.logs.changes import Follower, LogChanges
from trio_kubelet.logs.files import (
    LogPlace,
    OpenLog,
    TailSearch,
    open_folder,
    open_newest,
    open_next,
    read_piece,
)
from trio_kubelet.logs.lines import LogLines
from trio_kubelet.logs.options import LogOptions
from trio_kubelet.tasks.fair_limiter import FairLimiter, Share

T = TypeVar("T")

PIECE_BYTES = 256 * 1024
LAST_LINES_SECONDS = 1.0
"""The time that lines may take from the runtime into a file."""

THREADS = 8
THREADS_OF_NAMESPACE = 4
THREADS_OF_POD = 2


@frozen
class LogReader:
    """Reads logs; followed ones as `changes` tells."""

    changes: LogChanges
    threads: FairLimiter = field(
        factory=lambda: FairLimiter(THREADS, THREADS_OF_NAMESPACE, THREADS_OF_POD)
    )

    async def read(
        self, place: LogPlace, options: LogOptions, pod: ObjectMeta, has_ended: Callable[[], bool]
    ) -> AsyncGenerator[bytes, None]:
        """The pieces to send of a log; the first piece is empty, as soon as it is open.

        A followed one goes on until `has_ended` says that its container has, and all is read.
        Raises OSError.
        """
        share = self.threads.share_of(pod)
        with ExitStack() as stack:
            folder = await share.run_sync(lambda: open_folder(place))
            stack.callback(os.close, folder)
            files = [await share.run_sync(lambda: open_newest(folder, place.name))]
            stack.callback(_close, files)
            follower = None
            if options.follow:
                following = self.changes.following(folder, place.name, pod.uid)
                follower = stack.enter_context(following)
            lines, handover = LogLines(options), _Handover(follower)
            if options.tail_lines is not None:
                await _seek_tail(share, files[0], options.tail_lines)
            yield b""
            while not lines.full:
                # Looked at before the read: what was printed until then is read now.
                ended, is_over = has_ended(), handover.is_over(files)
                piece = await _next_piece(share, files[0], lines)
                if piece is not None:
                    yield piece
                elif follower is None:
                    yield lines.next_file()
                    return
                elif await _go_on(share, folder, place.name, files):
                    continue
                elif len(files) > 1 and (ended or is_over):
                    files.pop(0).file.close()
                    handover.again()
                    yield lines.next_file()
                elif ended:
                    return
                else:
                    with trio.move_on_at(handover.over_at):
                        await follower.wait()


async def _seek_tail(share: Share, opened: OpenLog, count: int) -> None:
    search = TailSearch(opened.file, count)
    offset = None
    while offset is None:
        offset = await share.run_sync(search.step)
    opened.file.seek(offset)


async def _next_piece(share: Share, opened: OpenLog, lines: LogLines) -> bytes | None:
    """The bytes to send of the next piece of a file, None at its end."""

    def read() -> bytes | None:
        data = read_piece(opened.file, PIECE_BYTES)
        return lines.feed(data) if data else None

    return await share.run_sync(read)


async def _go_on(share: Share, folder: int, name: str, files: list[OpenLog]) -> bool:
    """Open what follows a log that was rotated; whether there is something new.

    The log itself stays the first: it may have got lines between its last read and the
    rotation, and has to be read to its end again.
    """
    if len(files) > 1:
        return False
    try:
        following = await share.run_sync(lambda: open_next(folder, name, files[0]))
    except FileNotFoundError:
        return False  # It has been renamed, and the runtime has not made the new one yet.
    files += following
    return bool(following)


class _Handover:
    """Tells when the runtime writes no more to a log that was rotated.

    It writes to the next one then, and has closed this one. The first does not do: its two streams
    go over one after the other, and each line is on its way for a moment. If nobody is seen closing
    it, it is over some time after the first line of the next one.
    """

    def __init__(self, follower: Follower | None) -> None:
        self._follower = follower
        self.over_at = math.inf

    def is_over(self, files: list[OpenLog]) -> bool:
        """True if the first of some files gets nothing more."""
        if len(files) != 2:
            return len(files) > 2
        if not os.fstat(files[1].file.fileno()).st_size:
            return False
        now = trio.current_time()
        self.over_at = min(self.over_at, now + LAST_LINES_SECONDS)
        return now >= self.over_at or (self._follower is not None and self._follower.closed)

    def again(self) -> None:
        """The next file is the first one now."""
        self.over_at = math.inf
        if self._follower is not None:
            self._follower.closed = False


def _close(files: list[OpenLog]) -> None:
    for each in files:
        each.file.close()
