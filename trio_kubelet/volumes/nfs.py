"""nfs: a folder that a server exports (API: NFSVolumeSource), of pods and of persistent volumes.

The kernel mounts it into the pod's folder, with the host's `mount` and `mount.nfs`: they find out
which version of the protocol the server speaks. A server that does not answer holds one program
of the pod, and no thread: whether the volume is mounted is read off the mount table, and nothing
looks at the files. They belong to whom the server says; no group is given them.

When the last mount of a server goes, the kernel takes it off the mount table and then waits for the
server to end the session: for minutes, if it does not answer. So no thread of the agent unmounts;
the host's `umount` does, which is killed after a minute. What was written and has not reached the
server is sent when it answers again: files with such data keep the kernel from ending the session.
"""

import os
import shutil
from collections.abc import Sequence
from functools import partial
from ipaddress import IPv6Address
from pathlib import Path

from attrs import define, field

from trio_kubelet.k8s import NFSVolumeSource, Pod
from trio_kubelet.kernel.mountinfo import (
    MountPoint,
    is_mounted,
    mount_points,
    mounts_at_or_below,
)
from trio_kubelet.tasks.concurrency import run_all_for_each
from trio_kubelet.tasks.fair_limiter import FairLimiter, Share
from trio_kubelet.tasks.programs import ProgramEnd, run_program
from trio_kubelet.tasks.threads import thread_wanted
from trio_kubelet.volumes.back_offs import BackOffs
from trio_kubelet.volumes.folders import FOLDER_MODE, PodFolders, make_folders, plugin_folder
from trio_kubelet.volumes.plugin import (
    VOLUMES_AT_ONCE,
    MountedVolume,
    VolumeBusy,
    VolumeError,
    VolumeThreads,
)
from trio_kubelet.volumes.resolved import ResolvedVolume

MOUNT_SECONDS = 150.0
"""`mount.nfs` itself gives up after two minutes."""
UNMOUNT_SECONDS = 60.0
"""The time for the server to answer, as in the Go kubelet."""
FORCED_UNMOUNT_SECONDS = 30.0
MOUNTS, MOUNTS_OF_NAMESPACE, MOUNTS_OF_POD = 16, 8, 4
"""Programs that mount at a time."""
UNMOUNTS, UNMOUNTS_OF_SERVER, UNMOUNTS_OF_POD = 16, 8, 4
"""Programs that unmount at a time. One export counts as a server."""
MAX_OUTPUT_BYTES = 2048

_HELPER = "mount.nfs"
_FOLDERS_OF_HELPERS = "/sbin:/usr/sbin"
"""The folders in which `mount` looks for its helpers, whatever PATH says."""


