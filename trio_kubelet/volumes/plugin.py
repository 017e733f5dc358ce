"""A volume plugin, what comes out of it, and the threads that it works in.

A path of the node may be on a network file system that does not answer, and the removal of a large
volume takes minutes. Each kind of work has threads of its own, so that none waits for another:
not the pods whose volumes are on a disk that answers, and not the housekeeping. Within a kind a
pod has its share: all of its paths may be on the disk that does not answer. A thread that hangs is
one of this share alone, as many namespaces may have such paths, and a disk may be away for days.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from attrs import field, frozen

from trio_kubelet.k8s import Pod
from trio_kubelet.tasks.fair_limiter import FairLimiter, Share
from trio_kubelet.volumes.resolved import (
    NodeFullError,
    ResolvedVolume,
    UnattachedVolumeError,
    UnresolvedVolumeError,
)


@frozen(kw_only=True)
class MountedVolume:
    """A volume of a pod that is ready to be mounted into containers.

    `host_path` is the file or folder on the node, or `image` the name of the image that the
    runtime mounts, or `device` the one that containers get. `selinux_relabel` says that its files
    belong to the pod alone and may be labelled for it. `outdated` is why the volume still holds
    what it held before: the pod goes on with that, and the event `FailedMount` tells.
    """

    name: str
    host_path: str = ""
    image: str = ""
    device: str = ""
    read_only: bool = False
    selinux_relabel: bool = False
    outdated: "VolumeError | None" = None


AFFINITY_OF_DEVICE = "MapVolume.NodeAffinity check"
"""The one step of a device that the Go kubelet tells under the reason of the others."""


class VolumeError(Exception):
    """A volume cannot be prepared or removed; `str` of it is the message of the event.

    `volume` is its name in events (`ResolvedVolume.spec_name`), `step` what was being done;
    `detail` says more of that.
    """

    def __init__(
        self, volume: str, why: str, step: str = "MountVolume.SetUp", detail: str = ""
    ) -> None:
        self.volume = volume
        self.why = why
        is_mapped = step.startswith("MapVolume") and step != AFFINITY_OF_DEVICE
        self.reason = "FailedMapVolume" if is_mapped else "FailedMount"
        super().__init__(f'{step} failed{detail} for volume "{volume}" : {why}')


class VolumeBackOff(Exception):  # noqa: N818 - the state that the volume is in
    """A volume of a pod has failed, for `error`, and is not tried before `retry_at`, trio's time.

    `is_new`: it was tried just now, so no event has told of the error yet.
    """

    def __init__(
        self, error: VolumeError | UnresolvedVolumeError, retry_at: float, *, is_new: bool
    ) -> None:
        self.error = error
        self.retry_at = retry_at
        self.is_new = is_new
        super().__init__(str(error))


Problem = VolumeError | UnresolvedVolumeError | VolumeBackOff
"""Why a volume of a pod is not ready."""


class VolumesNotReady(Exception):  # noqa: N818 - the state that the pod is in
    """Some volumes of a pod cannot be prepared; each of `failures` is an event.

    They are reasons and messages of what was tried just now. The last one sums up what could not
    even be resolved, in the Go kubelet's form. `is_node_full`: no more volumes can be attached for
    the pod, and waiting is no use. `retry_at` is when it is worth trying again, in
    trio's time; None if any time may be.
    """

    def __init__(self, problems: Mapping[str, Problem]) -> None:
        """`problems` by the volumes' names in the pod, in its order."""
        back_offs = [each for each in problems.values() if isinstance(each, VolumeBackOff)]
        all_wait = len(back_offs) == len(problems)
        self.retry_at = min(each.retry_at for each in back_offs) if all_wait else None
        new = [each for each in problems.values() if _is_new(each)]
        self.failures = _failures(new, problems)
        self.is_node_full = any(isinstance(each, NodeFullError) for each in problems.values())
        super().__init__(
            "; ".join(message for _, message in _failures(problems.values(), problems))
        )


def _is_new(problem: Problem) -> bool:
    return problem.is_new if isinstance(problem, VolumeBackOff) else True


def _failures(problems: Iterable[Problem], unmounted: Iterable[str]) -> Sequence[tuple[str, str]]:
    """Return reasons and messages of problems; the names of all volumes that are not mounted."""
    errors = [each.error if isinstance(each, VolumeBackOff) else each for each in problems]
    failures = [(each.reason, str(each)) for each in errors if isinstance(each, VolumeError)]
    unresolved = [each for each in errors if isinstance(each, UnresolvedVolumeError)]
    if unresolved:
        words = "; ".join(dict.fromkeys(map(str, unresolved)))
        unattached = [each for each in unresolved if isinstance(each, UnattachedVolumeError)]
        failed = [each.volume for each in unresolved if each not in unattached]
        summary = (
            f"Unable to attach or mount volumes: unmounted volumes={_listed(unmounted)}, "
            f"unattached volumes={_listed(each.volume for each in unattached)}, "
            f"failed to process volumes={_listed(failed)}: {words}"
        )
        failures.append(("FailedMount", summary))
    return failures


def _listed(names: Iterable[str]) -> str:
    """Return names as Go prints a list."""
    return f"[{' '.join(sorted(names))}]"


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

    async def set_up(self, pod: Pod, volume: ResolvedVolume) -> MountedVolume:
        """Prepare a volume, or find it prepared, also by an earlier run of the agent.

        Raises VolumeError, or VolumeBackOff where trying again must wait. Cancelled, it leaves
        what the next call or `Volumes.tear_down` can deal with.
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
STUCK_SECONDS = 10.0
"""A thread that took longer hangs, mostly: another one does the work of others beside it."""
MAX_THREADS_WITH_STUCK = 128
VOLUMES_AT_ONCE = 20
"""Of one pod: most wait for drivers and for the API server while a few have the threads."""


def thread_limiter() -> FairLimiter:
    """Return threads for one kind of work, shared by namespaces and their pods."""
    return FairLimiter(
        MAX_THREADS,
        MAX_THREADS_OF_NAMESPACE,
        MAX_THREADS_OF_POD,
        stuck_seconds=STUCK_SECONDS,
        most_held=MAX_THREADS_WITH_STUCK,
    )


@frozen(kw_only=True)
class VolumeThreads:
    """One limiter for each kind of work, shared by namespaces and their pods.

    `preparing`: what is made in the folders of pods. `removing`: what is unmounted and deleted
    there. `host_paths`: every look at a path of the node outside of them. `owning`: what gives
    the files of volumes to the groups of pods. `listing`: which pods have a folder.
    """

    preparing: FairLimiter = field(factory=thread_limiter)
    removing: FairLimiter = field(factory=thread_limiter)
    host_paths: FairLimiter = field(factory=thread_limiter)
    owning: FairLimiter = field(factory=thread_limiter)
    listing: FairLimiter = field(factory=lambda: FairLimiter(1, 1))
