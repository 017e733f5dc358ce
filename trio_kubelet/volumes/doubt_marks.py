"""Marks of volumes about which a driver was asked, and of which nobody knows whether it was done.

A mark is made before a call and removed after its success. It is in a folder of the agent's own,
where the Go kubelet does not stumble over it. An agent that was killed in between finds it, and has
the driver asked again.

A call that undoes something is made without a mark where the disk takes no new file: it may be what
frees the disk. If the agent is killed in it, the next one finds the record and asks again: a volume
with a mount counts as done, one without as uncertain, and both are undone.
"""

import errno
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

import structlog
from attrs import frozen

from trio_kubelet.kernel.whole_files import remove_whole, sync_folder, write_whole
from trio_kubelet.volumes.folders import FOLDER_MODE

log = structlog.get_logger("volumes")

CSI_MARKS = "csi_calls"
"""The folder of marks of CSI volumes below the root folder: by pod and volume."""
STAGE_MARKS = f"{CSI_MARKS}/staged"
"""That of volumes which are staged: by driver and the volume's digest."""
MAX_NAME_CHARACTERS = 200
"""A file's name has 255 bytes, and one that is being written a few more than the mark's."""

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})


@frozen
class DoubtMarks:
    """The marks in a folder, which is the agent's own. The methods block.

    A mark is a file named by two parts: a pod and a volume, or a driver and a volume's digest.
    """

    folder: Path

    def make(self, owner: str, volume: str) -> None:
        """Mark a volume, so that it outlives a power failure. Raises OSError."""
        write_whole(self._path(owner, volume), b"", folder_mode=FOLDER_MODE, durable=True)

    def make_if_room(self, owner: str, volume: str) -> None:
        """Mark a volume, unless the disk is full or read only: that is logged. Raises OSError."""
        try:
            self.make(owner, volume)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            log.warning("volume is undone without a mark", volume=volume, error=str(error))

    def remove(self, owner: str, volume: str) -> None:
        """Remove a mark; one that is not there is fine. Raises OSError."""
        if remove_whole(self._path(owner, volume)):
            sync_folder(self.folder)

    def keep(self, marked: Iterable[tuple[str, str]]) -> None:
        """Remove the marks of all others. Raises OSError."""
        kept = {self._path(owner, volume) for owner, volume in marked}
        for path in self.folder.glob("*"):
            if path not in kept:
                path.unlink()

    def is_made(self, owner: str, volume: str) -> bool:
        """True if the volume is marked."""
        return self._path(owner, volume).exists()

    def _path(self, owner: str, volume: str) -> Path:
        """The mark's file. One whose name would be too long for a file has a digest in its name."""
        name = f"{owner}~{volume}"
        if len(name) > MAX_NAME_CHARACTERS:
            name = f"{owner}~{sha256(volume.encode()).hexdigest()}"
        return self.folder / name
