"""Cgroups of pods as their tasks want them, with the values of the QoS classes."""

from collections.abc import Callable, Iterable

import structlog
import trio

from trio_kubelet.errors import PreparationError
from trio_kubelet.k8s import Pod, PodQOSClass
from trio_kubelet.resources.cgroups import CgroupBusy, Cgroups
from trio_kubelet.resources.pod_resources import qos_class
from trio_kubelet.resources.systemd_slices import SystemdError

log = structlog.get_logger("cgroups")

TEND_SECONDS = 60.0


class PodCgroups:
    """Makes and removes cgroups of pods; those of the classes follow what pods ask for.

    `active` returns the pods that hold resources, with what they were allocated.
    """

    def __init__(self, cgroups: Cgroups, active: Callable[[], Iterable[Pod]]) -> None:
        self._cgroups = cgroups
        self._active = active
        self._counted: set[str] = set()

    async def ensure(self, pod: Pod) -> None:
        """Make the pod's cgroup. Raises PreparationError."""
        try:
            await self._cgroups.ensure(pod)
            asks = qos_class(pod) is not PodQOSClass.BEST_EFFORT
            if asks and pod.metadata.uid not in self._counted:
                await self._cgroups.update_qos(self._active())
                self._counted.add(pod.metadata.uid)
        except (OSError, SystemdError) as error:
            message = f"unable to ensure pod container exists: {error}"
            raise PreparationError("FailedCreatePodContainer", message) from error

    async def remove(self, uid: str) -> None:
        """Remove the pod's cgroup with all that is left in it. Raises PreparationError."""
        try:
            await self._cgroups.remove(uid)
            if uid in self._counted:
                await self._cgroups.update_qos(self._active())
                self._counted.discard(uid)
        except (OSError, SystemdError, CgroupBusy) as error:
            raise PreparationError("FailedKillPod", str(error)) from error

    async def tend_classes(self) -> None:
        """Write once a minute what the classes' cgroups lack, until cancelled."""
        while True:
            await trio.sleep(TEND_SECONDS)
            try:
                await self._cgroups.update_qos(self._active())
            except (OSError, SystemdError) as error:
                log.warning("update of QoS cgroups failed", error=str(error))

    async def list_pod_uids(self) -> Iterable[str]:
        """The UIDs of all pods that have a cgroup."""
        return await self._cgroups.list_pod_uids()


class NoCgroups:
    """For a runtime without a kernel: pods have no cgroups."""

    async def ensure(self, pod: Pod) -> None:
        """Nothing to make."""

    async def remove(self, uid: str) -> None:
        """Nothing to remove."""

    async def tend_classes(self) -> None:
        """No class has one."""

    async def list_pod_uids(self) -> Iterable[str]:
        """None has one."""
        return ()
