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
from attrs import frozen

from trio_kubelet.volumes.plugin import MountedVolume
from trio_kubelet.volumes.safe_open import open_file_beneath, opened_folder

MAX_BYTES = 1 << 20
"""More than that nobody could pass to a process anyway."""
MAX_BYTES_OF_CONTAINER = 4 << 20
"""Of all its files together: what a thread reads in a fraction of a second."""

log = structlog.get_logger("volumes")

_DECLARATION = re.compile(
    r"[ \t]*(?P<name>[^=\s#'][^=\n']*)(?<!\s)='(?P<value>[^']*)'[ \t\r]*(?:#[^\n]*)?(?:\n|\Z)"
)
_NOTHING = re.compile(r"(?:[ \t\r]*+(?:#[^\n]*+)?+\n)++|[ \t\r]*+(?:#[^\n]*+)?+\Z")
"""Lines that say nothing, as many as there are.

It never takes back what it has matched: to be able to would take 250 bytes for each line.
"""


@frozen
class EnvFile:
    """The variables of a file: the first value of each name, up to a line that is no declaration.

    `problem` says which line that is; what is declared before it counts.
    """

    variables: Mapping[str, str]
    problem: str = ""


def parse_env_file(text: str) -> EnvFile:
    """Read all declarations of a file's text, in one pass."""
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
            return EnvFile(variables, f"invalid environment variable format at line {line}")
        position = found.end()
    return EnvFile(variables)


class EnvFiles:
    """The env files of one container; each is read once. Its methods block."""

    def __init__(self, volumes: Mapping[str, MountedVolume]) -> None:
        self._volumes = volumes
        self._read: dict[tuple[str, str], EnvFile | OSError | ValueError] = {}
        self._left_bytes = MAX_BYTES_OF_CONTAINER

    def variable(self, volume: str, path: str, name: str) -> str:
        """The value of a variable in a file on a volume.

        Raises LookupError with a message for users where the file has no such variable, ValueError
        for a file that cannot be understood, OSError for one that cannot be read.
        """
        mounted = self._volumes.get(volume)
        if mounted is None:
            raise LookupError(f'cannot find the volume "{volume}" referenced by FileKeyRef')
        file = self._file(mounted, path)
        if isinstance(file, Exception):
            raise file
        value = file.variables.get(name)
        if value is None and file.problem:
            raise ValueError(file.problem)
        if value is None:
            shown = Path(mounted.host_path, path)
            raise LookupError(f'environment variable key "{name}" not found in file "{shown}"')
        return value

    def _file(self, mounted: MountedVolume, path: str) -> EnvFile | OSError | ValueError:
        found = self._read.get((mounted.name, path))
        if found is None:
            shown = str(Path(mounted.host_path, path))
            try:
                found = parse_env_file(self._text(Path(mounted.host_path), path))
            except (OSError, ValueError) as error:
                log.warning("env file read failed", file=shown, error=str(error))
                found = error
            else:
                if found.problem:
                    log.warning("env file read failed", file=shown, error=found.problem)
            self._read[mounted.name, path] = found
        return found

    def _text(self, volume: Path, path: str) -> str:
        if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
            raise ValueError(f"{path} must stay inside its volume")
        with opened_folder(volume) as folder:
            descriptor = open_file_beneath(folder, path)
        with open(descriptor, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            if size > MAX_BYTES:
                raise ValueError(f"{path} has more than {MAX_BYTES} bytes")
            if size > self._left_bytes:
                raise ValueError(
                    f"with {path} the env files of the container have more than "
                    f"{MAX_BYTES_OF_CONTAINER} bytes"
                )
            read = stream.read(MAX_BYTES)
        self._left_bytes -= len(read)
        return read.decode("utf-8", "surrogateescape")
