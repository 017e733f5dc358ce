"""The kernel's log (`/dev/kmsg`), record by record, as it grows.

Programs may write to the log, too: what they wrote is told apart by its facility, which the kernel
does not let them choose. The log is a ring; who reads too slowly loses records, so that a flood of
them costs no more than a flood that is read.
"""

import errno
import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog
import trio
from attrs import frozen

log = structlog.get_logger("kernel")

KERNEL_LOG = Path("/dev/kmsg")
_LONGEST_RECORD = 1 << 14
_RECORDS_AT_ONCE = 200
_PAUSE_SECONDS = 0.02
_HEAD = re.compile(rb"(\d{1,10}),(\d{1,20}),\d+,[^;]*;([^\n]*)")
_FACILITY_SHIFT = 3


@frozen
class KernelRecord:
    """One record. `sequence` rises from boot to boot; `by_kernel`: no program has written it."""

    sequence: int
    by_kernel: bool
    text: str


def parse_record(data: bytes) -> KernelRecord | None:
    """Return what one read gave (Documentation/ABI/testing/dev-kmsg); None if it is no record."""
    matched = _HEAD.match(data)
    if matched is None:
        return None
    priority, sequence, text = matched.groups()
    return KernelRecord(
        sequence=int(sequence),
        by_kernel=int(priority) >> _FACILITY_SHIFT == 0,
        text=text.decode("ascii", "backslashreplace"),
    )


class KernelLog:
    """An open log, from its oldest record on."""

    __slots__ = ("_file",)

    def __init__(self, file: int) -> None:
        self._file = file

    async def records(self) -> AsyncIterator[tuple[KernelRecord, ...]]:
        """Yield records as they come, those that are there at once together. Raises OSError.

        Those that were overwritten before they were read are left out, and the log says so.
        """
        while True:
            await trio.lowlevel.wait_readable(self._file)
            batch = tuple(self._read_batch())
            if batch:
                yield batch
            if len(batch) == _RECORDS_AT_ONCE:
                await trio.sleep(_PAUSE_SECONDS)

    def _read_batch(self) -> Iterator[KernelRecord]:
        for _ in range(_RECORDS_AT_ONCE):
            try:
                data = os.read(self._file, _LONGEST_RECORD)
            except BlockingIOError:
                return
            except BrokenPipeError:  # In the kernel's words: the next record was overwritten.
                log.warning("kernel log records lost, they were overwritten before they were read")
                continue
            if not data:
                raise OSError(errno.EIO, "the log has ended")
            record = parse_record(data)
            if record is not None:
                yield record


@contextmanager
def open_kernel_log(path: Path = KERNEL_LOG) -> Iterator[KernelLog]:
    """Hold the log open. Raises OSError where it is not there or may not be read."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield KernelLog(file)
    finally:
        os.close(file)
