"""The names of volumes in the Node's `volumesInUse`: so many bytes for each namespace.

The Node object has room for 1.5 MiB, in which the controller writes the same names once more
(`volumesAttached`). Were it full, nothing of the node could be told any more, and no volume of
anybody be attached. A volume that is in use is never left out, or the controller would detach it:
what there is no room for is not staged.
"""

from collections import Counter
from collections.abc import Hashable

from attrs import define, field

from trio_kubelet.volumes.plugin import VolumeError

MOST_BYTES_OF_NAMESPACE = 64 << 10
MOST_BYTES = 256 << 10
SURE_BYTES_OF_NAMESPACE = 2 << 10
"""A namespace has as much when there is no room for all, too; 110 of them have 220 KiB."""


@define
class NamesInUse:
    """Counts the bytes of names, by the namespaces of the pods that use the volumes."""

    _names: dict[Hashable, tuple[str, int]] = field(init=False, factory=dict)
    _of_namespace: Counter[str] = field(init=False, factory=Counter)

    def count(self, stage: Hashable, name: str, namespace: str) -> None:
        """Count the name of a stage for a namespace, and no more for the one before."""
        self.forget(stage)
        size_bytes = len(name.encode())
        self._names[stage] = namespace, size_bytes
        self._of_namespace[namespace] += size_bytes

    def forget(self, stage: Hashable) -> None:
        """Count the name of a stage no more."""
        if stage in self._names:
            namespace, size_bytes = self._names.pop(stage)
            self._of_namespace -= Counter({namespace: size_bytes})  # without those that have none

    def require_room(self, volume: str, name: str, namespace: str) -> None:
        """Raise VolumeError if there is no room for the name of one more volume."""
        size_bytes = len(name.encode())
        of_namespace = self._of_namespace[namespace] + size_bytes
        is_full = self._of_namespace.total() + size_bytes > MOST_BYTES
        most = SURE_BYTES_OF_NAMESPACE if is_full else MOST_BYTES_OF_NAMESPACE
        if of_namespace > most:
            raise VolumeError(
                volume,
                f"volumes in use of namespace {namespace}: Too long: their names may not be more "
                f"than {most} bytes together",
                "MountVolume.WaitForAttach",
            )
