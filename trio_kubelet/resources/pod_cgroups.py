"""Cgroups of pods as their tasks want them, with the values of the QoS classes."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import structlog
import trio
from attrs import frozen

from trio_kubelet.errors import PreparationError
from trio_kubelet.k8s import Pod
from trio_kubelet.kernel.system_bus import BusError
from trio_kubelet.resources.cgroup_config import CgroupConfig, part_of
from trio_kubelet.resources.cgroup_limits import lowered_memory_limit, raised_limits
from trio_kubelet.resources.cgroups import CgroupBusy, Cgroups
from trio_kubelet.resources.pod_resources import qos_class

log = structlog.get_logger("cgroups")

TEND_SECONDS = 60.0


@frozen(kw_only=True)
class MemoryLimitDecrease:
    """A memory limit that is to be lowered, and the memory that is used now."""

    limit_bytes: int
    usage_bytes: int


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
            counts = self._cgroups.classes_depend_on(qos_class(pod))
            if counts and pod.metadata.uid not in self._counted:
                await self._cgroups.update_qos(self._active())
                self._counted.add(pod.metadata.uid)
        except (OSError, BusError) as error:
            message = f"unable to ensure pod container exists: {error}"
            raise PreparationError("FailedCreatePodContainer", message) from error

    async def remove(self, uid: str) -> None:
        """Remove the pod's cgroup with all that is left in it. Raises PreparationError."""
        try:
            await self._cgroups.remove(uid)
            if uid in self._counted:
                await self._cgroups.update_qos(self._active())
                self._counted.discard(uid)
        except (OSError, BusError, CgroupBusy) as error:
            raise PreparationError("FailedKillPod", str(error)) from error

    async def tend_classes(self) -> None:
        """Write once a minute what the classes' cgroups lack, until cancelled."""
        while True:
            await trio.sleep(TEND_SECONDS)
            try:
                await self._cgroups.update_qos(self._active())
            except Exception as error:
                log.warning("update of QoS cgroups failed", error=str(error))

    async def memory_limit_decrease(self, pod: Pod) -> MemoryLimitDecrease | None:
        """The memory limit of the pod's cgroup, if a resize lowers it. Raises PreparationError."""
        with _resize_errors():
            present = await self._cgroups.limits(pod)
        if present is None:
            return None
        limit = lowered_memory_limit(self._cgroups.config(pod), present)
        if limit is None:
            return None
        return MemoryLimitDecrease(limit_bytes=limit, usage_bytes=present.memory_usage_bytes)

    async def grow(self, pod: Pod, resource: str) -> None:
        """Raise the pod's limits of one resource to what it is allocated; lower none.

        Raises PreparationError.
        """
        with _resize_errors():
            present = await self._cgroups.limits(pod)
            if present is None:
                return
            raised = raised_limits(part_of(self._cgroups.config(pod), resource), present)
            if raised != CgroupConfig():
                await self._cgroups.update(pod, raised)

    async def finish_resize(self, pod: Pod, resource: str) -> None:
        """Set one resource of the pod's cgroup to what it is allocated, and the QoS classes.

        Its containers have their new limits already. Raises PreparationError.
        """
        with _resize_errors():
            if await self._cgroups.limits(pod) is None:
                return
            await self._cgroups.update(pod, part_of(self._cgroups.config(pod), resource))
            await self._cgroups.update_qos(self._active())

    async def list_pod_uids(self) -> Iterable[str]:
        """The UIDs of all pods that have a cgroup."""
        return await self._cgroups.list_pod_uids()


class NoCgroups:
    """The cgroups of pods on a runtime without a kernel: there are none."""

    async def ensure(self, pod: Pod) -> None:
        """Nothing to make."""

    async def memory_limit_decrease(self, pod: Pod) -> None:
        """Nothing to lower."""

    async def grow(self, pod: Pod, resource: str) -> None:
        """Nothing to raise."""

    async def finish_resize(self, pod: Pod, resource: str) -> None:
        """Nothing to set."""

    async def remove(self, uid: str) -> None:
        """Nothing to remove."""

    async def tend_classes(self) -> None:
        """No class has one."""

    async def list_pod_uids(self) -> Iterable[str]:
        """None has one."""
        return ()


@contextmanager
def _resize_errors() -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, BusError) as error:
        message = f"failed to resize the cgroup of the pod: {error}"
        raise PreparationError("ResizeError", message) from error
