"""configMap, secret, downwardAPI and projected: files made of what the API server has.

The payload is collected at each sync, compared with what the volume holds, and written where it
differs: that is how a running pod gets a change. What may be confidential lives in memory. A pod
whose volume was prepared once keeps it when an object vanishes later or nobody answers.

Nothing of it is synced, which would cost each start of a pod several waits for the disk. Instead a
digest of the files is noted beside those that are on the disk before they are shown. After a loss
of power a volume whose files are not those of its note has never been complete.
"""

import os
import stat
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

import structlog
from attrs import field, frozen

from trio_kubelet.k8s import Pod, Volume
from trio_kubelet.kernel.whole_files import write_whole
from trio_kubelet.references.object_references import ObjectError
from trio_kubelet.tasks.clock import Clock
from trio_kubelet.tasks.fair_limiter import Share
from trio_kubelet.volumes.atomic_writer import has_data, held_digest, write_payload
from trio_kubelet.volumes.empty_dir import EmptyDir, MemoryAvailable
from trio_kubelet.volumes.folders import (
    PLUGIN_FOLDER_MODE,
    PodFolders,
    make_folder,
    make_folders,
)
from trio_kubelet.volumes.mount import has_own_file_system, mount_memory
from trio_kubelet.volumes.payload import Payload, digest, fs_group, without_owners
from trio_kubelet.volumes.plugin import MountedVolume, VolumeError, VolumeThreads
from trio_kubelet.volumes.resolved import ResolvedVolume
from trio_kubelet.volumes.safe_open import remove_tree

log = structlog.get_logger("volumes")

T = TypeVar("T")

_FOLDER_MODE = 0o777
_MARK = "ready"
"""The file with the digests of the payload and of the one before, a line each."""
_MARK_BYTES = 1024
_GROUP_MODE = 0o2550


@frozen
class ConfigurationKind:
    """A kind of volume: the plugin's name, and whether its content stays in memory."""

    name: str
    in_memory: bool


KINDS: Mapping[str, ConfigurationKind] = {
    "config_map": ConfigurationKind("kubernetes.io/configmap", in_memory=False),
    "secret": ConfigurationKind("kubernetes.io/secret", in_memory=True),
    "downward_api": ConfigurationKind("kubernetes.io/downward-api", in_memory=True),
    "projected": ConfigurationKind("kubernetes.io/projected", in_memory=True),
}
"""The kinds by the field of `Volume`."""


@frozen(kw_only=True)
class VolumeParts:
    """The parts that volumes of configuration data stand on.

    `privileged`: the agent may mount and give files away; otherwise memory is a folder and
    everything belongs to the agent's user (for a runtime without a kernel).
    """

    folders: PodFolders
    memory_available: MemoryAvailable
    threads: VolumeThreads
    clock: Clock
    privileged: bool


@frozen
class ConfigurationVolume:
    """The plugin for one kind."""

    kind: ConfigurationKind
    collect: Callable[[Pod, Volume], Awaitable[Callable[[], Payload]]]
    parts: VolumeParts = field(kw_only=True)

    @property
    def name(self) -> str:
        """The plugin's name."""
        return self.kind.name

    async def set_up(self, pod: Pod, volume: ResolvedVolume) -> MountedVolume:
        """Bring the volume up to date; raises VolumeError where it never was complete.

        Waits for the API server. Writing, once begun, is not cut off by cancellation.
        """
        folder = self.parts.folders.volume(pod.metadata.uid, self.name, volume.name)
        try:
            make = await self.collect(pod, volume.volume)
            now_ns = self.parts.clock.now_ns()
            await self._prepare(pod, partial(self._write, pod, volume.name, folder, make, now_ns))
        except (ObjectError, ValueError, OSError) as error:
            why = str(error)  # Not the error, which has all that the files were made of.
        else:
            return _mounted(volume, folder, None)
        if not await self._prepare(pod, partial(self._is_prepared, pod, folder)):
            raise VolumeError(volume.name, why)
        return _mounted(volume, folder, VolumeError(volume.name, why))

    async def tear_down(self, pod_uid: str, folder: Path, threads: Share) -> None:
        """Remove the files and the mark; raises OSError."""
        await threads.run_sync(partial(remove_tree, self._marks(pod_uid, folder.name)))
        await threads.run_sync(partial(remove_tree, folder))

    def _marks(self, pod_uid: str, name: str) -> Path:
        return self.parts.folders.plugin(pod_uid, EmptyDir.name, f"wrapped_{name}")

    def _write(
        self, pod: Pod, name: str, folder: Path, make: Callable[[], Payload], now_ns: int
    ) -> None:
        group, payload = fs_group(pod), make()
        if not self.parts.privileged:
            group, payload = None, without_owners(payload)
        if not self._is_there(folder):
            self._make(pod, name, folder)
        if group is not None:
            _give_to_group(folder, group)
        if not self._needs_mount:
            _note_digest(self._marks(pod.metadata.uid, name) / _MARK, digest(payload))
        if write_payload(folder, payload, group=group, now_ns=now_ns):
            log.debug("volume written", pod=pod.metadata.name, volume=name, files=len(payload))

    def _make(self, pod: Pod, name: str, folder: Path) -> None:
        make_folders(folder.parent, PLUGIN_FOLDER_MODE)
        make_folder(folder, _FOLDER_MODE)
        if self._needs_mount:
            mount_memory(folder, self.parts.memory_available(pod))
            marks = self._marks(pod.metadata.uid, name)
            make_folders(marks)
            (marks / _MARK).touch(0o644)

    def _is_there(self, folder: Path) -> bool:
        if not folder.is_dir():
            return False
        return not self._needs_mount or has_own_file_system(folder)

    @property
    def _needs_mount(self) -> bool:
        return self.kind.in_memory and self.parts.privileged

    def _is_prepared(self, pod: Pod, folder: Path) -> bool:
        """True if the volume holds what was written last, or before: all of it."""
        if not self._is_there(folder):
            return False
        if self._needs_mount:
            return has_data(folder)
        held = held_digest(folder)
        return held is not None and held in _noted_digests(
            self._marks(pod.metadata.uid, folder.name) / _MARK
        )

    async def _prepare(self, pod: Pod, work: Callable[[], T]) -> T:
        return await self.parts.threads.preparing.share_of(pod.metadata).run_sync(work)


def _note_digest(mark: Path, found: str) -> None:
    """Note a digest beside the last one: either may be of what the volume shows after a failure."""
    noted = _noted_digests(mark)
    if noted[-1:] != [found]:
        lines = (*noted[-1:], found)
        text = "".join(f"{each}\n" for each in lines)
        write_whole(mark, text.encode(), mode=0o644, folder_mode=PLUGIN_FOLDER_MODE)


def _noted_digests(mark: Path) -> list[str]:
    try:
        with mark.open("rb") as file:
            return file.read(_MARK_BYTES).decode(errors="replace").split()
    except FileNotFoundError:
        return []


def _mounted(volume: ResolvedVolume, folder: Path, outdated: VolumeError | None) -> MountedVolume:
    return MountedVolume(
        name=volume.name,
        host_path=str(folder),
        read_only=True,
        selinux_relabel=True,
        outdated=outdated,
    )


def _give_to_group(folder: Path, group: int) -> None:
    status = folder.stat()
    mode = stat.S_IMODE(status.st_mode)
    if status.st_gid != group:
        os.chown(folder, -1, group)
    if mode | _GROUP_MODE != mode:
        folder.chmod(mode | _GROUP_MODE)
