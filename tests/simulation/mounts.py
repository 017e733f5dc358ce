"""The mounts of the simulated node, which the agent reads in the place of the kernel's."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

from attrs import define, field, frozen

from trio_kubelet.kernel import mountinfo
from trio_kubelet.volumes import unmounting


@frozen
class Mount:
    """A mount of the driver: the volume that is on it."""

    volume: str
    device: int


@define(eq=False)
class MountTable:
    """The mounts of the driver by their paths, in the order in which they were made."""

    mounts: dict[str, Mount] = field(factory=dict)
    on_unmount: Callable[[str], None] = lambda _path: None
    """Called when the agent itself unmounts something."""

    @contextmanager
    def mounted(self) -> Iterator[None]:
        """While this is held, the agent finds these mounts on its machine, and no others."""
        with ExitStack() as stack:
            stack.enter_context(patch.object(mountinfo, "_MOUNTINFO", self))
            stack.enter_context(patch.object(unmounting, "unmount", self.unmount))
            yield

    def read_bytes(self) -> bytes:
        """The table as the kernel writes it."""
        return b"".join(
            f"{100 + n} 1 0:{each.device} / {path} rw - fuse.csi {each.volume} rw\n".encode()
            for n, (path, each) in enumerate(self.mounts.items())
        )

    def unmount(self, path: Path) -> None:
        """Unmount as the agent does it. Raises OSError."""
        if str(path) not in self.mounts:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), str(path))
        self.on_unmount(str(path))
        del self.mounts[str(path)]
