"""Records on the disk of CSI drivers' volumes, in the Go kubelet's form.

`vol_data.json` says which driver has a volume and what it calls it, in the Go kubelet's form and
place, so that either takes over what the other has begun. There is one in the folder of each volume
of a pod, and one beside the place where a volume is staged for all its pods. The latter has a line
of the agent's own, which the Go kubelet reads over: whether the driver is asked to stage the
volume. A record cannot say whether the last call was answered; for that there are marks
(`doubt_marks.py`). Everything blocks.
"""

import errno
import hashlib
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import orjson
import structlog
from attrs import frozen

from trio_kubelet.csi.driver import is_driver_name
from trio_kubelet.kernel.mountinfo import is_mounted, mount_points
from trio_kubelet.kernel.whole_files import remove_whole, write_whole
from trio_kubelet.volumes.folders import FOLDER_MODE, PodFolders, plugin_folder

log = structlog.get_logger("volumes")

PLUGIN = "kubernetes.io/csi"
RECORD = "vol_data.json"
TARGET = "mount"
"""The name of the mount in the volume's folder."""
EPHEMERAL, PERSISTENT = "Ephemeral", "Persistent"
MAX_RECORD_BYTES = 64 * 1024

_STAGE = "globalmount"
"""The name of the stage beside its record."""
_DEVICES = "volumeDevices"
_NODE_STAGE = "trioKubeletNodeStage"
_ASKED, _NOT_ASKED = "called", "unsupported"
_PARTS_OF_STAGE = 5
"""The parts of a stage's path that name it: plugin (two), driver, digest, stage."""


class RecordError(Exception):
    """The record of a volume cannot be read, or is another's; the text says which, and why."""


class ReplacedFolderError(RecordError):
    """A symbolic link is in the place of the record's folder, and leads elsewhere."""


@frozen
class VolumeKey:
    """A volume, as its driver knows it."""

    driver: str
    handle: str

    @property
    def unique_name(self) -> str:
        """The name in the Node's `volumesInUse` and `volumesAttached`."""
        return f"{PLUGIN}/{self.driver}^{self.handle}"

    @property
    def digest(self) -> str:
        """The handle as part of a path."""
        return hashlib.sha256(self.handle.encode()).hexdigest()


@frozen(kw_only=True)
class VolumeRecord:
    """A volume of a pod as the driver knows it. `name` is the volume's in folders.

    `is_driver_asked`, of a stage: the driver was to stage it, in whatever version it was then; None
    where that is not known, as the Go kubelet has written the record.
    """

    name: str
    key: VolumeKey
    node: str
    lifecycle_mode: str = EPHEMERAL
    is_driver_asked: bool | None = None


@frozen
class DeviceFolders:
    """The folders of a volume that is a device, below the plugin's. `name` is the volume's."""

    root: Path
    name: str

    @property
    def stage(self) -> Path:
        """The driver's path when it stages the volume."""
        return self._all / "staging" / self.name

    @property
    def data(self) -> Path:
        """The folder of the record."""
        return self._all / self.name / "data"

    @property
    def users(self) -> Path:
        """The folder in which the device is bound for each pod, under its UID."""
        return self._all / self.name / "dev"

    @property
    def published(self) -> Path:
        """The folder in which the driver publishes the device for each pod, under its UID."""
        return self._all / "publish" / self.name

    @property
    def _all(self) -> Path:
        return self.root / "plugins" / PLUGIN / _DEVICES


@frozen(kw_only=True)
class StagePlace:
    """The place where a volume is staged: `path` is the driver's, `folder` has the record."""

    key: VolumeKey
    path: Path
    folder: Path
    device: DeviceFolders | None = None


def stage_place(root: Path, key: VolumeKey, device: str = "") -> StagePlace:
    """Return where a volume is staged; with its name in folders if it is a device."""
    if device:
        devices = DeviceFolders(root, device)
        return StagePlace(key=key, path=devices.stage, folder=devices.data, device=devices)
    folder = root / "plugins" / PLUGIN / key.driver / key.digest
    return StagePlace(key=key, path=folder / _STAGE, folder=folder)


def require_own(folder: Path, found: VolumeKey | None, wanted: VolumeKey) -> None:
    """Raise RecordError if a folder is another volume's than the one that is wanted there.

    Its driver would be asked to undo what it has not done, and never what it has.
    """
    if found is not None and found != wanted:
        raise RecordError(
            f"{folder} is in use for the volume {found.handle!r} of {found.driver}, which has the "
            f"same name as {wanted.handle!r} of {wanted.driver}"
        )


def attachment_name(key: VolumeKey, node: str) -> str:
    """Return the name of the VolumeAttachment of a volume that is attached to the node.

    The Go kubelet writes it down for volumes that are never attached, too.
    """
    return f"csi-{hashlib.sha256(f'{key.handle}{key.driver}{node}'.encode()).hexdigest()}"


