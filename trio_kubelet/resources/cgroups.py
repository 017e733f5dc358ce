"""The cgroups of pods: that of all pods, those of the QoS classes, one for each pod.

The QoS cgroups share out the CPU between the classes, so their weight follows the pods that run.
A pod's cgroup is made before its sandbox and removed after its last container; the runtime makes
those of the containers inside it. The disk is touched in threads of a limiter of its own, one
thread an operation: a write takes microseconds, but some make the kernel reclaim or wait.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar

import structlog
import trio
from attrs import define, evolve, field

from state_machines.backoff import BackoffPolicy
from trio_kubelet.config import KubeletConfiguration
from trio_kubelet.foreign_text import is_path_part
from trio_kubelet.k8s import Pod, PodQOSClass
from trio_kubelet.kernel.system_bus import BusError
from trio_kubelet.resources.cgroup_config import (
    NO_QUOTA,
    CgroupConfig,
    pod_cgroup_config,
    protection_alone,
    qos_cgroup_configs,
    with_protection,
)
from trio_kubelet.resources.cgroup_limits import CgroupLimits, read_limits_v1, read_limits_v2
from trio_kubelet.resources.cgroup_names import (
    POD_PREFIX,
    CgroupDriver,
    CgroupName,
    kubepods_name,
    pod_cgroup_name,
    pod_uid_of,
    qos_cgroup_name,
)
from trio_kubelet.resources.cgroup_tree import CgroupTree
from trio_kubelet.resources.qos_memory import MemoryReserve, protects_memory
from trio_kubelet.resources.systemd_slices import SystemdSlices
from trio_kubelet.tasks.callbacks import Callbacks
from trio_kubelet.tasks.retries import Retries
from trio_kubelet.tasks.threads import run_in_thread

log = structlog.get_logger("cgroups")

T = TypeVar("T")

_MOST_NAMED = 3

_REMOVE_SECONDS = 10.0
_RETRY = BackoffPolicy(initial_seconds=0.005, cap_seconds=0.5)
_MAX_THREADS = 4


class CgroupBusy(Exception):  # noqa: N818 - the state that the cgroup is in
    """The kernel does not let go of a cgroup: something in it cannot be killed."""


class MissingCgroup(Exception):  # noqa: N818 - what the cgroup is
    """A cgroup that others are to make is not there; the message names the missing folders."""


@define(eq=False)
class Cgroups:
    """Makes, changes and removes the cgroups of pods. Without `cgroupsPerQOS` there are none.

    `driver` is the one that the runtime uses, whatever `cgroupDriver` says; `hugepage_sizes` are
    those of the node, in bytes. `reserve` is what lower classes may not use (`qosReserved`).
    `is_without_quota(pod)`: it may use all the time of the CPUs that its containers have alone.

    Methods raise OSError, or BusError with the driver `systemd`. `on_operation` is called with
    `create`, `update` or `destroy`, and the seconds that it took, whatever became of it.
    """

    _tree: CgroupTree
    _configuration: KubeletConfiguration
    _driver: CgroupDriver = field(kw_only=True)
    _hugepage_sizes: tuple[int, ...] = field(default=(), kw_only=True)
    _is_without_quota: Callable[[Pod], bool] = field(default=lambda _pod: False, kw_only=True)
    _reserve: MemoryReserve | None = field(default=None, kw_only=True)
    _systemd: SystemdSlices = field(kw_only=True, alias="slices")
    _limiter: trio.CapacityLimiter = field(
        init=False, factory=lambda: trio.CapacityLimiter(_MAX_THREADS)
    )
    _unfinished: set[CgroupName] = field(init=False, factory=set)
    _ensured: set[CgroupName] = field(init=False, factory=set)
    _wanted: dict[PodQOSClass, CgroupConfig] = field(init=False, factory=dict)
    _written: dict[PodQOSClass, CgroupConfig] = field(init=False, factory=dict)
    _writing: trio.Lock = field(init=False, factory=trio.Lock)
    on_operation: Callbacks[[str, float]] = field(init=False, factory=Callbacks)

    @_systemd.default
    def _systemd_of_this_machine(self) -> SystemdSlices:
        return SystemdSlices(self._tree.version)

    @property
    def _slices(self) -> SystemdSlices | None:
        """The owner of the cgroups of pods; None where they are only folders."""
        return self._systemd if self._driver is CgroupDriver.SYSTEMD else None

    async def start(self, node: CgroupConfig | None = None) -> None:
        """Make the cgroups above the pods, before the first pod.

        `node` are the limits of all pods together (enforceNodeAllocatable: pods); None if they
        have none. The burstable pods go on to weigh what they did until they are known.
        """
        if not self._configuration.cgroups_per_qos:
            return
        await self._create(kubepods_name(self._configuration.cgroup_root), node or CgroupConfig())
        self._written.clear()
        for qos, config in self._qos_configs(()).items():
            name = qos_cgroup_name(qos, self._configuration.cgroup_root)
            if await self._in_thread(partial(self._tree.exists, self._path(name))):
                config = self._before_pods_are_known(qos, config)
            if config != CgroupConfig():
                await self._create(name, config)

    def _before_pods_are_known(self, qos: PodQOSClass, config: CgroupConfig) -> CgroupConfig:
        """The values of a class that may have pods, without those that follow from its pods."""
        protection = None if protects_memory(self._configuration) else 0
        return evolve(
            config,
            cpu_shares=None if qos is PodQOSClass.BURSTABLE else config.cpu_shares,
            memory_limit_bytes=None,
            memory_min_bytes=protection,
            memory_low_bytes=protection,
        )

    async def limit_pods(self, node: CgroupConfig) -> None:
        """Write the limits of all pods together; their cgroup is there already."""
        await self._create(kubepods_name(self._configuration.cgroup_root), node)

    async def limit_existing(self, configured: str, config: CgroupConfig) -> None:
        """Write the values of a cgroup that is no pod's and that others have made.

        `configured` is its name in the configuration. Raises MissingCgroup, too.
        """
        name = CgroupName.configured(configured, self._driver)
        path = self._path(name)
        if missing := await self._in_thread(partial(self._tree.missing_for, path, config)):
            folders = ", ".join(map(str, missing))
            raise MissingCgroup(f'cgroup "{configured}" has some missing paths: {folders}')
        with self._timed("update"):
            if self._slices is not None:
                await self._slices.set_values(name, config)
            await self._in_thread(partial(self._tree.write, path, config))

    def classes_depend_on(self, qos: PodQOSClass) -> bool:
        """True if what pods of this class ask for changes values of the classes' cgroups."""
        if qos is PodQOSClass.GUARANTEED:
            return self._reserve is not None or protects_memory(self._configuration)
        return qos is PodQOSClass.BURSTABLE

    async def update_qos(self, pods: Iterable[Pod]) -> None:
        """Let the QoS cgroups have what these active pods ask for; cheap if nothing changed.

        Pods come and go side by side: of several calls the one that began last has its way. A
        class that uses more memory than it is left may use no more than that, until it uses less.
        """
        if not self._configuration.cgroups_per_qos:
            return
        self._wanted = self._qos_configs(pods)
        async with self._writing:
            for qos, config in self._wanted.items():
                if self._written.get(qos, CgroupConfig()) == config:
                    continue
                name = qos_cgroup_name(qos, self._configuration.cgroup_root)
                try:
                    await self._update(name, config)
                except (OSError, BusError):
                    usage = await self._usage_above_limit(name, config)
                    if usage is None:
                        raise
                    await self._update(name, evolve(config, memory_limit_bytes=usage))
                else:
                    self._written[qos] = config

    async def _usage_above_limit(self, name: CgroupName, config: CgroupConfig) -> int | None:
        """The memory, in bytes, that a cgroup uses beyond its limit to be; None if it does not."""
        if config.memory_limit_bytes is None:
            return None
        usage = await self._in_thread(partial(self._tree.memory_usage_bytes, self._path(name)))
        return usage if usage > config.memory_limit_bytes else None

    async def ensure(self, pod: Pod) -> None:
        """Make the pod's cgroup with its values, if it is not there in every hierarchy.

        One that holds containers keeps its values: they may have been resized since. One without,
        found by an agent that has just been started, may be there with only some of them, if the
        earlier one was killed while it made it; so may one whose making failed. None that is found
        keeps a protection of its memory that the configuration asks for no more.
        """
        if not self._configuration.cgroups_per_qos:
            return
        name = pod_cgroup_name(pod, self._configuration.cgroup_root)
        path = self._path(name)
        exists = await self._in_thread(partial(self._tree.exists, path))
        is_complete = exists and name not in self._unfinished
        if is_complete and name not in self._ensured:
            # A sandbox is made after the values are written.
            is_complete = bool(await self._in_thread(partial(self._tree.children, path)))
        config = self.config(pod)
        if not is_complete:
            self._unfinished.add(name)
            await self._create(name, with_protection(config) if exists else config)
            self._unfinished.discard(name)
        elif name not in self._ensured and self._tree.version != 1:
            await self._update(name, protection_alone(config))
        self._ensured.add(name)

    def config(self, pod: Pod) -> CgroupConfig:
        """Return the values that the pod's cgroup is to have."""
        config = pod_cgroup_config(pod, self._configuration, self._hugepage_sizes)
        if config.cpu_quota_us is not None and self._is_without_quota(pod):
            return evolve(config, cpu_quota_us=NO_QUOTA)
        return config

    async def limits(self, pod: Pod) -> CgroupLimits | None:
        """Read the limits of the pod's cgroup as they are now; None where pods have none."""
        if not self._configuration.cgroups_per_qos:
            return None
        path = self._path(pod_cgroup_name(pod, self._configuration.cgroup_root))
        read_limits = read_limits_v1 if self._tree.version == 1 else read_limits_v2
        return await self._in_thread(partial(read_limits, partial(self._tree.read, path)))

    async def update(self, pod: Pod, config: CgroupConfig) -> None:
        """Change values of the pod's cgroup; what is None is left alone."""
        await self._update(pod_cgroup_name(pod, self._configuration.cgroup_root), config)

    async def remove(self, pod_uid: str, deadline_seconds: float = _REMOVE_SECONDS) -> None:
        """Remove the pod's cgroups; what still runs in them is killed.

        None is fine. Raises CgroupBusy when the kernel still holds one after the deadline.
        Cancelled, it may be called again.
        """
        for name in await self._in_thread(partial(self._names_of, pod_uid)):
            with self._timed("destroy"):
                if self._slices is not None:
                    # systemd would ask it to end first, and wait.
                    await self._in_thread(partial(self._tree.kill, self._path(name)))
                    await self._slices.stop(name)
                await self._remove(name, deadline_seconds)
            self._unfinished.discard(name)
            self._ensured.discard(name)

    async def list_pod_uids(self) -> frozenset[str]:
        """Return the UIDs of all pods that have a cgroup, for housekeeping to compare."""

        def uids() -> frozenset[str]:
            return frozenset(uid for uid, _ in self._cgroups_of(self._driver))

        return await self._in_thread(uids)

    async def driver_change_problem(self) -> str:
        """Return why pods that run forbid this cgroup driver, and what to do; "" if none does."""
        driver = self._driver

        def running_elsewhere() -> list[str]:
            cgroups = self._cgroups_of(driver.other)
            return [uid for uid, path in cgroups if self._tree.is_populated(path)]

        return driver_change_problem(driver, await self._in_thread(running_elsewhere))

    async def remove_cgroups_of_other_driver(self) -> None:
        """Remove what the other driver has left of the cgroups of pods, if nothing runs in them.

        Who reads what a pod uses, or who was killed there, does not know by which driver it runs.
        """
        if not self._configuration.cgroups_per_qos:
            return
        name, other = kubepods_name(self._configuration.cgroup_root), self._driver.other
        path = name.path(other)

        def is_left_over() -> bool:
            return self._tree.exists_anywhere(path) and not self._tree.is_populated(path)

        if not await self._in_thread(is_left_over):
            return
        if other is CgroupDriver.SYSTEMD:
            # Without systemd there are only the folders.
            with suppress(BusError):
                await self._systemd.stop(name)
        try:
            gone = await self._in_thread(partial(self._tree.remove_empty, path))
        except OSError as error:
            gone, why = False, str(error)
        else:
            why = "they are in use"
        if gone:
            log.info("cgroups of other driver removed", path=path)
        else:
            log.warning("cgroups of other driver not removed", path=path, error=why)

    def _names_of(self, pod_uid: str) -> tuple[CgroupName, ...]:
        """The pod's cgroups, in whatever QoS classes. Blocks."""
        if not self._configuration.cgroups_per_qos or not is_path_part(pod_uid):
            return ()
        root = self._configuration.cgroup_root
        names = (qos_cgroup_name(qos, root).child(f"{POD_PREFIX}{pod_uid}") for qos in PodQOSClass)
        return tuple(each for each in names if self._tree.exists_anywhere(self._path(each)))

    def _cgroups_of(self, driver: CgroupDriver) -> Iterator[tuple[str, str]]:
        """Yield the UID and the path of each cgroup of a pod under a driver. Blocks."""
        if not self._configuration.cgroups_per_qos:
            return
        for qos in PodQOSClass:
            parent = qos_cgroup_name(qos, self._configuration.cgroup_root).path(driver)
            for child in self._tree.children(parent):
                if uid := pod_uid_of(child, driver):
                    yield uid, f"{parent}/{child}"

    async def _create(self, name: CgroupName, config: CgroupConfig) -> None:
        with self._timed("create"):
            if self._slices is not None:
                await self._slices.start(name, config)
            await self._in_thread(partial(self._tree.create, self._path(name), config))

    async def _update(self, name: CgroupName, config: CgroupConfig) -> None:
        with self._timed("update"):
            if self._slices is not None:
                await self._slices.set_values(name, config)
            await self._in_thread(partial(self._tree.create, self._path(name), config))

    @contextmanager
    def _timed(self, operation: str) -> Iterator[None]:
        began_at = trio.current_time()
        try:
            yield
        finally:
            self.on_operation.call(operation, trio.current_time() - began_at)

    async def _remove(self, name: CgroupName, deadline_seconds: float) -> None:
        deadline = trio.current_time() + deadline_seconds
        retries = Retries(_RETRY)
        while not await self._is_removed(self._path(name)):
            if trio.current_time() >= deadline:
                raise CgroupBusy(f"cgroup {self._path(name)} cannot be removed: it is still in use")
            await retries.wait()

    async def _is_removed(self, path: str) -> bool:
        """Try to remove a cgroup; between two pieces others have their turn of the threads."""
        removal = self._tree.removal(path)
        gone: bool | None = None
        while gone is None:
            gone = await self._in_thread(partial(next, removal))
        return gone

    def _qos_configs(self, pods: Iterable[Pod]) -> dict[PodQOSClass, CgroupConfig]:
        return dict(
            qos_cgroup_configs(pods, self._configuration, self._hugepage_sizes, self._reserve)
        )

    def _path(self, name: CgroupName) -> str:
        return name.path(self._driver)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await run_in_thread(work, limiter=self._limiter)


def driver_change_problem(driver: CgroupDriver, running_elsewhere: Iterable[str]) -> str:
    """Return why an agent with this driver must not start, and what to do; "" if it may.

    The driver is part of the path of every pod's cgroup: an agent with another one than pods were
    started with would neither limit nor remove them. `running_elsewhere` are the UIDs of pods that
    run in cgroups of the other driver; those in which nothing runs are removed.
    """
    uids = sorted(running_elsewhere)
    if not uids:
        return ""
    other = driver.other
    named = ", ".join(uids[:_MOST_NAMED])
    more = f" and {len(uids) - _MOST_NAMED} more" if len(uids) > _MOST_NAMED else ""
    return (
        f"the cgroup driver is {driver}, but pods run in cgroups of the driver {other} ({named}"
        f"{more}); set cgroupDriver (--cgroup-driver) and the container runtime's driver back to "
        f"{other}, or drain the node and remove its static pods before the driver is changed"
    )
