"""The places at which CSI drivers publish volumes for a pod: folders and devices."""

from pathlib import Path

from attrs import frozen

from trio_kubelet.kernel.mountinfo import is_mounted
from trio_kubelet.kernel.whole_files import remove_whole
from trio_kubelet.volumes.csi_records import (
    RECORD,
    TARGET,
    DeviceFolders,
    RecordError,
    VolumeKey,
    VolumeRecord,
    mounts_of_staged,
    read_record,
    recorded_stages,
    require_folder,
    write_record,
)
from trio_kubelet.volumes.devices import bind_device, link_device, unbind_device
from trio_kubelet.volumes.folders import FOLDER_MODE, make_folders


@frozen
class PublishedFolder:
    """A volume in a pod's folder, whose record is beside it. The methods block."""

    folder: Path

    @property
    def name(self) -> str:
        """The volume's name in folders."""
        return self.folder.name

    @property
    def target(self) -> Path:
        """The path that the driver is given."""
        return self.folder / TARGET

    def key(self) -> VolumeKey | None:
        """Return the volume for which it was begun. Raises RecordError."""
        record = read_record(self.folder)
        return None if record is None else record.key

    def key_by_mount(self, root: Path) -> VolumeKey | None:
        """Return the volume whose stage is mounted here; None if it is none. Raises OSError."""
        real = self.folder.resolve() / TARGET
        stages = (each for each in recorded_stages(root) if each.device is None)
        return next((each.key for each in stages if real in mounts_of_staged(each)), None)

    def forget_if_gone(self) -> bool:
        """Remove the record and return True, unless something is mounted here. Raises OSError."""
        if is_mounted(self.target):
            return False
        remove_whole(self.folder / RECORD)
        return True

    def begin(self, record: VolumeRecord) -> None:
        """Write down that the driver is going to be asked. Raises OSError."""
        make_folders(self.folder, FOLDER_MODE)
        write_record(self.folder, record)

    def finish(self) -> None:
        """Raise OSError if containers would mount another folder, or none."""
        require_folder(self.target)


@frozen
class PublishedDevice:
    """A device of a pod: a link to the driver's target, which is bound for the pod's UID, too.

    The link is there before the driver is asked. The methods block.
    """

    name: str
    link: Path
    uid: str
    devices: DeviceFolders

    @property
    def target(self) -> Path:
        """The path that the driver is given."""
        return self.devices.published / self.uid

    def key(self) -> VolumeKey | None:
        """Return the volume for which it was begun. Raises RecordError."""
        if not self.link.is_symlink():
            return None
        record = read_record(self.devices.data)
        if record is None:
            raise RecordError(f"{self.devices.data}: there is no record of the volume")
        return record.key

    def begin(self, _record: VolumeRecord) -> None:
        """Write down that the driver is going to be asked. Raises OSError."""
        make_folders(self.devices.published, FOLDER_MODE)
        link_device(self.target, self.link)

    def finish(self) -> None:
        """Bind the device. Raises OSError."""
        bind_device(self.target, self.devices.users / self.uid)

    def undo(self) -> None:
        """Unbind it; one that is not bound is fine. Raises VolumeBusy, OSError."""
        unbind_device(self.devices.users / self.uid)


Published = PublishedFolder | PublishedDevice
