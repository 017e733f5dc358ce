"""What is done to the volumes of pods, and how many there are, for those who count it.

Names of operations and plugins are the Go kubelet's: `volume_mount`, `kubernetes.io/csi:NAME`.
What is known of a pod's volumes goes when they are gone.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise

import trio
from attrs import define, field, frozen

from trio_kubelet.tasks.callbacks import Callbacks
from trio_kubelet.volumes.folders import plugin_folder
from trio_kubelet.volumes.plugin import VolumeBackOff, VolumeBusy, VolumeError
from trio_kubelet.volumes.resolved import ResolvedVolume

MOUNT, UNMOUNT = "volume_mount", "volume_unmount"
MAP, UNMAP = "map_volume", "unmap_volume"
UNMOUNT_DEVICE, UNMAP_DEVICE = "unmount_device", "unmap_device"
EXPAND = "volume_fs_resize"

DESIRED, ACTUAL = "desired_state_of_world", "actual_state_of_world"
"""The Go kubelet's words for volumes that pods are to have, and for those that they have."""


@frozen(kw_only=True)
class VolumeOperation:
    """An operation that came to its end."""

    plugin: str
    name: str
    seconds: float
    has_failed: bool = False
    total_seconds: float | None = None
    """Since the volume was to be mounted for the first time; None for no mount, or a failed one."""


@define
class _PodVolume:
    """A volume that a pod is to have, or has."""

    plugin: str
    is_block: bool
    wanted_at: float
    """Trio's time."""
    tells: bool = False
    """Its driver's calls are told of one by one."""
    is_mounted: bool = False
    is_wanted: bool = True


@define(eq=False)
class VolumeOperations:
    """Tells of operations on volumes."""

    on_operation: Callbacks[[VolumeOperation]] = field(factory=Callbacks)
    on_found: Callbacks[[int, int]] = field(factory=Callbacks)
    """Called at the start of the agent with the number of volumes that an earlier one has left in
    the folders of pods, and how many of them cannot be read."""
    _volumes: dict[str, dict[str, _PodVolume]] = field(init=False, factory=dict)
    """By the pod's UID, and the volume's name in folders."""

    def counts(self) -> Mapping[tuple[str, str], int]:
        """Return the number of volumes by plugin and DESIRED or ACTUAL."""
        found: Counter[tuple[str, str]] = Counter()
        for volumes in self._volumes.values():
            for each in volumes.values():
                found[each.plugin, DESIRED] += each.is_wanted
                found[each.plugin, ACTUAL] += each.is_mounted
        return found

    @contextmanager
    def measured(self, plugin: str, name: str) -> Iterator[None]:
        """Tell of what is done in the block; not of what is cancelled."""
        began_at = trio.current_time()
        try:
            yield
        except Exception:
            self._tell(plugin, name, began_at, has_failed=True)
            raise
        self._tell(plugin, name, began_at)

    @contextmanager
    def mounting(
        self, uid: str, volume: ResolvedVolume, plugin: str, *, is_renewed: bool, tells: bool
    ) -> Iterator[None]:
        """Tell of a volume that is mounted for a pod in the block, or is found mounted.

        `is_renewed`: what is in it is brought up to date each time, which is told, too.
        """
        began_at = trio.current_time()
        known = self._volumes.setdefault(uid, {}).setdefault(
            volume.spec_name, _PodVolume(plugin, volume.is_block, began_at, tells)
        )
        known.plugin, known.is_wanted = plugin, True
        name = MAP if known.is_block else MOUNT
        try:
            yield
        except VolumeError:
            self._tell(plugin, name, began_at, has_failed=True)
            raise
        except VolumeBackOff as problem:
            if problem.is_new and isinstance(problem.error, VolumeError):
                self._tell(plugin, name, began_at, has_failed=True)
            raise
        if is_renewed or not known.is_mounted:
            since = began_at if known.is_mounted else known.wanted_at
            self._tell(plugin, name, began_at, total_since=None if known.is_block else since)
        known.is_mounted = True

    @contextmanager
    def unmounting(self, uid: str) -> Iterator[None]:
        """Tell of all volumes of a pod, which are unmounted in the block."""
        began_at = trio.current_time()
        volumes = self._volumes.get(uid, {})
        for each in volumes.values():
            each.is_wanted = False
        try:
            yield
        except VolumeBusy as error:
            for name, each in volumes.items():
                folder = "volumeDevices" if each.is_block else plugin_folder(each.plugin)
                if (folder, name) in pairwise(error.path.parts) and not each.tells:
                    self._tell_unmounted(each, began_at, has_failed=True)
            raise
        for each in self._volumes.pop(uid, {}).values():
            if each.is_mounted and not each.tells:
                self._tell_unmounted(each, began_at)

    def left(self, uid: str, plugin: str, name: str) -> None:
        """Count a volume that was found in the folder of a pod which is unmounted."""
        self._volumes.setdefault(uid, {}).setdefault(
            name, _PodVolume(plugin, False, 0.0, is_mounted=True, is_wanted=False)
        )

    def _tell_unmounted(
        self, volume: _PodVolume, began_at: float, *, has_failed: bool = False
    ) -> None:
        name = UNMAP if volume.is_block else UNMOUNT
        self._tell(volume.plugin, name, began_at, has_failed=has_failed)

    def _tell(
        self,
        plugin: str,
        name: str,
        began_at: float,
        *,
        has_failed: bool = False,
        total_since: float | None = None,
    ) -> None:
        now = trio.current_time()
        self.on_operation.call(
            VolumeOperation(
                plugin=plugin,
                name=name,
                seconds=now - began_at,
                has_failed=has_failed,
                total_seconds=None if total_since is None else now - total_since,
            )
        )
