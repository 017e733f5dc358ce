"""The files that a volume of configuration data is to hold, as values.

Pure: objects come in, a `Payload` comes out. What the Go kubelet says where a key is missing is
said here, too. Paths are made sure of once, for all sources: none leaves the volume, and none
gets in the way of the names that the writer uses itself (they begin with two dots).
"""

from collections.abc import Mapping
from pathlib import PurePosixPath

from attrs import evolve, frozen

from trio_kubelet.k8s import ConfigMap, KeyToPath, Pod, Secret

DEFAULT_MODE = 0o644
"""Of files, where the API server has not put in its default."""

PRIVATE_MODE = 0o600
"""Of tokens and trust anchors in pods with an fsGroup or one user: nobody else needs to read."""

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


def config_map_payload(
    source: ConfigMap, items: tuple[KeyToPath, ...], default_mode: int, *, optional: bool
) -> Payload:
    """Return a config map's files. Raises ValueError for an item whose key is not there."""
    data = {key: text.encode("utf-8", "surrogateescape") for key, text in source.data.items()}
    data.update(source.binary_data)
    return _payload(data, items, default_mode, optional, "non-existent config key", "configmap ")


def secret_payload(
    source: Secret, items: tuple[KeyToPath, ...], default_mode: int, *, optional: bool
) -> Payload:
    """Return a secret's files. Raises ValueError for an item whose key is not there."""
    return _payload(source.data, items, default_mode, optional, "non-existent secret key", "")


def _payload(
    data: Mapping[str, bytes],
    items: tuple[KeyToPath, ...],
    default_mode: int,
    optional: bool,
    missing: str,
    who: str,
) -> Payload:
    if not items:
        return {
            key: VolumeFile(content=content, mode=default_mode) for key, content in data.items()
        }
    files: dict[str, VolumeFile] = {}
    for item in items:
        if item.key in data:
            mode = default_mode if item.mode is None else item.mode
            files[item.path] = VolumeFile(content=data[item.key], mode=mode)
        elif not optional:
            raise ValueError(f"{who}references {missing}: {item.key}")
    return files


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
