"""Loop devices on a file: found in sysfs, and let go of. All of it blocks."""

import errno
import fcntl
import os
from pathlib import Path

_CLEAR_FD = 0x4C01
"""The request LOOP_CLR_FD of linux/loop.h."""
_SYSFS = Path("/sys/block")


def loop_devices_on(file: Path) -> tuple[Path, ...]:
    """Return the loop devices that were put on a file by this path. Raises OSError."""
    found = []
    for told in _SYSFS.glob("loop*/loop/backing_file"):
        try:
            name = told.read_bytes().removesuffix(b"\n")
        except (FileNotFoundError, NotADirectoryError):
            continue  # It was let go of meanwhile.
        if name == os.fsencode(file):
            found.append(Path("/dev") / told.parents[1].name)
    return tuple(found)


def release_loop_device(device: Path) -> None:
    """Have a loop device let go of its file; one that has none is fine. Raises OSError.

    While somebody has the device open, it does so when the last one closes it.
    """
    opened = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(opened, _CLEAR_FD)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
    finally:
        os.close(opened)
