"""What a volume plugin is, and what comes out of it."""

from pathlib import Path
from typing import Protocol

from attrs import frozen

from trio_kubelet.k8s import Pod, Volume


@frozen(kw_only=True)
class MountedVolume:
    """A volume of a pod that is ready to be mounted into containers.

    `host_path` is the file or folder on the node. `selinux_relabel` says that its files belong
    to the pod alone and may be labelled for it. `outdated` is why the volume still holds what it
    held before: the pod goes on with that, and the event `FailedMount` tells.
    """

    name: str
    host_path: str
    read_only: bool = False
    selinux_relabel: bool = False
    outdated: "VolumeError | None" = None


class VolumeError(Exception):
    """A volume cannot be prepared or removed; `str` of it is the message of the event."""

    def __init__(self, volume: str, why: str) -> None:
        self.volume = volume
        self.why = why
        super().__init__(f'MountVolume.SetUp failed for volume "{volume}" : {why}')


class VolumesNotReady(Exception):  # noqa: N818 - the state that the pod is in
    """Some volumes of a pod cannot be prepared; each error is an event `FailedMount`."""

    def __init__(self, errors: tuple[VolumeError, ...]) -> None:
        self.errors = errors
        super().__init__("; ".join(map(str, errors)))


class VolumeBusy(Exception):  # noqa: N818 - the state that the volume is in
    """Something is still mounted at `path` and in use: what is there was left alone."""

    def __init__(self, path: Path, why: str) -> None:
        self.path = path
        self.why = why
        super().__init__(f"{path} cannot be unmounted: {why}")


class VolumePlugin(Protocol):
    """Prepares volumes of one kind of source."""

    @property
    def name(self) -> str:
        """The plugin's name, which also names folders: `kubernetes.io/empty-dir`."""
        ...

    async def set_up(self, pod: Pod, volume: Volume) -> MountedVolume:
        """Prepare a volume, or find it prepared, also by an earlier run of the agent.

        Raises VolumeError. Cancelled, it leaves what the next call or `Volumes.tear_down` can
        deal with.
        """
        ...

    async def tear_down(self, pod_uid: str, folder: Path) -> None:
        """Remove what `set_up` made, after everything at and below `folder` was unmounted.

        Raises OSError.
        """
        ...
