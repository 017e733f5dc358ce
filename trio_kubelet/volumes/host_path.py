"""hostPath: a file or folder of the node, as it is.

The only work is to check what is there, or to make it, where the volume asks for that.
"""

import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path

from attrs import frozen

from trio_kubelet.k8s import HostPathType, HostPathVolumeSource, Pod
from trio_kubelet.tasks.fair_limiter import FairLimiter, Share
from trio_kubelet.volumes.plugin import MountedVolume, VolumeError
from trio_kubelet.volumes.resolved import ResolvedVolume

_FOLDER_MODE = 0o755
_FILE_MODE = 0o644


@frozen
class _Rule:
    """The file that must be at the path, in words and as a test of its mode; the file to make."""

    words: str
    fits: Callable[[int], bool]
    make: Callable[[Path], None] | None = None


def _make_folder(path: Path) -> None:
    path.mkdir(_FOLDER_MODE, parents=True, exist_ok=True)


def _make_file(path: Path) -> None:
    path.touch(_FILE_MODE)


_RULES = {
    HostPathType.DIRECTORY: _Rule("directory", stat.S_ISDIR),
    HostPathType.DIRECTORY_OR_CREATE: _Rule("directory", stat.S_ISDIR, _make_folder),
    HostPathType.FILE: _Rule("file", stat.S_ISREG),
    HostPathType.FILE_OR_CREATE: _Rule("file", stat.S_ISREG, _make_file),
    HostPathType.SOCKET: _Rule("socket file", stat.S_ISSOCK),
    HostPathType.CHAR_DEVICE: _Rule("character device", stat.S_ISCHR),
    HostPathType.BLOCK_DEVICE: _Rule("block device", stat.S_ISBLK),
}


class HostPath:
    """The plugin for `hostPath`, of pods and of persistent volumes."""

    name = "kubernetes.io/host-path"

    def __init__(self, threads: FairLimiter) -> None:
        self._threads = threads

    async def set_up(self, pod: Pod, volume: ResolvedVolume) -> MountedVolume:
        """Check the path; raises VolumeError. Cancelled, a dead network disk is left waiting."""
        source = volume.source_as(HostPathVolumeSource)
        if ".." in source.path.split("/"):
            why = f"invalid HostPath `{source.path}`: must not contain '..'"
            raise VolumeError(volume.spec_name, why)
        try:
            look = partial(_problem, Path(source.path), source.type or "")
            share = self._threads.share_of(pod.metadata)
            why = await share.run_sync(look, abandon_on_cancel=True)
        except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
            raise VolumeError(volume.spec_name, str(error)) from error
        if why:
            raise VolumeError(volume.spec_name, why)
        return MountedVolume(name=volume.name, host_path=source.path, read_only=volume.read_only)

    async def tear_down(self, pod_uid: str, folder: Path, threads: Share) -> None:
        """Do nothing: what is on the node stays there."""


def _problem(path: Path, kind: str) -> str:
    """Return why a path does not fit, "" if it does; may make what is missing."""
    if kind == HostPathType.UNSET:
        return ""
    rule = _RULES.get(HostPathType(kind)) if kind in set(HostPathType) else None
    if rule is None:
        return f"{kind} is an invalid volume type"
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        if rule.make is not None:
            rule.make(path)
            return ""
        mode = 0
    return "" if rule.fits(mode) else f"hostPath type check failed: {path} is not a {rule.words}"
