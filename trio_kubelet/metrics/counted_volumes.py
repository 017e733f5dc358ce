"""Counts what is done to volumes, and calls to CSI drivers, with the Go kubelet's labels."""

from attrs import frozen

from trio_kubelet.csi import DriverCall
from trio_kubelet.metrics.definitions import Counts
from trio_kubelet.rpc import code_name
from trio_kubelet.stats.disk_usage import PodDisk
from trio_kubelet.volumes import VolumeOperation

NOT_MIGRATED = "false"
"""Volumes of the sources that CSI drivers have taken over are theirs; nothing is migrated here."""
WALK = "du"
"""The Go kubelet's word for counting files one by one, after the program that does it."""


@frozen
class VolumeCounter:
    """Is told, and counts."""

    counts: Counts

    def volume_operated(self, operation: VolumeOperation) -> None:
        """An operation on a volume came to its end."""
        status = "fail-unknown" if operation.has_failed else "success"
        self.counts.volume_operation_seconds.labels(
            NOT_MIGRATED, operation.name, status, operation.plugin
        ).observe(operation.seconds)
        if operation.total_seconds is not None:
            self.counts.volume_total_seconds.labels(
                f"overall_{operation.name}", operation.plugin
            ).observe(operation.total_seconds)

    def csi_called(self, call: DriverCall) -> None:
        """A call to a CSI driver came to its end."""
        code = "OK" if call.error is None else code_name(call.error.code)
        self.counts.csi_seconds.labels(call.driver, code, call.method, NOT_MIGRATED).observe(
            call.seconds
        )

    def volumes_found(self, count: int, unreadable: int) -> None:
        """The agent has started and found volumes of pods, of which it cannot read some."""
        self.counts.found_volumes.inc(count)
        self.counts.unreadable_volumes.inc(unreadable)

    def disk_walked(self, disk: PodDisk) -> None:
        """The files of a pod's volumes were counted."""
        for seconds in disk.seconds:
            self.counts.volume_seconds.labels(WALK).observe(seconds)
