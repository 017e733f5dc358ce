"""File systems on disks: an empty disk is formatted, any other one is checked and mounted.

The host's tools do it: `blkid`, `mkfs`, `fsck` and `mount`. A disk on which there is anything at
all is never formatted.
"""

import os
import re
import shutil
from pathlib import Path

import structlog
from attrs import frozen

from trio_kubelet.tasks.fair_limiter import FairLimiter
from trio_kubelet.tasks.programs import ProgramEnd, run_program

log = structlog.get_logger("volumes")

PROBE_SECONDS = 60.0
CHECK_SECONDS = 3600.0
"""For `fsck` and `mkfs` of a large disk, which are not to be killed half done."""
MOUNT_SECONDS = 150.0
PROGRAMS, PROGRAMS_OF_NAMESPACE, PROGRAMS_OF_POD = 64, 8, 4
"""At once, of one kind: a check may take an hour, and a portal that is gone some minutes."""
MAX_OUTPUT_BYTES = 16 * 1024 * 1024
"""A program that writes more is killed, and `fsck` names each thing that it corrects."""
MAX_SHOWN_BYTES = 2048
"""Of a program's output in an error."""
DEFAULT_FS_TYPE = "ext4"

_FOLDERS_OF_TOOLS = "/usr/sbin:/sbin:/usr/bin:/bin"
_NOTHING_FOUND = "exit status 2"
"""The end of `blkid` for a disk without a known content."""
_CORRECTED = "exit status 1"
"""The end of `fsck` for a file system that is good again."""
_NO_RESERVE = ("-F", "-m0")
_MKFS_OPTIONS = {"ext3": _NO_RESERVE, "ext4": _NO_RESERVE, "xfs": ("-f",)}


_FS_TYPE = re.compile(r"[a-z0-9_.-]{1,32}")
"""It becomes part of the name of a program, `mkfs.TYPE`, and so must not lead to another folder."""


class MissingToolError(OSError):
    """A program of the host that is needed is not installed; the text says which."""


class FileSystemMismatchError(OSError):
    """A disk cannot be mounted, and has something else on it than the file system asked for."""


@frozen(kw_only=True)
class FileSystem:
    """The file system that a volume asks for; without a type, that which is there, or ext4.

    Raises ValueError for a type that cannot be the name of one.
    """

    fs_type: str = ""
    options: tuple[str, ...] = ()
    read_only: bool = False

    def __attrs_post_init__(self) -> None:
        if self.fs_type and not _FS_TYPE.fullmatch(self.fs_type):
            raise ValueError(
                f"fsType: Invalid value: {self.fs_type[:64]!r}: must be {_FS_TYPE.pattern}"
            )

    @property
    def mount_options(self) -> str:
        """The options for `mount`."""
        return ",".join(("ro" if self.read_only else "rw", "defaults", *sorted(set(self.options))))


def program_limiter() -> FairLimiter:
    """Return slots for programs of one kind, shared by namespaces and their pods."""
    return FairLimiter(PROGRAMS, PROGRAMS_OF_NAMESPACE, PROGRAMS_OF_POD)


async def run_tool(name: str, *arguments: str, seconds: float) -> ProgramEnd:
    """Run a program of the host to its end. Raises OSError, MissingToolError, ValueError.

    Its errors are in English.
    """
    program = shutil.which(name, path=f"{os.environ.get('PATH', '')}:{_FOLDERS_OF_TOOLS}")
    if program is None:
        raise MissingToolError(f"{name} is not installed on this node")
    return await run_program(
        (program, *arguments),
        seconds=seconds,
        max_stdout_bytes=MAX_OUTPUT_BYTES,
        environment={**os.environ, "LC_ALL": "C"},
    )


def failure(what: str, end: ProgramEnd) -> OSError:
    """Return the error for a program that has failed, with its output."""
    said = (end.stderr + end.stdout)[:MAX_SHOWN_BYTES].decode(errors="replace").strip()
    return OSError(
        f"{what} failed: {end.problem}: {said}" if said else f"{what} failed: {end.problem}"
    )


async def mount_disk(device: Path, target: Path, wanted: FileSystem) -> None:
    """Mount a disk on a folder; an empty one is formatted first.

    Raises FileSystemMismatchError, OSError, ValueError.
    """
    present = await _content(device)
    fs_type = wanted.fs_type or ("" if present else DEFAULT_FS_TYPE)
    if not present:
        if wanted.read_only:
            raise OSError(f"cannot mount unformatted disk {device} as it is to be read only")
        await _format(device, fs_type)
    elif not wanted.read_only:
        await _check(device)
    kind = ("-t", fs_type) if fs_type else ()
    words = (*kind, "-o", wanted.mount_options, str(device), str(target))
    end = await run_tool("mount", *words, seconds=MOUNT_SECONDS)
    if end.problem:
        if present in ("", fs_type):
            raise failure(f"mount of {device}", end)
        wish = f" as {fs_type}" if fs_type else ""
        why = failure(f"mount of {device}{wish}, it already contains {present}", end)
        raise FileSystemMismatchError(str(why))


async def _content(device: Path) -> str:
    """Return the type of what is on a disk, "" for an empty one. Raises OSError."""
    asked = ("-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", str(device))
    end = await run_tool("blkid", *asked, seconds=PROBE_SECONDS)
    if end.problem == _NOTHING_FOUND:
        return ""
    if end.problem:
        raise failure("blkid", end)
    told = dict(
        line.partition("=")[::2] for line in end.stdout.decode(errors="replace").split("\n")
    )
    return told.get("TYPE") or (f"partitions ({told['PTTYPE']})" if "PTTYPE" in told else "unknown")


async def _format(device: Path, fs_type: str) -> None:
    log.info("disk is empty and will be formatted", device=str(device), fs_type=fs_type)
    arguments = (*_MKFS_OPTIONS.get(fs_type, ()), str(device))
    end = await run_tool(f"mkfs.{fs_type}", *arguments, seconds=CHECK_SECONDS)
    if end.problem:
        raise failure(f"formatting of {device} as {fs_type}", end)


async def _check(device: Path) -> None:
    """Have a file system checked and repaired. Raises OSError if it stays damaged.

    What cannot be checked is left to `mount`.
    """
    try:
        end = await run_tool("fsck", "-a", str(device), seconds=CHECK_SECONDS)
    except MissingToolError:
        return
    if end.problem in ("", _CORRECTED):
        return
    if end.problem == "exit status 4":
        raise failure(f"fsck has found errors on {device} that it could not correct; it", end)
    log.info("file system could not be checked", device=str(device), problem=end.problem)
