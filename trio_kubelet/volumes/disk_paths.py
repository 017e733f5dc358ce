"""Disks that are reached by one or several paths: waited for, found and removed as one."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import structlog
import trio
from attrs import frozen

from trio_kubelet.kernel.scsi_disks import SCSIDisks
from trio_kubelet.tasks.fair_limiter import Share
from trio_kubelet.volumes.disk_file_systems import (
    PROBE_SECONDS,
    MissingToolError,
    failure,
    run_tool,
)

log = structlog.get_logger("volumes")

WAIT_SECONDS = 10.0
"""The kernel has found a disk when the scan returns, and udev names it a moment later."""
LOOK_SECONDS = 0.25
"""Nobody tells when a disk or a multipath device is there."""

FindPaths = Callable[[], Sequence[str]]
"""Returns the names of the disks that are paths to the same one; blocks."""


@frozen
class DiskPaths:
    """The paths to disks. All that blocks is done in the `threads` of those who want it."""

    disks: SCSIDisks

    async def wait(self, find: FindPaths, what: str, threads: Share) -> Path:
        """Return the device of a disk that was scanned for. Raises OSError, naming `what`.

        Of several paths multipathd, where it is installed, makes one device, for which it waits;
        else the first path is the device.
        """
        deadline = trio.current_time() + WAIT_SECONDS
        while True:
            names = await threads.run_sync(find)
            device = await threads.run_sync(partial(self.device, names))
            is_over = trio.current_time() >= deadline
            if device is not None and (is_over or len(names) == 1 or self._is_multipath(device)):
                return device
            if is_over:
                raise OSError(f"no disk appeared for {what} within {WAIT_SECONDS:g} s")
            await trio.sleep(LOOK_SECONDS)

    def device(self, names: Sequence[str]) -> Path | None:
        """Return the device of a disk by its paths; None if it has none. Blocks."""
        if not names:
            return None
        multipath = next(filter(None, map(self.disks.multipath, names)), "")
        return self.disks.device(multipath or names[0])

    async def remove(self, find: FindPaths, threads: Share) -> None:
        """Have the kernel forget all paths to a disk. Raises OSError while it is in use."""
        names = await threads.run_sync(find)
        device = await threads.run_sync(partial(self.device, names))
        if device is not None and self._is_multipath(device):
            await self._flush_multipath(device.name)
        for name in names:
            if await threads.run_sync(partial(self.disks.is_in_use, name)):
                raise OSError(f"disk {name} is still mounted, or another device is made of it")
        for name in names:
            await threads.run_sync(partial(self.disks.remove, name))

    def _is_multipath(self, device: Path) -> bool:
        return device.name.startswith("dm-")

    async def _flush_multipath(self, device: str) -> None:
        """Have a multipath device taken apart. Raises OSError."""
        name = self.disks.mapped_name(device) or device
        try:
            end = await run_tool("multipath", "-f", name, seconds=PROBE_SECONDS)
        except MissingToolError as error:
            raise OSError(f"multipath device {name} cannot be taken apart: {error}") from error
        if end.problem:
            raise failure(f"multipath -f {name}", end)
        log.debug("multipath device taken apart", device=name)
