"""A log as a stream: read in threads, a piece at a time, however long it is."""

import os
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack
from typing import TypeVar

import trio
from attrs import field, frozen

from trio_kubelet.logs.changes import LogChanges
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

T = TypeVar("T")

PIECE_BYTES = 256 * 1024
THREADS = 8


@frozen
class LogReader:
    """Reads logs; followed ones as `changes` tells."""

    changes: LogChanges
    limiter: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(THREADS))

    async def read(
        self, place: LogPlace, options: LogOptions, pod_uid: str, has_ended: Callable[[], bool]
    ) -> AsyncGenerator[bytes, None]:
        """What is to be sent of a log; the first piece is empty, as soon as it is open.

        A followed one goes on until `has_ended` says that its container has, and all is read.
        Raises OSError.
        """
        with ExitStack() as stack:
            folder = await self._in_thread(lambda: open_folder(place))
            stack.callback(os.close, folder)
            files = [await self._in_thread(lambda: open_newest(folder, place.name))]
            stack.callback(_close, files)
            follower = None
            if options.follow:
                follower = stack.enter_context(self.changes.following(folder, pod_uid))
            lines = LogLines(options)
            if options.tail_lines is not None:
                await self._seek_tail(files[0], options.tail_lines)
            yield b""
            while not lines.full:
                # Looked at before the read: what was printed until then is read now.
                ended, is_over = has_ended(), _is_over(files)
                piece = await self._next_piece(files[0], lines)
                if piece is not None:
                    yield piece
                elif follower is None:
                    yield lines.next_file()
                    return
                elif await self._go_on(folder, place.name, files):
                    continue
                elif len(files) > 1 and (ended or is_over):
                    files.pop(0).file.close()
                    yield lines.next_file()
                elif ended:
                    return
                else:
                    await follower.wait()

    async def _seek_tail(self, opened: OpenLog, count: int) -> None:
        search = TailSearch(opened.file, count)
        offset = None
        while offset is None:
            offset = await self._in_thread(search.step)
        opened.file.seek(offset)

    async def _next_piece(self, opened: OpenLog, lines: LogLines) -> bytes | None:
        """What is to be sent of the next piece of a file, None at its end."""

        def read() -> bytes | None:
            data = read_piece(opened.file, PIECE_BYTES)
            return lines.feed(data) if data else None

        return await self._in_thread(read)

    async def _go_on(self, folder: int, name: str, files: list[OpenLog]) -> bool:
        """Open what follows a log that was rotated; whether there is something new.

        The log itself stays the first: it may have got lines between its last read and the
        rotation, and has to be read to its end again.
        """
        if len(files) > 1:
            return False
        try:
            following = await self._in_thread(lambda: open_next(folder, name, files[0]))
        except FileNotFoundError:
            return False  # It has been renamed, and the runtime has not made the new one yet.
        files += following
        return bool(following)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(work, limiter=self.limiter)


def _is_over(files: list[OpenLog]) -> bool:
    """Whether nobody writes to the first file any more: its successor has been written to."""
    if len(files) == 2:
        return os.fstat(files[1].file.fileno()).st_size > 0
    return len(files) > 2


def _close(files: list[OpenLog]) -> None:
    for each in files:
        each.file.close()
