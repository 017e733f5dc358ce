"""An image that guests run from; `images.py` finds or builds it."""

from dataclasses import dataclass
from pathlib import Path

from lab.guest.recipe import Kernel


@dataclass(frozen=True, slots=True)
class GuestImage:
    """A folder with a disk, which nobody may change, and the root folder of its kernel."""

    folder: Path

    @property
    def kernel(self) -> Kernel:
        """Which kernel it has, as its name says."""
        return Kernel(self.folder.name.partition("-")[0])

    @property
    def disk(self) -> Path:
        return self.folder / "root.ext4"

    @property
    def kernel_root(self) -> Path:
        return self.folder / "kernel"
