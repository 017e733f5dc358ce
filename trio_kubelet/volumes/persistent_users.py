"""The pods that have a persistent volume, as their folders tell: also those of an earlier agent.

A volume is in a pod's folder under its own name, as a device or below the folder of its plugin.
There a plugin may have volumes of pods, too, which anybody may name like somebody else's persistent
volume: only CSI tells them apart, by its record, and `local` has none.
"""

from collections.abc import Iterator
from pathlib import Path

from trio_kubelet.volumes.csi_records import PERSISTENT, PLUGIN, RecordError, read_record
from trio_kubelet.volumes.devices import LocalDevice
from trio_kubelet.volumes.folders import PodFolders


def pods_that_have(folders: PodFolders, name: str) -> frozenset[str]:
    """Return the UIDs of pods that have the persistent volume of a name. Blocks; raises OSError."""
    return frozenset(uid for uid in folders.uids() if any(_traces(folders, uid, name)))


def _traces(folders: PodFolders, uid: str, name: str) -> Iterator[bool]:
    yield any((plugin / name).is_symlink() for plugin in folders.devices(uid).glob("*"))
    yield folders.volume(uid, LocalDevice.name, name).is_dir()
    yield _is_persistent(folders.volume(uid, PLUGIN, name))


def _is_persistent(folder: Path) -> bool:
    """True if a pod's CSI volume is a persistent one, or may be as its record is not readable."""
    try:
        record = read_record(folder)
    except RecordError:
        return True
    return record is not None and record.lifecycle_mode == PERSISTENT
