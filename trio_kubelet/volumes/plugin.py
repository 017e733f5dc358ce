"""A volume plugin, what comes out of it, and the threads that it works in.

A path of the node may be on a network file system that does not answer, and the removal of a large
volume takes minutes. Each kind of work has threads of its own, so that none waits for another:
not the pods whose volumes are on a disk that answers, and not the housekeeping. Within a kind a
pod has its share: all of its paths may be on the disk that does not answer.
"""

from pathlib import Path
from typing import Protocol

from attrs import field, frozen

from trio_kubelet.k8s import Pod, Volume
from trio_kubelet.tasks.fair_limiter import FairLimiter, Share


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

    async def tear_down(self, pod_uid: str, folder: Path, threads: Share) -> None:
        """Remove what `set_up` made, after everything at and below `folder` was unmounted.

        `threads` is the pod's share of those that remove. Raises OSError.
        """
        ...


MAX_THREADS = 16
"""Of one kind: enough for many mounts at once, few enough for a disk that hangs."""
MAX_THREADS_OF_NAMESPACE = 8
MAX_THREADS_OF_POD = 4
VOLUMES_AT_ONCE = 8
"""Of one pod: some wait for the API server while others have the threads."""


def _limiter() -> FairLimiter:
    return FairLimiter(MAX_THREADS, MAX_THREADS_OF_NAMESPACE, MAX_THREADS_OF_POD)


@frozen(kw_only=True)
class VolumeThreads:
    """One limiter for each kind of work, shared by namespaces and their pods.

    `preparing`: what is made in the folders of pods. `removing`: what is unmounted and deleted
    there. `host_paths`: every look at a path of the node outside of them. `listing`: which pods
    have a folder.
    """

    preparing: FairLimiter = field(factory=_limiter)
    removing: FairLimiter = field(factory=_limiter)
    host_paths: FairLimiter = field(factory=_limiter)
    listing: FairLimiter = field(factory=lambda: FairLimiter(1, 1))
