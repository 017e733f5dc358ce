"""Variables in a file on one of the pod's volumes, written by an init container (KEP-3721).

    # a comment
    NAME='any text, over several lines
    if need be, without single quotes'

It is what a POSIX shell would read, and nothing else that a shell would take. The file is a
container's work: it is opened beneath its volume, following no symlink, and never waited for.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from trio_kubelet.volumes.plugin import MountedVolume
from trio_kubelet.volumes.safe_open import open_file_beneath, opened_folder

MAX_BYTES = 1 << 20
"""More than that nobody could pass to a process anyway."""

_DECLARATION = re.compile(
    r"[ \t]*(?P<name>[^=\s#'][^=\s']*)='(?P<value>[^']*)'[ \t]*(?:#[^\n]*)?$", re.M
)
_NOTHING = re.compile(r"[ \t]*(?:#[^\n]*)?$", re.M)


def parse_env_file(text: str) -> Mapping[str, str]:
    """Return the variables of a file; the first declaration of a name counts.

    Raises ValueError with the number of a line that is none.
    """
    variables: dict[str, str] = {}
    position = 0
    while position < len(text):
        found = _DECLARATION.match(text, position)
        if found is not None:
            variables.setdefault(found["name"], found["value"])
        else:
            found = _NOTHING.match(text, position)
        if found is None:
            line = text.count("\n", 0, position) + 1
            raise ValueError(f"invalid environment variable format at line {line}")
        position = found.end() + 1
    return variables


def read_env_file(
    volumes: Mapping[str, MountedVolume], volume: str, path: str
) -> Mapping[str, str] | None:
    """Return the variables of a file on a pod's volume, None if it is not there.

    Blocks. Raises ValueError for a file that cannot be understood, OSError for one that cannot
    be read.
    """
    mounted = volumes.get(volume)
    if mounted is None:
        return None
    if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
        raise ValueError(f"{path} must stay inside its volume")
    try:
        with opened_folder(Path(mounted.host_path)) as folder:
            descriptor = open_file_beneath(folder, path)
    except FileNotFoundError:
        return None
    with open(descriptor, "rb") as stream:
        if os.fstat(stream.fileno()).st_size > MAX_BYTES:
            raise ValueError(f"{path} has more than {MAX_BYTES} bytes")
        return parse_env_file(stream.read(MAX_BYTES).decode("utf-8", "surrogateescape"))