def write_record(folder: Path, record: VolumeRecord) -> None:
    """Write the record into a volume's folder in a pod, so that it outlives a power failure.

    Raises OSError.
    """
    told = {
        **_named(record.name, record.key, record.node),
        "volumeLifecycleMode": record.lifecycle_mode,
    }
    write_whole(folder / RECORD, orjson.dumps(told), folder_mode=FOLDER_MODE, durable=True)


def write_stage_record(place: StagePlace, node: str, *, asks_driver: bool) -> None:
    """Write the record of a volume that is to be staged, as durably. Raises OSError.

    A driver that was asked to stage it before stays so on record, although it is not asked now.
    Raises RecordError while a device of the same name, which was there before, is staged: the
    place of a device has its name alone.
    """
    key = place.key
    told = {"volumeHandle": key.handle, "driverName": key.driver}
    found = stage_record(place)
    if place.device is not None:
        found = read_record(place.folder)
        require_own(place.folder, None if found is None else found.key, key)
        told = _named(place.device.name, key, node)
    is_known = asks_driver or found is None or found.is_driver_asked is not None
    if is_known:
        is_asked = asks_driver or (found is not None and found.is_driver_asked)
        told[_NODE_STAGE] = _ASKED if is_asked else _NOT_ASKED
    write_whole(place.folder / RECORD, orjson.dumps(told), folder_mode=FOLDER_MODE, durable=True)


def stage_record(place: StagePlace) -> VolumeRecord | None:
    """Return the record of a place; None if there is none that can be read.

    It may be another volume's if the place is a device's: one that was made anew as this one.
    """
    return _readable_record(place.folder)


def _named(name: str, key: VolumeKey, node: str) -> dict[str, str]:
    return {
        "specVolID": name,
        "volumeHandle": key.handle,
        "driverName": key.driver,
        "nodeName": node,
        "attachmentID": attachment_name(key, node),
    }


def read_record(folder: Path) -> VolumeRecord | None:
    """Return the record in a folder; None if there is none.

    Raises RecordError for one that cannot be read, or tells of no driver: whatever lies there
    keeps no agent from starting.
    """
    path = folder / RECORD
    if folder.is_symlink():
        raise ReplacedFolderError(
            f"{folder} is a symbolic link, which was put in the place of a folder"
        )
    try:
        with path.open("rb") as file:
            text = file.read(MAX_RECORD_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror or error}") from error
    try:
        told = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise RecordError(f"{path}: {error}") from error
    names = ("driverName", "volumeHandle")
    if not isinstance(told, dict) or not all(isinstance(told.get(name), str) for name in names):
        raise RecordError(f"{path}: driverName and volumeHandle must be texts")
    if not is_driver_name(told["driverName"]):
        raise RecordError(f"{path}: {told['driverName'][:64]!r} is no name of a driver")
    return VolumeRecord(
        name=folder.name,
        key=VolumeKey(told["driverName"], told["volumeHandle"]),
        node=str(told.get("nodeName", "")),
        lifecycle_mode=str(told.get("volumeLifecycleMode", "")),
        is_driver_asked={_ASKED: True, _NOT_ASKED: False}.get(str(told.get(_NODE_STAGE))),
    )


def is_readable(folder: Path) -> bool:
    """True if the record in a folder says which volume it is of."""
    try:
        return read_record(folder) is not None
    except RecordError:
        return False


def recorded_stages(root: Path) -> Iterator[StagePlace]:
    """Return the places of all volumes that were to be staged. Raises OSError.

    A record that cannot be read is left alone, and logged.
    """
    plugin = root / "plugins" / PLUGIN
    for path in (*plugin.glob(f"*/*/{RECORD}"), *plugin.glob(f"{_DEVICES}/*/data/{RECORD}")):
        record = _readable_record(path.parent)
        device = path.parents[1].name if path.parents[2].name == _DEVICES else ""
        if record is not None and stage_place(root, record.key, device).folder == path.parent:
            yield stage_place(root, record.key, device)


def recorded_users(folders: PodFolders) -> Iterator[tuple[str, str, StagePlace | None]]:
    """Return which pods have persistent volumes of which names, and where they are staged.

    The place is None where the record cannot be read, or is gone and something is mounted: the pod
    may use any volume. Raises OSError.
    """
    for uid in folders.uids():
        for folder in (folders.volumes(uid) / plugin_folder(PLUGIN)).glob("*"):
            try:
                record = read_record(folder)
            except RecordError as error:
                log.warning(
                    "volume record of a pod is not readable, no CSI volume is unstaged until the "
                    "pod has told its volume or is gone",
                    pod_uid=uid,
                    error=str(error),
                )
                yield uid, folder.name, None
                continue
            if record is None and is_mounted(folder / TARGET):
                yield uid, folder.name, None
            if record is not None and record.lifecycle_mode == PERSISTENT:
                yield uid, folder.name, stage_place(folders.root, record.key)
        for name in device_names(folders, uid):
            record = _readable_record(DeviceFolders(folders.root, name).data)
            if record is not None:
                yield uid, name, stage_place(folders.root, record.key, name)


