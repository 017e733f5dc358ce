"""Variables in a file on one of the pod's volumes, written by an init container (KEP-3721).

    # a comment
    NAME='any text, over several lines
    if need be, without single quotes'

It is what a POSIX shell would read, and nothing else that a shell would take. The file is a
container's work: it is opened beneath its volume, following no symlink, and never waited for.
What is refused was tried on the Go kubelet v1.36.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import structlog

from trio_kubelet.volumes.plugin import MountedVolume
from trio_kubelet.volumes.safe_open import open_file_beneath, opened_folder

MAX_BYTES = 1 << 20
"""More than that nobody could pass to a process anyway."""

log = structlog.get_logger("volumes")

_DECLARATION = re.compile(
    r"[ \t]*(?P<name>[^=\s#'][^=\n']*)(?<!\s)='(?P<value>[^']*)'[ \t\r]*(?:#[^\n]*)?$", re.MULTILINE
)
_NOTHING = re.compile(r"[ \t\r]*(?:#[^\n]*)?$", re.MULTILINE)


def find_variable(text: str, name: str) -> str | None:
    """Return the first value that a file's text declares for a name, None if there is none.

    What comes after it is not looked at. Raises ValueError with the number of a line before it
    that is no declaration.
    """
    position = 0
    while position < len(text):
        found = _DECLARATION.match(text, position)
        if found is not None and found["name"] == name:
            return found["value"]
        found = found or _NOTHING.match(text, position)
        if found is None:
            line = text.count("\n", 0, position) + 1
            raise ValueError(f"invalid environment variable format at line {line}")
        position = found.end() + 1
    return None


def read_env_file(volumes: Mapping[str, MountedVolume], volume: str, path: str, name: str) -> str:
    """Return the value of a variable in a file on a pod's volume.

    Blocks. Raises LookupError with a message for users where the file has no such variable,
    ValueError for a file that cannot be understood, OSError for one that cannot be read.
    """
    mounted = volumes.get(volume)
    if mounted is None:
        raise LookupError(f'cannot find the volume "{volume}" referenced by FileKeyRef')
    file = Path(mounted.host_path, path)
    try:
        value = find_variable(_text(Path(mounted.host_path), path), name)
    except (OSError, ValueError) as error:
        log.warning("env file read failed", file=str(file), error=str(error))
        raise
    if value is None:
        raise LookupError(f'environment variable key "{name}" not found in file "{file}"')
    return value


def _text(volume: Path, path: str) -> str:
    if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
        raise ValueError(f"{path} must stay inside its volume")
    with opened_folder(volume) as folder:
        descriptor = open_file_beneath(folder, path)
    with open(descriptor, "rb") as stream:
        if os.fstat(stream.fileno()).st_size > MAX_BYTES:
            raise ValueError(f"{path} has more than {MAX_BYTES} bytes")
        return stream.read(MAX_BYTES).decode("utf-8", "surrogateescape")
