"""The place at the node where a volume is staged, as each kind of volumes has it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from attrs import frozen

from trio_kubelet.k8s import Pod
from trio_kubelet.tasks.fair_limiter import Share
from trio_kubelet.volumes.resolved import ResolvedVolume

Work = Callable[[], Awaitable[None]]


class VolumeStage(Protocol):
    """A place at the node where a volume is staged; two of the same place are equal."""

    @property
    def unique_name(self) -> str:
        """The volume in the Node's `volumesInUse` and `volumesAttached`."""
        ...

    @property
    def mark(self) -> tuple[str, str]:
        """The two parts of the name of the volume's mark."""
        ...

    @property
    def place_name(self) -> str:
        """The place. Different volumes have the same one, if one was made anew as the other."""
        ...

    @property
    def unstaging_name(self) -> tuple[str, str]:
        """Plugin and operation, as metrics tell of it when the volume is unstaged."""
        ...

    @property
    def may_be_attachable(self) -> bool:
        """False if it is known, before any pod needs the volume, that nobody attaches it."""
        ...

    async def is_attachable(self, volume: ResolvedVolume) -> bool:
        """True if a controller attaches the volume to nodes. Raises VolumeError."""
        ...

    async def why_node_is_full(self) -> str:
        """Return why the volume cannot be attached as the node has too many; "" if it may be."""
        ...

    async def begin_staging(self, pod: Pod, volume: ResolvedVolume, threads: Share) -> Work:
        """Write the record, and return the work that stages the volume; both raise VolumeError.

        Both take the pod's `threads`. The work may be done again, and cut off.
        """
        ...

    async def begin_unstaging(self, threads: Share) -> Work:
        """Return the work that undoes the stage and removes its record; both raise VolumeError."""
        ...

    async def discard(self, threads: Share) -> None:
        """Remove what `begin_staging` has written if no work followed. Raises OSError."""
        ...

    def __hash__(self) -> int:
        """Of the place."""
        ...


@frozen
class LeftStages:
    """The stages that an earlier agent has left on the disk, and which pods use which.

    `stages` are True where it is sure that the volume is staged. `doubtful` are pods with volumes,
    by name, each of which may be any of the stages.
    """

    stages: Mapping[VolumeStage, bool]
    users: Sequence[tuple[str, VolumeStage]]
    doubtful: Sequence[tuple[str, str]] = ()