@define(eq=False)
class NFSVolume:
    """The plugin for `nfs`. `may_mount` is False for an agent without the right to."""

    _folders: PodFolders
    _threads: VolumeThreads
    _may_mount: bool
    _slots: FairLimiter = field(
        init=False, factory=lambda: FairLimiter(MOUNTS, MOUNTS_OF_NAMESPACE, MOUNTS_OF_POD)
    )
    _unmount_slots: FairLimiter = field(
        init=False, factory=lambda: FairLimiter(UNMOUNTS, UNMOUNTS_OF_SERVER, UNMOUNTS_OF_POD)
    )
    _back_offs: BackOffs = field(init=False, factory=BackOffs)

    name = "kubernetes.io/nfs"

    async def set_up(self, pod: Pod, volume: ResolvedVolume) -> MountedVolume:
        """Mount the folder unless it is mounted; raises VolumeError, VolumeBackOff.

        Cancelled, the program is killed; what it has mounted is found by the next call.
        """
        folder = self._folders.volume(pod.metadata.uid, self.name, volume.spec_name)
        key = pod.metadata.uid, volume.spec_name
        self._back_offs.check(key)
        try:
            await self._mount(pod, volume, folder)
        except (OSError, ValueError, RuntimeError) as error:
            problem = VolumeError(volume.spec_name, str(error))
            raise self._back_offs.failed(key, problem) from error
        self._back_offs.succeeded(key)
        return MountedVolume(name=volume.name, host_path=str(folder), read_only=volume.read_only)

    async def unmount(self, pod_uid: str, threads: Share) -> None:
        """Unmount all volumes of a pod, and what is mounted in them. Raises VolumeBusy, OSError.

        A mount that is still in the table after a minute is taken away by force, with what has not
        reached the server.
        """
        volumes = await threads.run_sync(partial(self._mounts_of, pod_uid))

        async def unmount(mounts: Sequence[MountPoint]) -> None:
            for mount in mounts:
                async with self._unmount_slots.share(mount.source, pod_uid):
                    await _unmount(mount.path, threads)

        await run_all_for_each(volumes, unmount, VOLUMES_AT_ONCE)

    async def tear_down(self, pod_uid: str, folder: Path, threads: Share) -> None:  # noqa: ARG002
        """Forget that the volume failed: the mount is gone, and the files are the server's."""
        self._back_offs.forget(pod_uid)

    def _mounts_of(self, pod_uid: str) -> Sequence[Sequence[MountPoint]]:
        """Return what is mounted on and in each volume of a pod, newest first. Blocks."""
        real = (self._folders.volumes(pod_uid) / plugin_folder(self.name)).resolve()
        mounts = mount_points(real)
        volumes = {each.path for each in mounts if each.path.parent == real}
        return tuple(mounts_at_or_below(volume, mounts) for volume in volumes)

    async def _mount(self, pod: Pod, volume: ResolvedVolume, folder: Path) -> None:
        """Have it mounted. Raises OSError, and what a program that cannot be run raises."""
        threads = self._threads.preparing.share_of(pod.metadata)
        await threads.run_sync(partial(make_folders, folder.parent, FOLDER_MODE))
        if await threads.run_sync(partial(is_mounted, folder)):
            return
        await threads.run_sync(partial(make_folders, folder, FOLDER_MODE))
        arguments = mount_arguments(
            volume.source_as(NFSVolumeSource),
            folder,
            (*volume.mount_options, *(("ro",) if volume.read_only else ())),
        )
        if not self._may_mount:
            raise PermissionError("this agent is not allowed to mount file systems")
        if await threads.run_sync(_is_helper_missing):
            raise FileNotFoundError(f"{_HELPER} is not installed on this node")
        async with self._slots.share_of(pod.metadata):
            end = await run_program(
                ("mount", *arguments), seconds=MOUNT_SECONDS, max_stdout_bytes=MAX_OUTPUT_BYTES
            )
        if end.problem:
            said = (end.stdout + end.stderr).decode(errors="replace")
            raise OSError(
                f"mount failed: {end.problem}\nMounting command: mount\n"
                f"Mounting arguments: {' '.join(arguments)}\nOutput: {said}"
            )


async def _unmount(path: Path, threads: Share) -> None:
    """Take one mount away, by force if that takes too long. Raises VolumeBusy, OSError."""
    end = await _run_umount(path, UNMOUNT_SECONDS)
    if not end.problem or not await threads.run_sync(partial(is_mounted, path)):
        return
    if end.is_late:
        end = await _run_umount(path, FORCED_UNMOUNT_SECONDS, "--force")
        if not end.problem or not await threads.run_sync(partial(is_mounted, path)):
            return
    said = end.stderr.decode(errors="replace").strip()
    raise VolumeBusy(path, f"{end.problem}: {said}" if said else end.problem)


async def _run_umount(path: Path, seconds: float, *options: str) -> ProgramEnd:
    """Run the host's `umount`. Raises OSError."""
    # `umount` itself is to ask neither the server nor for what is at the path.
    command = ("umount", "--internal-only", "--no-canonicalize", *options, str(path))
    with thread_wanted():
        return await run_program(command, seconds=seconds, max_stdout_bytes=MAX_OUTPUT_BYTES)


def mount_arguments(
    source: NFSVolumeSource, folder: Path, options: tuple[str, ...]
) -> tuple[str, ...]:
    """Return what `mount` is told. Raises ValueError for a server that would be an option."""
    server = source.server
    if server.startswith("-"):
        raise ValueError(f"server {server!r} is no name of a server")
    if _is_ipv6(server):
        server = f"[{server}]"
    told = ("-o", ",".join(sorted(set(options)))) if options else ()
    return ("-t", "nfs", *told, f"{server}:{source.path}", str(folder))


def _is_ipv6(server: str) -> bool:
    try:
        IPv6Address(server)
    except ValueError:
        return False
    return True


def _is_helper_missing() -> bool:
    return shutil.which(_HELPER, path=f"{_FOLDERS_OF_HELPERS}:{os.environ.get('PATH', '')}") is None
