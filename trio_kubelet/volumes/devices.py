"""Volumes as devices (`volumeMode: Block`): where a pod's devices are, as in the Go kubelet.

A link in the pod's folder names the device; the runtime is given that. Beside it the device is
bound into the plugin's folder under the pod's UID, which tells all pods that use it. The link is
made first and goes last, so that it names what is to be undone, whenever the agent is killed.
"""

import contextlib
import errno
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from attrs import frozen

from trio_kubelet.k8s import LocalVolumeSource, Pod
from trio_kubelet.kernel.loop_devices import loop_devices_on, release_loop_device
from trio_kubelet.kernel.mountinfo import mount_points
from trio_kubelet.tasks.fair_limiter import Share
from trio_kubelet.telemetry import EventRecorder, EventType
from trio_kubelet.volumes.folders import PodFolders, make_folders
from trio_kubelet.volumes.mount import MS_BIND, mount, unmount
from trio_kubelet.volumes.plugin import MountedVolume, VolumeBusy, VolumeError, VolumeThreads
from trio_kubelet.volumes.resolved import ResolvedVolume

_FILE_MODE = 0o640
_SET_UP = "MapVolume.SetUpDevice"


@frozen
class LocalDevice:
    """The plugin for the source `local` of persistent volumes of the mode Block."""

    name = "kubernetes.io/local-volume"

    _folders: PodFolders
    _threads: VolumeThreads
    _recorder: EventRecorder | None = None

    async def set_up(self, pod: Pod, volume: ResolvedVolume) -> MountedVolume:
        """Map the device; raises VolumeError. What was begun is finished."""
        device = Path(volume.source_as(LocalVolumeSource).path)
        link = self._folders.device(pod.metadata.uid, self.name, volume.spec_name)
        users = self._folders.device_users(self.name, volume.spec_name)
        share = self._threads.host_paths.share_of(pod.metadata)
        try:
            problem = await share.run_sync(partial(_problem, device), abandon_on_cancel=True)
            if problem:
                raise VolumeError(volume.spec_name, problem, _SET_UP)
            mapping = partial(map_device, device, link, users / pod.metadata.uid)
            is_new = await share.run_sync(mapping)
        except (OSError, ValueError) as error:
            raise VolumeError(volume.spec_name, str(error), _SET_UP) from error
        if is_new and self._recorder is not None:
            tell_mapped(self._recorder, pod, volume.spec_name, users, link)
        return MountedVolume(name=volume.name, device=str(link), read_only=volume.read_only)

    async def tear_down(self, pod_uid: str, folder: Path, threads: Share) -> None:
        """Do nothing: the devices of all plugins are unmapped alike."""


def tell_mapped(recorder: EventRecorder, pod: Pod, name: str, users: Path, link: Path) -> None:
    """Record the events of a volume that a pod has as a device, in the Go kubelet's words.

    `users` is the folder in which it is bound for the pod, `link` the pod's link to it.
    """
    for place in (f'globalMapPath "{users}"', f'volumeMapPath "{link.parent}"'):
        message = f'MapVolume.MapPodDevice succeeded for volume "{name}" {place}'
        recorder.pod(pod, EventType.NORMAL, "SuccessfulMountVolume", message)


def map_device(device: Path, link: Path, bound: Path) -> bool:
    """Make the link to a device and bind it; False if it is bound. Blocks; raises OSError."""
    link_device(device, link)
    return bind_device(device, bound)


def link_device(device: Path, link: Path) -> None:
    """Make the link to a device, which need not be there yet. Blocks; raises OSError."""
    make_folders(link.parent)
    if not link.is_symlink() or link.readlink() != device:
        link.unlink(missing_ok=True)
        link.symlink_to(device)


def bind_device(device: Path, bound: Path) -> bool:
    """Bind a device to a file of its own; False if it is bound. Blocks; raises OSError."""
    make_folders(bound.parent)
    real = bound.resolve()
    if any(each.path == real for each in mount_points(real)):
        return False
    bound.touch(_FILE_MODE)
    mount(str(device), bound, flags=MS_BIND)
    return True


def unmap_devices(folders: PodFolders, uid: str) -> None:
    """Undo `map_device` for all devices of a pod; a pod without any is fine.

    Blocks; raises OSError, VolumeBusy where a device cannot be unbound.
    """
    for link in _links(folders.devices(uid)):
        users = folders.device_users(link.parent.name, link.name)
        unbind_device(users / uid)
        link.unlink()
        _remove_if_empty(link.parent)
    _remove_if_empty(folders.devices(uid))


def unbind_device(bound: Path) -> None:
    """Undo `bind_device`, if it was done. Blocks; raises OSError, VolumeBusy.

    A Go kubelet that had the node has put a loop device on it, which would keep it busy.
    """
    for each in loop_devices_on(bound.parent.resolve() / bound.name):
        release_loop_device(each)
    try:
        unmount(bound)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOENT):
            raise VolumeBusy(bound, error.strerror or str(error)) from error
    bound.unlink(missing_ok=True)
    _remove_if_empty(bound.parent)


def _links(devices: Path) -> Iterator[Path]:
    with contextlib.suppress(FileNotFoundError):
        for plugin in tuple(devices.iterdir()):
            if plugin.is_dir() and not plugin.is_symlink():
                yield from (each for each in tuple(plugin.iterdir()) if each.is_symlink())
                _remove_if_empty(plugin)


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
            raise


def _problem(device: Path) -> str:
    """Return why a path is no device for a pod, "" if it is one."""
    if not device.is_absolute() or ".." in device.parts:
        return f"local volume path {str(device)!r} must be absolute, without '..'"
    try:
        mode = device.stat().st_mode
    except FileNotFoundError:
        return f'path "{device}" does not exist'
    return "" if stat.S_ISBLK(mode) else f'path "{device}" is no block device'
