"""Looks whether the filesystem that holds the images can be measured.

Its size is what collecting images goes by, and the runtime tells only where it is. Where it is not
to be found, or has no size, the node's users are told as often as images would be collected.
"""

import os
from collections.abc import Iterable

import structlog
import trio

from trio_kubelet.rpc import RpcError
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.gate import RuntimeGate
from trio_kubelet.tasks.threads import run_in_thread
from trio_kubelet.telemetry import EventRecorder, EventType

log = structlog.get_logger("images")

PERIOD_SECONDS = 300.0
INVALID_DISK_CAPACITY = "InvalidDiskCapacity"
NO_CAPACITY = "invalid capacity 0 on image filesystem"


async def watch_image_filesystem(
    client: RuntimeClient,
    gate: RuntimeGate,
    recorder: EventRecorder,
    file_limiter: trio.CapacityLimiter,
) -> None:
    """Look every five minutes for ever, while the runtime is up."""
    while True:
        await gate.wait_up()
        try:
            found = await client.image_fs_info()
            # The first one counts, as for the Go kubelet; the others are of snapshotters.
            mount_points = [each.fs_id.mountpoint for each in found.image_filesystems[:1]]
            size = await run_in_thread(capacity_bytes, mount_points, limiter=file_limiter)
            if mount_points and not size:
                log.warning("image filesystem has no size", mountpoint=mount_points[0])
                recorder.node(EventType.WARNING, INVALID_DISK_CAPACITY, NO_CAPACITY)
        except RpcError as error:
            log.warning("image filesystem info failed, will retry", error=str(error))
        except Exception:
            log.exception("image filesystem check failed, will retry")
        await trio.sleep(PERIOD_SECONDS)


def capacity_bytes(mount_points: Iterable[str]) -> int:
    """The size of the filesystems together; one that cannot be asked has none. Blocks."""
    total = 0
    for mount_point in mount_points:
        try:
            found = os.statvfs(mount_point)
        except (OSError, ValueError):
            continue
        total += found.f_blocks * found.f_frsize
    return total