def device_names(folders: PodFolders, uid: str) -> tuple[str, ...]:
    """Return the names of the devices that a pod has of CSI drivers, or was to have.

    A link in the pod's folder names each, from before the driver is asked for it. Blocks.
    """
    links = folders.devices(uid) / plugin_folder(PLUGIN)
    return tuple(link.name for link in links.glob("*") if link.is_symlink())


def _readable_record(folder: Path) -> VolumeRecord | None:
    try:
        return read_record(folder)
    except RecordError as error:
        log.warning("volume record is not readable", error=str(error))
        return None


def require_folder(target: Path) -> None:
    """Raise OSError if a driver has put anything but a folder where it was to mount a volume.

    Nothing is fine: there are drivers without mounts.
    """
    with suppress(FileNotFoundError):
        if not stat.S_ISDIR(target.lstat().st_mode):
            why = "the driver has put something there that is no folder"
            raise OSError(errno.ENOTDIR, why, str(target))


def remove_record(folder: Path, *, given_back: bool) -> None:
    """Remove the record and the place of the mount, which must be empty. Raises OSError.

    So it does for a record of a volume that was not given back, as a mount has hidden it until now.
    What drivers have put there in the place of a folder has no data, unless it is a file with some.
    """
    if not given_back and (folder / RECORD).exists():
        why = "something was mounted over it, so the driver has not been asked to unpublish it yet"
        raise OSError(errno.EBUSY, why, str(folder))
    target = folder / TARGET
    with suppress(FileNotFoundError):
        found = target.lstat()
        is_folder = stat.S_ISDIR(found.st_mode)
        if any(target.iterdir()) if is_folder else stat.S_ISREG(found.st_mode) and found.st_size:
            why = "nothing is mounted there any more, but there are files; move them away"
            raise OSError(errno.ENOTEMPTY, why, str(target))
        target.rmdir() if is_folder else target.unlink()
    remove_whole(folder / RECORD)


def remove_stage(place: StagePlace) -> None:
    """Remove the place of a volume that is not staged any more, and its record.

    Raises OSError if something is in the way: a mount, or files.
    """
    device = place.device
    _remove_folders(place.path, *((device.published, device.users) if device else ()))
    remove_whole(place.folder / RECORD)
    _remove_folders(place.folder, *((place.folder.parent,) if device else ()))


def discard_stage(place: StagePlace) -> None:
    """Remove the record of a volume that nobody was asked to stage, and the empty folders.

    Something that is mounted there is of an earlier agent, whose record was not readable, and
    stays with its record for the next one. Raises OSError.
    """
    if is_mounted(place.path):
        return
    remove_whole(place.folder / RECORD)
    with suppress(OSError):  # What is in the way was not made for the volume.
        remove_stage(place)


def remove_unrecorded_stages(root: Path) -> None:
    """Remove what an agent has left of stages that was killed before or after their records.

    Those are folders without a record. One with anything else in it, or mounted, stays. Blocks.
    """
    plugin = root / "plugins" / PLUGIN
    devices = tuple(plugin.glob(f"{_DEVICES}/*/data"))
    folders = (each for each in plugin.glob("*/*") if each.parent.name != _DEVICES)
    for folder in (*folders, *devices):
        if folder.is_dir() and not (folder / RECORD).exists():
            with suppress(OSError):
                remove_whole(folder / RECORD)
                _remove_folders(folder / _STAGE, folder)
                if folder in devices:
                    _remove_folders(folder.parent / "dev", folder.parent)


def _remove_folders(*folders: Path) -> None:
    for folder in folders:
        if folder.is_dir():
            folder.rmdir()


def mounts_of_staged(place: StagePlace) -> tuple[Path, ...]:
    """Return where else a file system is mounted, or a part of it, that is staged at a place.

    The stage itself may show up at other paths, where the root folder is mounted twice. Of a device
    it is where it is bound for pods.
    """
    if place.device is not None:
        folders = (place.device.published.resolve(), place.device.users.resolve())
        return tuple(each.path for each in mount_points() if each.path.parent in folders)
    real, mounts = place.path.parent.resolve() / place.path.name, mount_points()
    own = {(each.device, each.root) for each in mounts if each.path == real}
    suffix = real.parts[-_PARTS_OF_STAGE:]
    return tuple(
        each.path
        for each in mounts
        if each.path.parts[-_PARTS_OF_STAGE:] != suffix
        and any(
            each.device == device and Path(each.root).is_relative_to(root) for device, root in own
        )
    )
