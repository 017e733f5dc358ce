"""An agent that kills itself at a step with a local disk: `python -m ... ROOT DEVICE STEP`.

STEP is `before` or `after`, a module of `trio_kubelet.volumes` and a function that it calls.
"""

import importlib
import inspect
import os
import signal
import sys
from pathlib import Path

import trio
import trio.testing

from tests.integration.disk_node import DiskNode
from tests.integration.local_disk import bind_device
from tests.unit.references.cluster import open_cluster
from tests.unit.volumes.persistent import claiming_pod
from trio_kubelet.volumes import PodFolders


async def use_and_leave(root: Path, device: str) -> None:
    """Have a pod with the disk, and take it away again."""
    async with open_cluster() as cluster:
        bind_device(cluster, device)
        node = DiskNode(PodFolders(root), cluster)
        async with node.agent() as volumes:
            await volumes.prepare(claiming_pod("a"))
            await volumes.remove_pod("a")
            with trio.fail_after(120):
                while node.records():
                    await trio.testing.wait_all_tasks_blocked(0.05)


def die_at(moment: str, module_name: str, function_name: str) -> None:
    """Have this process killed when a function is called, or when it has done its work."""
    module = importlib.import_module(f"trio_kubelet.volumes.{module_name}")
    real = getattr(module, function_name)

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def blocking(*arguments: object, **named: object) -> None:
        if moment == "after":
            real(*arguments, **named)
        die()

    async def waiting(*arguments: object, **named: object) -> None:
        if moment == "after":
            await real(*arguments, **named)
        die()

    is_waiting = inspect.iscoroutinefunction(real)
    setattr(module, function_name, waiting if is_waiting else blocking)


if __name__ == "__main__":
    die_at(*sys.argv[3:])
    trio.run(use_and_leave, Path(sys.argv[1]), sys.argv[2])
