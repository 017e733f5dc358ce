"""The files that a volume of configuration data is to hold, as values.

Pure: objects come in, a `Payload` comes out. What the Go kubelet says where a key is missing is
said here, too. Paths are made sure of once, for all sources: none leaves the volume, and none
gets in the way of the names that the writer uses itself (they begin with two dots).
"""

import os
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import PurePosixPath

from attrs import evolve, frozen

from trio_kubelet.k8s import ConfigMap, KeyToPath, Pod, Secret

DEFAULT_MODE = 0o644
"""Of files, where the API server has not put in its default."""

PRIVATE_MODE = 0o600
"""Of tokens and trust anchors in pods with an fsGroup or one user: nobody else needs to read."""

MAX_FILES = 10_000
MAX_BYTES = 8 << 20
"""Of one volume: an object has a mebibyte, which a projected volume can name again and again."""

_GROUP_MODE = 0o440
_MAX_PATH = 4096
_MAX_NAME = 255


@frozen(kw_only=True)
class VolumeFile:
    """One file: its content, permission bits, and owners where they matter (None: as it comes)."""

    content: bytes
    mode: int = DEFAULT_MODE
    user: int | None = None
    group: int | None = None

    def __repr__(self) -> str:
        return f"VolumeFile({len(self.content)} bytes, mode={self.mode:#o})"


Payload = Mapping[str, VolumeFile]
"""Files by their path within the volume."""


class VolumeTooLargeError(ValueError):
    """A volume has more files, or more in them, than one may have."""


class PayloadBuilder:
    """The files of one volume so far; later ones win where paths meet."""

    def __init__(self) -> None:
        self.files: dict[str, VolumeFile] = {}
        self._bytes = 0

    def expect(self, count: int) -> None:
        """Say how many files come together. Raises VolumeTooLargeError before any is made."""
        if count > MAX_FILES:
            raise VolumeTooLargeError(f"the volume has more than {MAX_FILES} files")

    def add(self, path: str, file: VolumeFile) -> None:
        """Add a file. Raises VolumeTooLargeError beyond MAX_FILES and MAX_BYTES."""
        self._bytes += len(file.content)
        if self._bytes > MAX_BYTES:
            raise VolumeTooLargeError(f"the files of the volume have more than {MAX_BYTES} bytes")
        self.files[path] = file
        self.expect(len(self.files))


@frozen(kw_only=True)
class ObjectSource:
    """The parts of a config map or a secret that a volume wants, and how its files are made."""

    items: tuple[KeyToPath, ...]
    mode: int
    optional: bool


def digest(payload: Payload) -> str:
    """Return a digest of the paths, the modes and the contents of a payload's files."""
    found = sha256()
    for path, file in sorted(payload.items()):
        name = os.fsencode(path)
        found.update(b"%d %d %o " % (len(name), len(file.content), file.mode))
        found.update(name)
        found.update(file.content)
    return found.hexdigest()


def add_config_map(files: PayloadBuilder, found: ConfigMap, source: ObjectSource) -> None:
    """Add a config map's files. Raises ValueError for an item whose key is not there."""
    missing = "configmap references non-existent config key"
    _add(files, (found.data, found.binary_data), source, missing)


def add_secret(files: PayloadBuilder, found: Secret, source: ObjectSource) -> None:
    """Add a secret's files. Raises ValueError for an item whose key is not there."""
    _add(files, (found.data,), source, "references non-existent secret key")


def _add(
    files: PayloadBuilder,
    data: Sequence[Mapping[str, str] | Mapping[str, bytes]],
    source: ObjectSource,
    missing: str,
) -> None:
    if not source.items:
        files.expect(sum(map(len, data)))
        for part in data:
            for key, content in part.items():
                files.add(key, VolumeFile(content=_encoded(content), mode=source.mode))
    for item in source.items:
        found = next((part[item.key] for part in reversed(data) if item.key in part), None)
        if found is not None:
            mode = source.mode if item.mode is None else item.mode
            files.add(item.path, VolumeFile(content=_encoded(found), mode=mode))
        elif not source.optional:
            raise ValueError(f"{missing}: {item.key}")


def _encoded(content: str | bytes) -> bytes:
    return content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content


def with_checked_paths(payload: Payload) -> Payload:
    """Return the payload with its paths in their shortest form.

    Raises ValueError for a path that leaves the volume, or that cannot be a file's.
    """
    return {_checked(path): file for path, file in payload.items()}


def _checked(path: str) -> str:
    clean = str(PurePosixPath(path))
    parts = PurePosixPath(path).parts
    if not parts:
        raise ValueError("invalid path: must not be empty")
    if path.startswith("/"):
        raise ValueError(f"invalid path: must be relative path: {path}")
    if ".." in parts:
        raise ValueError(f"invalid path: must not contain '..': {path}")
    if clean.startswith(".."):
        raise ValueError(f"invalid path: must not start with '..': {path}")
    if len(clean) > _MAX_PATH or any(len(part.encode()) > _MAX_NAME for part in parts):
        raise ValueError(f"invalid path: too long: {path}")
    if "\0" in path:
        raise ValueError("invalid path: must not have a zero byte")
    return clean


def for_group(payload: Payload, group: int | None) -> Payload:
    """Return the payload as a pod's fsGroup wants it: its own, and readable for it."""
    if group is None:
        return payload
    return {
        path: evolve(file, group=group, mode=file.mode | _GROUP_MODE)
        for path, file in payload.items()
    }


def without_owners(payload: Payload) -> Payload:
    """Return the payload for an agent that cannot give files away."""
    return {path: evolve(file, user=None, group=None) for path, file in payload.items()}


def fs_group(pod: Pod) -> int | None:
    """Return the pod's `securityContext.fsGroup`."""
    context = pod.spec.security_context
    return context.fs_group if context is not None else None


def common_user(pod: Pod) -> int | None:
    """Return the one user that all containers run as; None if there is none, or several."""
    own = pod.spec.security_context
    default = own.run_as_user if own is not None else None
    users: set[int | None] = set()
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        context = container.security_context
        user = context.run_as_user if context is not None else None
        users.add(default if user is None else user)
    return users.pop() if len(users) == 1 else None
