"""The file system that holds the images: where it is, how large, and what is free of it.

The runtime tells only where it is; the kernel measures it. Each measurement is a new one, because
what is removed next depends on it.
"""

import os
from collections.abc import Callable

import trio
from attrs import field, frozen

from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.images.collection import DiskSpace
from trio_kubelet.tasks.threads import run_in_thread

DEADLINE_SECONDS = 5.0


class DiskHangsError(Exception):
    """The file system of the images does not answer."""


def disk_space(folder: str) -> DiskSpace:
    """Measure the file system that a folder is on; none has no size. Blocks."""
    try:
        found = os.statvfs(folder)
    except (OSError, ValueError):
        return DiskSpace(available_bytes=0, capacity_bytes=0)
    return DiskSpace(
        available_bytes=found.f_bavail * found.f_frsize,
        capacity_bytes=found.f_blocks * found.f_frsize,
    )


@frozen(kw_only=True)
class ImageDisk:
    """The disk of the images; `measure_space` measures the file system of a folder, and blocks."""

    client: RuntimeClient
    measure_space: Callable[[str], DiskSpace] = disk_space
    _threads: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(1))

    async def measure(self) -> DiskSpace | None:
        """Its space now; None for a runtime that tells of none.

        Raises RpcError, and DiskHangsError after five seconds.
        """
        answer = await self.client.image_fs_info()
        # The first one counts, as for the Go kubelet; the others are of snapshotters.
        folders = [each.fs_id.mountpoint for each in answer.image_filesystems[:1]]
        if not folders:
            return None
        with trio.move_on_after(DEADLINE_SECONDS):
            return await run_in_thread(
                self.measure_space, folders[0], limiter=self._threads, abandon_on_cancel=True
            )
        raise DiskHangsError(f"the file system of {folders[0]} does not answer")
